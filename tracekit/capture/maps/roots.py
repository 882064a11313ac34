"""The marked paths of the roots of a graph in one run: several modules of a program may run the same code.

What a run is given tells more than what was traced: a function's module may be another one by now. It does not know
kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.capture.epoch import epoch
from tracekit.capture.maps.inputs import path_by_tensors, roots_by_inputs
from tracekit.capture.maps.marked import marked_models
from tracekit.capture.maps.traced import CALLER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.capture.emit import Lane
    from tracekit.capture.maps.traced import Root, Traced

#: The path of each root, None where it is not known, and the inputs that tell them. No paths: it may be any of several.
Paths = tuple[list[str | None] | None, tuple[int, ...]]


def paths_of_forward(traced: Traced, inputs: Sequence[Any], lane: Lane) -> Paths:
    """The paths of a forward run, or of one without gradients."""
    told = roots_by_inputs(traced, inputs)
    paths, witnesses = list(told.paths), told.witnesses
    if (number := _only_one(traced)) is not None:
        root = traced.roots[number]
        if paths[number] is None:
            witness, paths[number] = path_by_tensors(root, inputs)
            witnesses = witnesses or _present(witness)
        paths[number] = paths[number] or _around(root, lane) or _when_traced(root)
    known = traced.told_by_inputs or number is not None or (told.agree and not _moved(traced, paths))
    roots = zip(traced.roots, paths, strict=True)
    paths = [path or _other(root, lane) for root, path in roots] if known else [None] * len(paths)
    traced.paths_run.add((epoch.number, tuple(paths)))
    return _if_any(paths), witnesses


def paths_of_backward(traced: Traced, inputs: Sequence[Any]) -> Paths:
    """The paths of a backward run: those of the forward runs, if they are all of the same modules or an input tells."""
    forward = {paths for run, paths in traced.paths_run if run == epoch.number}
    if (number := _only_one(traced)) is None:
        return (_if_any(forward.pop()) if len(forward) == 1 else None), ()
    witness, path = path_by_tensors(traced.roots[number], inputs)
    if path is not None and not forward:
        return [path if other == number else None for other in range(len(traced.roots))], _present(witness)
    fitting = [paths for paths in forward if path in (None, paths[number])]
    return (_if_any(fitting[0]) if len(fitting) == 1 else None), _present(witness)


def _only_one(traced: Traced) -> int | None:
    """The number of the only root that is a module; None if there are several, or none."""
    real = [number for number, root in enumerate(traced.roots) if root is not CALLER]
    return real[0] if len(real) == 1 else None


def _present(witness: int) -> tuple[int, ...]:
    return (witness,) if witness >= 0 else ()


def _if_any(paths: Sequence[str | None]) -> list[str | None] | None:
    return list(paths) if any(paths) else None


def _moved(traced: Traced, paths: Sequence[str | None]) -> bool:
    """Whether one root is another module than when it was traced, and it is not known what the others are now."""
    pairs = list(zip(traced.roots, paths, strict=True))
    unknown = any(path is None and root is not CALLER for root, path in pairs)
    return unknown and any(path not in (None, _marked(root)) for root, path in pairs)


def _other(root: Root, lane: Lane) -> str | None:
    """The path of a root that no input tells."""
    return (marked_models.innermost(lane, "") if root is CALLER else _when_traced(root)) or None


def _around(root: Root, lane: Lane) -> str | None:
    """The path of the marked call around, if it is of a module like the root."""
    return marked_models.innermost(lane, root.class_name) if root.class_name or not root.text else None


def _when_traced(root: Root) -> str:
    path = _marked(root)
    if path is None and root.module is None and root.class_name:
        path = marked_models.only_one_of(root.class_name)
    return path or root.class_name


def _marked(root: Root) -> str | None:
    module = None if root.module is None else root.module()
    return None if module is None else marked_models.path_of(module)
