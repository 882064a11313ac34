"""How many modules of a model ran marked, and why the others did not. It only looks; it marks nothing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torch import nn
from torch.jit._script import RecursiveScriptModule
from torch.jit._trace import TopLevelTracedModule

from tracekit.capture.attach import is_compiled, marks_on, modules_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container

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


def inventory(
    model: nn.Module,
    ours: Container[Marks],
    included: Callable[[str, int, nn.Module], bool],
    fused: Container[str],
    prefix: str,
) -> Counter[str]:
    """Counts a model's modules by what became of them, before the markers are taken off.

    Args:
        model: The model.
        ours: The marks that were put on it.
        included: Whether a module was to be marked, from its path, its level and itself.
        fused: Paths of the layers that were marked as one call.
        prefix: The model's own path.
    """
    counts: Counter[str] = Counter()
    closed: dict[str, str] = {}
    for path, level, module in modules_of(model, prefix):
        around = next((closed[part] for part in _around(path) if part in closed), None)
        fate = _fate(module, ours, to_mark=included(path, level, module))
        if not _is_container(module):
            counts[around if around and fate != MARKED else fate] += 1
        if path in fused:
            closed[path] = "fused"
        elif is_compiled(module):
            closed[path] = "compiled"
    return counts


def _is_container(module: nn.Module) -> bool:
    """Whether a module only holds others, as ModuleList does, and cannot be called."""
    return getattr(module.forward, "__func__", None) is nn.Module.forward


def _around(path: str) -> list[str]:
    """The paths around one, the outermost first."""
    return [path[:place] for place, letter in enumerate(path) if letter == "."]


def _fate(module: nn.Module, ours: Container[Marks], *, to_mark: bool) -> str:
    marks = [marks for marks in marks_on(module) if marks in ours]
    if any(mark.called for mark in marks):
        return MARKED
    if marks:
        return "not_called"
    if not takes_hooks(module):
        return "scripted"
    return "created_later" if to_mark else "skipped"
