"""Layer markers: a range around every call of every module, put on a model from outside and taken off again."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.compiler import is_dynamo_compiling

from tracekit.capture.emit import default_emitter
from tracekit.capture.marks import Marks, Switch
from tracekit.errors import UsageError
from tracekit.markers.fields import is_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from torch.utils.hooks import RemovableHandle

    from tracekit.capture.emit import Emitter, Lane

#: torch.compile(module) wraps the module under this name.
_COMPILED = "_orig_mod"

#: Modules that compute little or nothing.
SKIPPED: tuple[type[nn.Module], ...] = (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
)  # fmt: skip


class LayerMarkers:
    """The markers on a model; usable with ``with``, at the end of which they are taken off.

    Attributes:
        paths: Dotted names of the marked modules, in the order of the model.
    """

    def __init__(self, switch: Switch) -> None:
        self.paths: list[str] = []
        self._switch = switch
        self._marked: list[tuple[Marks, RemovableHandle, RemovableHandle]] = []

    @property
    def enabled(self) -> bool:
        """Whether calls are marked; may be set at any time, also while modules run."""
        return self._switch.on

    @enabled.setter
    def enabled(self, on: bool) -> None:
        if on and not self._switch.on:
            for marks, _, _ in self._marked:
                marks.forget()
        self._switch.on = on

    @property
    def silent(self) -> list[str]:
        """Paths of the modules no call of which was marked: they did not run, or only inside a compiled region."""
        return [marks.path for marks, _, _ in self._marked if not marks.calls]

    def remove(self) -> None:
        """Takes the markers off; calls that run in other threads are still closed when they end."""
        marked, self._marked = self._marked, []
        for marks, before, after in marked:
            before.remove()
            marks.abandon()
            if marks.lane.holds(marks):
                marks.leave = after.remove
            else:
                after.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.remove()

    def put_on(self, module: nn.Module, path: str, emitter: Emitter) -> None:
        """Marks one more module, unless it is marked for the same emitter already."""
        if any(marks.lane is emitter.lane for marks in _marks_on(module)):
            return
        marks = Marks(path, self._switch, emitter)
        before = module.register_forward_pre_hook(marks.before, with_kwargs=True)
        after = module.register_forward_hook(marks.after, always_call=True)
        self._marked.append((marks, before, after))
        self.paths.append(path)


def layer_markers(
    model: nn.Module,
    prefix: str = "top",
    *,
    skip: Iterable[type[nn.Module] | str] = SKIPPED,
    depth: int | None = None,
    enabled: bool = True,
    emitter: Emitter | None = None,
) -> LayerMarkers:
    """Marks every call of every module of a model.

    A module that several others share is named as it is found first; the reader puts it where it ran. A module that
    another handle has marked for the same emitter keeps that mark alone. Copies of a marked model are not marked.

    What runs inside a region compiled by torch.compile cannot be marked from Python and is not; the region stays
    whole. ``handle.silent`` names the modules whose calls were never marked.

    Args:
        model: The model.
        prefix: Name of the model itself.
        skip: Types of modules, and patterns of dotted names (``*.act``), that get no marker.
        depth: Modules deeper than this below the model get no marker.
        enabled: Whether to begin at once.
        emitter: Where the markers go; NVTX unless given.
    """
    if not is_path(prefix):
        raise UsageError(f"{prefix!r} is no dotted name for a module")
    handle = LayerMarkers(Switch(on=enabled))
    to = default_emitter() if emitter is None else emitter
    skip = list(skip)
    types = tuple(item for item in skip if isinstance(item, type))
    patterns = [item for item in skip if isinstance(item, str)]
    for path, level, module in _modules(model, prefix):
        unwanted = isinstance(module, types) or any(fnmatchcase(path, name) for name in patterns)
        if not unwanted and (depth is None or level <= depth):
            handle.put_on(module, path, to)
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

    def __exit__(
        self, _type: object, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
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


def _modules(model: nn.Module, prefix: str) -> Iterator[tuple[str, int, nn.Module]]:
    """Every module once, with its path and depth; what torch.compile wraps goes by the wrapper's name."""
    for path, module in model.named_modules(prefix=prefix):
        if _COMPILED in module._modules:
            continue
        names = [name for name in path.split(".") if name != _COMPILED]
        yield ".".join(names), len(names) - len(prefix.split(".")), module


def _marks_on(module: nn.Module) -> Iterator[Marks]:
    for hook in module._forward_pre_hooks.values():
        if isinstance(marks := getattr(hook, "__self__", None), Marks):
            yield marks
