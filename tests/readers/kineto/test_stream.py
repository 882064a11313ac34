"""Traces in pieces, in odd layouts, and broken ones."""

from __future__ import annotations

import gzip
import json
from itertools import product
from typing import TYPE_CHECKING

import pytest

from tests.readers.kineto.traces import event, kernel, launch, trace
from tracekit.errors import ReportError
from tracekit.progress import silent
from tracekit.readers import kineto, packed, reader_for
from tracekit.readers.kineto import stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracekit.recording.tables import Recording

EVENTS = [*(event("cpu_op", f"op {{}}, {{ {i}", i * 10, 5) for i in range(50)), launch(600, 1), kernel(700, 1)]


def read(path: Path) -> Recording:
    assert reader_for(path) is kineto
    return kineto.read(path, silent)


def texts(recording: Recording) -> list[str]:
    return [recording.texts[row] for row in recording.ranges.column("text").to_pylist()]


@pytest.mark.parametrize("piece_bytes", [1, 64, 1000, 1 << 20])
@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("form", ["dict", "list", "gzip", "UTF-8 mark"])
def test_a_trace_is_the_same_in_pieces_of_any_size(
    tmp_path: Path, form: str, indent: int | None, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_PIECE_BYTES", piece_bytes)
    whole = {"a": {"b": [{}, {}]}, "traceEvents": EVENTS, "baseTimeNanoseconds": 10**18, "z": [{}, {}]}
    content = json.dumps(EVENTS if form == "list" else whole, indent=indent).encode()
    path = tmp_path / "trace"
    path.write_bytes({"gzip": gzip.compress, "UTF-8 mark": b"\xef\xbb\xbf".__add__}.get(form, bytes)(content))
    recording = read(path)
    assert texts(recording) == [row["name"] for row in EVENTS[:50]]
    assert recording.work.num_rows == recording.launches.num_rows == 1
    assert recording.source.started_utc_ns == (None if form == "list" else 10**18)


@pytest.mark.parametrize("piece_bytes", [64, 1 << 20])
def test_json_that_kineto_writes_although_it_is_invalid_is_read(
    tmp_path: Path, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_PIECE_BYTES", piece_bytes)
    annotation = '{"ph": "X", "cat": "user_annotation", "name": "a "q" \\x {", "pid": 1, "tid": 1, "ts": 1, "dur": 2}'
    number = (
        '{"ph": "X", "cat": "cpu_op", "name": "b\\\\c", "pid": 1, "tid": 1, "ts": 3, "dur": 1, "args": {"x": -nan}}'
    )
    path = tmp_path / "trace.json"
    path.write_bytes(f'{{"traceEvents": [{annotation}, {number}, {number}]}}'.encode() + b"\n")
    assert texts(read(path)) == ['a "q" \\x {', "b\\c", "b\\c"]


def test_times_are_whole_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    template = '{"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": %s, "dur": %s}'
    for base, count in product((88511388202, 8511388202123, 1672876799191106, 1772876799191106), (9, 400)):
        rows = [template % (f"{base + i}.{i:03d}", f"0.{i + 1:03d}") for i in range(count)]
        path.write_text(f'{{"traceEvents": [{",".join(rows)}]}}')
        recording = read(path)
        assert recording.ranges.column("start_ns").to_pylist() == [i * 1001 for i in range(count)]
        ends = zip(*(recording.ranges.column(name).to_pylist() for name in ("start_ns", "end_ns")), strict=True)
        assert [end - start for start, end in ends] == [i + 1 for i in range(count)]


def test_entries_of_odd_types_are_counted_and_the_others_read(tmp_path: Path) -> None:
    odd = [7, {"ph": "X", "args": "text"}, {"ph": 3}, event("cpu_op", "late", "x", 1), event("cpu_op", "e", 1e30, 1)]
    path = trace(tmp_path / "trace.json", *EVENTS, *odd)  # type: ignore[arg-type]
    recording = read(path)
    assert len(texts(recording)) == 50
    assert recording.tally.counts == {("events", "unknown_event"): 3, ("ranges", "absurd_time"): 2}


@pytest.mark.parametrize("odd", ["7", '{"ph": "X", "args": "text", "ts": 5, "dur": 7}', '{"ph": "X", "ts": "x"}'])
@pytest.mark.parametrize("form", ["[%s]", '{"traceEvents": [%s], "z": 1}'])
@pytest.mark.parametrize("piece_bytes", [64, 1 << 20])
def test_beside_odd_entries_times_stay_those_of_their_events(
    tmp_path: Path, odd: str, form: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_PIECE_BYTES", piece_bytes)
    template = '{"ph": "X", "cat": "cpu_op", "name": "%d", "pid": 1, "tid": 1, "ts": 167287679919%04d.%03d, "dur": 1}'
    path = tmp_path / "trace.json"
    path.write_text(form % ",".join([odd, *(template % (i, i, i) for i in range(50)), odd]))
    recording = read(path)
    assert texts(recording) == [str(i) for i in range(50)]
    assert recording.ranges.column("start_ns").to_pylist() == [i * 1001 for i in range(50)]
    assert recording.tally.counts == {("events", "unknown_event"): 2}


def test_of_equal_keys_the_last_counts_as_in_all_json(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('[{"ph": "X", "cat": "cpu_op", "name": "a", "name": "b", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]')
    assert texts(read(path)) == ["b"]


WHOLE = json.dumps({"traceEvents": EVENTS, "traceName": "x"}).encode()
DEEP = b'{"traceEvents": [{"ph": "X", "args": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}]}"
BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut off in an event": (lambda: WHOLE[:3000], "is cut off in the middle"),
    "cut off behind an event": (lambda: WHOLE[: WHOLE.index(b"}}, {") + 3], "is cut off in the middle"),
    "cut off before the events": (lambda: b'{"schemaVersion": 1, "a": [', "is not valid JSON"),
    "gzip cut off": (lambda: gzip.compress(WHOLE)[:-20], "gzip compression is cut off or damaged"),
    "gzip damaged": (lambda: gzip.compress(WHOLE)[:-8] + bytes(8), "gzip compression is cut off or damaged"),
    "other JSON": (lambda: b'{"a": [1, 2, {"b": 3}]}', "is JSON without a list traceEvents"),
    "a list of numbers": (lambda: b"[1, 2, 3]", "holds no events of torch.profiler"),
    "an empty list": (lambda: b"[]", "holds no events of torch.profiler"),
    "events of a browser": (lambda: b'{"traceEvents": [{"ph": "X", "cat": "v8", "ts": 1}]}', "holds no events"),
    "no JSON": (lambda: b"{hello}", "is not valid JSON"),
    "garbage inside": (lambda: WHOLE.replace(b'"op {}, { 7"', b"op"), "is not valid JSON"),
    "deep": (lambda: DEEP, "nested too deeply"),
    "huge numbers": (lambda: b'[{"ph": "X", "cat": "cpu_op", "ts": 1%s, "dur": 1}]' % (b"0" * 9000), "JSON"),
    "events twice": (lambda: WHOLE[:-1] + b', "traceEvents": []}', "has traceEvents twice"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_whole_trace_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    content, problem = BROKEN[what]
    path = tmp_path / "trace.json"
    path.write_bytes(content())
    with pytest.raises(ReportError, match=problem) as raised:
        read(path)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("filling", [b" ", b"[", b'{"traceEvents": [{"name": "'])
def test_what_unpacks_to_far_more_than_a_trace_is_refused(
    tmp_path: Path, filling: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(stream, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(packed, "_SURELY_HARMLESS", 1 << 22)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b"{" + filling + b" " * (1 << 23)))
    with pytest.raises(ReportError, match=r"unpacks to more|in its first|JSON is not valid after|nested|not valid"):
        kineto.read(path, silent)


@pytest.mark.parametrize(
    "argument",
    [
        b'"Input Dims": ["\xff"]',
        b'"Input Dims": [1%s]',
        b'"grid": [1%s, 1, 1]',
        b'"finished": "\xff"',
        b'"name": "\xff"',
    ],
)
@pytest.mark.parametrize("category", [b"cpu_op", b"kernel", b"user_annotation"])
def test_arguments_that_are_damaged_are_not_known(tmp_path: Path, category: bytes, argument: bytes) -> None:
    rows = b"""{"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {%s}},
        {"ph": "X", "cat": "%s", "name": "x", "pid": 1, "tid": 1, "ts": 5, "dur": 1, "args": {%s}}"""
    damaged = argument.replace(b"%s", b"0" * 5_000)
    path = tmp_path / "trace.json"
    path.write_bytes(b"[" + rows % (damaged, category, damaged) + b"]")
    recording = read(path)
    assert recording.ranges.num_rows + recording.on_device.sum() == 1
    assert recording.work.column("grid_x").to_pylist() in ([None], [])


HOSTILE = {
    "namesakes of the events": b'{"a": [' + b'{"traceEvents": []},' * 200_000 + b"1]}",
    "names that do not end": b'[{"x": tru},' + b'"cat": "user_annotation", "name": "' * 100_000,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_traces_are_refused_soon(tmp_path: Path, what: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(HOSTILE[what])
    with pytest.raises(ReportError, match="JSON"):
        read(path)


def test_a_bomb_of_whole_events_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(packed, "_SURELY_HARMLESS", 1 << 18)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps([{}] * 200_000).encode()))
    with pytest.raises(ReportError, match="unpacks to more than 200 times its size"):
        kineto.read(path, silent)


def test_what_is_no_json_is_given_up_after_some_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_PIECE_BYTES", 64)
    monkeypatch.setattr(stream, "MOST_BYTES", 1 << 12)
    path = tmp_path / "trace.json"
    path.write_bytes(b'[{"x": tru},' + json.dumps([{}] * 50_000).encode()[1:])
    with pytest.raises(ReportError, match="is not valid after byte 1, or an event there"):
        kineto.read(path, silent)


def test_a_backslash_that_escapes_nothing_stands_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('[{"ph": "X", "cat": "cpu_op", "name": "C:\\users\\\\me", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]')
    assert texts(read(path)) == ["C:\\users\\me"]
