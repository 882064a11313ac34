"""The key of a piece's compiled code. Two pieces have equal keys only if their code is interchangeable.

The graph is serialized with values numbered in order and symbolic sizes renamed in order of appearance, so equal layers
have equal keys. If a piece contains something that AOTAutograd would trace through without our seeing it (the user's
functions, scripts, operators that decompose), it has no key: it is compiled and not kept.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import sympy
import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache, check_cacheable
from torch._inductor import config as inductor_settings
from torch._inductor.codecache import BypassFxGraphCache, FxGraphCachePickler, FxGraphHashDetails
from torch.utils._mode_utils import no_dispatch

from tracekit.capture.compile.decomposition import NAMESPACES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.fx.experimental.symbolic_shapes import ShapeEnv

#: Raised for a graph whose compiled code its text does not determine.
_REFUSALS = (BypassAOTAutogradCache, BypassFxGraphCache, pickle.PicklingError)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_BOUNDS = (sympy.LessThan, sympy.StrictLessThan, sympy.GreaterThan, sympy.StrictGreaterThan)
#: Metadata of a node that changes how it is compiled.
_META = ("recompute", "ac_graph_id", "user_cache_hash")


class _NoKeyError(Exception):
    """A piece has no key; the message says why."""


def piece_key(graph: fx.GraphModule, inputs: Sequence[object], inductor_config: Mapping[str, object]) -> str | None:
    """The key of a piece's compiled code.

    Args:
        graph: The piece before it is compiled, with ``example_value`` in the metadata of its nodes.
        inputs: The inputs to compile for: tensors, real or fake, and sizes, symbolic or not. Only the metadata of
            tensors counts. To compile for every size, pass the graph's own example values: a real tensor counts
            with its actual size.
        inductor_config: Inductor's settings for this compilation, other than the defaults.

    Returns:
        64 hexadecimal digits, or None if there is no safe key: then compile the piece and do not keep it.
    """
    try:
        check_cacheable(graph)
        text = _Text()
        content = [text.graph(graph), [text.value(item) for item in inputs], text.symbols()]
        content += [_settings(graph, inductor_config)]
    except (_NoKeyError, *_REFUSALS):
        return None
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class _Facts(NamedTuple):
    """What tracing knew about sizes when the first key of a model was computed.

    Compiling a piece may add facts; without this snapshot, keys of later pieces would depend on earlier compilations.
    """

    ranges: dict[sympy.Symbol, str]
    known: tuple[sympy.Basic, ...]


_FACTS: weakref.WeakKeyDictionary[ShapeEnv, _Facts] = weakref.WeakKeyDictionary()


def _facts(env: ShapeEnv) -> _Facts:
    if (facts := _FACTS.get(env)) is None:
        known = tuple(guard.expr for guard in env.guards)
        facts = _Facts({symbol: str(r) for symbol, r in env.var_to_range.items()}, known)
        _FACTS[env] = facts
    return facts


def holds_for_all_sizes(inputs: Sequence[object], largest: int) -> bool:
    """Whether code that was compiled for these inputs is right for all sizes that its key stands for.

    It is not if the compiler has taken more about sizes for granted since the first key of the model: loaded or shared
    code would be used for other sizes, and no guard would notice. Bounds beyond any size do no harm.

    Args:
        inputs: The inputs that a piece was compiled for.
        largest: The largest size.
    """
    envs = {id(env): env for item in inputs if (env := _shapes(item)) is not None}
    return all(
        _always_holds(guard.expr, largest) for env in envs.values() for guard in env.guards[len(_facts(env).known) :]
    )


def _shapes(item: object) -> ShapeEnv | None:
    """What is known about the sizes of an input."""
    if isinstance(item, torch.SymInt):
        env: ShapeEnv | None = item.node.shape_env
        return env
    return getattr(getattr(item, "fake_mode", None), "shape_env", None)


def _always_holds(fact: sympy.Basic, largest: int) -> bool:
    """Whether a fact is a bound that the least and the largest size keep."""
    if not isinstance(fact, _BOUNDS):
        return False
    return all(fact.subs(dict.fromkeys(fact.free_symbols, size)) is sympy.true for size in (2, largest))


class _Text:
    """Serializes a piece without its names."""

    def __init__(self) -> None:
        self._names: dict[sympy.Symbol, sympy.Symbol] = {}
        self._envs: dict[int, ShapeEnv] = {}

    def graph(self, module: fx.GraphModule) -> list[object]:
        """Every node in order: its target, its arguments and its result."""
        numbers: dict[fx.Node, int] = {}
        rows: list[object] = []
        for node in module.graph.nodes:
            numbers[node] = len(numbers)
            rows.append([node.op, *self._node(module, node, numbers)])
        return rows

    def symbols(self) -> list[object]:
        """The range of every symbol, and the other facts that involve only these symbols."""
        rows: list[object] = []
        for env in self._envs.values():
            facts = _facts(env)
            for old, new in self._names.items():
                limits = facts.ranges.get(old) or str(env.var_to_range.get(old))
                rows.append([str(new), limits, old.is_positive, old.is_nonnegative])
            own = (e for e in facts.known if e.free_symbols and e.free_symbols <= set(self._names))
            rows += sorted(self._expression(expression) for expression in own)
        return rows

    def _node(self, module: fx.GraphModule, node: fx.Node, numbers: dict[fx.Node, int]) -> list[object]:
        value = node.meta.get("example_value", node.meta.get("val"))
        meta = [repr(node.meta.get(name)) for name in _META]
        if node.op == "placeholder":
            return [self.value(value), meta]
        row = [self.value((node.args, node.kwargs), numbers), self._result(value), meta]
        if node.op == "get_attr":
            return [self._attribute(module, str(node.target)), *row]
        return [_target(node), *row]

    def _result(self, value: object) -> object:
        """The metadata of a node's result. Where we cannot serialize it, it follows from the rest of the graph."""
        try:
            return self.value(value)
        except _NoKeyError:
            return type(value).__qualname__

    def _attribute(self, module: fx.GraphModule, name: str) -> object:
        value: object = module
        for part in name.split("."):
            value = getattr(value, part)
        if isinstance(value, fx.GraphModule):
            return self.graph(value)
        if isinstance(value, torch.Tensor):
            return [self.value(value), _content(value)]
        raise _NoKeyError(name)

    def value(self, value: object, numbers: Mapping[fx.Node, int] | None = None) -> object:
        """Serializes a value with its type: 1, True and 1.0 compile to different code."""
        if isinstance(value, fx.Node):
            return ["node", (numbers or {})[value]]
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            self._envs[id(value.node.shape_env)] = value.node.shape_env
            return [type(value).__name__, self._expression(value.node.expr)]
        if isinstance(value, _PLAIN + _TORCH):
            return [type(value).__name__, repr(value)]
        return self._container(value, numbers)

    def _container(self, value: object, numbers: Mapping[fx.Node, int] | None) -> object:
        name = type(value).__qualname__
        if isinstance(value, list | tuple):
            return [name, *(self.value(item, numbers) for item in value)]
        if isinstance(value, dict):
            return [name, *([self.value(k), self.value(v, numbers)] for k, v in value.items())]
        if isinstance(value, slice):
            ends = (value.start, value.stop, value.step)
            return [name, *(self.value(item, numbers) for item in ends)]
        if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return [name, str(value)]
        raise _NoKeyError(name)

    def _tensor(self, tensor: torch.Tensor) -> object:
        if not isinstance(tensor, torch._subclasses.FakeTensor) and type(tensor) not in (
            torch.Tensor,
            torch.nn.Parameter,
            torch.nn.Buffer,
        ):
            raise _NoKeyError(type(tensor).__qualname__)
        row: list[object] = ["tensor", str(tensor.dtype), str(tensor.device), str(tensor.layout)]
        row += [self.value(tuple(tensor.shape)), tensor.requires_grad]
        row += [tensor.is_conj(), tensor.is_neg(), tensor.is_inference()]
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise _NoKeyError(str(tensor.layout))
        return [*row, self.value(tensor.stride()), self.value(tensor.storage_offset())]

    def _expression(self, expression: sympy.Basic) -> str:
        for symbol in sorted(expression.free_symbols - self._names.keys(), key=str):
            self._names[symbol] = sympy.Symbol(f"size{len(self._names)}", integer=True)
        return str(sympy.srepr(expression.xreplace(self._names)))


def _target(node: fx.Node) -> str:
    """The target of a node, by a name that means the same in every process."""
    target = node.target
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        _refuse_transparent(target)
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target._name}"
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', repr(target))}"


def _refuse_transparent(target: torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> None:
    """Raises for a user's operator whose body AOTAutograd traces: its name does not identify the body."""
    if isinstance(target, torch._ops.OpOverload):
        overloads = [target]
    else:
        overloads = [getattr(target, name) for name in target._overload_names]
    for overload in overloads:
        name = overload._name
        if name.partition("::")[0] in NAMESPACES:
            continue
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        if composite or torch._library.triton.get_triton_kernels_for_op(name):
            raise _NoKeyError(name)


def _content(tensor: torch.Tensor) -> str:
    """A digest of a constant's values, which Inductor writes into the code."""
    if isinstance(tensor, torch._subclasses.FakeTensor):
        raise _NoKeyError("fake constant")
    with no_dispatch():
        plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return hashlib.sha256(plain.numpy().tobytes()).hexdigest()


def _settings(graph: fx.GraphModule, inductor_config: Mapping[str, object]) -> list[object]:
    """Everything besides the graph that Inductor's code depends on: Inductor's own list, and what that omits."""
    with ExitStack() as stack:
        stack.enter_context(inductor_settings.patch(dict(inductor_config)))
        details = FxGraphHashDetails(graph, [], {}, [])
        details.gm = None
        digest = FxGraphCachePickler(graph).get_hash(details)
    autocast = {
        device: str(torch.get_autocast_dtype(device)) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)
    }
    return [
        digest,
        torch.__version__,
        repr(sorted(functorch_config.save_config_portable().items(), key=str)),
        autocast,
        [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads()],
        [str(torch.get_default_dtype()), str(torch.get_default_device())],
        [torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled],
    ]
