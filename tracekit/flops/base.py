"""What a formula is, and what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Shape = Sequence[int]


class Call(NamedTuple):
    """What markers tell of a call.

    Attributes:
        class_name: Class of the module, where told.
        params: Dimensions of its own parameters by name. Here and below a dimension that is not known is None.
        settings: What else the module was built with, under the names that vLLM's markers use.
        inputs: Dimensions of positional tensors; None where not told.
        outputs: Dimensions of results; None where not told.
        kwargs: Dimensions of keyword tensors by name.
        cpu_attention: Whether attention ran as the fused operator of CPUs, which ``flop_counter`` does not count.
    """

    class_name: str | None
    params: Mapping[str, Shape]
    settings: Mapping[str, object]
    inputs: Sequence[Shape] | None
    outputs: Sequence[Shape] | None
    kwargs: Mapping[str, Sequence[Shape]]
    cpu_attention: bool = False

    @property
    def given(self) -> list[Shape]:
        """All tensors that go in, positional ones first."""
        return [*(self.inputs or ()), *(one for its in self.kwargs.values() for one in its)]

    def without_unknown_dimensions(self) -> Call:
        """The same, told nothing of what goes in, comes out or is held where a dimension of that is not known.

        Nothing, not less: what is left of it might be taken for all.
        """
        call = self
        if not all(map(is_known, self.given)):
            call = call._replace(inputs=None, kwargs={})
        if not all(map(is_known, self.outputs or ())):
            call = call._replace(outputs=None)
        if not all(map(is_known, self.params.values())):
            call = call._replace(params={})
        return call


class Unknown(NamedTuple):
    """Why the FLOPs of a call cannot be known, in words for people."""

    reason: str


class Formula(Protocol):
    """A module that knows one kind of layer."""

    def flops(self, call: Call, /) -> int | Unknown | None:
        """The FLOPs of the call itself, why they cannot be known, or None if the layer is of another kind."""


def matched(ours: Sequence[object], theirs: Sequence[object]) -> bool:
    """Whether two shapes, or parts of them, are the same."""
    return list(ours) == list(theirs)


def is_known(shape: Sequence[int | None] | None) -> bool:
    """Whether all dimensions of a shape are known; where markers contradict each other not even their number is."""
    return shape is not None and None not in shape


def whole(number: object) -> int | None:
    """A setting that is a whole number, None if it is another thing."""
    return number if type(number) is int else None
