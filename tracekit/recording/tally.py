"""Losses counted while a report is read, each under a cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.causes.base import Cause


@dataclass(slots=True)
class Tally:
    """Losses counted while a report is read: ``counts[subject, cause] = number``.

    Attributes:
        counts: The losses.
        looks: Looks at the whole recording that decided something: a part of it alone may decide it otherwise.
    """

    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    looks: set[str] = field(default_factory=set)

    def add(self, subject: str, cause: Cause, count: int = 1) -> None:
        """Counts more losses of one cause; a count of 0 adds no entry."""
        if count:
            key = (subject, cause.name)
            self.counts[key] = self.counts.get(key, 0) + int(count)

    def look(self, what: str, *, decides: bool) -> None:
        """Notes a look at the whole recording, if it decides something."""
        if decides:
            self.looks.add(what)
