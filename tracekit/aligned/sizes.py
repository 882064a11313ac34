"""Whether one batch size, or number of tokens, explains how the grids of a step differ from those of another.

A larger batch makes all grids over rows larger by the same factor. A wider model makes grids over elements larger, but
not those of norms, in which each row has a block of its own; and those of products in the direction of their columns.
"""

import numpy as np

from tracekit.aligned.signatures import ATTENTION, BY_ROWS, PRODUCT, Signatures
from tracekit.arrays.types import Flags, Floats, Ints

#: Grids of fewer blocks may be as they are for any size.
_FEW_BLOCKS = 4
#: How far ratios of equal meaning may differ, by rounding to whole blocks.
_ROUNDING = 1.3
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
    products = np.isin(group, (PRODUCT, ATTENTION))
    odd = np.where(products, ~_between(ratio, factor), ~(_near(ratio, factor) | _near(ratio, factor**2)))
    odd |= _along_columns(work.at(rows), reference.at(rows))
    return bool(odd.mean() <= _MOST_ODD)


def _factor(ratio: Floats, group: Ints) -> float:
    """By how much the batch is larger: of kernels over rows, if there are some, else of most grids that differ."""
    rows = ratio[np.isin(group, BY_ROWS)]
    return float(np.median(rows if rows.size else ratio[ratio != 1]))


def _near(ratio: Floats, factor: float) -> Flags:
    return np.asarray(np.abs(np.log(ratio / factor)) <= np.log(_ROUNDING))


def _between(ratio: Floats, factor: float) -> Flags:
    """Products round to large tiles, and attention may grow with the square."""
    least, most = sorted((1.0, factor**2))
    return np.asarray((ratio >= least / _ROUNDING) & (ratio <= most * _ROUNDING))


def _along_columns(work: Signatures, reference: Signatures) -> Flags:
    """Products of one code that grow in a direction in which they had different sizes: rows are the same for all."""
    differs = work.grid != reference.grid
    one = (reference.group == PRODUCT) & (differs.sum(axis=1) == 1)
    odd = np.zeros(one.size, dtype=bool)
    for axis in range(differs.shape[1]):
        grown = one & differs[:, axis]
        for code in np.unique(reference.code[grown]).tolist():
            rows = np.flatnonzero(grown & (reference.code == code))
            odd[rows] = np.unique(reference.grid[rows, axis]).size > 1
    return odd
