"""The marked paths of the modules that one run of a compiled graph serves: several modules may run the same code.

The roots of a graph are known by the parameters and buffers that the run is given, else by the marked call around it.
Only next to a root that is still the one of the trace, others are what they were then, too.

Engines compile one of their equal layers and run its code for all of them. What these differ in are numbers: a run with
``layers.7.norm.weight`` of code compiled with ``layers.0.norm.weight`` is one of layer 7. A module below a number that
no input has is left out.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn

from tracekit.capture.attach import modules_of
from tracekit.capture.emit import Lane, epoch
from tracekit.capture.maps.traced import CALLER, Root, Traced
from tracekit.capture.marks import Marks, unwrapped
from tracekit.markers.formatting import new_path

#: The path of each root, None where not known, and the inputs that identify them. No paths: it may be any of several.
Paths = tuple[list[str | None] | None, tuple[int, ...]]


def paths_of_forward(traced: Traced, inputs: Sequence[Any], lane: Lane) -> Paths:
    """The paths of a forward run, or of one without gradients."""
    by_inputs, witnesses, agree = roots_by_inputs(traced, inputs)
    paths = [path or _called(root, lane) for path, root in zip(by_inputs, traced.roots, strict=True)]
    roots = list(zip(paths, traced.roots, strict=True))
    unknown = any(path is None for path, root in roots if root is not CALLER)
    unmoved = all(path in (None, _marked(root)) for path, root in roots if root is not CALLER)
    if unknown and not traced.chosen_by_inputs and not (any(by_inputs) and unmoved):
        return None, witnesses
    paths = [path or _marked(root) for path, root in roots]
    known = traced.chosen_by_inputs or agree
    return (paths if known and any(paths) else None), witnesses


def _called(root: Root, lane: Lane) -> str | None:
    """The path of a root by the marked calls that are open on this thread."""
    if root is CALLER:
        entry = lane.open[-1] if lane.open else None
        return entry.path if isinstance(entry, Marks) else None
    paths = marked_models.now().classes.get(root.class_name, [])
    for call in (entry.path for entry in reversed(lane.open) if isinstance(entry, Marks)):
        inside = [path for path in paths if path == call or path.startswith(f"{call}.")]
        if inside:
            return call if call in inside else inside[0] if len(inside) == 1 else None
    is_marked = root.module is None or _marked(root) is not None
    return (paths[0] if len(paths) == 1 else None) if paths and is_marked else root.class_name or None


def _marked(root: Root) -> str | None:
    module = None if root.module is None else root.module()
    return None if module is None else marked_models.now().paths.get(module)


#: A root's number and a path below it.
Place = tuple[int, str]


def modules_by_inputs(
    traced: Traced, prefixes: Sequence[str | None], inputs: Sequence[object]
) -> tuple[tuple[Place | None, ...] | None, tuple[int, ...]]:
    """The modules of a run of shared code whose roots have these paths, and the inputs that identify them.

    None if the inputs are not those of an equal piece.
    """
    numbers: dict[Place, str] = {}
    shared: set[Place] = set()
    witnesses: tuple[int, ...] = ()
    marked = marked_models.now()
    for index, root, before in traced.given:
        address = _address(inputs, index)
        names = marked.tensors.get(address, [])
        above = f"{prefixes[root] or ''}."
        known = [name[len(above) :] for name in names if name.startswith(above)]
        if address in marked.shared:
            # It shows nothing about the layer that runs, but the module that it is of is this one.
            shared.update([(root, before.rpartition(".")[0])] if before in known else ())
        elif names and not any(_is_alike(before, now) and _agree(numbers, root, before, now) for now in known):
            return None, ()
        elif names and not witnesses and any(_numbered(before)):
            witnesses = (index,)
    places = (place if place is None or place in shared else _renumbered(place, numbers) for place in traced.places)
    return tuple(places), witnesses


def roots_by_inputs(traced: Traced, inputs: Sequence[object]) -> tuple[list[str | None], tuple[int, ...], bool]:
    """The marked paths of the roots of a run, each by its own inputs, and an input of each that no other module has.

    They agree, which is the last item, if all inputs of a root may be where the graph was given them, below one path.
    If an engine shares the code, any of the equal pieces may run.
    """
    candidates: dict[int, set[str]] = {}
    witnesses: dict[int, int] = {}
    marked = marked_models.now()
    for index, root, before in traced.given:
        address = _address(inputs, index)
        if not address or address in marked.shared:
            continue
        witnesses.setdefault(root, index)
        if names := marked.tensors.get(address):
            above = set(_above(names, before, alike=traced.chosen_by_inputs))
            candidates[root] = candidates.get(root, above) & above
    known = {root: next(iter(paths)) for root, paths in candidates.items() if len(paths) == 1}
    paths = [known.get(root) for root in range(len(traced.roots))]
    return paths, tuple(witnesses.values()), all(candidates.values())


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


def _is_alike(before: str, now: str) -> bool:
    one, other = before.split("."), now.split(".")
    same = (a == b or (a.isdecimal() and b.isdecimal()) for a, b in zip(one, other, strict=False))
    return len(one) == len(other) and all(same)


def _numbered(name: str) -> Iterator[tuple[int, str]]:
    parts = name.split(".")
    for number, part in enumerate(parts):
        if part.isdecimal():
            yield number, ".".join(parts[: number + 1])


def _agree(numbers: dict[Place, str], root: int, before: str, now: str) -> bool:
    """Notes which numbers stand now in the places of those before; whether they are the same as for other inputs."""
    parts = now.split(".")
    return all(numbers.setdefault((root, above), parts[part]) == parts[part] for part, above in _numbered(before))


def _renumbered(place: Place, numbers: dict[Place, str]) -> Place | None:
    root, path = place
    parts = path.split(".")
    for number, above in _numbered(path):
        if (root, above) not in numbers:
            return None
        parts[number] = numbers[root, above]
    return root, ".".join(parts)


class Marked(NamedTuple):
    """Where things are in the models that have markers.

    Attributes:
        paths: The path of each module.
        classes: The paths of all modules of a class.
        tensors: The dotted names of the parameters and buffers at an address; several if they are tied.
        shared: The addresses of those that several modules of a model, or one of several names, have.
    """

    paths: WeakKeyDictionary[nn.Module, str]
    classes: dict[str, list[str]]
    tensors: dict[int, list[str]]
    shared: set[int]


class MarkedModels:
    """The models that have markers now. Looking at one is put off until something in it is asked for."""

    def __init__(self) -> None:
        self._models: dict[object, tuple[ref[nn.Module], str]] = {}
        self._epoch = -1
        self._marked = Marked(WeakKeyDictionary(), {}, {}, set())
        #: The paths of modules that ran in compiled code, and of those around them.
        self.compiled: set[str] = set()

    def add(self, markers: object, model: nn.Module, prefix: str) -> None:
        """Markers were put on a model, whose own path is the prefix."""
        self._models[id(markers)] = (ref(model), prefix)
        epoch.begin()

    def remove(self, markers: object) -> None:
        """Markers were taken off."""
        if self._models.pop(id(markers), None) is not None:
            epoch.begin()

    def moved(self, paths: Mapping[str, str]) -> None:
        """Modules have other paths from now on."""
        self.compiled = {new_path(path, paths) for path in self.compiled}
        epoch.begin()

    def now(self) -> Marked:
        """Where things are now."""
        if self._epoch != epoch.number:
            number, marked = epoch.number, Marked(WeakKeyDictionary(), {}, {}, set())
            for model, prefix in [(model(), prefix) for model, prefix in self._models.values()]:
                if model is not None:
                    _look(model, prefix, marked)
            self._marked, self._epoch = marked, number
        return self._marked


def _look(model: nn.Module, prefix: str, marked: Marked) -> None:
    for path, _, module in modules_of(model, prefix):
        original = unwrapped(module)
        marked.paths[original] = path
        marked.classes.setdefault(type(original).__name__, []).append(path)
        for name, address in addresses(original):
            marked.tensors.setdefault(address, []).append(f"{path}.{name}")
    parts = model.named_modules(remove_duplicate=False)
    uses = Counter(address for _, part in parts for _, address in addresses(part))
    marked.shared.update(address for address, count in uses.items() if count > 1)


def addresses(module: nn.Module) -> Iterator[tuple[str, int]]:
    """The names of a module's own parameters and buffers, and where they are in memory."""
    for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
        try:
            address = 0 if tensor is None else tensor.data_ptr()
        except RuntimeError:  # a tensor without memory: fake, or not yet initialized
            continue
        if address:
            yield name, address


#: The marked models of this process.
marked_models = MarkedModels()
