"""Exports of ``tracekit export`` as ``chrome`` or ``perfetto``, into the recording that their dataset was made of.

An export holds all ranges, the API calls that launched work, and all work with its module; what else the report held
is not in it. So the module of work is taken from the export.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import in_order, integers
from tracekit.arrays.intervals import nesting_order, one_axis
from tracekit.arrays.lookups import lookup, positions
from tracekit.errors import ReportError
from tracekit.readers.digests import source_of_file
from tracekit.readers.exported import NAME
from tracekit.readers.exported.about import about, source_of
from tracekit.readers.exported.events import CALL, KINDS, NODE, RANGE, WORK
from tracekit.readers.exported.gathering import Gathering
from tracekit.readers.exported.numbers import gpus_apart
from tracekit.readers.exported.stream import REMEDY, Export
from tracekit.readers.exported.threads import tracks_of
from tracekit.readers.exported.work import Texts, graph_nodes, in_order_of_ids, operators_of, work_table
from tracekit.recording.attributed import Attributed
from tracekit.recording.tables import LAUNCHES, RANGE_KINDS, RANGES, Recording
from tracekit.recording.tally import Tally

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.arrays.types import Ints
    from tracekit.progress import Progress
    from tracekit.readers.exported.events import Other
    from tracekit.readers.exported.threads import Tracks

#: The phase of calls during graph captures.
_CAPTURED = "capture"
_TIMES = ("start", "end")
#: Microseconds up to there hold nanoseconds: ten days. What lasts five is exported as it is.
_LARGEST_NS = 864_000 * 10**9


def read(path: Path, progress: Progress) -> Recording:
    """Reads the export, piece by piece.

    Raises:
        ReportError: If it is damaged, or was changed.
    """
    export, gathering = Export(path), Gathering()
    size = max(path.stat().st_size, 1)
    for piece in export.pieces():
        gathering.add(piece.events)
        progress("reading", piece.position / size)
    events = {kind: gathering.table(kind) for kind in KINDS}
    _check_exact(path, export.other, events)
    _check_tracks(path, gathering, events)
    events = {kind: _counted_from(table, export.other.times_moved_by_ns) for kind, table in events.items()}
    events[WORK] = in_order_of_ids(events[WORK])
    tracks = tracks_of(gathering.tracks, events[RANGE])
    events[WORK], gpus = gpus_apart(events[WORK], gathering.tracks, export.other)
    ranges, ids = _ranges(events[RANGE], tracks)
    names = Texts()
    work = work_table(events[WORK], tracks, names)
    operators = operators_of(events[WORK], tracks, names)
    launches = operators.launched_beside(_launches(events[CALL], tracks, names))
    work, inside_ns = operators.done_beside(work)
    return Recording(
        source=source_of(source_of_file(path, NAME), export.other),
        threads=tracks.threads,
        ranges=ranges,
        launches=launches,
        work=work,
        texts=_words(events[RANGE], "name"),
        domains=_words(events[RANGE], "domain"),
        names=names.texts,
        graph_nodes=graph_nodes(events[WORK], tracks),
        inside_ns=inside_ns,
        tally=Tally(),
        attributed=_attributed(export.other.by, events, ids),
        **about(export.other, tracks, gpus)._asdict(),
    )


def _check_exact(path: Path, other: Other, events: dict[str, pa.Table]) -> None:
    """Whether the export holds what its dataset held."""
    problem = None
    if other.ambiguous_processes:
        problem = "holds processes of several machines that have one id, so their threads cannot be told apart"
    elif any((np.abs(integers(table, name)) > _LARGEST_NS).any() for table in events.values() for name in _TIMES):
        problem = "spans more than ten days, so that its numbers do not hold nanoseconds"
    if problem:
        raise ReportError(path, problem, "parse the report that its dataset was made of")


def _check_tracks(path: Path, gathering: Gathering, events: dict[str, pa.Table]) -> None:
    tracks = gathering.tracks
    of_threads = {key for key, track in tracks.items() if None not in (track.process, track.thread)}
    for kind, known in ((RANGE, of_threads), (CALL, of_threads), (WORK, set(tracks))):
        drawn = events[kind].select(["pid", "tid"]).group_by(["pid", "tid"]).aggregate([]).to_pylist()
        if not known.issuperset((one["pid"], one["tid"]) for one in drawn):
            raise ReportError(path, "lacks the events that name its threads", REMEDY)


def _counted_from(table: pa.Table, moved_by_ns: int) -> pa.Table:
    """The events at the times that the dataset has."""
    for name in _TIMES:
        column = pa.array(integers(table, name) - moved_by_ns)
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _words(table: pa.Table, column: str) -> list[str]:
    words: list[str] = table.column(column).combine_chunks().dictionary.to_pylist()
    return words


def _rows(table: pa.Table, column: str) -> pa.Array:
    """The rows of a column's texts among its words."""
    return table.column(column).combine_chunks().indices


def _ranges(events: pa.Table, tracks: Tracks) -> tuple[pa.Table, Ints]:
    """The table ``RANGES``, and the ids of its rows."""
    kind = _rows(events, "kind").fill_null(-1)
    thread = tracks.threads_of(events)
    columns: dict[str, object] = dict.fromkeys(column.name for column in RANGES.columns)
    columns |= {"start_ns": events.column("start"), "end_ns": events.column("end"), "thread": thread.astype(np.int32)}
    columns |= {"open": np.logical_not(np.asarray(events.column("finished")))}
    columns |= {"kind": _numbers(_words(events, "kind"), RANGE_KINDS)[np.asarray(kind)].astype(np.int8)}
    columns |= {"end_thread": pa.array(tracks.ended_on(events, thread), pa.int32(), mask=_is_null(events, "end_tid"))}
    columns |= {"text": _rows(events, "name"), "domain": _rows(events, "domain")}
    columns |= {
        name: events.column(name).cast(RANGES.schema().field(name).type) for name in ("payload_int", "payload_json")
    }
    order = _nested(events, thread)
    return in_order(RANGES.table(columns), order), integers(events, "range_id")[order]


def _numbers(words: list[str], known: tuple[str, ...]) -> Ints:
    """Numbers of words; 0 for those that are not known."""
    return np.array([*(known.index(word) if word in known else 0 for word in words), 0], dtype=np.int64)


def _is_null(table: pa.Table, column: str) -> Ints:
    return np.asarray(table.column(column).is_null())


def _launches(events: pa.Table, tracks: Tracks, names: Texts) -> pa.Table:
    """The table ``LAUNCHES``."""
    thread = tracks.threads_of(events)
    columns = {
        "start_ns": events.column("start"),
        "end_ns": events.column("end"),
        "thread": thread.astype(np.int32),
        "correlation_id": integers(events, "correlation"),
        "name": names.rows(events.column("name")),
        "kernel": None,
    }
    return in_order(LAUNCHES.table(columns), _nested(events, thread))


def _nested(events: pa.Table, thread: Ints) -> Ints:
    return nesting_order(*one_axis([thread, thread], [integers(events, "start"), integers(events, "end")]))


def _attributed(by: str, events: dict[str, pa.Table], range_ids: Ints) -> Attributed:
    """The ranges of the calls that work belongs to."""
    nodes, work = events[NODE], events[WORK]
    row_of_node = positions(integers(nodes, "range_id"), range_ids)
    row = lookup(row_of_node, positions(integers(work, "call_id"), integers(nodes, "call_id")))
    paths = nodes.column("module").to_pylist()
    some: dict[str | None, int] = dict(zip(paths[::-1], row_of_node[::-1].tolist(), strict=True))
    module = np.array([some.get(path, -1) for path in [*_words(work, "module"), None]], dtype=np.int64)
    of_module = module[np.asarray(_rows(work, "module").fill_null(-1))]
    return Attributed(
        by=by,
        range=np.where(row >= 0, row, of_module),
        method=work.column("method").to_pylist(),
        cause=work.column("cause").to_pylist(),
        captured=row_of_node[np.asarray(pc.equal(nodes.column("phase").cast(pa.string()).fill_null(""), _CAPTURED))],
    )
