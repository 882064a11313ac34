"""Traces in pieces, in odd layouts, and broken ones."""

import gzip
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

import tracekit
from tests.readers.files import kernels
from tests.readers.kineto.traces import called, event, kernel, launch, trace
from tracekit.causes import ABSURD_TIME, CUT_OFF, OTHER_EVENT, REPORT, UNKNOWN_EVENT
from tracekit.errors import ReportError
from tracekit.kineto import packed, stream
from tracekit.progress import no_progress
from tracekit.readers import kineto, reader_for
from tracekit.recording.tables import Recording

EVENTS = [*(event("cpu_op", f"op {{}}, {{ {i}", i * 10, 5) for i in range(50)), launch(600, 1), kernel(700, 1)]


@pytest.fixture(params=[1, 64, 1 << 20])
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_PIECE_BYTES", request.param)


def read(path: Path) -> Recording:
    assert reader_for(path) is kineto
    return kineto.read(path, no_progress)


def texts(recording: Recording) -> list[str]:
    return [recording.texts[row] for row in recording.ranges.text.tolist()]


@pytest.mark.usefixtures("piece_bytes")
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("form", ["dict", "list", "gzip", "UTF-8 mark"])
def test_a_trace_is_the_same_in_pieces_of_any_size(tmp_path: Path, form: str, indent: int | None) -> None:
    whole = {"a": {"b": [{}, {}]}, "traceEvents": EVENTS, "baseTimeNanoseconds": 10**18, "z": [{}, {}]}
    content = json.dumps(EVENTS if form == "list" else whole, indent=indent).encode()
    path = tmp_path / "trace"
    path.write_bytes({"gzip": gzip.compress, "UTF-8 mark": b"\xef\xbb\xbf".__add__}.get(form, bytes)(content))
    recording = read(path)
    assert texts(recording) == [row["name"] for row in EVENTS[:50]]
    assert len(recording.work) == len(recording.launches) == 1
    assert recording.source.started_utc_ns == (None if form == "list" else 10**18)


@pytest.mark.usefixtures("piece_bytes")
def test_json_that_kineto_writes_although_it_is_invalid_is_read(tmp_path: Path) -> None:
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
        assert recording.ranges.start_ns.tolist() == [i * 1001 for i in range(count)]
        ends = zip(recording.ranges.start_ns.tolist(), recording.ranges.end_ns.tolist(), strict=True)
        assert [end - start for start, end in ends] == [i + 1 for i in range(count)]


def test_entries_of_odd_types_are_counted_and_the_others_read(tmp_path: Path) -> None:
    odd = [7, {"ph": "X", "args": "text"}, {"ph": 3}, event("cpu_op", "late", "x", 1), event("cpu_op", "e", 1e30, 1)]
    recording = read(trace(tmp_path / "trace.json", *EVENTS, *odd))
    assert len(texts(recording)) == 50
    assert recording.counters.counts == {("events", UNKNOWN_EVENT): 3, ("ranges", ABSURD_TIME): 2}


@pytest.mark.usefixtures("piece_bytes")
@pytest.mark.parametrize("odd", ["7", '{"ph": "X", "args": "text", "ts": 5, "dur": 7}'])
@pytest.mark.parametrize("form", ["[%s]", '{"traceEvents": [%s], "z": 1}'])
def test_beside_odd_entries_times_stay_those_of_their_events(tmp_path: Path, odd: str, form: str) -> None:
    template = '{"ph": "X", "cat": "cpu_op", "name": "%d", "pid": 1, "tid": 1, "ts": 167287679919%04d.%03d, "dur": 1}'
    path = tmp_path / "trace.json"
    path.write_text(form % ",".join([odd, *(template % (i, i, i) for i in range(50)), odd]))
    recording = read(path)
    assert texts(recording) == [str(i) for i in range(50)]
    assert recording.ranges.start_ns.tolist() == [i * 1001 for i in range(50)]
    assert recording.counters.counts == {("events", UNKNOWN_EVENT): 2}


@pytest.mark.parametrize("name", [r"\ud83d", r"a\udE00b", r"\ud83d\u0041", r"\\ud83d", r"\ud83d\ude00"])
def test_half_a_character_of_a_name_is_replaced(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace.json"
    whole = {"trace_id": EVENTS[3]["name"], "traceEvents": EVENTS}
    path.write_text(json.dumps(whole).replace(EVENTS[3]["name"], name))
    expected = json.loads(f'"{name}"').encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    recording = read(path)
    assert (texts(recording)[3], recording.source.trace_id) == (expected, expected)
    assert len(recording.work) == 1


def test_members_of_gzip_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b"") + gzip.compress(b"") + gzip.compress(json.dumps(EVENTS).encode()))
    assert kineto.recognises(path, path.read_bytes()[:512])
    assert len(read(path).work) == 1


def test_a_trace_of_perfetto_is_answered_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "trace.pftrace"
    path.write_bytes(b"\x0a\x05" + bytes(range(90)))
    with pytest.raises(ReportError, match=r"is a trace of Perfetto; .*export_chrome_trace"):
        reader_for(path)


def test_work_of_other_accelerators_is_counted_and_named(tmp_path: Path) -> None:
    recording = read(trace(tmp_path / "trace.json", event("mtia_ccp_events", "x", 5, 1), *EVENTS[:50]))
    assert recording.counters.counts == {("events", OTHER_EVENT): 1}
    [remedy] = [data.remedy for data in recording.missing if data.what == "GPU work"]
    assert "mtia_ccp_events" in remedy


WHOLE = json.dumps({"traceEvents": EVENTS, "traceName": "x"}).encode()
DEEP = b'{"traceEvents": [{"ph": "X", "args": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}]}"
BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut off in the first event": (lambda: WHOLE[:60], "holds no events of torch.profiler before it is cut off"),
    "gzip damaged": (lambda: gzip.compress(WHOLE)[:-8] + bytes(8), "gzip compression is cut off or damaged"),
    "other JSON": (lambda: b'{"a": [1, 2, {"b": 3}]}', "is JSON without a list traceEvents"),
    "events of a browser": (lambda: b'{"traceEvents": [{"ph": "X", "cat": "v8", "ts": 1}]}', "holds no events"),
    "no JSON": (lambda: b"{hello}", "is not valid JSON"),
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


@pytest.mark.usefixtures("piece_bytes")
def test_what_is_no_json_is_named_by_its_byte_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(WHOLE + b"?")
    with pytest.raises(ReportError, match=rf"\(byte {len(WHOLE) + 1:,}\)"):
        read(path)


@pytest.mark.parametrize("form", ["dict", "list", "gzip"])
def test_a_trace_that_a_kill_cut_off_is_read_up_to_the_cut_which_is_counted(tmp_path: Path, form: str) -> None:
    whole = gzip.compress(WHOLE) if form == "gzip" else json.dumps(EVENTS).encode() if form == "list" else WHOLE
    path = tmp_path / "trace.json"
    sizes = []
    for size in range(len(whole) // 2, len(whole) - 12, len(whole) // 40):
        path.write_bytes(whole[:size])
        recording = read(path)
        assert texts(recording) == [row["name"] for row in EVENTS[: len(recording.ranges)]]
        assert recording.counters.counts[REPORT, CUT_OFF] == 1
        assert "where it is cut off" in recording.missing[0].what
        sizes.append(len(recording.ranges) + len(recording.launches))
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


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
        kineto.read(path, no_progress)


@pytest.mark.parametrize(
    ("category", "argument"),
    [(b"cpu_op", b'"Input Dims": ["\xff"]'), (b"kernel", b'"grid": [1%s, 1, 1]'), (b"cpu_op", b'"Input Dims": [1%s]')],
)
def test_arguments_that_are_damaged_are_not_known(tmp_path: Path, category: bytes, argument: bytes) -> None:
    rows = b"""{"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {%s}},
        {"ph": "X", "cat": "%s", "name": "x", "pid": 1, "tid": 1, "ts": 5, "dur": 1, "args": {%s}}"""
    damaged = argument.replace(b"%s", b"0" * 5_000)
    path = tmp_path / "trace.json"
    path.write_bytes(b"[" + rows % (damaged, category, damaged) + b"]")
    recording = read(path)
    assert len(recording.ranges) + recording.on_device.sum() == 1
    assert recording.work.grid_x.tolist() in ([-1], [])


def test_work_whose_arguments_are_none_is_there_and_counted(tmp_path: Path) -> None:
    recording = read(trace(tmp_path / "trace.json", *EVENTS, kernel(800, 1) | {"args": ["none"]}))
    assert recording.work.correlation_id.tolist() == [1, -1]
    assert recording.counters.counts == {("events", UNKNOWN_EVENT): 1}


def test_a_bomb_of_whole_events_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(packed, "_SURELY_HARMLESS", 1 << 18)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps([{}] * 200_000).encode()))
    with pytest.raises(ReportError, match="unpacks to more than 200 times its size"):
        kineto.read(path, no_progress)


def test_a_backslash_that_escapes_nothing_stands_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('[{"ph": "X", "cat": "cpu_op", "name": "C:\\users\\\\me", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]')
    assert texts(read(path)) == ["C:\\users\\me"]


def test_no_operator_behind_the_last_module_before_the_cut_belongs_to_an_outer_one(tmp_path: Path) -> None:
    operators = [event("cpu_op", "aten::mm", ts, 5) for ts in (12, 45)]
    calls = [("Net_0", 0, 100), ("Linear_0", 10, 20), ("ReLU_0", 32, 4), ("Linear_1", 40, 20)]
    path = trace(tmp_path / "trace.json", *operators, *(called(*call) for call in calls))
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b', {"ph": "X"')])
    assert kernels(tracekit.parse(path), "module") == ["Net_0.Linear_0", None]
