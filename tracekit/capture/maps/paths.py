"""The marked paths of the modules that one run of a compiled graph serves: several modules may run the same code.

The roots of a graph, the modules outside which it has no other, are known by the parameters and buffers that the run is
given, else by the marked call around it. Only next to a root that is still the one of the trace, others are what they
were then, too. Backward runs belong to the modules of their forward run (``runs.py``).

Engines compile one of their equal layers and run its code for all of them. What these differ in are numbers: the code
was compiled with ``layers.0.norm.weight``, and a run with ``layers.7.norm.weight`` is one of layer 7. If no input
has a number, the module is left out.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
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
    unknown = any(path is None for path, root in zip(paths, traced.roots, strict=True) if root is not CALLER)
    if unknown and not traced.chosen_by_inputs and not (any(by_inputs) and _unmoved(traced, paths)):
        return None, witnesses
    paths = [path or _marked(root) for path, root in zip(paths, traced.roots, strict=True)]
    known = traced.chosen_by_inputs or agree
    return (paths if known and any(paths) else None), witnesses


def _unmoved(traced: Traced, paths: Sequence[str | None]) -> bool:
    roots = zip(traced.roots, paths, strict=True)
    return all(path in (None, _marked(root)) for root, path in roots if root is not CALLER)


def _called(root: Root, lane: Lane) -> str | None:
    if root is CALLER:
        return marked_models.innermost(lane)
    paths = marked_models.paths_of(root.class_name)
    for call in marked_models.calls(lane):
        inside = [path for path in paths if path == call or path.startswith(f"{call}.")]
        if inside:
            return call if call in inside else inside[0] if len(inside) == 1 else None
    is_marked = root.module is None or _marked(root) is not None
    return (paths[0] if len(paths) == 1 else None) if paths and is_marked else root.class_name or None


def _marked(root: Root) -> str | None:
    module = None if root.module is None else root.module()
    return None if module is None else marked_models.path_of(module)


#: A root's number and a path below it.
Place = tuple[int, str]


class RunModules(NamedTuple):
    """The places of the modules of one run of shared code, and the input that identifies them; -1 if none does."""

    places: tuple[Place | None, ...]
    witness: int


def modules_by_inputs(traced: Traced, prefixes: Sequence[str | None], inputs: Sequence[object]) -> RunModules | None:
    """The modules of a run whose roots have these paths; None if its inputs are not those of an equal piece."""
    numbers: dict[Place, str] = {}
    shared: set[Place] = set()
    witness = -1
    for index, root, before in traced.given:
        address = _address(inputs, index)
        names = marked_models.names_at(address) if address else []
        known = list(_below(names, prefixes[root]))
        if marked_models.is_shared(address):
            # It shows nothing about the layer that runs, but the module that it is of is this one.
            shared.update([(root, before.rpartition(".")[0])] if before in known else ())
        elif names and not any(_is_alike(before, now) and _noted(numbers, root, before, now) for now in known):
            return None
        elif names and witness < 0 and any(_numbered(before)):
            witness = index
    places = (place if place is None or place in shared else _renumbered(place, numbers) for place in traced.places)
    return RunModules(tuple(places), witness)


class RootPaths(NamedTuple):
    """The marked paths of the roots of a run, and an input of each that no other module has.

    They ``agree`` if all inputs of a root may be where the graph was given them, below one path.
    """

    paths: list[str | None]
    witnesses: tuple[int, ...]
    agree: bool


def roots_by_inputs(traced: Traced, inputs: Sequence[object]) -> RootPaths:
    """The roots of a run, each by its own inputs. If an engine shares the code, any of the equal pieces may run."""
    candidates: dict[int, set[str]] = {}
    witnesses: dict[int, int] = {}
    for index, root, before in traced.given:
        address = _address(inputs, index)
        if not address or marked_models.is_shared(address):
            continue
        witnesses.setdefault(root, index)
        if names := marked_models.names_at(address):
            above = set(_above(names, before, alike=traced.chosen_by_inputs))
            candidates[root] = candidates.get(root, above) & above
    known = {root: next(iter(paths)) for root, paths in candidates.items() if len(paths) == 1}
    paths = [known.get(root) for root in range(len(traced.roots))]
    return RootPaths(paths, tuple(witnesses.values()), agree=all(candidates.values()))


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
    one, other = before.split("."), now.split(".")
    same = (a == b or (a.isdecimal() and b.isdecimal()) for a, b in zip(one, other, strict=False))
    return len(one) == len(other) and all(same)


def _numbered(name: str) -> Iterator[tuple[int, str]]:
    parts = name.split(".")
    for number, part in enumerate(parts):
        if part.isdecimal():
            yield number, ".".join(parts[: number + 1])


def _noted(numbers: dict[Place, str], root: int, before: str, now: str) -> bool:
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


class MarkedModels:
    """The models that have markers now. Looking at one is put off until a path is asked for."""

    def __init__(self) -> None:
        self._models: dict[object, tuple[ref[nn.Module], str]] = {}
        self._epoch = -1
        self._classes: dict[str, list[str]] = {}
        self._paths: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._tensors: dict[int, list[str]] = {}
        self._shared: set[int] | None = None
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

    def ran_compiled(self, paths: Iterable[str]) -> None:
        """Notes modules that a run of a compiled graph serves."""
        for path in paths:
            self.compiled.update(accumulate(path.split("."), "{}.{}".format))

    def path_of(self, module: nn.Module) -> str | None:
        """The path of a module; None if its model is not marked."""
        self._look()
        return self._paths.get(module)

    def paths_of(self, class_name: str) -> list[str]:
        """The paths of all modules of this class."""
        self._look()
        return self._classes.get(class_name, [])

    def names_at(self, address: int) -> list[str]:
        """The dotted names of the parameters and buffers at an address; several if they are tied."""
        self._look()
        return self._tensors.get(address, [])

    def is_shared(self, address: int) -> bool:
        """Whether several modules of a model, or one of several names, have the parameter or buffer at an address."""
        self._look()
        if self._shared is None:
            models = [model for reference, _ in self._models.values() if (model := reference()) is not None]
            counted = [
                Counter(at for _, part in model.named_modules(remove_duplicate=False) for _, at in addresses(part))
                for model in models
            ]
            self._shared = {address for names in counted for address, count in names.items() if count > 1}
        return address in self._shared

    def calls(self, lane: Lane) -> Iterator[str]:
        """The paths of the marked calls that are open on this thread, from the innermost outwards."""
        return (entry.path for entry in reversed(lane.open) if isinstance(entry, Marks))

    def innermost(self, lane: Lane) -> str | None:
        """The path of the innermost marked call that is open on this thread, if nothing else is open inside."""
        entry = lane.open[-1] if lane.open else None
        return entry.path if isinstance(entry, Marks) else None

    def _look(self) -> None:
        if self._epoch == epoch.number:
            return
        tensors: defaultdict[int, list[str]] = defaultdict(list)
        self._paths.clear()
        self._classes.clear()
        for model, prefix in [(model(), prefix) for model, prefix in self._models.values()]:
            for path, _, module in modules_of(model, prefix) if model is not None else ():
                original = unwrapped(module)
                self._paths[original] = path
                self._classes.setdefault(type(original).__name__, []).append(path)
                for name, address in addresses(original):
                    tensors[address].append(f"{path}.{name}")
        self._tensors = dict(tensors)
        self._shared = None
        self._epoch = epoch.number


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
