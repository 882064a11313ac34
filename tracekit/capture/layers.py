"""Layer markers: a range around every call of every module. They are put on from outside and can be taken off again.

They also count how many modules ran marked, and why the others did not. They change nothing that runs: modules inside
an ``nn.TransformerEncoderLayer`` that torch runs as one fused operator, as it does in eval, stay uncalled.
"""

import logging
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary, ref

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.jit._script import RecursiveScriptModule
from torch.jit._trace import TopLevelTracedModule

from tracekit.capture.attach import AnyMarks, attach, detach, is_compiled, marks_on, modules_of
from tracekit.capture.backward import BackwardMarks, BackwardTrack, backward_track
from tracekit.capture.emit import Emitter, Lane, default_emitter
from tracekit.capture.maps.paths import marked_models
from tracekit.capture.marks import WRAPPED, Marks, Switch
from tracekit.errors import UsageError
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
        self, model: nn.Module, prefix: str, selection: "_Selection", switch: Switch, track: BackwardTrack | None
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
        self._attached: list[tuple[ref[nn.Module], AnyMarks]] = []
        self._all: list[Marks] = []
        self._refused: list[str] = []
        self._modules: list[_Looked] = []

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
        return [marks.path for marks in self._all if not marks.called] + self._refused

    def remove(self) -> None:
        """Takes the markers off. Ranges of calls that still run in other threads are closed when those calls end."""
        marked_models.remove(self)
        if self.enabled:
            self._watch_backward(on=False)
        attached, self._attached = self._attached, []
        if attached or self._refused:
            self.look()
            self.inventory = _inventory(self._modules)
        if attached:
            self._warn_if_none_ran()
        for module, marks in attached:
            detach(module(), marks)
            if isinstance(marks, Marks):
                marks.abandon()

    def restart(self) -> None:
        """Forgets that anything was called, as a forked process does what its parent called."""
        for marks in self._all:
            marks.called = False
            marks.forget()

    def look(self) -> None:
        """Notes the state of the model's modules, also at the beginning: the model may be gone at the end."""
        if (model := self._model()) is not None:
            self._modules = _look(model, self._prefix, set(self._all), self._selection)

    def _warn_if_none_ran(self) -> None:
        if self.warns and self.enabled and not any(marks.called for marks in self._all):
            _LOG.warning(
                "no call of %r or the modules below it was marked (%d modules): none of them ran, or all ran inside a "
                "region that was compiled after the markers were put on",
                self.paths[0],
                len(self._all),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.remove()

    def put_on(self, module: nn.Module, path: str, emitter: Emitter) -> None:
        """Marks one more module, unless it already has marks for the same emitter."""
        if not _takes_marks(module):
            self._refused.append(path)
            return
        if any(marks.lane is emitter.lane for marks in marks_on(module)):
            return
        wraps = id(module._modules[WRAPPED]) if WRAPPED in module._modules else 0
        if self._track is not None:
            self._attach(module, BackwardMarks(path, self._track, self._switch, wraps))
            self._track.marked(int(self.enabled))
        self._all.append(marks := Marks(path, self._switch, emitter, wraps=wraps))
        self._attach(module, marks)
        self.paths.append(path)

    def _attach(self, module: nn.Module, marks: AnyMarks) -> None:
        attach(module, marks)
        self._attached.append((ref(module), marks))


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
    calls where they ran. A module that is already marked for the same emitter is not marked again. Shallow copies of a
    marked model share its markers, others have none.

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
    switch = Switch(on=enabled)
    items = list(skip)
    types = tuple(item for item in items if isinstance(item, type))
    patterns = tuple(item for item in items if isinstance(item, str))
    selection = _Selection(types, patterns, depth)
    markers = LayerMarkers(model, prefix, selection, switch, backward_track(target) if backward else None)
    for path, level, module in modules_of(model, prefix):
        if selection.reason_to_skip(path, level, module) is None:
            markers.put_on(module, path, target)
    markers.look()
    marked_models.add(markers, model, prefix)
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


class _Looked(NamedTuple):
    """A module that can be called, with its path, its marks, and what became of it if none of them marked a call."""

    path: str
    marks: tuple[Marks, ...]
    unmarked: str


def _look(model: nn.Module, prefix: str, ours: Container[Marks], selection: _Selection) -> list[_Looked]:
    modules: list[_Looked] = []
    closed: dict[str, str] = {}
    for path, level, module in modules_of(model, prefix):
        if getattr(module.forward, "__func__", None) is not nn.Module.forward:  # else it only holds others
            marks = tuple(marks for marks in marks_on(module) if marks in ours)
            around = next((closed[part] for part in _ancestors(path) if part in closed), None)
            takes = _takes_marks(module)
            unmarked = (selection.reason_to_skip(path, level, module) or "created_later") if takes else "scripted"
            modules.append(_Looked(path, marks, around or ("not_called" if marks else unmarked)))
        if isinstance(module, nn.TransformerEncoderLayer):
            closed[path] = "fused"
        elif is_compiled(module):
            closed[path] = "compiled"
    return modules


def _inventory(modules: Iterable[_Looked]) -> Counter[str]:
    called = {each.path for each in modules if any(marks.called for marks in each.marks)}
    counts = Counter(MARKED if each.path in called else _cause(each, called) for each in modules)
    containers = {ancestor for path in called for ancestor in _ancestors(path)} - called
    return counts + Counter({CONTAINERS: len(containers)})


def _cause(module: _Looked, called: set[str]) -> str:
    if module.unmarked == "not_called" and module.path in marked_models.compiled:
        return "compiled"
    ran_around = module.unmarked != "fused" or not called.isdisjoint(_ancestors(module.path))
    return module.unmarked if ran_around else "not_called"


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
