"""Runs checks one after another, each in a process of its own with a time limit, and writes what came of them."""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tracekit.errors import CaptureError, TracekitError
from tracekit.files import parents_made, reason_of, remedy_of, stopped_once, whole_folder
from tracekit.proof import children, machine as machines, one, page, summary
from tracekit.proof.summary import FAILED, MISSING, Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tracekit.proof.base import Check
    from tracekit.proof.machine import Machine
    from tracekit.proof.summary import Outcome

_ELSEWHERE = "choose another folder"
#: Datasets can be made again from the reports.
_DATASETS = "*.tracekit"
_LOG = "log.txt"
_MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class Watchers:
    """Who is told what happens.

    Attributes:
        told: Called with a line about each check that has ended.
        finished: Called with the folder and the summary once both are there, before the folder takes its place.
    """

    told: Callable[[str], object]
    finished: Callable[[Path, Summary], object] = lambda _folder, _summary: None


def prove(place: Path, checks: Sequence[Check], watchers: Watchers, *, force: bool = False) -> Summary:
    """Runs checks. Reports, ``summary.json`` and ``summary.md`` are in the folder when it returns.

    If it is stopped after a check has ended, the folder holds what was found until then, and the summary says so.

    Args:
        place: The folder.
        checks: What to run.
        watchers: Who is told.
        force: Whether the folder of an earlier proof may be replaced.

    Raises:
        CaptureError: If something is there that must not be replaced, or the place cannot be written.
    """
    check_free(place, force=force)
    place = place.resolve()
    try:
        taken = whole_folder(place, lambda: check_free(place, force=force))
        with stopped_once(), parents_made(place), taken as folder:
            proof = _Proof(folder, place, watchers)
            stop = proof.run(checks)
            if stop is not None and not proof.anything:
                raise stop
            proof.write(complete=stop is None)
    except OSError as error:
        remedy = remedy_of(error, _ELSEWHERE)
        raise CaptureError(f"{place}: cannot be written ({reason_of(error)}); {remedy}") from None
    if stop is not None:
        raise stop
    return proof.summary(complete=True)


def check_free(place: Path, *, force: bool) -> None:
    """Checks that a proof can be put there.

    Raises:
        CaptureError: If something is there that must not be replaced.
    """
    if not place.exists() and not place.is_symlink():
        return
    if not place.is_dir() or (any(place.iterdir()) and not summary.is_summary(place / summary.FILE)):
        raise CaptureError(f"{place}: already exists and is not the folder of a proof; {_ELSEWHERE}")
    if not force:
        raise CaptureError(f"{place}: already exists; replace it with --force or {_ELSEWHERE}")


class _Proof:
    """A proof while it is made."""

    def __init__(self, folder: Path, place: Path, watchers: Watchers) -> None:
        self._folder, self._place, self._watchers = folder, place, watchers
        self._began, self._started = time.monotonic(), datetime.now(UTC)
        self._machine: Machine | None = None
        self._outcomes: list[Outcome] = []
        self._seconds = 0.0
        self.anything = False

    def run(self, checks: Sequence[Check]) -> BaseException | None:
        """Runs all checks. Returns what stopped it; None if nothing did."""
        stop: BaseException | None = None
        try:
            self._examine(checks)
            for check in checks[len(self._outcomes) :]:
                self._add(self._outcome(check))
                self.anything = True
        except (KeyboardInterrupt, SystemExit) as error:
            stop = error
            self._stopped(checks[len(self._outcomes) :])
        self._seconds = time.monotonic() - self._began
        return stop

    def _stopped(self, rest: Sequence[Check]) -> None:
        """Removes what the check that ran has half done, and says of the rest that it has not run."""
        for check in rest[:1]:
            shutil.rmtree(self._folder / check.NAME, ignore_errors=True)
        self._outcomes += [summary.outcome(check, MISSING, "stopped before it had ended") for check in rest]
        if self.anything:
            self._watchers.told(f"stopped; {self._place} holds what had ended")

    def summary(self, *, complete: bool) -> Summary:
        """What came of all checks."""
        started = self._started.isoformat(timespec="seconds")
        return Summary(
            complete=complete,
            started_utc=started,
            seconds=self._seconds,
            machine=self._machine,
            outcomes=tuple(self._outcomes),
        )

    def write(self, *, complete: bool) -> None:
        """Writes the summary and the page."""
        found = self.summary(complete=complete)
        summary.write(self._folder, found.as_json() + "\n")
        summary.write(self._folder, page.page(found), page.FILE)
        self._watchers.finished(self._folder, found)

    def _examine(self, checks: Sequence[Check]) -> None:
        """Finds out what the machine has. Where it crashes, no check can run, and each says why."""
        folder = self._folder / _MACHINE
        folder.mkdir()
        self._watchers.told("examining the machine")
        try:
            self._machine = machines.examined(folder)
        except TracekitError as error:
            self.anything = True
            for check in checks:
                self._add(summary.outcome(check, FAILED, self._shown(str(error)), problems=(self._shown(str(error)),)))
        self._tidy(folder)

    def _add(self, found: Outcome) -> None:
        self._outcomes.append(found)
        took = "" if found.seconds is None else f" ({found.seconds:.1f} s)"
        self._watchers.told(f"{found.verdict:8} {found.name}{took}{': ' if found.why else ''}{found.why}")

    def _outcome(self, check: Check) -> Outcome:
        assert self._machine is not None
        if lacking := check.missing(self._machine):
            return summary.outcome(check, MISSING, lacking)
        folder = self._folder / check.NAME
        folder.mkdir()
        (folder / one.MACHINE).write_text(json.dumps(asdict(self._machine)), "utf-8")
        command = [sys.executable, "-m", "tracekit.proof", "check", _module_of(check), str(folder)]
        ended = children.run(command, folder / _LOG, check.LIMIT_S, machines.package_path())
        found = self._judged(check, folder, ended)
        self._tidy(folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return replace(found, files=tuple(str(path.relative_to(self._folder)) for path in files))

    def _judged(self, check: Check, folder: Path, ended: children.Ended) -> Outcome:
        left = folder / one.EVIDENCE
        problem = ended.problem() or (None if left.exists() else "ended without a verdict")
        if problem is not None:
            why = self._shown(f"{problem}: {machines.last_line(folder / _LOG)}")
            return summary.outcome(check, FAILED, why, problems=(why,), seconds=round(ended.seconds, 3))
        found: dict[str, Any] = json.loads(left.read_text("utf-8"))
        found["problems"] = [self._shown(problem) for problem in found["problems"]]
        return summary.judged(check, found, ended.seconds)

    def _shown(self, text: str) -> str:
        """A text with the place that its files will have."""
        return text.replace(str(self._folder), str(self._place))

    @staticmethod
    def _tidy(folder: Path) -> None:
        """Removes what can be made again, and what is empty."""
        for dataset in [*folder.rglob(_DATASETS)]:
            shutil.rmtree(dataset)
        for path in [*folder.rglob("*")]:
            if path.is_file() and not path.stat().st_size:
                path.unlink()


def _module_of(check: Check) -> str:
    """The name by which another process imports a check."""
    return str(check.__name__)  # type: ignore[attr-defined]
