"""Markers, what a dialect is, and what nodes of a hierarchy can be."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracekit.causes import Cause

#: What nodes of a hierarchy can be; a region is compiled code of which nothing more is known.
MODULE, RANGE, OPERATOR, REGION = KINDS = ("module", "range", "operator", "region")
#: What a hierarchy can be keyed by; ``auto`` takes the first of the others that a report has.
AUTO, MODULES, RANGES, OPERATORS = HIERARCHIES = ("auto", "modules", "ranges", "operators")
#: What a report of ``tracekit capture`` lacks that holds fewer calls than were marked.
CAPTURED = "calls of modules"
#: What a call can be part of. A backward pass calls modules again whose results were not kept (checkpointing).
CALL_PHASES = ("forward", "backward", "recompute", "capture")

#: The dimensions of a tensor; None is a dimension that the marker does not record.
Shape = tuple[int | None, ...]
#: The dimensions of some tensors.
Shapes = tuple[Shape, ...]
NO_KWARGS: Mapping[str, Any] = {}
#: FLOPs that are counted are less: so large ones fit into int64.
MOST_FLOPS = 2**62
#: Why they are not known, if the reason has no name.
UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Param:
    """A trainable parameter: its name, dimensions and dtype; None where unknown or where markers disagree."""

    name: str
    shape: Shape | None
    dtype: str | None = None


class ModuleMarker(NamedTuple):
    """A range that is a call of a module, or the second range of a call, which records its outputs.

    A tuple, because a report may hold a hundred thousand, and a frozen dataclass takes four times as long to make.

    Attributes:
        path: Dotted path in the marker, such as ``top.model.layers.3.mlp``.
        inputs: Shapes of positional tensors; None if not recorded, as outputs.
        static_params: Other settings of the module, as JSON.
        class_only: Whether the path is only the name of the class, not a place.
        numbered: Whether the class comes with a number, so that the name is that of one module of its process.
        types: Dtype and device of the inputs, or of the outputs if only_result; empty if not recorded.
        only_result: Whether the marker records only the outputs of a call that has ended.
        phase: One of ``CALL_PHASES``; empty if it is not known.
        cause: What could not be read, if anything.
        kind: One of ``KINDS``. The path of a node that is no module is a single name.
        annotated: Whether torch wrote it on work of a CUDA graph, with the path in the model.
    """

    path: str
    class_name: str | None = None
    params: tuple[Param, ...] = ()
    inputs: Shapes | None = None
    outputs: Shapes | None = None
    kwargs: Mapping[str, Shapes] = NO_KWARGS
    static_params: str | None = None
    class_only: bool = False
    numbered: bool = False
    types: tuple[str, ...] = ()
    kwarg_types: Mapping[str, tuple[str, ...]] = NO_KWARGS
    only_result: bool = False
    phase: str = "forward"
    cause: Cause | None = None
    kind: str = "module"
    annotated: bool = False

    @property
    def has_no_tensors(self) -> bool:
        """Whether it is complete but records no tensors, as the marker of a call that has ended may.

        Our own markers, which name the class, record inputs or outputs, if only that there were none.
        """
        tensors = self.inputs or self.outputs or self.kwargs or self.types or self.kwarg_types
        whole = self.cause is None and self.phase == "forward" and self.class_name is None
        return whole and not (tensors or self.only_result or self.class_only or self.annotated)


@dataclass(frozen=True, slots=True)
class OperatorMarker:
    """A range or point that names an operator (PyProf)."""

    name: str | None
    namespace: str | None = None
    inputs: Shapes = ()
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepMarker:
    """A range that is one iteration of training or serving; ``kind`` is train, prefill, decode or mixed."""

    name: str
    kind: str | None = None
    index: int | None = None
    batch_size: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PieceMarker:
    """A range around one piece of a compiled model.

    Attributes:
        way: How it ran: ``compiled``, ``captured``, ``replayed`` or ``eager``.
        graph: Number of the graph in its process.
        size: The dynamic size it ran with, if it has one.
        code: What it was compiled for: ``general``, a range ``9-32`` or a size ``16``; None if not compiled.
    """

    name: str
    way: str
    graph: int | None = None
    size: int | None = None
    code: str | None = None


class Flops(NamedTuple):
    """FLOPs of matrix products, convolutions and attention; -1 if they are not known.

    Attributes:
        note: The dtype of the products, if it is known; of an unknown number why it is not known: the name of an
            operator that may multiply, or one of the reasons in :mod:`~tracekit.markers.kernel_maps`.
    """

    number: int
    note: str = ""

    def plus(self, other: "Flops") -> "Flops":
        """Both together: unknown if one is, and without a dtype if they have several."""
        if self.number < 0 or other.number < 0:
            return self if self.number < 0 else other
        total = self.number + other.number
        notes = {flops.note for flops in (self, other) if flops.number}
        return Flops(total, notes.pop() if len(notes) == 1 else "") if total < MOST_FLOPS else Flops(-1, UNCLEAR)


@dataclass(frozen=True, slots=True)
class MappedKernel:
    """A kernel that one run of a compiled graph launches, and the modules that it serves.

    Attributes:
        generated: Whether that code is the compiler's own (Triton, C++); a library's may be any number of launches.
        modules: Paths below the root, each with its weight; empty if they are not known.
        flops: What one run of it computes for each of these modules; empty if the map records it of none.
        recomputes: Whether it only computes again for a backward pass what the forward pass did.
    """

    name: str
    generated: bool
    modules: tuple[tuple[str, int], ...]
    flops: tuple[Flops, ...] = ()
    recomputes: bool = False


@dataclass(frozen=True, slots=True)
class KernelMapMarker:
    """A part of a kernel map: which modules each kernel of a compiled graph serves, in launch order.

    ``map_id`` is a digest of the whole map, ``root`` the path of the module that was compiled, or its class.
    """

    map_id: str
    part: int
    parts: int
    root: str
    kernels: tuple[MappedKernel, ...]


@dataclass(frozen=True, slots=True)
class CompiledGraphMarker:
    """A range around one run of a compiled graph.

    ``phase`` is empty if nothing is differentiated; ``root`` is the module's path where it is not that of the map.
    """

    map_id: str
    phase: str = ""
    root: str | None = None


@dataclass(frozen=True, slots=True)
class RangeMarker:
    """A range that a framework writes under a name of its own: neither the call of a module nor an operator.

    In a report with modules it is a plain range as any other, but for its phase.

    Attributes:
        name: What it is called where ranges are nodes: the text, with ``*`` for what counts.
        phase: ``forward``, ``backward``, ``recompute``, ``optimizer``, ``data`` or ``compile``; empty if none.
        compiled: Whether it is a run of compiled code, without its modules; cause is why, if recorded.
    """

    name: str
    phase: str = ""
    compiled: bool = False
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A range that is the call of a module whose name cannot be read."""

    cause: Cause


_GraphMarker = PieceMarker | KernelMapMarker | CompiledGraphMarker
Marker = ModuleMarker | OperatorMarker | StepMarker | RangeMarker | Unreadable | _GraphMarker


class Halves(NamedTuple):
    """How to read texts in two halves, the module and its tensors: each repeats often, and is read once.

    Attributes:
        separators: The second half begins with the last of the first separator that a text holds.
        module: The marker of a first half, or None if it cannot be read alone.
        tensors: The marker of a separator and what follows it, without class and parameters, or None.
    """

    separators: tuple[str, ...]
    module: Callable[[str], ModuleMarker | None]
    tensors: Callable[[str, str], ModuleMarker | None]


class Dialect(NamedTuple):
    """One way of writing markers.

    Attributes:
        candidates: Regular expression (RE2) that a text must match anywhere to be parsed. It runs over all texts at
            once, so it should reject most plain texts.
        parse: The marker in a text; None if it is not of this dialect.
        halves: A faster way for many texts, with the same markers.
    """

    candidates: str
    parse: Callable[[str], Marker | None]
    halves: Halves | None = None
