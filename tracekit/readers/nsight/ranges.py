"""NVTX rows of a report as ranges, nested or not, with texts and domains stored once."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracekit.arrays.columns import integers, nullable
from tracekit.arrays.intervals import nesting_order, one_axis
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import MARK, OTHER_EVENT, RAW_EVENT
from tracekit.nsight import tables as nsight
from tracekit.readers.nsight.threads import GlobalIds
from tracekit.readers.rows import Names, times_of_ranges
from tracekit.recording.provenance import LossCounters
from tracekit.recording.tables import PUSH_POP, START_END, Launches, Ranges

#: Event types that become ranges or name their domains.
_EVENTS = (*nsight.PUSH_POP_RANGES, *nsight.START_END_RANGES, nsight.DOMAIN_CREATED)


class _Rows(NamedTuple):
    """Rows of NVTX_EVENTS, with the rows of their distinct texts and domains, or -1."""

    events: pa.Table
    types: Ints
    text: Ints
    domain: Ints

    def filter(self, keep: Flags) -> "_Rows":
        """Some of the rows."""
        return _Rows(self.events.filter(pa.array(keep)), self.types[keep], self.text[keep], self.domain[keep])


def ranges_table(
    events: pa.Table, strings: pa.Table, ids: GlobalIds, launches: Launches, counters: LossCounters
) -> tuple[Ranges, list[str], list[str]]:
    """The ranges in rows of NVTX_EVENTS, the distinct texts and the distinct names of domains.

    Finished launches may outlast a range that never ends.
    """
    if not events.num_rows:
        return Ranges.empty(), [], []
    events, types = _used_events(events, counters)
    is_domain = types == nsight.DOMAIN_CREATED
    texts, text = _texts(events, strings)
    domains, domain = _domains(events, is_domain, ids, texts, text)
    rows = _Rows(events, types, text, domain)
    if is_domain.any():
        rows = rows.filter(~is_domain)
    return _ranges(rows, strings, ids, launches, counters), texts, domains


def _used_events(events: pa.Table, counters: LossCounters) -> tuple[pa.Table, Ints]:
    """The events that become ranges or name their domains, with their types; the others are counted."""
    types = integers(events, "eventType")
    used = np.isin(types, _EVENTS)
    if used.all():
        return events, types
    _count_others(types[~used], counters)
    return events.filter(pa.array(used)), types[used]


def _ranges(rows: _Rows, strings: pa.Table, ids: GlobalIds, launches: Launches, counters: LossCounters) -> Ranges:
    thread = ids.threads(rows.events.column("globalTid"))
    start, end, never_ended = times_of_ranges(rows.events, nsight.NVTX.name, thread, launches, counters)
    payload_int, payload_float, payload_json = _payloads(rows.events, strings)
    ranges = Ranges.of(
        start_ns=start,
        end_ns=end,
        open=never_ended,
        kind=np.where(np.isin(rows.types, nsight.START_END_RANGES), START_END, PUSH_POP),
        thread=thread,
        end_thread=_end_threads(rows.events, ids, thread),
        domain=rows.domain,
        text=rows.text,
        payload_int=payload_int,
        payload_float=payload_float,
        payload_json=payload_json,
    )
    return ranges.in_order(nesting_order(*one_axis([thread, thread], [start, end])))


def _count_others(types: Ints, counters: LossCounters) -> None:
    marks, raw = np.isin(types, nsight.MARKS), np.isin(types, nsight.RAW_EVENTS)
    others = ~(marks | raw | (types == nsight.THREAD_NAMED))
    for cause, which in ((MARK, marks), (RAW_EVENT, raw), (OTHER_EVENT, others)):
        counters.add("events", cause, int(which.sum()))


def _end_threads(events: pa.Table, ids: GlobalIds, thread: Ints) -> Ints:
    """The thread on which each range ended; -1 if it is the one on which it began."""
    if "endGlobalTid" not in events.column_names:
        return np.full(events.num_rows, -1, dtype=np.int32)
    ended = ids.known_threads(events.column("endGlobalTid"))
    return np.where(ended == thread, -1, ended)


def _texts(events: pa.Table, strings: pa.Table) -> tuple[list[str], Ints]:
    """The distinct texts, and for each row its text's number: the inline one or the registered one; -1 without either.

    A registered text comes before an empty inline one.
    """
    names = Names(strings)
    row, inline = names.rows(events, "textId"), names.rows_of_texts(events, "text")
    use_inline = (inline >= 0) & ((inline != names.known("")) | (row < 0))
    return names.used, np.where(use_inline, inline, row) if use_inline.any() else row


def _domains(
    events: pa.Table, is_domain: Flags, ids: GlobalIds, texts: list[str], text: Ints
) -> tuple[list[str], Ints]:
    """The distinct domain names, and for each row its domain's number; -1 for the default domain.

    Domains are numbered per process.
    """
    if "domainId" not in events.column_names:
        return [], np.full(events.num_rows, -1, dtype=np.int32)
    encoded = events.column("domainId").combine_chunks()
    numbers = np.append(np.asarray(encoded.dictionary, dtype=np.int64), 0)
    if not numbers.any():
        return [], np.full(events.num_rows, -1, dtype=np.int32)
    which = np.asarray(encoded.indices.fill_null(-1), dtype=np.int64) % numbers.size
    process = ids.process_of(events.column("globalTid"))
    named = _named_domains(is_domain & (text >= 0), process, numbers[which], texts, text)
    keys, which_key = np.unique(process * numbers.size + which, return_inverse=True)
    names: dict[str, int] = {}
    row = np.full(keys.size, -1, dtype=np.int32)
    for position, key in enumerate(keys.tolist()):
        owner, number = key // numbers.size, int(numbers[key % numbers.size])
        if number:
            name = named.get((owner, number), f"domain#{number}")
            row[position] = names.setdefault(name, len(names))
    rows: Rows = row[which_key]
    return list(names), rows


def _named_domains(
    naming: Flags, process: Ints, number: Ints, texts: list[str], text: Ints
) -> dict[tuple[int, int], str]:
    names: dict[tuple[int, int], str] = {}
    for row in np.flatnonzero(naming).tolist():
        names.setdefault((int(process[row]), int(number[row])), texts[text[row]])
    return names


def _payloads(events: pa.Table, strings: pa.Table) -> tuple[pa.Array | None, pa.Array | None, pa.Array | None]:
    names = Names(strings)
    registered, inline = names.rows(events, "jsonTextId"), names.rows_of_texts(events, "jsonText")
    row = np.where(inline >= 0, inline, registered)
    json = pa.array(names.used, pa.string()).take(nullable(row, pa.int32())) if names.used else None
    integer = _first_of(events, ("int64Value", "uint64Value", "int32Value", "uint32Value"))
    return integer, _first_of(events, ("doubleValue", "floatValue")), json


def _first_of(events: pa.Table, columns: tuple[str, ...]) -> pa.Array | None:
    present = [events.column(name) for name in columns if name in events.column_names]
    filled = [column for column in present if column.null_count < len(column)]
    return pc.coalesce(*filled).combine_chunks() if filled else None
