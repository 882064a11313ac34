"""Runs of a language model as reports: marked ones, and bare ones of which it is known what each kernel belongs to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path
from typing import NamedTuple

import tracekit
from tests.sqlite import writing
from tests.trace_lines import report
from tracekit.dataset.opening import Dataset

#: Names of one operation on two GPUs.
GEMM = {
    "ampere": "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn",
    "hopper": "nvjet_hsh_128x64_64x8_1x2_h_bz_TNT",
}
FLASH = {
    "ampere": "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)",
    "hopper": "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0",
}
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<{}, at::native::{}, std::array<char*, 2>>(int, T2, T3)"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, T2, T2 const*)"


class Op(NamedTuple):
    """A piece of work: its module (None outside of all), its kernel's name, or that of a copy, and its size."""

    module: str | None
    name: str
    grid: tuple[int, int] = (1, 1)
    stream: int = 7


@dataclass(frozen=True)
class Step:
    """What a step runs; ``graph`` is the number of the CUDA graph that does, or -1."""

    ops: Sequence[Op]
    text: str | None = None
    graph: int = -1


def model(
    *, layers: int = 4, tokens: int = 512, hidden: int = 1024, gpu: str = "ampere", prefix: str = "top", width: int = 8
) -> list[Op]:
    """A forward pass of a decoder."""

    def gemm(module: str, columns: int) -> Op:
        return Op(f"{prefix}.{module}", GEMM[gpu], (-(-columns // 128), -(-tokens // 64)))

    def each(module: str, functor: str, columns: int) -> Op:
        blocks = -(-tokens * columns // 512)
        return Op(f"{prefix}.{module}".rstrip("."), ELEMENTWISE.format(width // 2, functor), (blocks, 1))

    def norm(module: str) -> Op:
        return Op(f"{prefix}.{module}", NORM, (tokens, 1))

    ops = [Op(f"{prefix}.embed", "void at::native::vectorized_gather_kernel<16, long>(char*, long)", (tokens, 1))]
    for at in (f"layers.{layer}" for layer in range(layers)):
        ops += [
            norm(f"{at}.n1"),
            gemm(f"{at}.attn.qkv", 3 * hidden),
            each(f"{at}.attn", "rope", hidden),
            each(f"{at}.attn", "rope", hidden),
            Op(f"{prefix}.{at}.attn", FLASH[gpu], (-(-tokens // 128), hidden // 64)),
            gemm(f"{at}.attn.out", hidden),
            each(at, "CUDAFunctor_add", hidden),
            norm(f"{at}.n2"),
            gemm(f"{at}.mlp.up", 4 * hidden),
            each(f"{at}.mlp.act", "gelu", 4 * hidden),
            gemm(f"{at}.mlp.down", hidden),
            each(at, "CUDAFunctor_add", hidden),
        ]
    return [*ops, norm("norm"), gemm("head", 32_000)]


def sampled(ops: Iterable[Op]) -> list[Op]:
    """A step of serving around a forward pass: copies and a sampler without a module."""
    sampler = Op(None, "void at::native::reduce_kernel<512, 1, ArgMaxOps>(R)", (8, 1))
    return [Op(None, "memcpy 4096"), *ops, sampler, Op(None, "memcpy 64")]


class Run:
    """Steps as a report, and for each kernel, in the order of their ids, the module that it is of."""

    def __init__(
        self, steps: Sequence[Step], *, marked: bool, cut: int = 0, late: int = 0, launches: bool = True
    ) -> None:
        """``late`` and ``cut`` are how much is missing at the beginning and at the end of the recording."""
        self._marked, self._now, self._id, self._launches = marked, count(1_000, 1_000), count(1), launches
        self._lines: list[str] = []
        self._grids: list[tuple[int, int, int]] = []
        self.truth: list[str | None] = []
        for step in steps:
            self._step(step)
        self._late, self._cut = late, cut

    def written(self, path: Path) -> Path:
        """Writes the report."""
        lines = [line for line in self._lines if self._launches or not line.startswith("launch")]
        if self._late or self._cut:
            kept = slice(self._late, len(self.truth) - self._cut)
            work = [line for line in lines if line.startswith(("kernel", "memcpy"))]
            dropped = {*work} - {*work[kept]}
            lines, self.truth = [line for line in lines if line not in dropped], self.truth[kept]
        report(path, "\n".join(lines))
        with writing(path) as db:
            db.executemany("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = ?, gridY = ? WHERE start = ?", self._grids)
        return path

    def _step(self, step: Step) -> None:
        begun, at = next(self._now), len(self._lines)
        for in_graph, ops in groupby(step.ops, lambda op: op.module is not None and step.graph >= 0):
            if in_graph:
                self._replay(step.graph, [*ops])
            else:
                self._eager([*ops])
        if step.text and self._marked:
            self._lines.insert(at, f"range 1 {begun} {next(self._now)} {step.text}")

    def _replay(self, graph: int, inside: Sequence[Op]) -> None:
        number, start, end = next(self._id), next(self._now), next(self._now)
        self._lines.append(f"launch 1 {start} {end} #{number} cudaGraphLaunch_v10000")
        for at, op in enumerate(inside):
            self._piece(op, number, f"!{graph * 100_000 + at}")

    def _eager(self, ops: Sequence[Op]) -> None:
        open_calls: list[tuple[str, int, int]] = []
        for op in [*ops, Op(None, "")]:
            path = op.module or ""
            while open_calls and not f"{path}.".startswith(f"{open_calls[-1][0]}."):
                module, begun, at = open_calls.pop()
                if self._marked:
                    self._lines.insert(at, f"range 1 {begun} {next(self._now)} {{'Module': '{module}'}}")
            parts = path.split(".") if path else []
            for number in range(1, len(parts) + 1):
                module = ".".join(parts[:number])
                deepest = open_calls[-1][0] if open_calls else ""
                inside = len(module) > len(deepest) and not f"{deepest}.".startswith(f"{module}.")
                if inside and parts[number - 1] != "layers":
                    open_calls.append((module, next(self._now), len(self._lines)))
            if op.name:
                self._launch(op)

    def _launch(self, op: Op) -> None:
        number = next(self._id)
        self._lines.append(f"launch 1 {next(self._now)} {next(self._now)} #{number} cudaLaunchKernel")
        self._piece(op, number, "")

    def _piece(self, op: Op, number: int, node: str) -> None:
        start, end = next(self._now), next(self._now)
        kind, _, size = op.name.partition(" ")
        what, rest = ("memcpy", size) if kind == "memcpy" else ("kernel", op.name)
        self._lines.append(f"{what}+{op.stream}{node} 1 {start} {end} #{number} {rest}")
        self._grids.append((*op.grid, start))
        self.truth.append(op.module)


class Score(NamedTuple):
    """How many kernels have a module that is known, how many of them were told, and how many have a wrong one."""

    known: int
    told: int
    wrong: int

    @property
    def share(self) -> float:
        return self.told / max(1, self.known)


def modules_of(dataset: Dataset) -> list[str | None]:
    """The module of each kernel, in the order of their ids."""
    return dataset.table("kernels", ["kernel_id", "module"]).sort_by("kernel_id").column("module").to_pylist()


class Laboratory:
    """A folder in which marked runs become references, and bare ones are aligned with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = count()

    def reference(self, steps: Sequence[Step]) -> Path:
        path = self.folder / f"marked{next(self._number)}.sqlite"
        return Path(str(tracekit.parse(Run(steps, marked=True).written(path)).folder))

    def alike(self, marked: Sequence[Op], production: Sequence[Op]) -> Score:
        """How six bare steps are told by three marked ones."""
        return self.score(Run([Step(production)] * 6, marked=False), self.reference([Step(marked)] * 3))

    def score(self, run: Run, *references: Path) -> Score:
        pairs = [*zip(modules_of(self.dataset(run, *references)), run.truth, strict=True)]
        known = sum(true is not None for _, true in pairs)
        told = sum(true is not None and true == module for module, true in pairs)
        return Score(known, told, sum(module is not None and true != module for module, true in pairs))

    def dataset(self, run: Run, *references: Path) -> Dataset:
        path = run.written(self.folder / f"bare{next(self._number)}.sqlite")
        return tracekit.parse(path, like=references)
