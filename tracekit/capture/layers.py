"""Layer markers: a range around every call of every module. They are put on from outside and can be taken off again.

They also count how many modules ran marked, why the others did not, and which layers lost their fused path: in eval,
without gradients, torch runs ``nn.TransformerEncoderLayer`` as one fused operator only where no module in it has hooks.
The numbers stay the same, the operators do not. (``nn.MultiheadAttention`` keeps its own fused path under hooks.)
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.jit._script import RecursiveScriptModule
from torch.jit._trace import TopLevelTracedModule
from typing_extensions import override

from tracekit.capture.attach import Attached, attach, attach_around, is_compiled, marks_on, modules_of
from tracekit.capture.backward import BackwardMarks, BackwardTrack, backward_track
from tracekit.capture.emit import Emitter, Lane, default_emitter
from tracekit.capture.frames import never_compiled
from tracekit.capture.maps.paths import marked_models
from tracekit.capture.marks import Marks, Switch, pickled_as_nothing
from tracekit.errors import UsageError
from tracekit.markers.literal import is_path

_LOG = logging.getLogger("tracekit.capture")

#: Types of modules that get no markers by default: they compute little or nothing.
SKIPPED: tuple[type[nn.Module], ...] = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_FUSED_LAYER = nn.TransformerEncoderLayer
_FUSED_DEVICES = {"cpu", "cuda", "xpu", torch.utils.backend_registration._privateuse1_backend_name}

#: What became of a module, and how the summary says it. Figures have the prefix ``modules_``.
MARKED, CONTAINERS = "marked", "containers"
UNMARKED: dict[str, str] = {
    "scripted": "in TorchScript, which accepts no hooks",
    "compiled": "inside compiled code",
    "fused": "inside fused layers",
    "skipped": "skipped by --skip or --depth",
    "skipped_types": "Dropout or Identity, which compute next to nothing",
    "created_later": "created after marking began",
    "not_called": "not called",
}
FIGURE = "modules_{}".format


class LayerMarkers:
    """The markers on a model. Used with ``with``, they are taken off when the block ends.

    Attributes:
        paths: Dotted names of the marked modules, in model order.
    """

    def __init__(
        self, model: nn.Module, prefix: str, selection: _Selection, switch: Switch, track: BackwardTrack | None
    ) -> None:
        self.paths: list[str] = []
        #: Modules by what became of them (:data:`UNMARKED`), counted when the markers are taken off.
        self.inventory: Counter[str] = Counter()
        #: Whether a warning is logged if no call was marked.
        self.warns = True
        self._model = ref(model)
        self._prefix = prefix
        self._selection = selection
        self._switch = switch
        self._track = track
        self._marked: list[tuple[Marks, Attached]] = []
        self._all: list[Marks] = []
        self._extra: list[Attached] = []
        self._refused: list[str] = []
        self._fused: set[str] = set()
        self._watches: list[_FusedPathWatch] = []
        self._modules: list[_Looked] = []

    @property
    def enabled(self) -> bool:
        """Whether calls are marked. May be set at any time, even while modules run."""
        return self._switch.on

    @enabled.setter
    def enabled(self, on: bool) -> None:
        if on and not self._switch.on:
            for marks, _ in self._marked:
                marks.forget()
        self._switch.on = on

    @property
    def silent(self) -> list[str]:
        """Paths of the modules that had no marked call.

        They did not run, ran only inside a compiled region, or are TorchScript modules, which accept no hooks.
        """
        return [marks.path for marks in self._all if not marks.called] + self._refused

    @property
    def fused_paths_off(self) -> int:
        """How many layers would have run their fused path, but for the markers inside them."""
        return sum(watch.switched_off for watch in self._watches)

    def remove(self) -> None:
        """Takes the markers off. Ranges of calls that still run in other threads are closed when those calls end."""
        marked_models.remove(self)
        marked, self._marked = self._marked, []
        if marked or self._refused:
            self.look()
            self.inventory = _inventory(self._modules)
        self._warn_if_none_ran(marked)
        self._remove_extra()
        for marks, attached in marked:
            attached.remove_before()
            marks.abandon()
            marks.leave = attached.remove_after
            if not marks.lane.holds(marks):
                attached.remove_after()

    def restart(self) -> None:
        """Forgets that anything was called, as a forked process does what its parent called."""
        for marks in self._all:
            marks.called = False
            marks.forget()

    def look(self) -> None:
        """Notes the state of the model's modules, also at the beginning: the model may be gone at the end."""
        if (model := self._model()) is not None:
            self._modules = _look(model, self._prefix, set(self._all), self._selection, self._fused)

    def _warn_if_none_ran(self, marked: list[tuple[Marks, Attached]]) -> None:
        if marked and self.warns and self.enabled and not any(marks.called for marks, _ in marked):
            _LOG.warning(
                "no call of %r or the modules below it was marked (%d modules): none of them ran, or all ran inside a "
                "region that was compiled after the markers were put on",
                self.paths[0],
                len(marked),
            )

    def _remove_extra(self) -> None:
        extra, self._extra = self._extra, []
        for attached in extra:
            attached.remove_before()
            attached.remove_after()
        backward = sum(isinstance(attached.marks, BackwardMarks) for attached in extra)
        if self._track is not None and backward:
            self._track.marked(-backward)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.remove()

    def put_on(self, module: nn.Module, path: str, emitter: Emitter, *, level: int) -> None:
        """Marks one more module, unless it already has marks for the same emitter."""
        if not _takes_hooks(module):
            self._refused.append(path)
            return
        if any(marks.lane is emitter.lane for marks in marks_on(module)):
            return
        fuses = can_fuse(module)
        keep_fused = fuses and self._selection.keep_fused
        put = attach_around if keep_fused else attach
        if self._track is not None:
            self._extra.append(put(module, BackwardMarks(path, self._track, self._switch)))
            self._track.marked(1)
        if keep_fused:
            self._fused.add(path)
        elif fuses:
            self._watches.append(watch := _FusedPathWatch(self._switch))
            self._extra.append(attach(module, watch))
        marks = Marks(path, self._switch, emitter, root=level == 0)
        self._all.append(marks)
        self._marked.append((marks, put(module, marks)))
        self.paths.append(path)

    def is_inside_fused(self, path: str) -> bool:
        """Whether a module is inside a layer that is marked as one call."""
        return bool(self._fused) and any(path.startswith(f"{fused}.") for fused in self._fused)


def layer_markers(  # noqa: PLR0913 - by keyword
    model: nn.Module,
    prefix: str = "top",
    *,
    skip: Iterable[type[nn.Module] | str] = SKIPPED,
    depth: int | None = None,
    enabled: bool = True,
    backward: bool = False,
    keep_fused: bool = False,
    emitter: Emitter | None = None,
) -> LayerMarkers:
    """Marks every call of every module of a model.

    A module shared by several parents is marked under the path it was registered with first; tracekit places its
    calls where they ran. A module that is already marked for the same emitter is not marked again. Copies of a marked
    model are not marked.

    Code inside a region compiled by torch.compile cannot be marked from Python; the region gets one range as a whole.
    Mark the object that you call: ``torch.compile(model)`` rather than ``model``. ``markers.silent`` names the modules
    that ran unmarked.

    Args:
        model: The model.
        prefix: Name of the model itself, the first part of every path.
        skip: Module types, and patterns of dotted names (``*.act``), that get no markers.
        depth: Modules more than this many levels below the model get no markers.
        enabled: Whether marking starts at once.
        backward: Whether to mark backward passes too: the part that belongs to each call. Costs a few microseconds
            more per call.
        keep_fused: Whether to mark layers whose fused path hooks would switch off (``nn.TransformerEncoderLayer`` in
            eval) as one call, with no markers inside them.
        emitter: Where the markers go. Defaults to NVTX.

    Raises:
        UsageError: If ``prefix`` is not a dotted name.
    """
    if not is_path(prefix):
        raise UsageError(f"prefix: {prefix!r} is not a module path; expected a dotted name such as top.encoder")
    target = default_emitter() if emitter is None else emitter
    switch = Switch(on=enabled)
    items = list(skip)
    types = tuple(item for item in items if isinstance(item, type))
    patterns = tuple(item for item in items if isinstance(item, str))
    selection = _Selection(types, patterns, depth, keep_fused)
    markers = LayerMarkers(model, prefix, selection, switch, backward_track(target) if backward else None)
    for path, level, module in modules_of(model, prefix):
        if selection.reason_to_skip(path, level, module) is None and not markers.is_inside_fused(path):
            markers.put_on(module, path, target, level=level)
    markers.look()
    marked_models.add(markers, model, prefix)
    return markers


class _Selection(NamedTuple):
    skipped_types: tuple[type[nn.Module], ...]
    skipped_patterns: tuple[str, ...]
    depth: int | None
    keep_fused: bool

    def reason_to_skip(self, path: str, level: int, module: nn.Module) -> str | None:
        """A key of :data:`UNMARKED`; None if the module is to be marked."""
        if isinstance(module, self.skipped_types):
            return "skipped_types" if isinstance(module, SKIPPED) else "skipped"
        by_depth = self.depth is not None and level > self.depth
        return "skipped" if by_depth or any(fnmatchcase(path, pattern) for pattern in self.skipped_patterns) else None


class _Looked(NamedTuple):
    """A module that can be called, with its path, its marks, and what became of it if none of them marked a call."""

    path: str
    marks: tuple[Marks, ...]
    unmarked: str


def _look(
    model: nn.Module, prefix: str, ours: Container[Marks], selection: _Selection, fused: Container[str]
) -> list[_Looked]:
    modules: list[_Looked] = []
    closed: dict[str, str] = {}
    for path, level, module in modules_of(model, prefix):
        if getattr(module.forward, "__func__", None) is not nn.Module.forward:  # else it only holds others
            marks = tuple(marks for marks in marks_on(module) if marks in ours)
            around = next((closed[part] for part in _ancestors(path) if part in closed), None)
            hooks = _takes_hooks(module)
            unmarked = (selection.reason_to_skip(path, level, module) or "created_later") if hooks else "scripted"
            modules.append(_Looked(path, marks, around or ("not_called" if marks else unmarked)))
        if path in fused:
            closed[path] = "fused"
        elif is_compiled(module):
            closed[path] = "compiled"
    return modules


def _inventory(modules: Iterable[_Looked]) -> Counter[str]:
    called = {each.path for each in modules if any(marks.called for marks in each.marks)}
    counts = Counter(MARKED if each.path in called else each.unmarked for each in modules)
    containers = {ancestor for path in called for ancestor in _ancestors(path)} - called
    return counts + Counter({CONTAINERS: len(containers)})


def _ancestors(path: str) -> list[str]:
    return [path[:place] for place, letter in enumerate(path) if letter == "."]


def _takes_hooks(module: nn.Module) -> bool:
    return not isinstance(module, RecursiveScriptModule) or isinstance(module, TopLevelTracedModule)


class MarkedCall:
    """One call marked by hand. Set ``result`` to what the call returns, so that the marker can describe it."""

    def __init__(self, marks: Marks | None, call: tuple[Any, Any, Any]) -> None:
        self.result: Any = None
        self._marks = marks
        self._call = call

    def __enter__(self) -> Self:
        if self._marks is not None:
            self._marks.before(*self._call)
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: TracebackType | None) -> None:
        if self._marks is not None:
            module, args, _ = self._call
            self._marks.after(module, args, self.result if error is None else None)


_by_hand: WeakKeyDictionary[nn.Module, dict[tuple[str, Lane], Marks]] = WeakKeyDictionary()
_on = Switch(on=True)


def layer_marker(
    name: str,
    module: nn.Module,
    args: Any = (),  # noqa: ANN401 - whatever the module takes
    kwargs: Mapping[str, Any] | None = None,
    *,
    emitter: Emitter | None = None,
) -> MarkedCall:
    """Marks one call by hand.

    >>> with layer_marker("top.head", head, (x,)) as call:  # doctest: +SKIP
    ...     call.result = head(x)

    Args:
        name: The module's dotted name.
        module: The module that is called.
        args: Its positional arguments, as a tuple; a single tensor needs no tuple.
        kwargs: Its keyword arguments.
        emitter: Where the marker goes. Defaults to NVTX.
    """
    if is_dynamo_compiling():
        return MarkedCall(None, (module, (), None))
    target = default_emitter() if emitter is None else emitter
    marks_by_name = _by_hand.setdefault(module, {})
    if (marks := marks_by_name.get((name, target.lane))) is None:
        marks = marks_by_name[name, target.lane] = Marks(name, _on, target)
    return MarkedCall(marks, (module, args if isinstance(args, tuple) else (args,), kwargs))


def fused_paths_enabled() -> bool:
    """Whether torch takes fused paths at all."""
    return bool(torch.backends.mha.get_fastpath_enabled())


def can_fuse(module: nn.Module) -> bool:
    """Whether a module has a fused path that hooks switch off, for some inputs; not if it has hooks already."""
    if not isinstance(module, _FUSED_LAYER) or type(module).forward is not _FUSED_LAYER.forward or _hooked(module):
        return False
    attention = module.self_attn
    has_bias: object = attention.in_proj_bias  # torch's annotation says that it always has one
    return bool(
        attention.batch_first
        and has_bias is not None
        and attention._qkv_same_embed_dim
        and module.activation_relu_or_gelu
        and module.norm1.eps == module.norm2.eps
        and attention.num_heads % 2 == 0
    )


def would_fuse(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether torch would take the fused path of such a module for this call if it had no hooks."""
    source, *masks = (
        args[index] if index < len(args) else kwargs.get(name)
        for index, name in enumerate(("src", "src_mask", "src_key_padding_mask"))
    )
    if module.training or not isinstance(source, torch.Tensor) or source.dim() != 3:  # noqa: PLR2004 - a batch
        return False
    if not fused_paths_enabled() or torch.is_autocast_enabled():
        return False
    if source.is_nested and any(mask is not None for mask in masks):
        return False
    tensors = (source, *module.parameters())
    with_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not with_gradient and all(tensor.device.type in _FUSED_DEVICES for tensor in tensors)


class _FusedPathWatch:
    """A forward pre-hook that notes whether markers switched a layer's fused path off."""

    def __init__(self, switch: Switch) -> None:
        #: Whether any call would have taken the fused path.
        self.switched_off = False
        self._switch = switch

    def __deepcopy__(self, _memo: dict[int, object]) -> _FusedPathWatch:
        return _FusedPathWatch(Switch(on=False))

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return pickled_as_nothing()

    @never_compiled
    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Looks at a call, until one would have taken the fused path."""
        if is_dynamo_compiling() or self.switched_off or not self._switch.on:
            return
        try:
            self.switched_off = would_fuse(module, args, kwargs)
        except Exception:  # noqa: BLE001 - the user's run goes on
            _LOG.debug("unknown whether a layer would be fused", exc_info=True)

    def after(self, _module: nn.Module, _args: object, _output: object) -> None:
        """Nothing to do."""


def _hooked(module: nn.Module) -> bool:
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
