"""How a parse is done, and what it leaves. What is asked of the tables is in ``one.Wishes``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tracekit.dataset.sending import destination
from tracekit.progress import silent

if TYPE_CHECKING:
    from upath import UPath

    from tracekit.dataset.opening import Dataset
    from tracekit.dataset.sending import Destination
    from tracekit.progress import Progress
    from tracekit.storage.locations import Location


class Target(NamedTuple):
    """The URL that a dataset goes to.

    Attributes:
        place: The URL.
        put: Names of the files that workers of a cluster have put there themselves.
    """

    place: UPath
    put: set[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How reports are parsed.

    Attributes:
        force: Whether an existing dataset may be replaced; with ``add``, a report of it whose file has changed.
        add: Whether the reports are added to the dataset, if there is one.
        scheduler: As for :func:`tracekit.engines.opened`.
        progress: Called with each stage and the share of it that is done; with several reports, with each report.
        target: Where the dataset goes, if it goes to a URL.
    """

    force: bool = False
    add: bool = False
    scheduler: str | None = None
    progress: Progress = silent
    target: Target | None = None

    def sent_to(self, report: str | None) -> Destination | None:
        """Where a worker of a cluster may put the tables of a report itself; None if there is none, or no URL."""
        if self.target is None or self.scheduler is None:
            return None
        return destination(self.target.place, report)


class Parsed(NamedTuple):
    """A dataset, and the reports that were in it already."""

    dataset: Dataset
    skipped: list[Location]
