"""Layer markers: a range around every call of every module. They are put on from outside and can be taken off again.

They also count how many modules ran marked, and why the others did not. They do not change what runs: modules inside
an ``nn.TransformerEncoderLayer`` that torch runs as one fused operator, as it does in eval, stay uncalled.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import count
from threading import RLock
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary, WeakSet, ref

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.jit._script import RecursiveScriptModule
from torch.jit._trace import TopLevelTracedModule

from tracekit.capture.attach import AnyMarks, all_marks_on, attach, detach, finders, is_compiled, marks_on, modules_of
from tracekit.capture.backward import BackwardMarks, BackwardTrack, backward_track
from tracekit.capture.emit import Emitter, Lane, close_entry, default_emitter
from tracekit.capture.frames import never_compiled
from tracekit.capture.maps.paths import marked_models
from tracekit.capture.marks import WRAPPED, Marks, Switch, unwrapped
from tracekit.errors import UsageError
from tracekit.markers.formatting import new_path, renamed
from tracekit.markers.literal import is_path

_LOG = logging.getLogger("tracekit.capture")

#: Types of modules that get no markers by default: they compute little or nothing.
SKIPPED: tuple[type[nn.Module], ...] = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)

#: What became of a module, and its wording in the summary. Figures have the prefix ``modules_``.
MARKED, CONTAINERS = "marked", "containers"
UNMARKED: dict[str, str] = {
    "scripted": "in TorchScript",
    "compiled": "inside compiled code",
    "fused": "inside fused layers",
    "skipped": "skipped by --skip or --depth",
    "skipped_types": "Dropout or Identity, which compute next to nothing",
    "not_called": "not called",
}
FIGURE = "modules_{}".format


class LayerMarkers:
    """The markers on a model. Used with ``with``, they are taken off when the block ends."""

    def __init__(
        self, model: nn.Module, prefix: str, selection: "_Selection", emitter: Emitter, track: BackwardTrack | None
    ) -> None:
        #: Dotted names of the marked modules, in model order.
        self.paths: list[str] = []
        #: The markers on a model that contains this one.
        self.part_of: LayerMarkers | None = None
        #: Whether a warning is logged if no call was marked.
        self.warns = True
        self.emitter = emitter
        self._model = ref(model)
        self._prefix = prefix
        self._selection = selection
        self._switch = Switch(on=True, model=self)
        self._track = track
        self._attached: list[tuple[ref[nn.Module], AnyMarks]] = []
        self._all: list[Marks] = []
        self._refused: list[str] = []
        self._removed = False
        #: What became of each module, by path, if it had no marked call.
        self.causes: dict[str, str] = {}
        self._vain: Counter[type[nn.Module]] = Counter()

    @property
    def enabled(self) -> bool:
        """Whether calls are marked. May be set at any time, even while modules run."""
        return self._switch.on

    @enabled.setter
    def enabled(self, on: bool) -> None:
        if on == self._switch.on:
            return
        if on:
            for marks in self._all:
                marks.forget()
        self._switch.on = on
        self._watch_backward(on=on)

    def _watch_backward(self, *, on: bool) -> None:
        marked = sum(isinstance(marks, BackwardMarks) for _, marks in self._attached)
        if self._track is not None and marked:
            self._track.marked(marked if on else -marked)

    @property
    def silent(self) -> list[str]:
        """Paths of the modules that had no marked call.

        They did not run, ran only inside a compiled region, or are TorchScript modules.
        """
        called = self.called
        return [path for path in dict.fromkeys(marks.path for marks in self._all) if path not in called] + self._refused

    def remove(self) -> None:
        """Takes the markers off. Ranges of calls that still run in other threads are closed when those calls end."""
        marked_models.remove(self)
        if not self._removed:
            self._removed = True
            self.look_again()
            _lanes.subtract([self.emitter.lane])
        if self.enabled:
            self._watch_backward(on=False)
        attached, self._attached = self._attached, []
        if attached and self.warns and self.enabled and not self.called:
            _LOG.warning(
                "no call of %r or the modules below it was marked (%d modules): none of them ran, or all ran inside a "
                "region that was compiled after the markers were put on",
                self.paths[0],
                len(self._all),
            )
        for module, marks in attached:
            detach(module(), marks)
            while marks in self.emitter.lane.open:  # nothing will see the end of these calls of this thread
                close_entry(marks, self.emitter)

    def restart(self) -> None:
        """Forgets that anything was called, as a forked process does what its parent called."""
        for marks in self._all:
            marks.called = False
            marks.forget()

    def look_again(self) -> None:
        """Marks the modules that were put in, and follows those that have moved, as parts that ran before do."""
        with _looking:
            model = self.whole.model
            if model is not None:
                self.whole._follow(model)

    def _follow(self, model: nn.Module) -> None:
        moved = list(self._put_on_all(model, _Owners(self, model)))
        paths: dict[str, str] = {}
        for marks, _, path in sorted(moved, key=lambda item: item[0].path.count(".")):
            if new_path(marks.path, paths) != path:
                paths[marks.path] = path
        for marks, module, path in moved:
            part = marks.switch.model
            if isinstance(part, LayerMarkers) and path and (top := part.model) is not None and unwrapped(top) is module:
                part._prefix = path  # also once the whole is gone
                _move(marks, top, path)  # torch.compile's wrapper of it, which need not be in the whole
            if marks.path != path:
                _move(marks, module, path)
        self.causes = _look(model, self._prefix, self.emitter.lane, self._selection)
        marked_models.moved(paths)
        number = next(_renamings)
        for text in renamed(number, paths):
            self.emitter.opener(text)()
            self.emitter.close()

    def _put_on_all(self, model: nn.Module, owners: "_Owners") -> Iterator[tuple[Marks, nn.Module, str]]:
        """Marks all modules that have no marks; yields others with their path, which is empty if they are skipped."""
        for path, level, wrapper in modules_of(model, self._prefix):
            reason = self._selection.reason_to_skip(path, level, wrapper)
            inside = unwrapped(wrapper)
            for module in (wrapper,) if inside is wrapper else (wrapper, inside):
                marks = next((marks for marks in marks_on(module) if marks.lane is self.emitter.lane), None)
                if marks is not None and owners.gives(marks, module):
                    yield marks, module, "" if reason else path
                elif marks is None and reason is None:
                    self._put_on(module, path)
                elif marks is None:
                    _passed_over.add(module)

    def find(self, module: nn.Module) -> None:
        """Looks for a module that runs in this model for the first time; of those that no model has, only for a few."""
        if self._vain[type(module)] < _MOST_VAIN:
            self.look_again()
        if not (module in _passed_over or any(marks_on(module))):
            self._vain[type(module)] += 1
            for listener in unlisted:
                listener(module)
        _passed_over.add(module)

    @property
    def model(self) -> nn.Module | None:
        """The model; None if it is gone."""
        return self._model()

    @property
    def whole(self) -> "LayerMarkers":
        """The markers on the model that this one is a part of; these if it is part of none."""
        whole = self
        while whole.part_of is not None and whole.part_of.model is not None:
            whole = whole.part_of
        return whole

    @property
    def called(self) -> set[str]:
        """Paths of the modules that had a marked call."""
        return {marks.path for marks in self._all if marks.called}

    @property
    def inventory(self) -> Counter[str]:
        """Modules by what became of them (:data:`UNMARKED`). Known once the markers are taken off."""
        return inventory([self])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.remove()

    def _put_on(self, module: nn.Module, path: str) -> None:
        if not _takes_marks(module):
            if module not in _passed_over:
                self._refused.append(path)
            _passed_over.add(module)
            return
        wraps = id(module._modules[WRAPPED]) if WRAPPED in module._modules else 0
        several: list[AnyMarks] = []
        if self._track is not None:
            several.append(BackwardMarks(path, self._track, self._switch, wraps))
            self._track.marked(int(self.enabled))
        self._all.append(marks := Marks(path, self._switch, self.emitter, wraps=wraps))
        for each in (*several, marks):
            attach(module, each)
            self._attached.append((ref(module), each))
        if path not in self.paths[-1:]:  # as that of what torch.compile wraps
            self.paths.append(path)


def layer_markers(  # noqa: PLR0913 - by keyword
    model: nn.Module,
    prefix: str = "top",
    *,
    skip: Iterable[type[nn.Module] | str] = SKIPPED,
    depth: int | None = None,
    enabled: bool = True,
    backward: bool = False,
    emitter: Emitter | None = None,
) -> LayerMarkers:
    """Marks every call of every module of a model.

    A module shared by several parents is marked under the path it was registered with first; tracekit places its
    calls where they ran. A module that is put in later is marked at its first call. One that is already marked for the
    same emitter is not marked again; if its model is a part of this one, it gets its path from here. Shallow copies of
    a marked model share its markers, others have none.

    Code inside a region compiled by torch.compile cannot be marked from Python; the region gets one range as a whole.
    ``markers.silent`` names the modules that ran unmarked.

    Args:
        model: The model.
        prefix: Name of the model itself, the first part of every path.
        skip: Module types, and patterns of dotted names (``*.act``), that get no markers.
        depth: Modules more than this many levels below the model get no markers.
        enabled: Whether marking starts at once.
        backward: Whether to mark backward passes too: the part that belongs to each call. Costs a few microseconds
            more per call.
        emitter: Where the markers go. Defaults to NVTX.

    Raises:
        UsageError: If ``prefix`` is not a dotted name.
    """
    if not is_path(prefix):
        raise UsageError(f"prefix: {prefix!r} is not a module path; expected a dotted name such as top.encoder")
    target = default_emitter() if emitter is None else emitter
    items = list(skip)
    types = tuple(item for item in items if isinstance(item, type))
    patterns = tuple(item for item in items if isinstance(item, str))
    selection = _Selection(types, patterns, depth)
    markers = LayerMarkers(model, prefix, selection, target, backward_track(target) if backward else None)
    markers.enabled = enabled
    markers.look_again()
    marked_models.add(markers, model, prefix)
    _lanes.update([target.lane])
    for listener in listeners:
        listener(markers)
    if _find not in finders:
        finders.append(_find)
    return markers


class _Selection(NamedTuple):
    skipped_types: tuple[type[nn.Module], ...]
    skipped_patterns: tuple[str, ...]
    depth: int | None

    def reason_to_skip(self, path: str, level: int, module: nn.Module) -> str | None:
        """A key of :data:`UNMARKED`; None if the module is to be marked."""
        if isinstance(module, self.skipped_types):
            return "skipped_types" if isinstance(module, SKIPPED) else "skipped"
        by_depth = self.depth is not None and level > self.depth
        return "skipped" if by_depth or any(fnmatchcase(path, pattern) for pattern in self.skipped_patterns) else None


def _look(model: nn.Module, prefix: str, lane: Lane, selection: _Selection) -> dict[str, str]:
    """What became of each module that can be called, by the path of its calls, if it had no marked call."""
    causes: dict[str, str] = {}
    closed: dict[str, str] = {}
    for path, level, module in modules_of(model, prefix):
        if getattr(module.forward, "__func__", None) is not nn.Module.forward:  # else it only holds others
            marks = tuple(marks for marks in marks_on(module) if marks.lane is lane)
            around = next((closed[part] for part in _ancestors(path) if part in closed), None)
            cause = "scripted" if not _takes_marks(module) else selection.reason_to_skip(path, level, module)
            if around is not None or marks:
                cause = around
            causes[marks[0].path if marks else path] = cause or "not_called"
        if isinstance(module, nn.TransformerEncoderLayer):
            closed[path] = "fused"
        elif is_compiled(module):
            closed[path] = "compiled"
    return causes


def inventory(models: Iterable[LayerMarkers]) -> Counter[str]:
    """What became of the modules of some models: those that ran, and why others did not; by path, each once."""
    known = list(models)
    called = {path for markers in known for path in markers.called}
    unmarked: dict[str, str] = {}
    for markers in known:
        unmarked |= markers.causes if markers.part_of is None else {}
    unmarked = {path: cause for path, cause in unmarked.items() if path not in called}
    for path, cause in unmarked.items():
        if cause == "not_called" and path in marked_models.compiled:
            unmarked[path] = "compiled"
        elif cause == "fused" and called.isdisjoint(_ancestors(path)):
            unmarked[path] = "not_called"
    containers = {ancestor for path in called for ancestor in _ancestors(path)} - called
    return Counter(unmarked.values()) + Counter({MARKED: len(called), CONTAINERS: len(containers)})


class _Owners:
    """Which modules a model takes over from others: those of its parts, and those that are in no other model now."""

    def __init__(self, markers: LayerMarkers, model: nn.Module) -> None:
        self._markers = markers
        self._own = set(map(id, model.modules()))
        self._others: dict[LayerMarkers, set[int]] = {}

    def gives(self, marks: Marks, module: nn.Module) -> bool:
        """Whether the path of a module is the one that it has here."""
        owner = getattr(marks.switch.model, "whole", None)
        if not isinstance(owner, LayerMarkers) or owner is self._markers:
            return owner is not None
        if owner not in self._others:
            model = owner.model
            if model is not None and unwrapped(model) is self._markers.model:
                return False
            if model is None or id(unwrapped(model)) in self._own:
                owner.part_of = self._markers
                marked_models.remove(owner)
                return True
            self._others[owner] = set(map(id, model.modules()))
        return id(module) not in self._others[owner]


def _move(marks: Marks, module: nn.Module, path: str) -> None:
    for each in all_marks_on(module):
        if each.switch is marks.switch:
            each.moved(path or marks.path)
            if not path and isinstance(markers := marks.switch.model, LayerMarkers):
                markers._attached = [pair for pair in markers._attached if pair[1] is not each]
                detach(module, each)
    marks.called &= bool(path)


#: Looking at a model, which several threads may do, and their renamings by number.
_looking = RLock()
_renamings = count()
#: How many models have marks, by where these go.
_lanes: Counter[Lane] = Counter()
#: Called with the markers of every model that gets some.
listeners: list[Callable[[LayerMarkers], object]] = []
#: Called with every module that runs inside a model that does not list it.
unlisted: list[Callable[[nn.Module], object]] = []
#: Modules without marks that are known to need none.
_passed_over: WeakSet[nn.Module] = WeakSet()
#: How often a model is looked through for modules of a class that it does not have.
_MOST_VAIN = 8


@never_compiled
def _find(module: nn.Module) -> None:
    """Marks a module that was put into a model since this was marked."""
    try:
        innermost = [lane.open[-1] for lane, models in list(_lanes.items()) if models and lane.open]
        for marks in innermost if innermost and module not in _passed_over else ():
            if isinstance(marks, Marks) and marks.switch.on and isinstance(marks.switch.model, LayerMarkers):
                marks.switch.model.whole.find(module)
    except Exception:  # noqa: BLE001 - the user's run goes on
        _LOG.debug("cannot look for a %s", type(module).__name__, exc_info=True)


def _ancestors(path: str) -> list[str]:
    return [path[:place] for place, letter in enumerate(path) if letter == "."]


def _takes_marks(module: nn.Module) -> bool:
    return not isinstance(module, RecursiveScriptModule) or isinstance(module, TopLevelTracedModule)


class MarkedCall:
    """One call marked by hand. Set ``result`` to what the call returns, so that the marker can describe it."""

    def __init__(self, marks: Marks | None, call: tuple[Any, Any, Any]) -> None:
        self.result: Any = None
        self._marks = marks
        self._call = call

    def __enter__(self) -> Self:
        if self._marks is not None and not is_dynamo_compiling():
            self._marks.before(*self._call)
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: TracebackType | None) -> None:
        if self._marks is not None and not is_dynamo_compiling():
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
