"""What there is to choose for a program of compiled graphs; its graphs, their maps, and what each kernel launches."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import NamedTuple

from tracekit.markers.base import MappedKernel
from tracekit.markers.kernel_maps import kernel_map

#: Names of kernels of libraries, and the operators that call them; one without is a function of the user's.
LIBRARY = (
    ("extern_kernels.mm", "aten::mm"),
    ("extern_kernels.addmm", "aten::addmm"),
    ("extern_kernels.bias_addmm", "aten::addmm"),
    ("extern_kernels.bmm", "aten::bmm"),
    ("torch.ops.vllm.unified_attention.default", "vllm::unified_attention"),
    ("torch.ops.aten._scaled_dot_product_flash_attention.default", "aten::_scaled_dot_product_flash_attention"),
    ("torch.ops.mine.sort_by_key.default", None),
)
#: Those that launch nothing.
REWRITTEN = (
    ("torch.ops._c10d_functional.wait_tensor.default", "_c10d_functional::wait_tensor"),
    ("torch.ops.aten.view.dtype", "aten::view"),
)
_PARTS = ("norm", "up", "act")
_WILD = ("gemm", "split", "other")
_COPIES = ("memset", "memcpy")
#: The least that the parts of a map hold, so that some maps have several.
_PADDING = "x" * 1500


@dataclass(eq=False)
class Kernel:
    """One kernel of a graph."""

    told: MappedKernel  # what the map tells
    launches: list[list[str]]  # what it may launch: each time one of these lists of names
    operator: str | None = None  # the operator around it, if one calls it
    inner: Piece | str | None = None  # the graph that it runs, or the name of the module that it calls, if it does

    @property
    def busy(self) -> bool:
        return ".mine." not in self.told.name and ".vllm." not in self.told.name


class Piece(NamedTuple):
    """A compiled graph."""

    map_id: str  # id of its map
    texts: list[str]  # what tells it
    root: str  # the module that was compiled
    kernels: list[Kernel]
    inner: bool  # whether it only runs inside another


@dataclass
class Shop:
    """Makes graphs."""

    rng: Random  # what all chance comes from
    has: Features  # what the program has
    tag: str  # stands in all names of this program
    # By the name of a kernel of a library what it launches, where these are no names at random.
    habits: dict[str, list[list[str]]] = field(default_factory=dict)

    def piece(self, root: str, *, depth: int = 0) -> Piece:
        kernels = [self._kernel(root, depth) for _ in range(self.rng.randint(0 if depth else 1, 9 if not depth else 3))]
        map_id, texts = kernel_map(root, [kernel.told for kernel in kernels])
        return Piece(map_id, texts, root, kernels, inner=depth > 0)

    def _kernel(self, root: str, depth: int) -> Kernel:
        rng = self.rng
        paths = ["", *(f"part{number}.{name}" for number in range(3) for name in _PARTS)]
        if rng.random() < 0.1 and self.has.lost_parts:
            paths = [f"{path}.{_PADDING}".strip(".") for path in paths[:4]]
        served = tuple((path, rng.randint(1, 3)) for path in rng.sample(paths, rng.randint(1, 3)))
        if self.has.unknown and rng.random() < 0.15:
            served = ()
        if rng.random() < 0.5:
            return self._generated(served)
        silent = self.has.silent and rng.random() < 0.1
        name, operator = rng.choice(REWRITTEN if silent else LIBRARY)
        custom = name.startswith("torch.ops") and not silent
        inner = self._inner(root, served, depth) if served and custom else None
        told = MappedKernel(name, False, served if rng.random() < 0.2 else served[:1])
        kernel = Kernel(told, [[]] if silent else self._launches(name), operator, inner)
        if not silent and not kernel.busy and self.has.silent and rng.random() < 0.2:
            kernel.launches = [*kernel.launches, []]
        return kernel

    def _generated(self, served: tuple[tuple[str, int], ...]) -> Kernel:
        number = self.rng.randrange(3 if self.has.repeated else 1000)
        if self.has.cpu:
            name = f"cpp_fused_{self.tag}_{number}"
            return Kernel(MappedKernel(name, True, served), [[f"graph_{self.rng.randrange(9)}_{name}"]])
        if self.rng.random() < 0.1:
            name = f"my_{self.tag}_kernel"
            return Kernel(MappedKernel(f"{name}_{number}", True, served), [[name]])
        name = f"triton_{self.rng.choice(('poi', 'per', 'red', 'tem'))}_fused_{self.tag}_{number}"
        return Kernel(MappedKernel(name, True, served), [[name]])

    def _inner(self, root: str, served: tuple[tuple[str, int], ...], depth: int) -> Piece | str | None:
        if self.has.unmarked or self.has.class_root:
            return None
        path = ".".join(part for part in (root, served[0][0]) if part)
        if self.has.nested and not depth and self.rng.random() < 0.6:
            return self.piece(f"{path}.inner", depth=depth + 1)
        if self.has.calls_inside and self.rng.random() < 0.6:
            return f"{path}.called"
        return None

    def _launches(self, name: str) -> list[list[str]]:
        if self.has.wild:
            pool = [f"{self.tag}_{one}" for one in _WILD] + list(_COPIES if self.has.copies else ())
            ways = [self.rng.choices(pool, k=self.rng.randint(1, 3)) for _ in range(2 if self.has.varying else 1)]
        else:
            known = self.habits.setdefault(name, self._orderly(name.split(".")[-1][:4]))
            ways = known if self.has.varying else [self.rng.choice(known)]
        return ways

    def _orderly(self, short: str) -> list[list[str]]:
        gemm, split = f"{self.tag}_{short}_gemm", f"{self.tag}_splitk"
        ways = [[gemm], [f"{split}_{short}", f"{self.tag}_reduce"], [f"{self.tag}_{short}_a", f"{self.tag}_{short}_b"]]
        if self.has.copies:
            ways += [["memset", f"{split}_{short}", f"{self.tag}_reduce"], [gemm, "memcpy"]]
        return self.rng.sample(ways, 2)


_LIKELY = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a program has beside eager runs of its graphs, marked by layers, of which a report holds everything."""

    cpu: bool = False  # it runs on the CPU: work is that of operators
    wild: bool = False  # what kernels of a library launch has names at random; else reductions follow products
    varying: bool = False  # they launch something else in other runs of the same graph
    silent: bool = False  # some launch nothing at all
    copies: bool = False  # they copy and set memory, too
    operators: bool = False  # ranges of operators are around what they launch (``emit_nvtx``)
    repeated: bool = False  # kernels of the compiler have few names
    unknown: bool = False  # maps do not tell the modules of some kernels
    nested: bool = False  # some kernels of a library run another graph
    calls_inside: bool = False  # some call a marked module
    user_ranges: bool = False  # the user's ranges are inside runs
    profiler_ranges: bool = False  # so are those of torch.compile
    unmarked: bool = False  # no module is marked, and maps name the class that was compiled
    class_root: bool = False  # maps name the class of the modules that were compiled, which are not marked
    backward: bool = False  # graphs of backward passes run on another thread of each process
    overlapping: bool = False  # the main thread goes on meanwhile
    streams: bool = False  # work runs on two streams
    graphs: bool = False  # runs are captured into CUDA graphs and replayed, node by node
    unrecorded_nodes: bool = False  # the report does not say when nodes were made
    whole: bool = False  # the same, traced as a whole
    capture_inside: bool = False  # a run begins and ends the graph capture, replays are inside runs (graph trees)
    processes: bool = False  # several processes run the same graphs
    told_late: bool = False  # maps are told behind the first runs, or twice
    told_elsewhere: bool = False  # only one process tells maps
    lost_parts: bool = False  # parts of maps are lost
    lost_ranges: bool = False  # ranges around runs are lost
    lost_launches: bool = False  # launches or their work are lost
    cut_start: bool = False  # the recording begins late: ranges that began before are unknown
    cut_end: bool = False  # it ends early: ranges that are still open have no end, work that had not run is lost

    @property
    def whole_report(self) -> bool:
        if self.graphs and self.unrecorded_nodes:
            return False
        lost = self.lost_parts, self.lost_ranges, self.lost_launches, self.cut_start, self.cut_end
        return not any(lost)


def features(rng: Random) -> Features:
    chosen = Features(**{field.name: rng.random() < _LIKELY for field in fields(Features)})
    return replace(
        chosen,
        graphs=chosen.graphs and not chosen.cpu,
        whole=chosen.whole and not (chosen.cpu or chosen.graphs),
        # Where something is lost, it is seldom everything at once.
        # Without the range of the call around it, a class stands elsewhere.
        cut_start=chosen.cut_start and rng.random() < 0.5 and not chosen.class_root,
        lost_launches=chosen.lost_launches and rng.random() < 0.5,
    )
