"""How a parse is done, and what it leaves. What is asked of the tables is in ``one.Wishes``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tracekit.progress import silent

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset
    from tracekit.progress import Progress
    from tracekit.storage.locations import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How reports are parsed.

    Attributes:
        force: Whether an existing dataset may be replaced; with ``add``, a report of it whose file has changed.
        add: Whether the reports are added to the dataset, if there is one.
        scheduler: As for :func:`tracekit.engines.opened`.
        progress: Called with each stage and the share of it that is done; with several reports, with each report.
    """

    force: bool = False
    add: bool = False
    scheduler: str | None = None
    progress: Progress = silent


class Parsed(NamedTuple):
    """A dataset, and the reports that were in it already."""

    dataset: Dataset
    skipped: list[Location]
