"""Counts the times at which what was emitted once must be emitted again."""

from __future__ import annotations


class Epoch:
    """The time between two changes of what is marked or recorded.

    Attributes:
        number: Changes when a recording begins, and when markers are put on a model or taken off.
    """

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def begin(self) -> None:
        """Something has changed."""
        self.number += 1


#: The epoch of this process.
epoch = Epoch()
