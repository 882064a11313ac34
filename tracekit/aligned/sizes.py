"""Whether one batch size, or number of tokens, explains how the grids of a step differ from those of another.

A larger batch makes all grids over rows larger by the same factor. A wider model makes grids over elements larger, but
not those of norms, in which each row has a block of its own; and those of products in the direction of their columns.
"""

import numpy as np

from tracekit.aligned.signatures import ATTENTION, BY_ROWS, PRODUCT, UNKNOWN, Signatures
from tracekit.arrays.types import Flags, Floats, Ints

#: Grids of fewer blocks may be as they are for any size.
_FEW_BLOCKS = 4
#: How far ratios of equal meaning may differ, by rounding to whole tiles; and that of blocks, beside one block.
_ROUNDING, _EXACT = 1.3, 1.05
#: The share of grids that may be otherwise: some depend on nothing, some on the GPU.
_MOST_ODD = 0.3


def one_batch_explains(work: Signatures, reference: Signatures) -> bool:
    """Whether the grids of pairs of work may differ by the batch alone."""
    blocks, before = (np.maximum(side.grid, 0).prod(axis=1) for side in (work, reference))
    compared = (
        (work.code == reference.code) & (np.maximum(blocks, before) >= _FEW_BLOCKS) & (np.minimum(blocks, before) > 0)
    )
    rows = np.flatnonzero(compared)
    ratio, group = blocks[rows] / before[rows], work.group[rows]
    if not (ratio != 1).any():
        return True
    factor = _factor(ratio, group)
    tiled = np.isin(group, (PRODUCT, ATTENTION, UNKNOWN))
    off = np.log(_EXACT) + 1 / np.minimum(blocks, before)[rows]
    odd = np.where(tiled, ~_between(ratio, factor), ~(_near(ratio, factor, off) | _near(ratio, factor**2, off)))
    columns = _along_columns(work.at(rows), reference.at(rows))
    grown = (group == PRODUCT) & (ratio != 1)
    odd |= columns
    return bool(odd.mean() <= _MOST_ODD and odd[grown].sum() <= grown.sum() / 2)


def _factor(ratio: Floats, group: Ints) -> float:
    """By how much the batch is larger: of kernels over rows, if there are some, else of most grids that differ."""
    rows = ratio[np.isin(group, BY_ROWS)]
    return float(np.median(rows if rows.size else ratio[ratio != 1]))


def _near(ratio: Floats, factor: float, off: Floats) -> Flags:
    return np.asarray(np.abs(np.log(ratio / factor)) <= off)


def _between(ratio: Floats, factor: float) -> Flags:
    """Products round to large tiles, and attention may grow with the square."""
    least, most = sorted((1.0, factor**2))
    rounding = _EXACT if least == most else _ROUNDING
    return np.asarray((ratio >= least / rounding) & (ratio <= most * rounding))


def _along_columns(work: Signatures, reference: Signatures) -> Flags:
    """Products of one code that differ in the direction of their columns.

    Where one direction has different sizes and the other has not, rows are the same for all, and columns differ. Where
    both have, as in convolutions, rows are the longer direction.
    """
    differs = (work.grid != reference.grid) & (reference.group == PRODUCT)[:, None]
    odd = np.zeros(differs.shape[0], dtype=bool)
    for code in np.unique(reference.code[differs.any(axis=1)]).tolist():
        rows = np.flatnonzero(reference.code == code)
        grid = reference.grid[rows]
        most = grid.max(axis=0)
        varied = np.flatnonzero(grid.min(axis=0) < most)
        if varied.size and (most > 1).sum() > 1:
            odd[rows] = differs[rows, varied[most[varied].argmin()]]
    return odd
