"""Further reports for a dataset that is there: what is in it already is skipped, and its files are not touched.

The new dataset has the rows that all its reports have if they are parsed together. It takes the place of the old one
when it is complete; until then, and if anything goes wrong, the old one stays.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tracekit.dataset import manifest
from tracekit.dataset.joining import Files, FilesAtUrl, FilesOnDisk, Kept, Part, join
from tracekit.dataset.opening import load, name_of
from tracekit.dataset.writing import published, tidy, writing
from tracekit.errors import DatasetError, ReportError, ReportsError
from tracekit.files import linked
from tracekit.pipeline.one import Parsed, ParseOptions, Run
from tracekit.pipeline.report import parse_report
from tracekit.pipeline.several import IDS_PER_REPORT, check_given, parse_parts, report_names
from tracekit.progress import Progress
from tracekit.readers.base import sha256_of
from tracekit.storage.locations import Location, is_remote, reachable

#: The entry of one report in a manifest.
Entry: TypeAlias = Mapping[str, Any]

#: Reports that are read for their digest at once: at a URL, each one waits for the network.
_COMPARED_AT_ONCE = 4
#: Fields of a manifest that are about where its dataset lies.
_NOT_OF_ONE = (manifest.ID, manifest.FILES)


class _Numbered(NamedTuple):
    """A report of the dataset; of one that is there already, the path is only its name and that of its folder.

    Its ids are counted from ``number`` times ``IDS_PER_REPORT``. The entry may be that of the one which it replaces.
    """

    number: int
    path: Location
    entry: Entry | None
    is_new: bool


class _Asked(NamedTuple):
    """What was asked of a report: the rows, digests of the marked runs that it is like, names of collectives."""

    rows: str
    like: tuple[str, ...]
    collectives: tuple[str, ...]


def add(paths: Sequence[Location], folder: Location, options: ParseOptions, run: Run) -> Parsed:
    """Adds reports to a dataset on this machine or at a URL."""
    check_given(paths)
    before = manifest.read(folder)
    there = _reports_of(before)
    given = _compared(paths, there, run.progress)
    asked = _Asked(options.rows, tuple(one.sha256 for one in options.like), options.collectives)
    reports, skipped = _with_new(given, folder, there, asked, force=run.force)
    if len(skipped) == len(paths):
        if not is_remote(folder):  # there, another parse may be about to use files that are not listed yet
            tidy(folder.resolve())
        return Parsed(load(folder), skipped)
    with _succeeding(folder, before, run.progress) as (partial, place, files):
        errors = _write(reports, partial, (files, before), options, run)
    # As the caller named it, unless that path led through the folder which has just been replaced.
    folder = folder if is_remote(folder) or (folder / manifest.MANIFEST).exists() else place
    if errors:
        raise ReportsError(errors.values(), folder)
    return Parsed(load(folder), skipped)


@contextmanager
def _succeeding(folder: Location, before: Entry, progress: Progress) -> Iterator[tuple[Path, Location, Files]]:
    if isinstance(folder, Path):
        with writing(folder, successor_of=before) as (partial, place):
            yield partial, place, FilesOnDisk(place)
    else:
        with published(folder, progress, successor_of=before) as partial:
            partial.mkdir()
            yield partial, folder, FilesAtUrl(folder, before, partial.with_name("before"))


def _reports_of(before: Entry) -> list[_Numbered]:
    entries = before.get("reports", [{"first_id": 0, **before}])
    places = [Path("/", entry["folder"], entry["source"]["name"]) for entry in entries]
    numbers = [entry["first_id"] // IDS_PER_REPORT for entry in entries]
    return [_Numbered(*columns, is_new=False) for columns in zip(numbers, places, entries, strict=True)]


def _compared(
    paths: Sequence[Location], reports: list[_Numbered], progress: Progress
) -> list[tuple[Location, _Numbered | None]]:
    given: list[tuple[Location, _Numbered | None]] = []
    with ThreadPoolExecutor(_COMPARED_AT_ONCE) as pool:
        for path, same in zip(paths, pool.map(lambda path: _same_report(path, reports), paths), strict=True):
            given.append((path, same))
            progress("comparing", len(given) / len(paths))
    return given


def _with_new(
    given: list[tuple[Location, _Numbered | None]],
    folder: Location,
    before: list[_Numbered],
    by: _Asked,
    *,
    force: bool,
) -> tuple[list[_Numbered], list[Location]]:
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
    return path.absolute().parent.name, path.name


def _asked(report: _Numbered) -> _Asked | None:
    if report.entry is None:
        return None
    like = tuple(one["sha256"] for one in report.entry.get("like", ()))
    return _Asked(report.entry["hierarchy"]["asked"], like, tuple(report.entry.get("collectives", ())))


def _same_report(path: Location, reports: list[_Numbered]) -> _Numbered | None:
    """The report of the dataset that has the same bytes; its digest is only computed where one has its size."""
    sources = [(one, one.entry["source"]) for one in reports if one.entry is not None]
    remote = reachable(path, ReportError) if is_remote(path) else nullcontext()
    with remote, suppress(OSError):  # parsing it will show why
        if path.is_file() and path.stat().st_size not in {source["size_bytes"] for _, source in sources}:
            return None
        digest = sha256_of(path)
        return next((one for one, source in sources if source["sha256"] == digest), None)
    return None


def _differs(folder: Location, path: Location, old: _Numbered, by: _Asked) -> DatasetError:
    asked = _asked(old)
    if asked is not None and _same_report(path, [old]) is not None:
        other = "like other marked runs" if asked.like != by.like else "with other --collective"
        how = f"with --rows {asked.rows}, not --rows {by.rows}" if asked.rows != by.rows else other
        problem = f"has the report {path} already, parsed {how}"
        return DatasetError(folder, problem, "parse it again with --add --force")
    problem = f"has a report {old.path.parent.name}/{old.path.name} already, whose contents differ from {path}"
    return DatasetError(folder, problem, "replace it with --add --force, or rename the new report or its folder")


def _write(
    reports: list[_Numbered], partial: Path, old: tuple[Files, Entry], options: ParseOptions, run: Run
) -> dict[str, ReportError]:
    names = report_names([report.path for report in reports])
    new = {
        name: (report.path, Part(name, partial / f".{name}", report.number * IDS_PER_REPORT))
        for name, report in zip(names, reports, strict=True)
        if report.is_new
    }
    errors = _parse([path for path, _ in new.values()], [part for _, part in new.values()], options, run)
    if len(errors) == len(new):
        raise ReportsError(errors.values(), None)
    joined = [
        new[name][1] if name in new and name not in errors else _kept(name, report.entry, partial, *old)
        for name, report in zip(names, reports, strict=True)
        if name not in errors or report.entry is not None
    ]
    left_out = [entry for entry in old[1].get("left_out", []) if entry["name"] not in names]
    left_out += [{"name": name, "problem": error.problem} for name, error in errors.items()]
    join(partial, joined, left_out, run.progress)
    return errors


def _parse(paths: list[Location], parts: list[Part], options: ParseOptions, run: Run) -> dict[str, ReportError]:
    """Parses the new reports; a single one here if it may be, for another process would take as long to start."""
    if len(parts) == 1 and run.scheduler is None:
        [path], [part] = paths, parts
        parse_report(path, part.folder, run.progress, replace(options, first_id=part.first_id), scheduler=None)
        return {}
    errors = parse_parts(paths, parts, options, run)
    if len(parts) == 1 and errors:
        raise errors.popitem()[1]
    return errors


def _kept(name: str, entry: Entry | None, partial: Path, files: Files, before: Entry) -> Part | Kept:
    if "reports" in before and entry is not None:
        return Kept(name, files, before, entry)
    folder = partial / f".{name}"
    folder.mkdir()
    for table in before["rows"]:
        linked(files.readable(table, None), folder / name_of(table, None))
    manifest.write(folder, {field: value for field, value in before.items() if field not in _NOT_OF_ONE})
    return Part(name, folder, 0)
