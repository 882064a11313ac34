"""Further reports for a dataset that is there: what is in it already is skipped, and its files are not touched.

The new dataset has the rows that all its reports have if they are parsed together. It takes the place of the old one
when it is complete; until then, and if anything goes wrong, the old one stays.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.dataset import manifest
from tracekit.dataset.existing import Here
from tracekit.dataset.joining import Kept, Part, join
from tracekit.dataset.opening import load
from tracekit.dataset.table_files import name_of
from tracekit.dataset.writing import tidy, writing
from tracekit.errors import DatasetError, ReportError, ReportsError
from tracekit.files import linked
from tracekit.pipeline.any_size import parse_report
from tracekit.pipeline.run import Parsed, Target
from tracekit.pipeline.several import IDS_PER_REPORT, check_given, parse_parts, report_names
from tracekit.readers.digests import sha256_of
from tracekit.storage.failures import reachable
from tracekit.storage.locations import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.dataset.existing import Files
    from tracekit.pipeline.one import Wishes
    from tracekit.pipeline.run import Run
    from tracekit.progress import Progress
    from tracekit.storage.locations import Location

    #: What a manifest says of one report.
    Entry = Mapping[str, Any]

#: Reports that are read for their digest at once: at a URL, each one waits for the network.
_COMPARED_AT_ONCE = 4
#: Fields of a manifest that are about where its dataset lies.
_NOT_OF_ONE = (manifest.ID, manifest.FILES)


class _Numbered(NamedTuple):
    """A report of the dataset.

    Attributes:
        number: Its ids are counted from this times ``IDS_PER_REPORT``.
        path: Where it is; of one that is in the dataset already, only its name and that of its folder.
        entry: What the manifest says of it, or of the one that it replaces.
        is_new: Whether it has to be parsed.
    """

    number: int
    path: Location
    entry: Entry | None
    is_new: bool


def add(paths: Sequence[Location], folder: Location, wishes: Wishes, run: Run) -> Parsed:
    """Adds reports to a dataset.

    Args:
        paths: The reports.
        folder: The dataset, on this machine or at a URL.
        wishes: What is asked of the dataset of each report.
        run: How they are parsed.

    Raises:
        ReportError: If the only report cannot be read; nothing was changed.
        ReportsError: If some cannot be read; if all, nothing was changed.
        DatasetError: If the dataset cannot be read or written, or has a report whose file has changed.
        UsageError: If a report is given twice.
    """
    check_given(paths)
    before = manifest.read(folder)
    if manifest.ID not in before:
        problem = "was written by an early tracekit, to whose datasets nothing can be added"
        raise DatasetError(folder, problem, "parse its report again")
    there = _reports_of(before)
    given = _compared(paths, there, run.progress)
    reports, skipped = _with_new(given, folder, there, wishes.by, force=run.force)
    if len(skipped) == len(paths):
        if not is_remote(folder):  # there, another parse may be about to use what nobody lists yet
            tidy(folder.resolve())
        return Parsed(load(folder), skipped)
    if is_remote(folder):
        run = replace(run, target=Target(folder, set()))
    with _succeeding(folder, before, run) as (partial, place, files):
        errors = _write(reports, partial, _Old(files, before), wishes, run)
    # As the caller named it, unless that path led through the folder which has just been replaced.
    folder = folder if is_remote(folder) or (folder / manifest.MANIFEST).exists() else place
    if errors:
        raise ReportsError(errors.values(), folder)
    return Parsed(load(folder), skipped)


@contextmanager
def _succeeding(folder: Location, before: Entry, run: Run) -> Iterator[tuple[Path, Location, Files]]:
    """An empty folder for the new dataset, where that will be, and the files of the old one."""
    if run.target is not None:
        from tracekit.dataset.publishing import succeeding  # noqa: PLC0415 - for URLs only

        with succeeding(run.target.place, before, run.target.put, run.progress) as (partial, files):
            yield partial, folder, files
    elif isinstance(folder, Path):
        with writing(folder, successor_of=before) as (partial, place):
            yield partial, place, Here(place)


def _reports_of(before: Entry) -> list[_Numbered]:
    """The reports of a dataset."""
    entries = before.get("reports", [{"first_id": 0, **before}])
    return [
        _Numbered(
            entry["first_id"] // IDS_PER_REPORT,
            Path("/", entry.get("folder", ""), entry["source"]["name"]),
            entry,
            is_new=False,
        )
        for entry in entries
    ]


def _compared(
    paths: Sequence[Location], reports: list[_Numbered], progress: Progress
) -> list[tuple[Location, _Numbered | None]]:
    """Each given report with the one of the dataset that has the same bytes; several are compared at a time."""
    given: list[tuple[Location, _Numbered | None]] = []
    with ThreadPoolExecutor(_COMPARED_AT_ONCE) as pool:
        for path, same in zip(paths, pool.map(lambda path: _same_report(path, reports), paths), strict=True):
            given.append((path, same))
            progress("comparing", len(given) / len(paths))
    return given


def _with_new(
    given: list[tuple[Location, _Numbered | None]], folder: Location, before: list[_Numbered], by: str, *, force: bool
) -> tuple[list[_Numbered], list[Location]]:
    """All reports of the dataset as it shall be, in the order of their numbers; and those that are in it already."""
    reports = {one.number: one for one in before}
    by_place = {_place(one.path): one for one in before}
    skipped: list[Location] = []
    for path, same in given:
        if same is not None and _asked(same) == by:
            skipped.append(path)
            continue
        changed = same or by_place.pop(_place(path), None)
        if changed is not None and not force:
            raise _differs(folder, path, changed, by)
        number = max(reports) + 1 if changed is None else changed.number
        reports[number] = _Numbered(number, path, changed and changed.entry, is_new=True)
    return [reports[number] for number in sorted(reports)], skipped


def _place(path: Location) -> tuple[str, str]:
    """By what a report is known again when its file has changed."""
    return path.absolute().parent.name, path.name


def _asked(report: _Numbered) -> object:
    return (report.entry or {}).get("hierarchy", {}).get("asked")


def _same_report(path: Location, reports: list[_Numbered]) -> _Numbered | None:
    """The report of the dataset that has the same bytes; its digest is only computed where one has its size."""
    sources = [(one, one.entry["source"]) for one in reports if one.entry is not None]
    with reachable(path, ReportError) if is_remote(path) else nullcontext():
        return _of_same_bytes(path, sources)


def _of_same_bytes(path: Location, sources: list[tuple[_Numbered, Entry]]) -> _Numbered | None:
    try:
        if path.is_file() and path.stat().st_size not in {source.get("size_bytes") for _, source in sources}:
            return None
        digest = sha256_of(path)
    except OSError:
        return None  # parsing it will tell why
    return next((one for one, source in sources if source.get("sha256") == digest), None)


def _differs(folder: Location, path: Location, old: _Numbered, by: str) -> DatasetError:
    """The error for a report that is in the dataset, but not as it is asked for now."""
    asked = _asked(old)
    if _same_report(path, [old]) is not None:
        problem = f"has the report {path} already, parsed with --by {asked}, not --by {by}"
        return DatasetError(folder, problem, "parse it again with --add --force")
    problem = f"has a report {old.path.parent.name}/{old.path.name} already, whose contents differ from {path}"
    return DatasetError(folder, problem, "replace it with --add --force, or rename the new report or its folder")


class _Old(NamedTuple):
    """The dataset as it is: its files, and its manifest."""

    files: Files
    manifest: Entry


def _write(reports: list[_Numbered], partial: Path, old: _Old, wishes: Wishes, run: Run) -> dict[str, ReportError]:
    """Writes the new dataset into an empty folder; why some new reports could not be read, by their names."""
    names = report_names([report.path for report in reports])
    new = {
        name: (report.path, Part(name, partial / f".{name}", report.number * IDS_PER_REPORT, run.sent_to(name)))
        for name, report in zip(names, reports, strict=True)
        if report.is_new
    }
    errors = _parse([path for path, _ in new.values()], [part for _, part in new.values()], wishes, run)
    if len(errors) == len(new):
        raise ReportsError(errors.values(), None)
    joined = [
        new[name][1] if name in new and name not in errors else _kept(name, report.entry, partial, old)
        for name, report in zip(names, reports, strict=True)
        if name not in errors or report.entry is not None
    ]
    known = old.manifest.get("left_out", [])
    left_out = [entry for entry in known if entry["name"] not in names]
    left_out += [{"name": name, "problem": error.problem} for name, error in errors.items()]
    join(partial, joined, left_out, run.progress)
    return errors


def _parse(paths: list[Location], parts: list[Part], wishes: Wishes, run: Run) -> dict[str, ReportError]:
    """Parses the new reports; a single one here if it may be, for another process would take as long to start.

    Raises:
        ReportError: If the only one cannot be read.
    """
    if len(parts) == 1 and run.scheduler is None:
        [path], [part] = paths, parts
        parse_report(path, part.folder, run.progress, replace(wishes, first_id=part.first_id))
        return {}
    errors = parse_parts(paths, parts, wishes, run)
    if len(parts) == 1 and errors:
        raise errors.popitem()[1]
    return errors


def _kept(name: str, entry: Entry | None, partial: Path, old: _Old) -> Part | Kept:
    """A report of the old dataset; the only one of a dataset becomes a part of the new one."""
    if "reports" in old.manifest and entry is not None:
        return Kept(name, old.files, old.manifest, entry)
    folder = partial / f".{name}"
    folder.mkdir()
    for table in old.manifest["rows"]:
        linked(old.files.readable(table, None), folder / name_of(table, None))
    manifest.write(folder, {field: value for field, value in old.manifest.items() if field not in _NOT_OF_ONE})
    return Part(name, folder, 0)
