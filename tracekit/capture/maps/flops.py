"""FLOPs of the kernels of a compiled graph, by module: those of the nodes that they are made of, as torch counts them.

Formulas are those of ``torch.utils.flop_counter``. A node that the compiler wrote otherwise, as a sum of products,
costs what it was before. What may multiply and has no formula is unknown and named, never free.
If sizes are symbols, FLOPs are a polynomial of the numbers that a run is given.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from tracekit.capture.maps.owners import Kernel, Owners, operator_name
from tracekit.flops.kernels import CPU_ATTENTIONS, may_multiply
from tracekit.flops.tensors import computed_in
from tracekit.markers.base import MOST_FLOPS, UNCLEAR, Flops
from tracekit.markers.kernel_maps import DIVIDED, MOST_NOTE_CHARACTERS, SIZES

#: A factor, and the inputs of the graph that are multiplied by it, each with its power.
Term = tuple[int, tuple[tuple[int, int], ...]]


class Cost(NamedTuple):
    """FLOPs of a kernel for a module, in any run of its graph: the sum of its terms, if they are known."""

    terms: tuple[Term, ...] | None
    note: str = ""

    def plus(self, other: "Cost") -> "Cost":
        """Both together: unknown if one is, and without a dtype if they have several."""
        if self.terms is None or other.terms is None:
            return self if self.terms is None else other
        notes = {cost.note for cost in (self, other) if cost.terms}
        return Cost(self.terms + other.terms, notes.pop() if len(notes) == 1 else "")

    def flops(self, inputs: Sequence[Any] | None) -> Flops:
        """In a run with these inputs; of any run, if none are given."""
        if self.terms is None or (inputs is None and any(powers for _, powers in self.terms)):
            return Flops(-1, self.note if self.terms is None else SIZES)
        given = inputs or ()
        number = sum(factor * prod(int(given[at]) ** power for at, power in powers) for factor, powers in self.terms)
        return Flops(number, self.note if number else "") if 0 <= number < MOST_FLOPS else Flops(-1, UNCLEAR)


_NOTHING = Cost(())
#: Operators of torch, of Inductor and of collectives; those of others may do anything.
_KNOWN = frozenset({"aten", "prims", "prim", "inductor", "_c10d_functional", "quantized_decomposed", "rngprims"})
#: Products that Inductor writes as a sum of elementwise ones where they are small: each is two operations.
_SUMMED = frozenset({"aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm"})
_CONVERSION = "convert_element_type"


def flops_of(graph: fx.GraphModule, kernels: Sequence[Kernel], owners: Owners) -> list[dict[str | None, Cost]]:
    """For every kernel the FLOPs of each module that it serves."""
    computed = owners.computed(kernels)
    counting = Counting(graph)
    distinct = {node: counting.cost(node) for nodes in computed for node in nodes}
    costs = {node: cost for node, cost in distinct.items() if cost is not _NOTHING}
    others = (node for node in graph.graph.nodes if node.users and node not in costs and _formula(node) is not None)
    if any(counting.cost(node) is not _NOTHING for node in others):
        # No kernel is known to compute this product.
        return [dict.fromkeys(modules, Cost(None, UNCLEAR)) for modules, _ in owners.modules_of(kernels)]
    holders = _holders(costs, kernels, computed)
    found = []
    for at, (modules, _) in enumerate(owners.modules_of(kernels)):
        here = [node for node in computed[at] if at in holders.get(node, ())]
        divided = {node: costs[node] if len(holders[node]) == 1 else Cost(None, DIVIDED) for node in here}
        found.append(_by_module(divided, modules, owners))
    return found


def _holders(
    costs: Mapping[fx.Node, Cost], kernels: Sequence[Kernel], computed: Sequence[Sequence[fx.Node]]
) -> dict[fx.Node, list[int]]:
    """The kernels that compute each node: only its own, if it has one, because others only use its result."""
    holders: dict[fx.Node, list[int]] = {node: [] for node in costs}
    own: dict[fx.Node, list[int]] = {}
    for at, (kernel, nodes) in enumerate(zip(kernels, computed, strict=True)):
        for node in costs.keys() & set(nodes):
            holders[node].append(at)
            if not kernel.generated and kernel.nodes == (node,):
                own.setdefault(node, []).append(at)
    return holders | {node: places for node, places in own.items() if len(places) == 1}


def _by_module(
    costs: Mapping[fx.Node, Cost], modules: Mapping[str | None, int], owners: Owners
) -> dict[str | None, Cost]:
    """The FLOPs of a kernel for each module that it serves; none if some could not be attributed."""
    found = dict.fromkeys(modules, _NOTHING)
    for node, cost in costs.items():
        known, text = owners.owner(node)
        if len(modules) == 1:
            (text,) = modules
        elif not known or text not in modules:
            return dict.fromkeys(modules, Cost(None, cost.note if cost.terms is None else DIVIDED))
        found[text] = found[text].plus(cost)
    return found


class Counting:
    """Counts the FLOPs of the nodes of a graph; of symbols among sizes it knows which inputs they are."""

    def __init__(self, graph: fx.GraphModule) -> None:
        values = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
        sizes = {at: value.node.expr for at, value in enumerate(values) if isinstance(value, torch.SymInt)}
        self._inputs = {expression: at for at, expression in sizes.items() if expression.is_Symbol}

    def cost(self, node: fx.Node) -> Cost:
        """What a node costs."""
        if (formula := _formula(node)) is not None:
            return _NOTHING if _operator(node.target) in CPU_ATTENTIONS else self._by_formula(node, formula)
        original = node.meta.get("original_aten")
        if str(_packet(node.target)) == "aten.mul" and original is not None and _packet(original) in _registry():
            return self._summed(node, str(_packet(original)))
        return _NOTHING if not _may_multiply(node.target) else Cost(None, _operator(node.target)[:MOST_NOTE_CHARACTERS])

    def _by_formula(self, node: fx.Node, formula: Callable[..., Any]) -> Cost:
        args, kwargs, result = fx.node.map_arg((node.args, node.kwargs, node), lambda item: item.meta.get("val"))
        tensors, results = [*_tensors(args), *_tensors(kwargs)], _tensors(result)
        if any(type(dimension) is not int for tensor in (*tensors, *results) for dimension in tensor.shape):
            # Asking a symbol for its number, as comparing it does, would add a guard to the user's graph.
            args, kwargs, result = tree_map(_shape, (args, kwargs, result))
        try:
            number = formula(*args, **kwargs, out_val=result)
        except Exception:  # noqa: BLE001 - a formula checks what it is given as it likes
            return Cost(None, UNCLEAR)
        dtype = computed_in([str(item.dtype) for item in tensors], [str(item.dtype) for item in results])
        return self._of_number(number, dtype or "")

    def _summed(self, node: fx.Node, original: str) -> Cost:
        factors = [item.meta.get("val") for item in node.args if isinstance(item, fx.Node)]
        if len(factors) < len(node.args) or not all(isinstance(item, torch.Tensor) and item.ndim for item in factors):
            return _NOTHING
        result = node.meta.get("val")
        if original not in _SUMMED or not isinstance(result, torch.Tensor):
            return Cost(None, original)
        # What comes out need not be the dtype of the product: half precision is multiplied as float32.
        return self._of_number(2 * prod(_shape(result)), "")

    def _of_number(self, number: Any, dtype: str) -> Cost:  # noqa: ANN401 - an integer, or a formula of SymPy
        if type(number) is int:
            return Cost(((number, ()),), dtype) if number else _NOTHING
        try:
            symbols = sorted(number.free_symbols, key=str)
            inputs = [self._inputs[symbol] for symbol in symbols]
            terms = []
            for powers, factor in number.as_poly(*symbols).terms():
                given = ((at, power) for at, power in zip(inputs, powers, strict=True) if power)
                terms.append((int(factor), tuple(given)))
            return Cost(tuple(terms), dtype)
        except Exception:  # noqa: BLE001 - not a polynomial, or of symbols that are no inputs
            return Cost(None, SIZES)


def _expression(dimension: Any) -> Any:  # noqa: ANN401
    return dimension if type(dimension) is int else dimension.node.expr


def _shape(value: Any) -> Any:  # noqa: ANN401 - a tensor, or any other argument
    return tuple(map(_expression, value.shape)) if isinstance(value, torch.Tensor) else value


def _tensors(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _formula(node: fx.Node) -> Callable[..., Any] | None:
    return _registry().get(_packet(node.target)) if node.op == "call_function" else None


def _registry() -> Mapping[Any, Callable[..., Any]]:
    from torch.utils.flop_counter import flop_registry  # noqa: PLC0415 - takes Triton along where there is one

    return flop_registry


def _packet(target: Any) -> Any:  # noqa: ANN401 - anything that a node calls
    return getattr(target, "overloadpacket", target)


def _operator(target: object) -> str:
    return operator_name(target).replace(".", "::", 1)


def _may_multiply(target: Any) -> bool:  # noqa: ANN401
    """Whether a node without a formula may multiply matrices. Python's own functions compute sizes."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return True
    if isinstance(target, partial):
        # What Inductor puts in the place of several operators, as the sum of two products.
        return may_multiply(_operator(target))
    packet = _packet(target)  # nodes that Inductor writes may leave open which overload they call
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    if str(packet).partition(".")[0] not in _KNOWN:
        return True
    name = _operator(target)
    return name not in CPU_ATTENTIONS and may_multiply(name.replace(_CONVERSION, ""))
