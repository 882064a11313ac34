"""How fast ``tracekit parse`` is where all kernels are those of compiled graphs, beside markers in place of the runs.

``python -m tests.benchmarks.compiled_speed [--kernels 1000000] [--runs 3] [--varying]``. Both reports have the same
ranges and kernels; in one the ranges around runs name kernel maps, in the other they are calls of modules. They are
parsed in turn, each in a process of its own. With ``--varying`` library functions launch a kernel of many names, so
that runs of one graph are seldom alike.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc

import tracekit
from tests.benchmarks.parse_speed import parse_figures
from tests.benchmarks.serving_report import LAYERS, Program, write_program
from tracekit.markers.base import MappedKernel
from tracekit.markers.kernel_map_text import compiled_graph, kernel_map

if TYPE_CHECKING:
    from tests.benchmarks.parse_speed import Figures

#: What parsing may take of the time for markers.
LIMIT = 1.3
_ROOT = "LlamaForCausalLM.model.layers.0"
#: A layer's kernels, whom they serve, and how many launches each makes.
_KERNELS = (
    (MappedKernel("triton_red_fused_norm_0", True, (("input_layernorm", 3), ("", 1))), 1),
    (MappedKernel("extern_kernels.mm", False, (("self_attn.qkv_proj", 1),)), 1),
    (MappedKernel("triton_poi_fused_rope_1", True, (("self_attn", 1), ("self_attn.rotary", 2))), 1),
    (MappedKernel("torch.ops.aten._scaled_dot_product_flash_attention.default", False, (("self_attn.attn", 1),)), 1),
    (MappedKernel("extern_kernels.mm", False, (("self_attn.o_proj", 1),)), 1),
    (MappedKernel("triton_red_fused_add_norm_2", True, (("post_attention_layernorm", 2), ("", 1))), 1),
    (MappedKernel("extern_kernels.mm", False, (("mlp.gate_up_proj", 1),)), 2),
    (MappedKernel("triton_poi_fused_silu_mul_3", True, (("mlp.act_fn", 1), ("mlp", 1))), 1),
    (MappedKernel("extern_kernels.mm", False, (("mlp.down_proj", 1),)), 2),
)
LAUNCHES = sum(number for _, number in _KERNELS)


class CompiledProgram(Program):
    """A model whose layers run one compiled graph each, of which all are equal."""

    def __init__(self, *, maps: bool, varying: bool) -> None:
        super().__init__()
        self.maps, self.varying = maps, varying
        self._map_id, self._texts = kernel_map(_ROOT, [kernel for kernel, _ in _KERNELS])
        self._told = 0

    def layer(self, root: str, layer: int, batch: int) -> None:
        here = f"{root}.model.layers.{layer}"
        if self.clock >= self._told:
            self._told = self.clock + 1_000_000_000
            for text in self._texts if self.maps else ["told"]:
                self.range(text, self.clock, self.clock)
        self.clock += 200
        start = self.clock
        self.clock += 400
        for kernel, number in _KERNELS:
            self.launch(number, kernel.name if kernel.generated else self._name(layer))
        self.clock += 400
        text = compiled_graph(self._map_id, "inference", here if layer else None)
        self.range(text if self.maps else f"{{'Module': '{here}.graph', 'Inputs': [[{batch}]]}}", start, self.clock)

    def _name(self, layer: int) -> str:
        return f"gemm_{self.clock // 1000 % 97}" if self.varying else f"gemm_{layer % 3}"


def measured(kernels: int, runs: int, folder: Path, *, varying: bool) -> tuple[list[Figures], list[Figures]]:
    """What parsing takes of a report with markers, and of one with kernel maps, in turn."""
    steps = [("decode", 8)] * max(1, kernels // (LAYERS * LAUNCHES + 1))
    reports = [
        write_program(folder / f"{maps}.sqlite", CompiledProgram(maps=maps, varying=varying), steps)
        for maps in (False, True)
    ]
    figures = [[parse_figures([report], folder / f"{report.stem}.tracekit") for report in reports] for _ in range(runs)]
    modules = tracekit.load(folder / "True.tracekit").table("kernels", ["module_id"]).column("module_id")
    if pc.sum(modules.is_null()).as_py():
        raise SystemExit("some kernels have no module")
    markers, maps = zip(*figures, strict=True)
    return list(markers), list(maps)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--varying", action="store_true", help="runs of one graph are seldom alike")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(args.kernels, args.runs, Path(folder), varying=args.varying)
    for name, figures in zip(("markers", "kernel maps"), found, strict=True):
        wall, cpu, megabytes = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"{name:12} {wall:6.2f} s, {cpu:6.2f} s of all cores, peak {megabytes:5.0f} MB")
    ratio = statistics.median(one.cpu / other.cpu for one, other in zip(found[1], found[0], strict=True))
    print(f"kernel maps / markers {ratio:.2f} of CPU time (at most {LIMIT})")


if __name__ == "__main__":
    main()
