"""Why the FLOPs of a kernel of a compiled graph are not known, in words, by what its kernel map tells.

Maps tell the numbers themselves; :mod:`tracekit.markers.kernel_map_text` has the reasons.
"""

from __future__ import annotations

#: The map tells none; the report lost launches, so that what is left of the kernel may not be all of it.
UNTOLD, LOST = "untold", "lost"

_IN_WORDS = {
    UNTOLD: "the kernel map of its compiled graph tells none: record again",
    LOST: "the report lost launches of its compiled graph",
    "sizes": "its compiled graph runs with too many sizes, or with sizes that it computes",
    "divided": "the compiler divided a product between kernels or modules",
    "unclear": "the compiler does not tell them",
}


def why(note: str) -> str:
    """The reason, from what a kernel map notes: one of those above, or the name of an operator."""
    return _IN_WORDS.get(note) or f"{note} may multiply matrices, in a compiled graph"
