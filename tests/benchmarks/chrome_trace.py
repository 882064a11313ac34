"""Writes Chrome traces as torch.profiler does: modules, functions, operators, launches, kernels."""

from pathlib import Path

LAYERS, PARTS = 32, 6
_PID = 4242
_INPUTS = '"Input Dims": [[8, 1024, 2048], [2048, 8192], []], "Input type": ["c10::BFloat16", "c10::BFloat16", ""]'
_HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85045149696,
      "computeMajor": 9, "computeMinor": 0, "numSms": 132
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
  "baseTimeNanoseconds": 1750000000000000000,
  "displayTimeUnit": "ms",
  "traceEvents": [
"""
_TAIL = """
  {
    "ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 0.000
  }
  ],
  "traceName": "trace.json"
}
"""


class _Trace:
    """The events of one step after another; times in nanoseconds."""

    def __init__(self) -> None:
        self.now = self.events = self.kernels = 0

    def step(self, number: int) -> list[str]:
        begin, rows = self.now, []
        for layer in range(LAYERS):
            start = self.now
            inside = [row for part in range(PARTS) for row in self._part(layer * PARTS + part)]
            rows += [self._function(f"nn.Module: DecoderLayer_{layer}", start, self.now - start), *inside]
        rows.append(self._host("user_annotation", f"ProfilerStep#{number}", begin, self.now - begin, ""))
        rows.append(self._function("nn.Module: Model_0", begin, self.now - begin))
        return rows

    def _part(self, part: int) -> list[str]:
        start = self.now
        self.now += 40_000
        self.kernels += 1
        rows = [
            self._function(f"nn.Module: Linear_{part}", start, 39_000),
            self._function("torch/nn/modules/module.py(1772): _call_impl", start + 500, 38_000),
            self._function("torch/nn/modules/linear.py(124): forward", start + 1_000, 37_000),
        ]
        rows += [
            self._host("cpu_op", name, start + at, 36_000 - 2 * at, f'"External id": {self.events}, {_INPUTS}, ')
            for name, at in (("aten::linear", 1_500), ("aten::matmul", 2_500), ("aten::mm", 3_500))
        ]
        return [*rows, *self._kernel(start + 8_000)]

    def _kernel(self, start: int) -> list[str]:
        number = f'"correlation": {self.kernels}'
        kernel = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_64x4_tn_align8>(Params)"
        args = (
            f'"External id": {self.events}, "queued": 0, "device": 0, "context": 1, "stream": 7, {number},\n'
            '      "registers per thread": 168, "shared memory": 49152, "blocks per SM": 1.939394,\n'
            '      "warps per SM": 7.757576, "grid": [256, 1, 1], "block": [128, 1, 1], '
            '"est. achieved occupancy %": 12,\n      "graph id": 0, "graph node id": 0'
        )
        return [
            self._host("cuda_runtime", "cudaLaunchKernel", start, 6_000, f'"cbid": 211, {number}, '),
            self._event("kernel", kernel, start + 20_000, 30_000, "0", "7", args),
            *(
                f'  {{\n    "ph": "{ph}", "id": {self.kernels}, "pid": {pid}, "tid": {tid}, "ts": {_us(at)},\n'
                '    "cat": "ac2g", "name": "ac2g"\n  },\n'
                for ph, pid, tid, at in (("s", _PID, _PID, start), ("f", 0, 7, start + 20_000))
            ),
        ]

    def _function(self, name: str, start: int, dur: int) -> str:
        args = f'"Python parent id": {self.events}, "Python id": {self.events + 1}, '
        return self._host("python_function", name, start, dur, args)

    def _host(self, cat: str, name: str, start: int, dur: int, args: str) -> str:
        self.events += 1
        return self._event(cat, name, start, dur, str(_PID), str(_PID), f'{args}"Ev Idx": {self.events}')

    @staticmethod
    def _event(cat: str, name: str, start: int, dur: int, pid: str, tid: str, args: str) -> str:
        return (
            f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
            f'    "ts": {_us(start)}, "dur": {_us(dur)},\n    "args": {{\n      {args}\n    }}\n  }},\n'
        )


def write_trace(path: Path, *, megabytes: float) -> int:
    trace, step = _Trace(), 0
    with path.open("w") as file:
        size = file.write(_HEAD)
        while size < megabytes * 1e6:
            size += file.write("".join(trace.step(step)))
            step += 1
        file.write(_TAIL)
    return trace.events


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
