"""What a marker says, and what a dialect is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracekit.causes import Cause

#: The dimensions of a tensor; None is one that the marker does not tell.
Shape = tuple[int | None, ...]
#: The dimensions of some tensors.
Shapes = tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Param:
    """A trainable parameter: its name, dimensions and, where said, its dtype; None where its markers disagree."""

    name: str
    shape: Shape | None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class ModuleMarker:
    """A range that is a call of a module, or the second range of a call that tells its outputs.

    Attributes:
        path: Dotted path that the marker says, such as ``top.model.layers.3.mlp``.
        class_name: Class of the module, where said.
        params: Its own trainable parameters.
        inputs: Shapes of positional tensors; None where the marker does not say.
        outputs: Shapes of results; None where the marker does not say.
        kwargs: Shapes of keyword tensors by name.
        static_params: Other settings of the module, as JSON.
        class_only: Whether the path is but the name of the class, and says nothing of the place.
        types: Dtype and device of the inputs, or of the outputs if the marker tells only those; empty if not said.
        kwarg_types: Dtype and device of keyword tensors by name.
        only_result: Whether the marker tells the outputs of a call that has ended.
        phase: What the call is part of: ``forward``, ``backward`` or ``capture``.
        cause: What could not be read of it.
    """

    path: str
    class_name: str | None = None
    params: tuple[Param, ...] = ()
    inputs: Shapes | None = None
    outputs: Shapes | None = None
    kwargs: Mapping[str, Shapes] = field(default_factory=dict)
    static_params: str | None = None
    class_only: bool = False
    types: tuple[str, ...] = ()
    kwarg_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    only_result: bool = False
    phase: str = "forward"
    cause: Cause | None = None

    @property
    def quiet(self) -> bool:
        """Whether it is a whole marker of a call that tells no tensors: perhaps of a call that has ended."""
        tensors = self.inputs or self.outputs or self.kwargs or self.types or self.kwarg_types
        whole = self.cause is None and self.phase == "forward"
        return whole and not (tensors or self.only_result or self.class_only)


@dataclass(frozen=True, slots=True)
class OperatorMarker:
    """A range or point that tells an operator, not a module (PyProf)."""

    name: str | None
    namespace: str | None = None
    inputs: Shapes = ()
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepMarker:
    """A range that is one iteration of training or serving.

    Attributes:
        name: The text.
        kind: ``train``, ``prefill``, ``decode`` or ``mixed``; None where the text does not say.
        index: Its number, where the text says one.
        batch_size: Requests or samples in it.
        tokens: Tokens computed in it.
    """

    name: str
    kind: str | None = None
    index: int | None = None
    batch_size: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PieceMarker:
    """A range around one piece of a compiled model.

    Attributes:
        name: Name of the piece in its graph.
        way: How it ran: ``compiled``, ``captured``, ``replayed`` or ``eager``.
        graph: Number of the graph in its process.
        size: The dynamic size it ran with, where it has one.
        code: What its code was compiled for: ``general``, a range ``9-32`` or a size ``16``; None if it was not.
    """

    name: str
    way: str
    graph: int | None = None
    size: int | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A range that is a module's call, but of which module cannot be read."""

    cause: Cause


Marker = ModuleMarker | OperatorMarker | StepMarker | PieceMarker | Unreadable


class Dialect(Protocol):
    """A module that understands one way of writing markers."""

    #: Regular expression (RE2) that a text must match anywhere to be tried. It is run over all texts at once, so it
    #: should refuse most plain texts.
    CANDIDATES: str

    def parse(self, text: str, /) -> Marker | None:
        """What the text says; None if it is of no concern to this dialect."""
