"""Which modules each kernel of a compiled graph serves, by the nodes of the graph that the compiler made it of.

Inductor rewrites a graph before it makes kernels of it, and a rewritten node names its module only by chance: a
matrix product that takes up the addition behind it passes for the addition. So products are recognized by what they
multiply, as it was before. It knows modules only as texts of the graph.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from torch import fx

from tracekit.capture.maps.traced import module_text

#: Where the two factors are among the arguments of an operator that multiplies.
_FACTORS = {
    **dict.fromkeys(("aten.mm", "aten.bmm", "aten._scaled_mm", "aten._int_mm", "aten.convolution"), (0, 1)),
    **dict.fromkeys(("mkldnn._linear_pointwise", "mkldnn._convolution_pointwise", "mkl._mkl_linear"), (0, 1)),
    "aten.addmm": (1, 2),
    "aten.baddbmm": (1, 2),
    "aten.convolution_backward": (0, 2),
}
#: The factors of the two products that Inductor has one call of a library add up.
_SUM_OF_PRODUCTS = "mm_plus_mm"
_FACTORS_OF_SUM = (("mat1", "mat2"), ("mat3", "mat4"))
#: Operators that give the same numbers another shape or dtype.
_VIEWS = {
    *("aten.permute", "aten.t", "aten.transpose", "aten.view", "aten.reshape", "aten._unsafe_view", "aten.expand"),
    *("aten.unsqueeze", "aten.squeeze", "aten.slice", "aten.select", "aten.as_strided", "aten.detach", "aten.alias"),
    *("aten.clone", "aten._to_copy", "prims.convert_element_type", "aten.split", "aten.split_with_sizes"),
}
_FREE = {"getitem"} | _VIEWS - {"aten.clone", "aten._to_copy", "prims.convert_element_type"}
#: Nodes of no module that are looked past.
_MOST_AROUND = 64
#: What only nodes of the program have, and those that it is differentiated into.
_PROGRAM = ("source_fn_stack", "fwd_source_fn_stack")


class Kernel(NamedTuple):
    """A kernel of the generated code, whether that is the compiler's own, and the nodes that it computes."""

    name: str
    generated: bool
    nodes: tuple[fx.Node, ...]


class Owners:
    """The owners of a graph's nodes (``backward``: of a backward pass), read before the compiler rewrites it."""

    def __init__(self, graph: fx.GraphModule, *, backward: bool = False) -> None:
        self._by_factors: dict[tuple[int, ...], str | None] = {}
        self._by_weight: dict[str, set[str | None]] = {}
        #: Nodes are known by identity: those that are removed must not make room for others.
        self._kept = list(graph.graph.nodes)
        self._backward = backward
        for node in self._kept:
            factors = _factors(node)
            if factors and _is_known(node):
                self._by_factors[tuple(map(id, factors))] = module_text(node)
                for weight in filter(None, map(_input, factors)):
                    self._by_weight.setdefault(weight.name, set()).add(module_text(node))

    def modules_of(self, kernels: Sequence[Kernel]) -> Iterator[tuple[dict[str | None, int], bool]]:
        """For each kernel the weights of the modules that it serves, by text, and whether it recomputes.

        None is the function's own work; no module if it is unknown. A kernel of a backward graph recomputes if it does
        nothing but what a forward pass did before.
        """
        called = {node for kernel in kernels for node in _called(kernel)}
        for kernel, nodes in zip(kernels, self.computed(kernels), strict=True):
            computing = [node for node in nodes if _name(node) not in _FREE]
            weights = self._weights(kernel, computing or nodes, called)
            again = all(node.meta.get("partitioner_tag") == "is_forward" for node in computing)
            yield weights, self._backward and bool(computing) and again

    def computed(self, kernels: Sequence[Kernel]) -> list[list[fx.Node]]:
        """The nodes that each kernel computes."""
        called = [_called(kernel) for kernel in kernels]
        # An operator's own kernel passes for its inputs' work, too, and theirs for the operator's.
        others = {node for nodes in called for node in nodes}
        found: list[list[fx.Node]] = []
        before: set[fx.Node] = set()
        for kernel, own in zip(kernels, called, strict=True):
            found.append(own or _without(others, before, kernel.nodes))
            before.update(found[-1])
            if _is_product(kernel):
                # The compiler's next kernel may finish it, as it adds the bias of a convolution.
                others.difference_update(own)
        return found

    def _weights(self, kernel: Kernel, nodes: Sequence[fx.Node], called: Container[fx.Node]) -> dict[str | None, int]:
        weights: Counter[str | None] = Counter()
        for node in nodes:
            products = [self._of_product(node, factors) for factors in _products(node)]
            multiplies = products and not (kernel.generated and node in called)
            for known, text in products or [self.owner(node)]:
                if known:
                    weights[text] += len(nodes) if multiplies else 1
        return dict(weights) or dict.fromkeys(_around(nodes), 1)

    def owner(self, node: fx.Node) -> tuple[bool, str | None]:
        """Whether the module of a node is known, and which it is."""
        product = _factors(node)
        return self._of_product(node, product) if product else (_is_known(node), module_text(node))

    def _of_product(self, node: fx.Node, factors: Sequence[fx.Node]) -> tuple[bool, str | None]:
        pair = tuple(map(id, factors))
        if pair in self._by_factors:
            return True, self._by_factors[pair]
        owners: set[str | None] = set()
        for weight in filter(None, map(_input, factors)):
            owners |= self._by_weight.get(weight.name, set())
        own = module_text(node)
        if not owners or (_is_known(node) and own in owners):
            return _is_known(node), own
        return (True, owners.pop()) if len(owners) == 1 else (False, None)


def _called(kernel: Kernel) -> list[fx.Node]:
    """The nodes of the operator that a kernel is a call of; a node may leave open which overload it calls."""
    if kernel.generated:
        return []
    if _is_product(kernel):
        return list(kernel.nodes) if len(kernel.nodes) == 1 else list(filter(_products, kernel.nodes))
    overload = kernel.name.removeprefix("torch.ops.")
    return [node for node in kernel.nodes if str(node.target) in (overload, overload.rpartition(".")[0])]


def _is_product(kernel: Kernel) -> bool:
    return kernel.name.startswith("extern_kernels.")


def _without(called: Container[fx.Node], before: set[fx.Node], nodes: Iterable[fx.Node]) -> list[fx.Node]:
    """The nodes that compute, but for those that kernels of their own compute, if others that compute are left.

    Where only work of kernels before is left, which is input here, a kernel finishes what an operator began.
    """
    computing = [node for node in nodes if node.op == "call_function"]
    left = [node for node in computing if node not in called]
    left = left if any(_name(node) not in _FREE for node in left) else computing
    finished = [node for node in computing if node in called]
    return finished if finished and before.issuperset(left) else left


def _products(node: fx.Node) -> list[tuple[fx.Node, ...]]:
    if _name(node) != _SUM_OF_PRODUCTS:
        return list(filter(None, [_factors(node)]))
    pairs = ([node.kwargs.get(name) for name in names] for names in _FACTORS_OF_SUM)
    return [tuple(item for item in pair if isinstance(item, fx.Node)) for pair in pairs]


def _factors(node: fx.Node) -> tuple[fx.Node, ...]:
    places = _FACTORS.get(_name(node), ())
    if not places or len(node.args) <= max(places):
        return ()
    return tuple(item for item in (node.args[place] for place in places) if isinstance(item, fx.Node))


def _input(node: fx.Node) -> fx.Node | None:
    while node.op not in ("placeholder", "get_attr"):
        if _name(node) not in _VIEWS | {"getitem"} or not node.args or not isinstance(node.args[0], fx.Node):
            return None
        node = node.args[0]
    return node


def _name(node: fx.Node) -> str:
    return operator_name(node.target)


def operator_name(target: object) -> str:
    """How torch calls an operator, such as ``aten.mm``, whichever overload it is; the name of any other function."""
    packet = getattr(target, "overloadpacket", None)
    return str(packet) if packet is not None else str(getattr(target, "__name__", target))


def _is_known(node: fx.Node) -> bool:
    """Whether a node names its module: it comes from the program, not from a compiler's rewriting of it."""
    return module_text(node) is not None or any(name in node.meta for name in ("fwd_nn_module_stack", *_PROGRAM))


def _around(nodes: Sequence[fx.Node]) -> set[str | None]:
    """The modules of the nodes that some read, and that read them, past nodes of no module; none if too far."""
    seen = dict.fromkeys(nodes)
    found: set[str | None] = set()
    for number, node in enumerate(waiting := list(nodes)):
        if number >= _MOST_AROUND:
            return set()
        for item in (*node.all_input_nodes, *node.users):
            if item.op == "call_function" and _is_known(item):
                found.add(module_text(item))
            elif item.op == "call_function" and item not in seen:
                seen[item] = None
                waiting.append(item)
    return found
