"""Layer markers: a range around every call of every module, put on a model from outside and taken off again."""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.jit._script import RecursiveScriptModule
from torch.jit._trace import TopLevelTracedModule

from tracekit.capture.attach import attach, marks_on, modules_of
from tracekit.capture.backward import BackwardMarks, BackwardTrack
from tracekit.capture.emit import default_emitter
from tracekit.capture.marks import Marks, Switch
from tracekit.errors import UsageError
from tracekit.markers.fields import is_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from tracekit.capture.attach import Attached
    from tracekit.capture.emit import Emitter, Lane

_LOG = logging.getLogger("tracekit.capture")
_WHY = "none ran, or all ran inside a region compiled after the markers were put on"

#: Modules that compute little or nothing.
SKIPPED: tuple[type[nn.Module], ...] = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
)


class LayerMarkers:
    """The markers on a model; usable with ``with``, at the end of which they are taken off.

    Attributes:
        paths: Dotted names of the marked modules, in the order of the model.
    """

    def __init__(self, switch: Switch, track: BackwardTrack | None = None) -> None:
        self.paths: list[str] = []
        self._switch = switch
        self._track = track
        self._marked: list[tuple[Marks, Attached]] = []
        self._all: list[Marks] = []
        self._backward: list[Attached] = []
        self._refused: list[str] = []

    @property
    def enabled(self) -> bool:
        """Whether calls are marked; may be set at any time, also while modules run."""
        return self._switch.on

    @enabled.setter
    def enabled(self, on: bool) -> None:
        if on and not self._switch.on:
            for marks, _ in self._marked:
                marks.forget()
        self._switch.on = on

    @property
    def silent(self) -> list[str]:
        """Paths of the modules no call of which was marked.

        They did not run, or only inside a compiled region, or are written in TorchScript, which takes no hooks.
        """
        return [marks.path for marks in self._all if not marks.called] + self._refused

    def remove(self) -> None:
        """Takes the markers off; calls that run in other threads are still closed when they end."""
        marked, self._marked = self._marked, []
        backward, self._backward = self._backward, []
        if marked and self.enabled and not any(marks.called for marks, _ in marked):
            _LOG.warning(
                "no call of the %d modules below %r was marked: %s",
                len(marked),
                self.paths[0],
                _WHY,
            )
        for attached in backward:
            attached.remove_before()
            attached.remove_after()
        if self._track is not None:
            self._track.settle()
        for marks, attached in marked:
            attached.remove_before()
            marks.abandon()
            marks.leave = attached.remove_after
            if not marks.lane.holds(marks):
                attached.remove_after()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.remove()

    def put_on(self, module: nn.Module, path: str, emitter: Emitter, *, root: bool) -> None:
        """Marks one more module, unless it is marked for the same emitter already."""
        if isinstance(module, RecursiveScriptModule) and not isinstance(module, TopLevelTracedModule):
            self._refused.append(path)
            return
        if any(marks.lane is emitter.lane for marks in marks_on(module)):
            return
        if self._track is not None:
            self._backward.append(attach(module, BackwardMarks(path, self._track)))
        marks = Marks(path, self._switch, emitter, root=root)
        self._all.append(marks)
        self._marked.append((marks, attach(module, marks)))
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

    A module that several others share is named as it is found first; the reader puts it where it ran. A module that
    another handle has marked for the same emitter keeps that mark alone. Copies of a marked model are not marked.

    What runs inside a region that torch.compile compiled cannot be marked from Python, and the region stays whole.
    The compiled module itself is marked if it was compiled before; mark what you call, ``torch.compile(model)``
    rather than ``model``. ``handle.silent`` names the modules that ran unmarked.

    Args:
        model: The model.
        prefix: Name of the model itself.
        skip: Types of modules, and patterns of dotted names (``*.act``), that get no marker.
        depth: Modules deeper than this below the model get no marker.
        enabled: Whether to begin at once.
        backward: Whether to mark, in backward passes, what belongs to each call; costs some microseconds more.
        emitter: Where the markers go; NVTX unless given.
    """
    if not is_path(prefix):
        raise UsageError(f"{prefix!r} is no dotted name for a module")
    to = default_emitter() if emitter is None else emitter
    switch = Switch(on=enabled)
    handle = LayerMarkers(switch, BackwardTrack(switch, to) if backward else None)
    skip = list(skip)
    types = tuple(item for item in skip if isinstance(item, type))
    patterns = [item for item in skip if isinstance(item, str)]
    for path, level, module in modules_of(model, prefix):
        unwanted = isinstance(module, types) or any(fnmatchcase(path, name) for name in patterns)
        if not unwanted and (depth is None or level <= depth):
            handle.put_on(module, path, to, root=level == 0)
    return handle


class MarkedCall:
    """One call marked by hand; ``result`` takes what the call returned."""

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
    """
    if is_dynamo_compiling():
        return MarkedCall(None, (module, (), None))
    to = default_emitter() if emitter is None else emitter
    known = _by_hand.setdefault(module, {})
    if (marks := known.get((name, to.lane))) is None:
        marks = known[name, to.lane] = Marks(name, _on, to)
    return MarkedCall(marks, (module, args if isinstance(args, tuple) else (args,), kwargs))
