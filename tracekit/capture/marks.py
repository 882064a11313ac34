"""The marks of one module: what opens and closes its ranges, and what the ranges record.

Both run in the middle of the user's forward pass. Expensive work is done once per combination of shapes, dtypes
and devices of a call's tensors. A range that was opened is always closed, and nothing is raised.

Dynamo must not trace them: pushing a range breaks the graph, and a range that Python pushes around compiled code would
show wrong times. To Dynamo they are not there, by a constant that costs neither a graph break nor a guard.
:class:`~tracekit.capture.layers.LayerMarkers` lists the modules that ran unmarked because of that.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._C import (
    DisableTorchFunction,
    _current_graph_task_id as _graph_task,
    _is_torch_function_mode_enabled as _modes,
)
from torch.nn import Module
from torch.nn.parameter import UninitializedParameter

from tracekit.capture.emit import Emitter, Unmarked, close_down_to, nothing
from tracekit.capture.frames import never_compiled
from tracekit.markers import formatting
from tracekit.markers.base import Param
from tracekit.markers.formatting import Tensor as MarkerTensor

_LOG = logging.getLogger("tracekit.capture")
#: ``torch.compile(module)`` returns a new module that holds the original under this name.
WRAPPED = "_orig_mod"
#: Above this many texts, all modules of a model forget theirs. A text takes about 1 kB.
_MOST_TEXTS = 65_536
#: Structures with more parts than this are not searched for tensors.
MOST_PARTS = 1_024

Described = tuple[torch.Size, torch.dtype, torch.device]
#: None means too many tensors to describe.
Tensors = tuple[Described, ...] | None
#: Names of keyword arguments, then what tensors there are in each of the arguments: see :func:`call_key`.
CallKey = tuple[object, ...]

_OTHER, _TENSOR, _SEQUENCE, _MAPPING, _DATACLASS = range(5)
#: What values of a type are; telling it takes longer than all else here.
_kinds: dict[type, int] = {}
_T = TypeVar("_T")


class Model(Protocol):
    """A model that has marks, which may be part of another one."""

    def look_again(self) -> None:
        """Marks the modules that were put in, and follows those that have moved."""


class Switch:
    """Turns all marks of one :class:`~tracekit.capture.layers.LayerMarkers` on and off, and counts their texts."""

    __slots__ = ("generation", "met", "model", "on", "texts")

    def __init__(self, *, on: bool, model: Model | None = None) -> None:
        self.on = on
        self.model = model
        #: The switches of other models inside whose calls these modules have run.
        self.met: set[Switch] = set()
        self.texts = 0
        self.generation = 0


class Marks:
    """The marks of one module."""

    __slots__ = (
        *("__weakref__", "call_openers", "called", "close", "emitter", "generation", "lane", "opener", "path"),
        *("result_openers", "settings", "switch", "unmarked", "wraps"),
    )

    def __init__(self, path: str, switch: Switch, emitter: Emitter, *, wraps: int = 0) -> None:
        self.path = path
        self.switch = switch
        self.generation = switch.generation
        self.emitter = emitter
        self.lane = emitter.lane
        self.close = emitter.close
        self.opener = emitter.opener
        self.call_openers: dict[CallKey, Callable[[], object]] = {}
        self.result_openers: dict[CallKey, Callable[[], object]] = {}
        self.unmarked = Unmarked()
        #: Those at the first call: what a schedule changes, such as a momentum, makes no other module of it.
        self.settings: dict[str, object] | None = None
        #: Whether any call has been marked.
        self.called = False
        #: The id of the module that this one wraps, as torch.compile does: both calls are one.
        self.wraps = wraps

    @never_compiled
    def before(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        """Opens the range of a call."""
        opened = self.lane.open
        if not self.switch.on:
            opened.append(self.unmarked)
            return
        if opened and (around := opened[-1]).__class__ is Marks:
            if around.wraps and around.wraps == id(module):
                return
            if around.switch is not self.switch and around.switch not in self.switch.met:
                self._meet(around.switch)
        try:
            key = call_key(args, kwargs)
            if _graph_task() >= 0:
                key = ("recompute", key)
            opener = self.call_openers.get(key) or unobserved(self._new_call_opener, module, args, kwargs, key)
        except Exception:  # noqa: BLE001 - the user's run goes on
            _LOG.debug("cannot describe a call of %s", self.path, exc_info=True)
            class_name = type(unwrapped(module)).__name__
            opener = self.opener(formatting.call(self.path, class_name, inputs=None, phase=_phase()))
            self.called = True
        opened.append(self)
        opener()

    @never_compiled
    def after(self, module: Module, _args: object, output: Any) -> None:  # noqa: ANN401 - as the module
        """Closes the range of a call, then describes the outputs in a second, empty range."""
        opened = self.lane.open
        entry = opened[-1] if opened else None
        if entry is self.unmarked:
            opened.pop()
            return
        if entry is not self and not self._on_top(opened):
            return
        opened.pop()
        self.close()
        try:
            key = call_key(output if type(output) is tuple else (output,))
            opener = self.result_openers.get(key) or unobserved(self._new_result_opener, module, output, key)
        except Exception:  # noqa: BLE001 - the user's run goes on
            _LOG.debug("cannot describe a result of %s", self.path, exc_info=True)
            opener = self.opener(formatting.result(self.path, type(module).__name__, None))
        if opener is not nothing:
            opener()
            self.close()

    def forget(self) -> None:
        """Drops the cached texts: parameters may have changed."""
        self.call_openers.clear()
        self.result_openers.clear()

    def moved(self, path: str) -> None:
        """The module has another path from now on."""
        self.path = path
        self.forget()

    def _meet(self, around: Switch) -> None:
        """Calls of this module are for the first time inside another model: it may have been put in there."""
        self.switch.met.add(around)
        try:
            if self.switch.model is not None and around.model is not None:
                around.model.look_again()
        except Exception:  # noqa: BLE001 - the user's run goes on
            _LOG.debug("cannot look for the modules of a model", exc_info=True)

    def _on_top(self, opened: list[object]) -> bool:
        """Closes ranges that interrupted inner calls left open. Returns whether this call itself is marked."""
        innermost = (entry for entry in reversed(opened) if entry is self or entry is self.unmarked)
        if (entry := next(innermost, None)) is None:
            return False
        close_down_to(entry, self.emitter)
        if entry is self:
            return True
        opened.pop()
        return False

    def _new_call_opener(
        self, module: Module, args: tuple[object, ...], kwargs: Mapping[str, object] | None, key: CallKey
    ) -> Callable[[], object]:
        self.called = True
        module = unwrapped(module)
        self.settings = settings_of(module) if self.settings is None else self.settings
        positional, by_name = call_tensors(args, kwargs)
        text = formatting.call(
            self.path,
            type(module).__name__,
            params=_params(module),
            inputs=marker_tensors(positional),
            kwargs={name: marker_tensors(tensors) for name, tensors in by_name.items()},
            static_params=self.settings,
            phase=_phase(),
        )
        return self._remembered(self.call_openers, key, self.opener(text))

    def _new_result_opener(self, module: Module, output: object, key: CallKey) -> Callable[[], object]:
        if (tensors := tensors_in(output)) == ():
            return self._remembered(self.result_openers, key, nothing)
        path = self.path.replace("(input)", "(output)")
        text = formatting.result(path, type(unwrapped(module)).__name__, marker_tensors(tensors))
        return self._remembered(self.result_openers, key, self.opener(text))

    def _remembered(
        self, texts: dict[CallKey, Callable[[], object]], key: CallKey, opener: Callable[[], object]
    ) -> Callable[[], object]:
        switch = self.switch
        if self.generation != switch.generation:
            self.forget()
            self.generation = switch.generation
        switch.texts += 1
        if switch.texts >= _MOST_TEXTS:
            switch.texts = 0
            switch.generation += 1
        texts[key] = opener
        return opener


def in_backward_pass() -> bool:
    """Whether this thread is running a node of a backward pass: a module that is called now runs once more."""
    return _graph_task() >= 0


def _phase() -> str | None:
    return "recompute" if in_backward_pass() else None


def _params(module: Module) -> list[Param]:
    return [
        Param(name, tuple(item.shape), plain(item.dtype))
        for name, item in module.named_parameters(recurse=False)
        if not isinstance(item, UninitializedParameter)
    ]


def unwrapped(module: Module) -> Module:
    """The original module, if this is a wrapper made by torch.compile; otherwise the module itself."""
    parts = vars(module).get("_modules", ())
    inside = parts[WRAPPED] if WRAPPED in parts else None  # noqa: SIM401 - TorchScript has no get
    return inside if isinstance(inside, Module) else module


def all_tensors(value: object) -> list[torch.Tensor] | None:
    """The tensors in nested lists, tuples, dicts and dataclasses, in order; None if there is too much to search."""
    tensors: list[torch.Tensor] = []
    pending: list[object] = [value]
    for _ in range(MOST_PARTS):
        if not pending:
            return tensors
        item = pending.pop()
        kind = _kinds.get(of := type(item))
        if kind is None:
            kind = _kind(of)
        if kind == _TENSOR:
            tensors.append(cast("torch.Tensor", item))
        elif kind:
            pending += reversed(_parts(item, kind))
    return None


#: The trace of ``torch.jit.trace`` that is being made on this thread, or None.
_tracing: Callable[[], object] = torch._C._get_tracing_state
_set_tracing: Callable[[object], object] = torch._C._set_tracing_state  # type: ignore[attr-defined]


def unobserved(function: Callable[..., _T], *args: object) -> _T:
    """Calls a function that looks at tensors, so that no code of theirs or of modes runs and nothing is traced."""
    tracing = _tracing()
    if tracing is None:
        with DisableTorchFunction():
            return function(*args)
    _set_tracing(None)
    try:
        return unobserved(function, *args)
    finally:
        _set_tracing(tracing)


def _kind(of: type) -> int:
    if len(_kinds) >= _MOST_TEXTS:
        _kinds.clear()
    kinds = ((torch.Tensor, _TENSOR), ((list, tuple), _SEQUENCE), (Mapping, _MAPPING))
    told = next((kind for types, kind in kinds if issubclass(of, types)), None)
    return _kinds.setdefault(of, told or (_DATACLASS if is_dataclass(of) else _OTHER))


def tensors_in(value: object) -> Tensors:
    """Shape, dtype and device of the tensors in a structure; None if there is too much to search."""
    tensors = all_tensors(value)
    with DisableTorchFunction():
        return None if tensors is None else tuple((each.shape, each.dtype, each.device) for each in tensors)


def call_key(args: tuple[object, ...], kwargs: Mapping[str, object] | None = None) -> CallKey:
    """What makes the text of a call another one; looking at tensors runs no code of theirs or of modes."""
    if _tracing() is not None:
        return unobserved(_key, args, kwargs)
    if _modes():
        with DisableTorchFunction():
            return _key(args, kwargs)
    if len(args) == 1 and not kwargs and type(tensor := args[0]) is Tensor:  # as below, in half the time
        return tensor.shape, tensor.dtype, tensor.device
    return _key(args, kwargs)


def _key(args: tuple[object, ...], kwargs: Mapping[str, object] | None) -> CallKey:
    key: list[object] = [*kwargs] if kwargs else []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if type(value) is Tensor:
            key += (value.shape, value.dtype, value.device)
        elif type(value) is tuple:
            key.append(_key(value, None))
        else:
            key.append(() if _kinds.get(type(value)) == _OTHER else tensors_in(value))
    return tuple(key)


def call_tensors(args: tuple[object, ...], kwargs: Mapping[str, object] | None) -> tuple[Tensors, dict[str, Tensors]]:
    """The tensors of a call: positional, then by keyword. Keyword arguments without tensors are left out."""
    by_name = {name: tensors_in(value) for name, value in (kwargs or {}).items()}
    return tensors_in(args), {name: tensors for name, tensors in by_name.items() if tensors != ()}


def marker_tensors(tensors: Tensors) -> list[MarkerTensor] | None:
    """Tensors as markers spell them: shape, and dtype and device as text. A symbolic dimension is -1."""
    if tensors is None:
        return None
    return [
        ([dim if type(dim) is int else -1 for dim in shape], f"{plain(dtype)} {device}")
        for shape, dtype, device in tensors
    ]


def plain(dtype: torch.dtype) -> str:
    """The dtype's name without ``torch.``: ``float32``."""
    return str(dtype).removeprefix("torch.")


def _parts(item: Any, kind: int) -> list[object]:  # noqa: ANN401 - a list, tuple, mapping or dataclass
    if kind == _SEQUENCE:
        return list(item[: MOST_PARTS + 1])
    if kind == _MAPPING:
        return list(islice(item.values(), MOST_PARTS + 1))
    return [getattr(item, part.name, None) for part in fields(item)]


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_CONVOLUTION = {
    "in_chan": "in_channels",
    "out_chan": "out_channels",
    "filter_dim": "kernel_size",
    **_same("stride", "padding", "dilation", "transposed", "output_padding", "groups", "padding_mode"),
}
_POOL = {"filter_dim": "kernel_size", **_same("stride", "padding")}
_RECURRENT = _same(
    *("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size")
)
_ATTENTION = _same("embed_dim", "num_heads", "head_dim", "dropout", "batch_first", "add_zero_attn", "kdim", "vdim")
_NORM = {"num_features": "num_features", "epsilon": "eps", "momentum": "momentum"}

#: Settings by type of layer: name in the marker (as in vLLM's) → attribute. The first match counts.
_SETTINGS: tuple[tuple[tuple[type[nn.Module], ...], Mapping[str, str]], ...] = (
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _CONVOLUTION),
    ((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), {**_POOL, **_same("dilation", "ceil_mode")}),
    ((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), {**_POOL, **_same("ceil_mode", "count_include_pad")}),
    ((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), _same("output_size")),
    ((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), _same("output_size")),
    ((nn.Linear,), _same("in_features", "out_features")),
    ((nn.Bilinear,), _same("in1_features", "in2_features", "out_features")),
    ((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), _NORM),
    ((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _NORM),
    ((nn.GroupNorm,), {**_same("num_groups", "num_channels"), "epsilon": "eps"}),
    ((nn.LayerNorm, nn.RMSNorm), {**_same("normalized_shape", "elementwise_affine"), "epsilon": "eps"}),
    ((nn.ReLU,), {"in_place": "inplace"}),
    ((nn.Dropout,), {"p": "p", "in_place": "inplace"}),
    ((nn.Embedding,), _same("num_embeddings", "embedding_dim", "padding_idx")),
    ((nn.Upsample,), _same("scale_factor", "size", "mode", "align_corners")),
    ((nn.LSTM, nn.GRU, nn.RNN), _RECURRENT),
    ((nn.MultiheadAttention,), _ATTENTION),
)

#: In these layers, a single number applies to every dimension of the layer.
_BY_DIMENSION: dict[int, tuple[type[nn.Module], ...]] = {
    1: (nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d),
    2: (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    3: (nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d),
}
_PER_DIMENSION = {"filter_dim", "stride", "padding", "dilation", "output_size"}


def settings_of(module: nn.Module) -> dict[str, object]:
    """The settings of a layer; empty for other modules."""
    names = next((names for types, names in _SETTINGS if isinstance(module, types)), {})
    dimensions = next((n for n, types in _BY_DIMENSION.items() if isinstance(module, types)), 0)
    values = {name: getattr(module, attribute, None) for name, attribute in names.items()}
    return {
        name: [item] * dimensions if dimensions and name in _PER_DIMENSION and isinstance(item, int) else item
        for name, item in values.items()
    }
