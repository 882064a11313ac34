"""The description of a call from which its FLOPs are counted."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Shape = Sequence[int]


class Call(NamedTuple):
    """A call, as its markers describe it. A dimension that is not known is None.

    Attributes:
        class_name: Class of the module, or None.
        params: Shapes of its own parameters by name.
        settings: Other arguments that the module was built with, under the names in vLLM's markers.
        inputs: Shapes of positional tensors, or None.
        outputs: Shapes of results, or None.
        kwargs: Shapes of keyword tensors by name.
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
        """Shapes of all input tensors, positional ones first."""
        return [*(self.inputs or ()), *(shape for shapes in self.kwargs.values() for shape in shapes)]

    def without_unknown_dimensions(self) -> "Call":
        """The same call without its inputs, outputs or parameters if a dimension of any of them is not known.

        All inputs are dropped, not just one: the rest might be taken for all of them.
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
    """The reason why the FLOPs of a call are not known, for people to read."""

    reason: str


def matched(shape: Sequence[object], other: Sequence[object]) -> bool:
    """Whether two shapes, or parts of shapes, are the same."""
    return list(shape) == list(other)


def is_known(shape: Sequence[int | None] | None) -> bool:
    """Whether all dimensions of a shape are known; not so where the shape itself is None."""
    return shape is not None and None not in shape


def whole(number: object) -> int | None:
    """A setting if it is an integer, otherwise None."""
    return number if type(number) is int else None
