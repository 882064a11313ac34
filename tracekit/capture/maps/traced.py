"""The modules of a traced graph, numbered in the order in which they first appear in it.

Compilers share code between graphs that are equal but for the names of their modules, so what is kept with code are
numbers of modules, and the graph that runs identifies these.

Dynamo names a module after the way on which the program came to it, such as a closure. A module gets the name under
which its model holds it first, as markers do; where this is not below the module that calls it, its place is below
that one.
"""

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import MethodType
from typing import Any, NamedTuple
from weakref import ref

from torch import fx, nn

from tracekit.capture.frames import variable_of
from tracekit.capture.marks import WRAPPED, unwrapped
from tracekit.markers.literal import is_path

_WORD = re.compile(r"[a-z0-9]+")
#: What nearly all decorators call the arguments that they hand on; the first one is the module, if they take no other.
_ARGS = "args"
_FIRST_ARG = f"L['{_ARGS}'][0]"
#: Behind a bound method, the module whose method it is.
_OF_METHOD = ".__self__"


class Scope(NamedTuple):
    """The traced function: its modules by text, whose method it is, and the texts of its parameters by input."""

    modules: Mapping[str, nn.Module]
    owner: str | None
    tensors: Mapping[str, str]


def scope(graph: fx.GraphModule) -> Scope:
    """The function that Dynamo is tracing on this thread to a graph; without modules if Dynamo does not report it."""
    inputs = graph.graph.find_nodes(op="placeholder")
    tensors = {node.name: text for node in inputs if (text := _tensor_text(node)) is not None}
    variables, names = _variables()
    modules = {f"L['{name}']": item for name, item in variables.items() if isinstance(item, nn.Module)}
    match variables.get(_ARGS):
        case (nn.Module() as item, *_):
            modules[_FIRST_ARG] = item
    if not modules:  # Dynamo's wrapper of a method of torch's own, such as that of nn.Sequential, holds the method
        methods = {f"L['{name}']{_OF_METHOD}": item for name, item in variables.items() if isinstance(item, MethodType)}
        modules = {text: method.__self__ for text, method in methods.items() if isinstance(method.__self__, nn.Module)}
    owner = next((text for text, item in modules.items() if _names_itself(item, text)), None)
    modules |= {f"G['{name}']": item for name, item in names.items() if isinstance(item, nn.Module)}
    return Scope(modules, owner, tensors or _tensors_by_name(inputs, owner, modules))


def _variables() -> tuple[Mapping[str, object], Mapping[str, object]]:
    symbolic = sys.modules.get("torch._dynamo.symbolic_convert")
    try:
        frame = symbolic.InstructionTranslator.current_tx().output.root_tx  # type: ignore[union-attr]
        return dict(frame.f_locals), dict(frame.f_globals)
    except (AttributeError, TypeError):
        return _variables_ahead_of_time()


def _variables_ahead_of_time() -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Those of a method that is compiled ahead of time: its graph reaches Inductor when Dynamo is done with it."""
    method = variable_of("aot_compile_fullgraph", "model")  # PyTorch's, with the method that it compiles
    function: Any = getattr(method, "__func__", None)
    if function is None:
        return {}, {}
    code = function.__code__
    own = {code.co_varnames[0]: method.__self__} if code.co_argcount else {_ARGS: (method.__self__,)}
    return own, function.__globals__


def _tensors_by_name(inputs: Iterable[fx.Node], owner: str | None, modules: Mapping[str, nn.Module]) -> dict[str, str]:
    if owner is None:
        return {}
    texts: dict[str, list[str]] = {}
    for path, part in modules[owner].named_modules(remove_duplicate=False):
        for kind in ("parameters", "buffers"):
            for name in getattr(part, f"_{kind}"):
                steps = "".join(f"._modules['{step}']" for step in path.split(".") if step)
                texts.setdefault(_words(f"{owner}{steps}._{kind}['{name}']"), []).append(
                    ".".join(filter(None, (owner, path, name)))
                )
    found = ((node.name, texts.get(_words(str(node.target)), ())) for node in inputs)
    return {name: text[0] for name, text in found if len(text) == 1}


def _words(name: str) -> str:
    return "_".join(_WORD.findall(name.lower()))


def _names_itself(module: nn.Module, text: str) -> bool:
    forward: Any = type(unwrapped(module)).forward
    while forward is not None:
        code = getattr(forward, "__code__", None)
        if code is not None and text == (f"L['{code.co_varnames[0]}']" if code.co_argcount else _FIRST_ARG):
            return True
        forward = getattr(forward, "__wrapped__", None)
    return False


class Root(NamedTuple):
    """A module outside which no other module of the graph lies."""

    text: str
    module: ref[nn.Module] | None
    class_name: str


#: A parameter or buffer that a graph is given: the input's index, the number of its root, and its name below it.
Given = tuple[int, int, str]
#: A traced graph's digest, its roots (text and class), places and given, in Python's own types.
Kept = tuple[str, tuple[tuple[str, str], ...], tuple[tuple[int, str] | None, ...], tuple[Given, ...]]
#: Marks work of a function rather than a module: it belongs to the call around it.
CALLER = Root("", None, "")


class Traced:
    """The modules of one traced graph.

    Attributes:
        numbers: How the graph names each module, with its number. The module without a text is the function's own work.
        digest: Equal for graphs of equal nodes whose modules have equal numbers.
        places: For each module, the number of its root and its path below it; None if it is in none.
        chosen_by_inputs: Whether an engine may run its code as any of several equal graphs, identified by its inputs.
    """

    def __init__(self, graph: fx.GraphModule, around: Scope, *, chosen_by_inputs: bool = False) -> None:
        self.numbers: dict[str | None, int] = {}
        content = hashlib.sha256()
        for node in _nodes(graph):
            # Inputs are not compared: in a cache's key they have no names, and they do no work.
            number = self.numbers.setdefault(module_text(node), len(self.numbers)) if node.op != "placeholder" else -1
            called = name_of(node) if node.op in ("call_function", "call_method") else ""
            content.update(f"{node.op} {number} {called}\n".encode())
        self.digest = content.hexdigest()[:32]
        self.chosen_by_inputs = chosen_by_inputs
        self._read_roots(graph, around)

    @property
    def kept(self) -> Kept:
        """What is kept of it with code, for where that is loaded without a graph."""
        roots = tuple((root.text, root.class_name) for root in self.roots)
        return self.digest, roots, tuple(self.places), tuple(self.given)

    @classmethod
    def restored(cls, kept: Kept, *, chosen_by_inputs: bool) -> "Traced":
        """The graph of code that is loaded without one; its modules themselves are not known."""
        traced = cls.__new__(cls)
        traced.digest, roots, places, given = kept
        traced.numbers = {}
        traced.roots = [Root(text, None, name) if text or name else CALLER for text, name in roots]
        traced.places, traced.given = list(places), list(given)
        traced.chosen_by_inputs = chosen_by_inputs
        return traced

    def _read_roots(self, graph: fx.GraphModule, around: Scope) -> None:
        places, held = canonical_names(_nodes(graph), around.modules, around.owner)
        tensors = {node: text.rpartition(".") for node, text in around.tensors.items()}
        named = {node: f"{held.get(module, module)}.{name}" for node, (module, _, name) in tensors.items()}
        around = around._replace(tensors=named)
        owners = [text.rpartition(".")[0] for text in around.tensors.values()]
        texts = [around.owner if text is None else places.get(text, text) for text in self.numbers]
        known = [text for text in [*texts, *owners] if text]
        classes = dict(entry_of(entry) for stack in _stacks(_nodes(graph)) for entry in stack.values())
        roots = {base: _root_text(base, known, around) for base in dict.fromkeys(map(base_of, known))}
        self.roots = [_root(text, around, classes) for text in roots.values()]
        index = {base: number for number, base in enumerate(roots)}
        own = (len(roots), "")
        if None in texts or not roots:
            self.roots.append(CALLER)
        self.places = [self._place(text, index) if text else own for text in texts]
        self.given: list[Given] = []
        for position, node in enumerate(graph.graph.find_nodes(op="placeholder")):
            text = around.tensors.get(node.name)
            if text is not None and (place := self._place(text, index)) is not None:
                self.given.append((position, *place))

    def _place(self, text: str, index: Mapping[str, int]) -> tuple[int, str] | None:
        number = index[base_of(text)]
        path = text[len(self.roots[number].text) :].lstrip(".")
        return (number, path) if is_path(path) else None


def _nodes(graph: fx.GraphModule) -> Iterator[fx.Node]:
    for module in graph.modules():
        if isinstance(module, fx.GraphModule):
            yield from module.graph.nodes


def _stacks(nodes: Iterable[fx.Node]) -> Iterator[dict[object, Any]]:
    stacks = (node.meta.get("nn_module_stack") for node in nodes)
    return (stack for stack in stacks if isinstance(stack, dict))


def name_of(node: fx.Node) -> str:
    """The name of the function or method that a node calls."""
    return str(getattr(node.target, "__name__", node.target))


def _root_text(base: str, known: list[str], around: Scope) -> str:
    if base in around.modules or base == around.owner:
        return base
    inside = [text.split(".") for text in known if base_of(text) == base]
    common = 0
    while all(len(parts) > common and parts[common] == inside[0][common] for parts in inside):
        common += 1
    return ".".join(inside[0][:common])


def _root(text: str, around: Scope, classes: Mapping[str, str]) -> Root:
    module = around.modules.get(text)
    name = classes.get(text, "") if module is None else type(unwrapped(module)).__name__
    return Root(text, None if module is None else ref(unwrapped(module)), name)


def _tensor_text(node: fx.Node) -> str | None:
    name = getattr(getattr(node.meta.get("grapharg"), "source", None), "name", None)
    text = name() if callable(name) else name
    is_tensor = isinstance(text, str) and re.search(r"\._(?:parameters|buffers)\['[^']*'\]$", text)
    return plain(text) if is_tensor else None


def canonical_names(
    nodes: Iterable[fx.Node], variables: Mapping[str, nn.Module], owner: str | None
) -> tuple[dict[str, str], dict[str, str]]:
    """Other texts for those of a graph: where modules are called, and under which name their model holds them.

    A module of a global that no known model has, as vLLM's context may hold, is work of the only module that calls it.
    A text that stands for several places stays.
    """
    names: dict[int, dict[str, str]] = {}
    for variable, model in variables.items():
        for path, module in model.named_modules():
            parts = (part for part in path.split(".") if part not in ("", WRAPPED))
            names.setdefault(id(module), {})[variable] = ".".join((variable, *parts))
    places: dict[str, set[str | None]] = {}
    held: dict[str, str] = {}
    texts = (((str(key), entry_of(entry)[0]) for key, entry in stack.items()) for stack in _stacks(nodes))
    for stack in set(map(tuple, texts)):
        caller = place = None
        for key, text in stack:
            number = key.partition("@")[0]
            if number.isdecimal():  # which module Dynamo saw, first by the variable that it came from
                own = names.get(int(number), {})
                name = own.get(base_of(text)) or next(iter(own.values()), None)
            else:
                name = text if base_of(text) in variables else None
            if name is None:
                elsewhere = text.startswith("G[")
                places.setdefault(text, set()).add((place or owner) if elsewhere else text)
                continue
            caller, place = name, _place(name, caller, place)
            places.setdefault(text, set()).add(place)
            held[text] = name
    only = {text: place for text, (place, *others) in places.items() if place is not None and not others}
    return {text: place for text, place in only.items() if place != text}, held


def _place(name: str, caller: str | None, above: str | None) -> str:
    if above is None or name.startswith(f"{above}.") or "." not in name:
        return name
    return above if name == caller else f"{above}.{name.rpartition('.')[2]}"


#: What a traced name begins with: a local or global of the traced function, or the module of one that is a method.
_VARIABLE = re.compile(rf"{re.escape(_FIRST_ARG)}|[A-Z]+\['(?:[^'\\]|\\.)*'\](?:{re.escape(_OF_METHOD)}\b)?")
_PART = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]|\['?([^'\]]*)'?\]")


def module_text(node: fx.Node) -> str | None:
    """How a graph names the innermost module that a node is work of; None if it lies in none."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    return None if not isinstance(stack, dict) or not stack else entry_of(list(stack.values())[-1])[0]


def entry_of(entry: Any) -> tuple[str, str]:  # noqa: ANN401 - as torch writes it
    """The text and the class of a module in a stack."""
    text, cls = entry if isinstance(entry, tuple | list) else (entry, "")
    name = cls.__name__ if isinstance(cls, type) else str(cls).rpartition(".")[2]
    return plain(str(text)), name


@lru_cache(maxsize=65_536)
def plain(text: str) -> str:
    """A name in which modules of modules are written with dots, behind the variable."""
    head = _VARIABLE.match(text)
    end = head.end() if head else 0
    return text[:end] + _PART.sub(lambda part: f".{part[1] or part[2]}", text[end:])


def base_of(text: str) -> str:
    """The variable that a name begins with."""
    head = _VARIABLE.match(text)
    return head[0] if head else text.partition(".")[0]
