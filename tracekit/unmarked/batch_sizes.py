"""Whether one batch size, or number of tokens, explains how the grids of a step differ from those of another.

A larger batch makes all grids over rows larger by the same factor. A wider model makes grids over elements larger, but
not those of norms, in which each row has a block of its own; and those of products in the direction of their columns.
"""

from collections.abc import Sequence

import numpy as np

from tracekit.arrays.groups import counts, grouped
from tracekit.arrays.types import Flags, Floats, Ints, Rows
from tracekit.unmarked.signatures import ATTENTION, NORM, PRODUCT, REDUCE, SOFTMAX, UNKNOWN, Signatures, mixed

#: Grids of fewer blocks may be as they are for any size.
_FEW_BLOCKS = 4
#: How far ratios of equal meaning may differ, by rounding to whole tiles; and that of blocks, beside one block.
_ROUNDING, _EXACT = 1.3, 1.05
#: The share of grids that may be otherwise: some depend on nothing, some on the GPU.
_MOST_ODD = 0.3


def varying(steps: Sequence[tuple[Signatures, Rows]]) -> list[Flags]:
    """The work of each step whose sizes the data decides, such as that of experts.

    A step with the same names and as large norms has other sizes there, or for the same kernel elsewhere in modules
    that are alike, of which each step tells the numbers.
    """
    alike: dict[tuple[bytes, bytes], list[int]] = {}
    for at, (work, _) in enumerate(steps):
        if norms := work.grid[work.group == NORM].tobytes():
            alike.setdefault((work.name.tobytes(), norms), []).append(at)
    found = [np.zeros(work.name.size, dtype=bool) for work, _ in steps]
    for group in alike.values():
        for at in group[1:]:
            found[group[0]] |= steps[at][0].exact != steps[group[0]][0].exact
    kernels = [mixed(work.code, like) for work, like in steps]
    known = np.unique(np.concatenate([kernel[varies] for kernel, varies in zip(kernels, found, strict=True)]))
    return [np.isin(kernel, known) for kernel in kernels]


def unexplained(work: Signatures, reference: Signatures, module: Rows, varies: Flags) -> Flags | None:
    """Pairs of work whose grids do not differ by the batch alone; None if so many that the model is another.

    ``module`` is that of the reference's work, and ``varies`` tells whose sizes the data decides. What has the same
    size in the reference has so for another batch, too; most of it must be explained. Modules in which attention runs
    depend on the length of the context as well.
    """
    blocks, before = (np.maximum(side.grid, 0).prod(axis=1) for side in (work, reference))
    products, softmax, attention, norms = (
        module[reference.group == group] for group in (PRODUCT, SOFTMAX, ATTENTION, NORM)
    )
    by_rows = np.isin(reference.group, (NORM, REDUCE)) & np.isin(module, norms)
    attends = np.concatenate([attention, np.intersect1d(products, softmax), [-1]])
    compared = (work.code == reference.code) | ((work.group == NORM) & (reference.group == NORM))
    rows = np.flatnonzero(compared & (np.minimum(blocks, before) > 0) & ~np.isin(module, attends) & ~varies)
    wider = _along_columns(work.at(rows), reference.at(rows))
    factor = _factor(blocks[rows], before[rows], by_rows[rows], wider)
    many = (np.maximum(blocks, before)[rows] >= _FEW_BLOCKS) & (work.code == reference.code)[rows]
    rows, wider = rows[many], wider[many]
    ratio, group = blocks[rows] / before[rows], work.group[rows]
    off = np.log(_EXACT) + 1 / np.minimum(blocks, before)[rows]
    tiled = np.isin(group, (PRODUCT, UNKNOWN))
    odd = np.where(tiled, ~_between(ratio, factor), ~(_near(ratio, factor, off) | _near(ratio, factor**2, off)))
    odd |= wider > 0
    alike = grouped([reference.exact[rows]]).group
    mostly = 2 * counts(alike[odd], rows.size) >= counts(alike, rows.size)
    if rows.size and (odd.mean() > _MOST_ODD or mostly[alike[group != UNKNOWN]].any()):
        return None
    return np.isin(np.arange(blocks.size), rows[odd])


def _factor(blocks: Ints, before: Ints, by_rows: Flags, wider: Ints) -> float:
    """By how much the batch is larger, if anything shows that it is, and not the model."""
    shown = by_rows if by_rows.any() else (blocks != before) & (wider.max(initial=-1) == 0)
    finest = shown & (before == before[shown].max(initial=0))
    return float(np.median((blocks / before)[finest])) if shown.any() else 1.0


def _near(ratio: Floats, factor: float, off: Floats) -> Flags:
    return np.asarray(np.abs(np.log(ratio / factor)) <= off)


def _between(ratio: Floats, factor: float) -> Flags:
    """Products round to large tiles, and attention may grow with the square."""
    least, most = sorted((1.0, factor**2))
    rounding = _EXACT if least == most else _ROUNDING
    return np.asarray((ratio >= least / rounding) & (ratio <= most * rounding))


def _along_columns(work: Signatures, reference: Signatures) -> Ints:
    """For products, 1 if they differ in the direction of their columns, 0 if not; -1 for others or if unknown.

    Where one direction has different sizes and the other has not, rows are the same for all, and columns differ. Where
    both have, as in convolutions, rows are the longer direction. Grids of one direction may hold both.
    """
    differs = work.grid != reference.grid
    wider = np.full(work.code.size, -1)
    for code in np.unique(reference.code[reference.group == PRODUCT]).tolist():
        rows = np.flatnonzero(reference.code == code)
        grid = reference.grid[rows]
        most = grid.max(axis=0)
        varied = np.flatnonzero(grid.min(axis=0) < most)
        columns = differs[rows, varied[most[varied].argmin()]] if varied.size else np.ones(rows.size, dtype=bool)
        if (most > 1).sum() > 1 or not columns.any():
            wider[rows] = columns if varied.size else -1
    return wider
