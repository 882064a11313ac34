"""The most of everything that a page holds. Whatever the dataset, the page stays under 10 MB."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracekit.arrays.types import Rows
from tracekit.errors import plain
from tracekit.views.formatting import shortened

#: Modules, and lines of the tree.
MODULES = 5_000
#: Types of layers.
TYPES = 500
#: Kernels by name, and pairs of a module and a kernel.
KERNELS = 500
PAIRS = 40_000
#: Lines of Python.
LINES = 300
#: On the timeline: kernels in a drawing, and in all drawings together of ranks other than the slowest, the
#: fastest and the one in the middle; drawings of steps (and of recordings), calls on the host, names, and streams.
PIECES = 4_000
PIECES_OF_OTHERS = 24_000
STEPS = 16
HOST_CALLS = 1_500
NAMES = 2_000
STREAMS = 48
#: Points on the roofline.
ROOF_POINTS = 600
#: Reasons why figures of the roofline are unknown.
NOTES = 6
#: Rows of modules by shape.
SHAPES = 6_000
#: Bars of steps.
BARS = 600
#: Histograms of kernels, modules and lines, and bins of each.
HISTOGRAMS = 400
BINS = 24
#: Steps of a rank.
RANK_STEPS = 120
#: Series of modules that changed, and layers of each.
LAYER_ROWS = 12
LAYERS = 128
#: Modules by memory.
MEMORY_ROWS = 400
#: Rows of smaller tables.
ROWS = 200
#: Characters of a name, and of a longer text.
NAME = 120
TEXT = 400


def highest(values: NDArray[Any], most: int) -> Rows:
    """The rows of at most so many values: of neighbours that share one, the highest."""
    if values.size <= most:
        return np.arange(values.size)
    group = np.arange(values.size) * most // values.size
    order = np.lexsort((-values, group))
    return order[np.searchsorted(group[order], np.arange(most))]


def clip(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    """The rows, in which some texts are clipped where they are known."""
    for row in rows:
        row |= {name: clipped(row[name]) for name in names if row.get(name) is not None}
    return rows


def clipped(text: str, most: int = NAME) -> str:
    """Text for the page: without control characters, and of a long one only begin and end. An empty one is a square."""
    return plain(shortened(text, most)) or "\N{WHITE SQUARE}"
