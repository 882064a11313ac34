"""What the inputs of a run tell: which modules it serves, by the parameters and buffers among them.

Engines compile one of their equal layers and run its code for all of them. What these differ in are numbers: the code
was compiled with ``layers.0.norm.weight``, and a run with ``layers.7.norm.weight`` is one of layer 7. Where no input
tells a number, the module is left out. It does not know kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tracekit.capture.maps.marked import marked_models

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracekit.capture.maps.traced import Root, Traced

#: A root's number and a path below it.
Place = tuple[int, str]


class Served(NamedTuple):
    """The modules of one run of shared code.

    Attributes:
        places: As those of the traced graph, with the numbers of this run.
        witness: Index of the input that tells it; -1 if none does.
    """

    places: tuple[Place | None, ...]
    witness: int


def served_by(traced: Traced, prefixes: Sequence[str | None], inputs: Sequence[object]) -> Served | None:
    """The modules of a run whose roots have these paths; None if its inputs are not those of an equal piece."""
    numbers: dict[Place, str] = {}
    shared: set[Place] = set()
    witness = -1
    for index, root, before in traced.given:
        address = _address(inputs, index)
        names = marked_models.names_at(address) if address else []
        known = list(_below(names, prefixes[root]))
        if marked_models.is_shared(address):
            # It says nothing of the layer that runs, but the module that it is of is this one.
            shared.update([(root, before.rpartition(".")[0])] if before in known else ())
        elif names and not any(_is_alike(before, now) and _noted(numbers, root, before, now) for now in known):
            return None
        elif names and witness < 0 and any(_numbered(before)):
            witness = index
    places = (place if place is None or place in shared else _renumbered(place, numbers) for place in traced.places)
    return Served(tuple(places), witness)


class RootsTold(NamedTuple):
    """What the parameters and buffers of a run tell of the roots.

    Attributes:
        paths: The marked path of each root; None if nothing tells it.
        witnesses: An input of each root that has some: no other module has that one.
        agree: Whether all of them are where the graph was given them, and those of a root tell the same path.
    """

    paths: list[str | None]
    witnesses: tuple[int, ...]
    agree: bool


def roots_by_inputs(traced: Traced, inputs: Sequence[object]) -> RootsTold:
    """The roots of a run, each by its own inputs. If an engine shares the code, any of the equal pieces may run."""
    candidates: dict[int, set[str]] = {}
    witnesses: dict[int, int] = {}
    for index, root, before in traced.given:
        address = _address(inputs, index)
        if not address or marked_models.is_shared(address):
            continue
        witnesses.setdefault(root, index)
        if names := marked_models.names_at(address):
            above = set(_above(names, before, alike=traced.told_by_inputs))
            candidates[root] = candidates.get(root, above) & above
    told = {root: next(iter(paths)) for root, paths in candidates.items() if len(paths) == 1}
    paths = [told.get(root) for root in range(len(traced.roots))]
    return RootsTold(paths, tuple(witnesses.values()), agree=len(told) == len(candidates))


def _above(names: Sequence[str], before: str, *, alike: bool) -> Iterator[str]:
    """What is before a name in those of a run, which may have other numbers if they need only be alike."""
    depth = before.count(".") + 1
    for name in names:
        parts = name.split(".")
        now = ".".join(parts[-depth:])
        if len(parts) > depth and (now == before or (alike and _is_alike(before, now))):
            yield ".".join(parts[:-depth])


def _address(inputs: Sequence[object], index: int) -> int:
    item = inputs[index] if index < len(inputs) else None
    return item.data_ptr() if isinstance(item, torch.Tensor) else 0


def _below(names: Sequence[str], prefix: str | None) -> Iterator[str]:
    above = f"{prefix or ''}."
    return (name[len(above) :] for name in names if name.startswith(above))


def _is_alike(before: str, now: str) -> bool:
    """Whether two names differ in numbers alone."""
    one, other = before.split("."), now.split(".")
    same = (a == b or (a.isdecimal() and b.isdecimal()) for a, b in zip(one, other, strict=False))
    return len(one) == len(other) and all(same)


def _numbered(name: str) -> Iterator[tuple[int, str]]:
    """The parts of a name that are numbers: which part it is, and the name up to it."""
    parts = name.split(".")
    for number, part in enumerate(parts):
        if part.isdecimal():
            yield number, ".".join(parts[: number + 1])


def _noted(numbers: dict[Place, str], root: int, before: str, now: str) -> bool:
    """Notes the numbers in a name of this run; whether they fit those that are known."""
    parts = now.split(".")
    return all(numbers.setdefault((root, above), parts[part]) == parts[part] for part, above in _numbered(before))


def _renumbered(place: Place, numbers: dict[Place, str]) -> Place | None:
    """A module's place with the numbers of this run; None if one of them is not known."""
    root, path = place
    parts = path.split(".")
    for number, above in _numbered(path):
        if (root, above) not in numbers:
            return None
        parts[number] = numbers[root, above]
    return root, ".".join(parts)


def path_by_tensors(root: Root, inputs: Sequence[Any]) -> tuple[int, str | None]:
    """The marked path of the only root, by the parameters and buffers that a run is given anywhere, and the first such.

    Nothing is told if they do not agree: the program may hand over another module's parameters, too.
    """
    witness, paths = -1, None
    for index in range(len(inputs)):
        if not (address := _address(inputs, index)) or marked_models.is_shared(address):
            continue
        candidates = set(_roots_of(marked_models.names_at(address), root.tensors))
        if candidates:
            witness = index if paths is None else witness
            paths = candidates if paths is None else paths & candidates
    return witness, paths.pop() if paths is not None and len(paths) == 1 else None


def _roots_of(names: Sequence[str], tensors: frozenset[str]) -> Iterator[str]:
    """The paths below which a tensor of these names would be one of the root's."""
    for name in names:
        parts = name.split(".")
        for cut in range(1, len(parts)):
            if ".".join(parts[cut:]) in tensors:
                yield ".".join(parts[:cut])
