"""What a model itself calls the modules that a traced graph names otherwise.

Dynamo names a module after the way on which the program came to it: through a bound method that it keeps, a closure, or
a global that holds the layers by their names. Which module it was, Dynamo says, too. A module has the name under which
its model holds it first, as markers have, and where this is not below the module that calls it, its place is below that
one, as that of a marked call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.capture.maps.texts import base_of, entry_of
from tracekit.capture.marks import WRAPPED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import fx, nn


class OwnNames(NamedTuple):
    """Other texts for those of a graph, as far as they differ.

    Attributes:
        places: For modules, where their calls are.
        held: For modules, under which name their model holds them.
    """

    places: dict[str, str]
    held: dict[str, str]


def own_names(nodes: Iterable[fx.Node], variables: Mapping[str, nn.Module], owner: str | None) -> OwnNames:
    """What models call the modules of a graph.

    A module of a global that no known model has, as vLLM's context may hold, is work of the only module that calls it.
    A text that stands for several places stays.

    Args:
        nodes: The nodes of the graph.
        variables: The variables of the traced function that are modules.
        owner: Which of them it is a method of.
    """
    models = _Models(variables)
    places: dict[str, set[str | None]] = {}
    held: dict[str, str] = {}
    stacks = (node.meta.get("nn_module_stack") for node in nodes)
    for stack in {_texts_by_key(stack) for stack in stacks if isinstance(stack, dict)}:
        caller = place = None
        for key, text in stack:
            name = models.name_of(key, text)
            if name is None:
                elsewhere = text.startswith("G[")
                places.setdefault(text, set()).add((place or owner) if elsewhere else text)
                continue
            caller, place = name, _place(name, caller, place)
            places.setdefault(text, set()).add(place)
            held[text] = name
    only = {text: place for text, (place, *others) in places.items() if place is not None and not others}
    return OwnNames({text: place for text, place in only.items() if place != text}, held)


def _texts_by_key(stack: dict[Any, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((str(key), entry_of(entry)[0]) for key, entry in stack.items())


def _place(name: str, caller: str | None, above: str | None) -> str:
    """Where a call of a module is, given the module that calls it and where that is."""
    if above is None or name.startswith(f"{above}.") or "." not in name:
        return name
    return above if name == caller else f"{above}.{name.rpartition('.')[2]}"


class _Models:
    """The modules of some variables, by what these call them."""

    def __init__(self, variables: Mapping[str, nn.Module]) -> None:
        self._variables = variables
        self._names: dict[int, str] = {}
        for variable, model in variables.items():
            for path, module in model.named_modules():
                parts = (part for part in path.split(".") if part not in ("", WRAPPED))
                self._names.setdefault(id(module), ".".join((variable, *parts)))

    def name_of(self, key: str, text: str) -> str | None:
        """What its model calls a module; None if no known one has it.

        Args:
            key: What Dynamo keeps it under: the id of the module, and the number of its call.
            text: How the graph names it.
        """
        number = key.partition("@")[0]
        if number.isdecimal():
            return self._names.get(int(number))
        return text if base_of(text) in self._variables else None
