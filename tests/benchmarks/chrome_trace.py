"""Writes Chrome traces as torch.profiler does: modules, functions, operators, launches, kernels."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LAYERS, PARTS = 32, 6
_PID = 4242
_INPUTS = {"Input Dims": [[8, 1024, 2048], [2048, 8192], []], "Input type": ["c10::BFloat16", "c10::BFloat16", ""]}
_DEVICE = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85045149696, "computeMajor": 9, "numSms": 132}
_HEAD = {
    "schemaVersion": 1,
    "deviceProperties": [_DEVICE],
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
    "baseTimeNanoseconds": 1750000000000000000,
    "displayTimeUnit": "ms",
    "traceEvents": [],
}
_END = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 0.0}
_KERNEL = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_64x4_tn_align8>(Params)"
_SIZES = {"queued": 0, "device": 0, "context": 1, "stream": 7, "registers per thread": 168, "shared memory": 49152}
_SIZES |= {"blocks per SM": 1.939394, "warps per SM": 7.757576, "grid": [256, 1, 1], "block": [128, 1, 1]}
_SIZES |= {"est. achieved occupancy %": 12, "graph id": 0, "graph node id": 0}

Event = dict[str, Any]


class _Trace:
    """The events of one step after another; times in nanoseconds. Each part has a stack of so many functions."""

    def __init__(self, stack: int) -> None:
        self.now = self.events = self.kernels = 0
        self.stack = stack

    def step(self, number: int) -> Iterator[Event]:
        begin = self.now
        for layer in range(LAYERS):
            start = self.now
            for part in range(PARTS):
                yield from self._part(layer * PARTS + part)
            yield self._function(f"nn.Module: DecoderLayer_{layer}", start, self.now - start)
        yield self._host("user_annotation", f"ProfilerStep#{number}", begin, self.now - begin)
        yield self._function("nn.Module: Model_0", begin, self.now - begin)

    def _part(self, part: int) -> Iterator[Event]:
        start = self.now
        self.now += 40_000
        self.kernels += 1
        for level in range(self.stack):
            file = f"torch/nn/modules/layer{level}.py" if level % 2 else f"/work/model{level}.py"
            yield self._function(f"{file}({level + part % 7}): call", start + 20 * level, 39_800 - 40 * level)
        yield self._function(f"nn.Module: Linear_{part}", start + 300, 39_000)
        yield self._function("torch/nn/modules/module.py(1772): _call_impl", start + 500, 38_000)
        yield self._function("torch/nn/modules/linear.py(124): forward", start + 1_000, 37_000)
        for name, at in (("aten::linear", 1_500), ("aten::matmul", 2_500), ("aten::mm", 3_500)):
            yield self._host("cpu_op", name, start + at, 36_000 - 2 * at, **{"External id": self.events}, **_INPUTS)
        launch, begin, number = start + 8_000, start + 28_000, {"correlation": self.kernels}
        yield self._host("cuda_runtime", "cudaLaunchKernel", launch, 6_000, cbid=211, **number)
        args = {"External id": self.events, **number, **_SIZES}
        yield _event("X", "kernel", _KERNEL, begin, pid=0, tid=7, dur=30.0, args=args)
        yield _event("s", "ac2g", "ac2g", launch, id=self.kernels)
        yield _event("f", "ac2g", "ac2g", begin, id=self.kernels, pid=0, tid=7)

    def _function(self, name: str, start: int, dur: int) -> Event:
        ids = {"Python parent id": self.events, "Python id": self.events + 1}
        return self._host("python_function", name, start, dur, **ids)

    def _host(self, cat: str, name: str, start: int, dur: int, **args: object) -> Event:
        self.events += 1
        return _event("X", cat, name, start, dur=dur / 1000, args=args | {"Ev Idx": self.events})


def _event(ph: str, cat: str, name: str, start: int, **more: object) -> Event:
    return {"ph": ph, "cat": cat, "name": name, "pid": _PID, "tid": _PID, "ts": start / 1000} | more


def write_trace(path: Path, *, megabytes: float, stack: int = 0) -> int:
    """Returns how many events it has."""
    trace, step, separators = _Trace(stack), 0, (",\n    ", ": ")
    head, tail = json.dumps(_HEAD, separators=separators).split("]}")[0], json.dumps(_END, separators=separators)
    with path.open("w") as file:
        size = file.write(head)
        while size < megabytes * 1e6:
            texts = (f"{json.dumps(event, separators=separators)},\n" for event in trace.step(step))
            size += file.write("".join(texts))
            step += 1
        file.write(f"{tail}]}}")
    return trace.events
