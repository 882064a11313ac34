"""Layer markers: a range around every call of every module. They are put on from outside and can be taken off again."""

from __future__ import annotations

import logging
from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from torch import nn
from torch.compiler import is_dynamo_compiling

from tracekit.capture.attach import attach, attach_around, marks_on, modules_of
from tracekit.capture.backward import BackwardMarks, backward_track
from tracekit.capture.emit import default_emitter
from tracekit.capture.fused import FusedPathWatch, can_fuse
from tracekit.capture.inventory import inventory, look, takes_hooks
from tracekit.capture.maps.marked import marked_models
from tracekit.capture.marks import Marks, Switch
from tracekit.errors import UsageError
from tracekit.markers.fields import is_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from tracekit.capture.attach import Attached
    from tracekit.capture.backward import BackwardTrack
    from tracekit.capture.emit import Emitter, Lane
    from tracekit.capture.inventory import Looked

_LOG = logging.getLogger("tracekit.capture")

#: Types of modules that get no markers by default: they compute little or nothing.
SKIPPED: tuple[type[nn.Module], ...] = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
)


class LayerMarkers:
    """The markers on a model. Used with ``with``, they are taken off when the block ends.

    Attributes:
        paths: Dotted names of the marked modules, in model order.
    """

    def __init__(
        self, model: nn.Module, prefix: str, selection: _Selection, switch: Switch, track: BackwardTrack | None
    ) -> None:
        self.paths: list[str] = []
        #: Modules by what became of them, counted when the markers are taken off; see capture/inventory.py.
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
        self._beside: list[Attached] = []
        self._refused: list[str] = []
        self._fused: set[str] = set()
        self._watches: list[FusedPathWatch] = []
        self._modules: list[Looked] = []

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
            self.inventory = inventory(self._modules)
        self._warn_if_none_ran(marked)
        self._remove_beside()
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
        """Looks at the model's modules. A model that is gone in the end was looked at in the beginning."""
        if (model := self._model()) is not None:
            self._modules = look(model, set(self._all), self._selection.includes, self._fused, self._prefix)

    def _warn_if_none_ran(self, marked: list[tuple[Marks, Attached]]) -> None:
        if marked and self.warns and self.enabled and not any(marks.called for marks, _ in marked):
            _LOG.warning(
                "no call of %r or the modules below it was marked (%d modules): none of them ran, or all ran inside a "
                "region that was compiled after the markers were put on",
                self.paths[0],
                len(marked),
            )

    def _remove_beside(self) -> None:
        beside, self._beside = self._beside, []
        for attached in beside:
            attached.remove_before()
            attached.remove_after()
        backward = sum(isinstance(attached.marks, BackwardMarks) for attached in beside)
        if self._track is not None and backward:
            self._track.marked(-backward)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.remove()

    def put_on(self, module: nn.Module, path: str, emitter: Emitter, *, level: int) -> None:
        """Marks one more module, unless it already has marks for the same emitter."""
        if not takes_hooks(module):
            self._refused.append(path)
            return
        if any(marks.lane is emitter.lane for marks in marks_on(module)):
            return
        fuses = can_fuse(module)
        keep_fused = fuses and self._selection.keep_fused
        put = attach_around if keep_fused else attach
        if self._track is not None:
            self._beside.append(put(module, BackwardMarks(path, self._track, self._switch)))
            self._track.marked(1)
        if keep_fused:
            self._fused.add(path)
        elif fuses:
            self._watches.append(watch := FusedPathWatch(self._switch))
            self._beside.append(attach(module, watch))
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
    Mark the model after compiling it, and mark the object that you call: ``torch.compile(model)`` rather than
    ``model``. ``markers.silent`` names the modules that ran unmarked.

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
    selection = _selection(skip, depth, keep_fused=keep_fused)
    markers = LayerMarkers(model, prefix, selection, switch, backward_track(target) if backward else None)
    for path, level, module in modules_of(model, prefix):
        if selection.includes(path, level, module) and not markers.is_inside_fused(path):
            markers.put_on(module, path, target, level=level)
    markers.look()
    marked_models.add(markers, model, prefix)
    return markers


class _Selection(NamedTuple):
    """Which modules get markers."""

    skipped_types: tuple[type[nn.Module], ...]
    skipped_patterns: tuple[str, ...]
    depth: int | None
    keep_fused: bool

    def includes(self, path: str, level: int, module: nn.Module) -> bool:
        if self.depth is not None and level > self.depth:
            return False
        by_name = any(fnmatchcase(path, pattern) for pattern in self.skipped_patterns)
        return not by_name and not isinstance(module, self.skipped_types)


def _selection(skip: Iterable[type[nn.Module] | str], depth: int | None, *, keep_fused: bool) -> _Selection:
    items = list(skip)
    types = tuple(item for item in items if isinstance(item, type))
    patterns = tuple(item for item in items if isinstance(item, str))
    return _Selection(types, patterns, depth, keep_fused)


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
        args: Its positional arguments, as a tuple; a single tensor may stand alone.
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
