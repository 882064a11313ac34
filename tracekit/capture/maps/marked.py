"""The paths that layer markers give the modules and tensors of marked models. It does not know compiled graphs."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from tracekit.capture.attach import modules_of
from tracekit.capture.epoch import epoch
from tracekit.capture.marks import Marks, unwrapped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from tracekit.capture.emit import Lane


class MarkedModels:
    """The models that have markers now. Looking at one is put off until a path is asked for."""

    def __init__(self) -> None:
        self._models: dict[object, tuple[ref[nn.Module], str]] = {}
        self._epoch = -1
        self._classes: dict[str, str] = {}
        self._paths: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._tensors: dict[int, list[str]] = {}
        self._shared: set[int] | None = None

    def add(self, markers: object, model: nn.Module, prefix: str) -> None:
        """Markers were put on a model, whose own path is the prefix."""
        self._models[id(markers)] = (ref(model), prefix)
        epoch.begin()

    def remove(self, markers: object) -> None:
        """Markers were taken off."""
        if self._models.pop(id(markers), None) is not None:
            epoch.begin()

    def path_of(self, module: nn.Module) -> str | None:
        """The path of a module; None if its model is not marked."""
        self._look()
        return self._paths.get(module)

    def only_one_of(self, class_name: str) -> str | None:
        """The path of the module of this class, if there is only one."""
        self._look()
        paths = [path for path, name in self._classes.items() if name == class_name]
        return paths[0] if len(paths) == 1 else None

    def names_at(self, address: int) -> list[str]:
        """The dotted names of the parameters and buffers at an address; several if they are tied."""
        self._look()
        return self._tensors.get(address, [])

    def is_shared(self, address: int) -> bool:
        """Whether several modules of a model, or one of several names, have the parameter or buffer at an address."""
        self._look()
        if self._shared is None:
            models = [model for reference, _ in self._models.values() if (model := reference()) is not None]
            counted = [Counter(_all_addresses(model)) for model in models]
            self._shared = {address for names in counted for address, count in names.items() if count > 1}
        return address in self._shared

    def innermost(self, lane: Lane, class_name: str) -> str | None:
        """The path of the innermost marked call that is open on this thread, if it is of a module of this class.

        Args:
            lane: What is open.
            class_name: The class; empty for any.
        """
        self._look()
        entry = lane.open[-1] if lane.open else None
        path = entry.path if isinstance(entry, Marks) else None
        return path if path is not None and class_name in ("", self._classes.get(path)) else None

    def _look(self) -> None:
        """Looks at the models again, if markers were put on or taken off since."""
        if self._epoch == epoch.number:
            return
        tensors: defaultdict[int, list[str]] = defaultdict(list)
        self._paths.clear()
        self._classes.clear()
        for model, prefix in [(model(), prefix) for model, prefix in self._models.values()]:
            for path, _, module in modules_of(model, prefix) if model is not None else ():
                original = unwrapped(module)
                self._paths[original] = path
                self._classes[path] = type(original).__name__
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


def _all_addresses(model: nn.Module) -> Iterator[int]:
    """Where the parameters and buffers of a model are, once for each name."""
    for _, module in model.named_modules(remove_duplicate=False):
        yield from (address for _, address in addresses(module))


#: The marked models of this process.
marked_models = MarkedModels()
