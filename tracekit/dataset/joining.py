"""Joins the datasets of single reports: ``DATASET/<table>.parquet/report=<name>/part-0.parquet``.

The ids of each report already start at a number of their own; only modules are numbered again, since reports share
them. The files of a report whose modules keep their ids are moved as they are; those of a report that is in a dataset
already are linked, and written again only where ids of its modules change.
"""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.dataset import manifest, own_modules
from tracekit.dataset.joined_manifest import describes_modules_twice, entry_of, manifest_of, with_differing
from tracekit.dataset.own_modules import Key
from tracekit.dataset.renumbering import concerns, renumbering, rewrite
from tracekit.dataset.sending import files_sent, names_sent
from tracekit.dataset.table_files import id_of, part_of
from tracekit.dataset.union import united
from tracekit.dataset.writing import ROW_GROUP, table_writer
from tracekit.errors import DatasetError
from tracekit.files import reason_of
from tracekit.tables import TABLES, coverage, modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tracekit.dataset.existing import AtUrl, Files
    from tracekit.dataset.own_modules import Hierarchy
    from tracekit.dataset.renumbering import Renumbering
    from tracekit.dataset.sending import Destination
    from tracekit.dataset.union import Union
    from tracekit.progress import Progress
    from tracekit.schema import TableSpec
    from tracekit.storage.locations import Location

#: The tables that are partitioned by report.
_PARTED = {table.SPEC.name: table.SPEC for table in TABLES if table.SPEC.name != "modules"}


@dataclass(frozen=True, slots=True)
class Part:
    """The dataset of one report, which is used up.

    Attributes:
        name: The report's name among the others.
        folder: Where its dataset lies.
        first_id: The number from which its ids are counted.
        sent_to: Where a worker may have put tables that are not in the folder.
    """

    name: str
    folder: Path
    first_id: int
    sent_to: Destination | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A report that is in a dataset of several, whose files stay as they are.

    Attributes:
        name: The report's name from now on.
        files: Those of the dataset.
        manifest: Its manifest.
        entry: What that says of the report.
    """

    name: str
    files: Files
    manifest: Mapping[str, Any]
    entry: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Share:
    """What one report brings into the dataset.

    Attributes:
        entry: Its entry in the manifest.
        hierarchy: Its own modules.
        place: The dataset that it was in.
        file: Where the rows of a table can be read.
        take: Lets the dataset in a folder have a table as it is.
    """

    entry: dict[str, Any]
    hierarchy: Hierarchy
    place: Location
    file: Callable[[str], Path]
    take: Callable[[str, Path], object]


def join(folder: Path, reports: Sequence[Part | Kept], left_out: list[dict[str, str]], progress: Progress) -> None:
    """Puts the tables of several reports into one dataset, each table of each as a partition; last the manifest.

    A table whose modules get other ids is read and written again: row group by row group, or at once where the new
    ids change the order of its rows, two tables at a time.

    Args:
        folder: Where the dataset shall be, on the file system where the reports' datasets are.
        reports: The reports in the order of their ids.
        left_out: Name and problem of each report that could not be read.
        progress: Called with the share that is done.

    Raises:
        DatasetError: If files of a dataset that is there already cannot be read.
    """
    shares = _shares(reports)
    hierarchies = [one for _, one in sorted({share.hierarchy.key: share.hierarchy for share in shares}.items())]
    place = {one.key: at for at, one in enumerate(hierarchies)}
    union = united(
        [one.table for one in hierarchies], frozenset(at for key, at in place.items() if key.contradicts_itself)
    )
    _write_modules(folder, hierarchies, union)
    paths = union.table.column("path").to_pylist()
    moves: list[Callable[[threading.Event], None]] = []
    for share in shares:
        at = place[share.hierarchy.key]
        counted = with_differing(share.entry, union.differing[at])
        share.entry["own_modules"] = at if share.hierarchy.table.num_rows else None
        new = renumbering(share.hierarchy, union.module_id[at], paths)
        moves += [partial(_move, folder, share, spec, new, counted) for spec in _PARTED.values()]
    _move_all(moves, progress)
    for report in reports:
        if isinstance(report, Part):
            shutil.rmtree(report.folder)
    ids = {name: _file_id(folder / f"{name}.parquet") for name in ("modules", own_modules.NAME)}
    entries = [share.entry for share in shares]
    manifest.write(folder, manifest_of(entries, left_out, union.table.num_rows, ids))
    progress("joining", 1.0)


def _shares(reports: Sequence[Part | Kept]) -> list[_Share]:
    known: dict[Key, Hierarchy] = {}
    kept: dict[int, Hierarchy] = {}
    shares = []
    for report in reports:
        if isinstance(report, Part):
            shares.append(_share_of_part(report, known))
        else:
            kept = kept or own_modules.read(report.files, report.manifest)
            shares.append(_share_of_kept(report, kept))
    return shares


def _share_of_part(report: Part, known: dict[Key, Hierarchy]) -> _Share:
    own = manifest.read(report.folder)
    key = Key(own[manifest.TABLE_IDS]["modules"], describes_modules_twice(own))
    hierarchy = known[key] if key in known else own_modules.of_one_report(report.folder, key)
    known[key] = hierarchy
    place: Location = report.folder
    files: AtUrl | None = None
    if report.sent_to is not None and names_sent(report.folder, report.sent_to):
        files = files_sent(report.folder, report.sent_to)
        place = files.place

    def readable(table: str) -> Path:
        here = report.folder / f"{table}.parquet"
        return here if files is None or here.exists() else files.readable(table, report.name)

    def take(table: str, folder: Path) -> None:
        here = report.folder / f"{table}.parquet"
        if files is None or here.exists():
            here.rename(part_of(folder, table, report.name))

    return _Share(entry_of(report.name, report.first_id, own), hierarchy, place, readable, take)


def _share_of_kept(report: Kept, hierarchies: dict[int, Hierarchy]) -> _Share:
    number = report.entry["own_modules"]
    return _Share(
        {**report.entry, "name": report.name, manifest.TABLE_IDS: {**report.entry[manifest.TABLE_IDS]}},
        own_modules.nothing() if number is None else hierarchies[number],
        report.files.place,
        lambda table: report.files.readable(table, report.entry["name"]),
        lambda table, folder: report.files.take((table, report.entry["name"]), folder, report.name),
    )


def _write_modules(folder: Path, hierarchies: list[Hierarchy], union: Union) -> None:
    with table_writer(folder / "modules.parquet", modules.SPEC) as writer:
        writer.write_table(union.table, row_group_size=ROW_GROUP)
    own_modules.write(folder, hierarchies, union.module_id)


def _file_id(path: Path) -> str | None:
    return id_of(pq.read_metadata(path))


def _move_all(moves: list[Callable[[threading.Event], None]], progress: Progress) -> None:
    """Moves all tables, two at a time."""
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=2) as pool:
        futures = [pool.submit(move, stop) for move in moves]
        try:
            for done, future in enumerate(futures, 1):
                future.result()
                progress("joining", done / (len(futures) + 1))
        except BaseException:
            stop.set()
            raise


def _move(
    folder: Path, share: _Share, spec: TableSpec, new: Renumbering, counted: pa.Table | None, stop: threading.Event
) -> None:
    """Makes a table of one report a partition, with the modules' new ids and paths; its new id goes into the entry."""
    if stop.is_set():
        return
    target = part_of(folder, spec.name, share.entry["name"])
    target.parent.mkdir(parents=True)
    if spec.name == coverage.SPEC.name and counted is not None:
        with table_writer(target, spec) as writer:
            writer.write_table(counted)
    else:
        with _readable(spec.name, share.place):
            if new.changes_nothing or not concerns(spec):
                share.take(spec.name, folder)
                return
            rewrite(share.file(spec.name), target, spec, new, stop)
    share.entry[manifest.TABLE_IDS][spec.name] = _file_id(target)


@contextmanager
def _readable(table: str, place: Location) -> Iterator[None]:
    """Turns what is wrong with a file that is read into an error about its dataset."""
    try:
        yield
    except (FileNotFoundError, pa.ArrowException) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error).split("\n", 1)[0]
        problem = f"its table {table} cannot be read ({reason})"
        raise DatasetError(place, problem, "parse all reports again, together") from None
