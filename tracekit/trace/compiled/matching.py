"""Which kernel of its map each launch of a run is, by the order of both.

Kernels that the compiler wrote are known by their names, those of a library by the operator around them, if one is
marked: these are the anchors. Between two anchors that follow each other in the map, one kernel of a library has
launched everything; several have theirs where their number is that of the launches and each surely launches something,
or where the names of kernels tell where each begins. What does not fit the map is given to none.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracekit.trace.compiled.maps import KernelMap

#: Kernels of a map that may have launched something; none if it is not known.
Target = tuple[int, ...]

#: A kernel that the compiler wrote: an operator's name of a CPU run, or that of a Triton kernel.
_OF_COMPILER = re.compile(r"graph_\d+_(?P<cpu>.+)|(?P<triton>triton_[a-z]+_fused.*)")
#: A user's own Triton kernel has a number in generated code, but not on the device.
_NUMBERED = re.compile(r"(?!triton_|cpp_)(.+)_\d+")
_OPERATOR = re.compile(r"(?:torch\.ops\.)?(\w+)\.(\w+)(?:\.\w+)?")
#: Functions of Inductor that call an operator of another name.
_CALLS = {"bias_addmm": "addmm"}
#: Operators that launch nothing on a GPU.
_SILENT = re.compile(
    r"torch\.ops\.(_c10d_functional\.wait_tensor|inductor\.resize_storage_bytes_|fsdp\.set_"
    r"|aten\.(view|view_as_real|view_as_complex|set_|resize_|as_strided|detach|alias|lift_fresh|record_stream))(\.\w+)?"
)
#: A kernel of the compiler's that needs memory set to zero, for which its code calls another kernel right before it.
_ZEROES_BEFORE = "triton_spl_"
#: Functions of a library that launch at least one kernel each; of a user's own operators nobody knows it.
_BUSY = re.compile(r"extern_kernels\..+|(torch\.ops\.)?aten\..+")


class Pattern(NamedTuple):
    """The kernels of a map, as names of launches tell them.

    Attributes:
        keys: For every kernel what launches of it are called.
        generated: Which kernels the compiler wrote.
        names: The name of each in the map.
        known: The distinct keys.
    """

    keys: list[str]
    generated: list[bool]
    names: list[str]
    known: frozenset[str]


class Gap(NamedTuple):
    """Launches of several kernels of a library, of which it is not known where each begins.

    Attributes:
        first: The first of the launches.
        last: The launch after the last.
        kernels: The kernels, in order.
    """

    first: int
    last: int
    kernels: Target


class Match(NamedTuple):
    """What the launches of a run are.

    Attributes:
        targets: For every launch the kernels of the map that it may be of.
        gaps: Where these are several.
        alone: Where one kernel of a library certainly launched all: as gaps of one.
    """

    targets: list[Target]
    gaps: list[Gap]
    alone: list[Gap]


def pattern_of(kernel_map: KernelMap) -> Pattern:
    """The pattern of a map."""
    kernels = kernel_map.kernels
    keys = [_unnumbered(kernel.name) if kernel.generated else _operator(kernel.name) for kernel in kernels]
    generated, names = [kernel.generated for kernel in kernels], [kernel.name for kernel in kernels]
    return Pattern(keys, generated, names, frozenset(keys))


def key_of_launch(name: str, pattern: Pattern) -> str:
    """What a launch is called in patterns; empty if its name tells nothing of this one."""
    if own := _OF_COMPILER.fullmatch(name):
        return _unnumbered(own["cpu"] or own["triton"])
    return next((key for key in (name, _unnumbered(name)) if key in pattern.known), "")


def _unnumbered(name: str) -> str:
    numbered = _NUMBERED.fullmatch(name)
    return numbered[1] if numbered else name


def _operator(name: str) -> str:
    """``extern_kernels.addmm`` is ``aten::addmm``, and ``torch.ops.vllm.attention.default`` is ``vllm::attention``."""
    match = _OPERATOR.fullmatch(name)
    if match is None:
        return name
    namespace, operator = match.groups()
    return f"aten::{_CALLS.get(operator, operator)}" if namespace == "extern_kernels" else f"{namespace}::{operator}"


def nothing_matched(launches: int) -> Match:
    """Of some launches none is of the map."""
    return Match([()] * launches, [], [])


def matched(pattern: Pattern, keys: Sequence[str], *, complete: bool) -> Match | None:
    """What each launch of a run is; None if the run cannot be one of this map.

    Args:
        pattern: The kernels of the map.
        keys: What :func:`key_of_launch` says of each launch.
        complete: Whether the report seems to hold all launches, so that their number tells something.
    """
    anchored = _anchors(pattern, keys)
    if anchored is None:
        return None
    anchors, lost = anchored
    match = nothing_matched(len(keys))
    for (kernel, launch), (next_kernel, next_launch) in pairwise([(-1, -1), *anchors, (len(pattern.keys), len(keys))]):
        if launch >= 0:
            match.targets[launch] = (kernel,)
        between = range(kernel + 1, next_kernel)
        if lost.isdisjoint(between) and not any(keys[launch + 1 : next_launch]):
            busy = tuple(each for each in between if not _SILENT.fullmatch(pattern.names[each]))
            zeroes = next_launch < len(keys) and keys[next_launch].startswith(_ZEROES_BEFORE)
            _fill(pattern, match, Gap(launch + 1, next_launch - zeroes, busy), complete=complete)
    return match


def _anchors(pattern: Pattern, keys: Sequence[str]) -> tuple[list[tuple[int, int]], set[int]] | None:
    """Pairs of a kernel and its launch, and the kernels whose launches are missing; None if their orders differ.

    A name stands for its kernels in order if the run has as many launches of it: what is lost cannot be too many.
    """
    of_map, of_run = _places(pattern.keys), _places(keys)
    of_run.pop("", None)
    if not of_run.keys() <= of_map.keys():
        return None
    pairs: list[tuple[int, int]] = []
    lost: set[int] = set()
    for key, kernels in of_map.items():
        launches = of_run.get(key, [])
        if len(kernels) == len(launches):
            pairs += zip(kernels, launches, strict=True)
        elif launches or pattern.generated[kernels[0]]:
            lost.update(kernels)
    pairs.sort()
    in_order = all(one[1] < other[1] for one, other in pairwise(pairs))
    return (pairs, lost) if in_order else None


def _places(keys: Iterable[str]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return places


def _fill(pattern: Pattern, match: Match, gap: Gap, *, complete: bool) -> None:
    """Gives launches between two anchors to the kernels of a library that stand there."""
    number = gap.last - gap.first
    if number <= 0 or not gap.kernels:
        return
    match.targets[gap.first : gap.last] = [gap.kernels] * number
    if not complete:
        return
    if len(gap.kernels) == 1:
        match.alone.append(gap)
    elif len(gap.kernels) == number and all(_BUSY.fullmatch(pattern.names[kernel]) for kernel in gap.kernels):
        match.targets[gap.first : gap.last] = [(kernel,) for kernel in gap.kernels]
        match.alone.extend(Gap(at, at + 1, (kernel,)) for at, kernel in enumerate(gap.kernels, gap.first))
    else:
        match.gaps.append(gap)


class Habits:
    """What kernels of a library launch, learned from where each stood alone, over all runs of a recording."""

    def __init__(self) -> None:
        self._of_kernel: dict[str, set[tuple[int, ...]]] = {}
        self._first: set[int] = set()
        self._later: set[int] = set()

    def learn(self, pattern: Pattern, match: Match, names: Sequence[int]) -> None:
        """Learns from a run, given the number of the name of each launch."""
        for gap in match.alone:
            launched = tuple(names[gap.first : gap.last])
            self._of_kernel.setdefault(pattern.names[gap.kernels[0]], set()).add(launched)
            self._first.add(launched[0])
            self._later.update(launched[1:])
        self._first.update(names[gap.first] for gap in match.gaps)

    def resolve(self, pattern: Pattern, match: Match, names: Sequence[int]) -> None:
        """Divides gaps where only one way is known: some names only ever begin what a kernel launches, others never."""
        for gap in match.gaps:
            if not self._first.isdisjoint(self._later.intersection(names[gap.first : gap.last])):
                continue
            begins = [at for at in range(gap.first, gap.last) if names[at] in self._first]
            if len(begins) != len(gap.kernels):
                continue
            parts = list(zip(gap.kernels, begins, [*begins[1:], gap.last], strict=True))
            if all(self._known(pattern.names[kernel], names[start:end]) for kernel, start, end in parts):
                for kernel, start, end in parts:
                    match.targets[start:end] = [(kernel,)] * (end - start)

    def _known(self, kernel: str, launched: Sequence[int]) -> bool:
        return tuple(launched) in self._of_kernel.get(kernel, ())
