"""How much of a dataset a page holds at most, whatever the dataset: it stays under 10 MB."""

from __future__ import annotations

from tracekit.views.wording import plain

#: Modules, and lines of the folded tree.
MODULES = 5_000
#: Types of layers.
TYPES = 500
#: Kernels by name, and pairs of a module and a kernel.
KERNELS = 500
PAIRS = 40_000
#: Pieces of work drawn of one step, steps, and names of the kernels in them.
PIECES = 4_000
STEPS = 16
NAMES = 2_000
#: Streams drawn of one step.
STREAMS = 48
#: Points of the roofline.
ROOF_POINTS = 600
#: Reasons why figures are not known.
NOTES = 6
#: Rows of modules by shape.
SHAPES = 6_000
#: Bars of the overview of steps.
BARS = 600
#: Rows of smaller tables.
ROWS = 200
#: Letters of a name, and of text made of several.
NAME = 120
TEXT = 400


def clipped(text: str, letters: int = NAME) -> str:
    """Text that can be shown: of a long one the begin and the end, without what is no letter."""
    shown = plain(text if len(text) <= letters else _ends(text, letters))
    return shown or "\N{WHITE SQUARE}"


def _ends(text: str, letters: int) -> str:
    half = (letters - 1) // 2
    return f"{text[:half]}\N{HORIZONTAL ELLIPSIS}{text[-half:]}"
