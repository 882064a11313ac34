"""How many modules of a model ran marked, and why the others did not. It only looks; it marks nothing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from torch import nn
from torch.jit._script import RecursiveScriptModule
from torch.jit._trace import TopLevelTracedModule

from tracekit.capture.attach import is_compiled, marks_on, modules_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from tracekit.capture.marks import Marks

#: What became of a module, and how the summary says it. Figures have the prefix ``modules_``.
MARKED = "marked"
UNMARKED: dict[str, str] = {
    "scripted": "in TorchScript, which accepts no hooks",
    "compiled": "inside compiled code",
    "fused": "inside fused layers",
    "skipped": "skipped by name, type or depth",
    "created_later": "created after marking began",
    "not_called": "not called",
}
FIGURE = "modules_{}".format


def takes_hooks(module: nn.Module) -> bool:
    """Whether hooks can be put on a module: TorchScript accepts none, except on a traced module as a whole."""
    return not isinstance(module, RecursiveScriptModule) or isinstance(module, TopLevelTracedModule)


class Looked(NamedTuple):
    """A module that can be called, as it was when somebody looked.

    Attributes:
        marks: Its marks.
        unmarked: What became of it, if none of them marked a call.
    """

    marks: tuple[Marks, ...]
    unmarked: str


def look(
    model: nn.Module,
    ours: Container[Marks],
    included: Callable[[str, int, nn.Module], bool],
    fused: Container[str],
    prefix: str,
) -> list[Looked]:
    """Looks at a model's modules while the markers are on.

    Args:
        model: The model.
        ours: The marks that were put on it.
        included: Whether a module was to be marked, from its path, its level and itself.
        fused: Paths of the layers that were marked as one call.
        prefix: The model's own path.
    """
    modules: list[Looked] = []
    closed: dict[str, str] = {}
    for path, level, module in modules_of(model, prefix):
        if not _is_container(module):
            marks = tuple(marks for marks in marks_on(module) if marks in ours)
            around = next((closed[part] for part in _around(path) if part in closed), None)
            unmarked = around or _unmarked(module, marks, to_mark=included(path, level, module))
            modules.append(Looked(marks, unmarked))
        if path in fused:
            closed[path] = "fused"
        elif is_compiled(module):
            closed[path] = "compiled"
    return modules


def inventory(modules: Iterable[Looked]) -> Counter[str]:
    """Counts modules by what became of them."""
    return Counter(MARKED if any(marks.called for marks in each.marks) else each.unmarked for each in modules)


def _is_container(module: nn.Module) -> bool:
    """Whether a module only holds others, as ModuleList does, and cannot be called."""
    return getattr(module.forward, "__func__", None) is nn.Module.forward


def _around(path: str) -> list[str]:
    """The paths around one, the outermost first."""
    return [path[:place] for place, letter in enumerate(path) if letter == "."]


def _unmarked(module: nn.Module, marks: tuple[Marks, ...], *, to_mark: bool) -> str:
    if marks:
        return "not_called"
    if not takes_hooks(module):
        return "scripted"
    return "created_later" if to_mark else "skipped"
