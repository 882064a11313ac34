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


def read_bytes(folder: Path, content: bytes) -> Recording:
    (folder / "trace.json").write_bytes(content)
    return read(folder / "trace.json")


def texts(recording: Recording) -> list[str]:
    return [recording.texts[row] for row in recording.ranges.text.tolist()]


@pytest.mark.usefixtures("piece_bytes")
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("form", ["dict", "list", "gzip", "empty members of gzip", "UTF-8 mark"])
def test_a_trace_is_the_same_in_pieces_of_any_size(tmp_path: Path, form: str, indent: int | None) -> None:
    whole = {"a": {"b": [{}, {}]}, "traceEvents": EVENTS, "baseTimeNanoseconds": 10**18, "z": [{}, {}]}
    content = json.dumps(EVENTS if form == "list" else whole, indent=indent).encode()
    path = tmp_path / "trace"
    content = gzip.compress(content) if "gzip" in form else content
    before = {"empty members of gzip": gzip.compress(b"") * 2, "UTF-8 mark": b"\xef\xbb\xbf"}
    path.write_bytes(before.get(form, b"") + content)
    recording = read(path)
    assert texts(recording) == [row["name"] for row in EVENTS[:50]]
    assert len(recording.work) == len(recording.launches) == 1
    assert recording.source.started_utc_ns == (None if form == "list" else 10**18)


@pytest.mark.usefixtures("piece_bytes")
def test_json_that_kineto_writes_although_it_is_invalid_is_read(tmp_path: Path) -> None:
    row = '{"ph": "X", "cat": "%s", "name": "%s", "pid": 1, "tid": 1, "ts": %d, "dur": 2%s}'
    rows = [row % ("user_annotation", 'a "q" \\x {', 1, ""), row % ("cpu_op", r"C:\users\\me", 5, "")]
    rows[1:1] = [row % ("cpu_op", "b\\\\c", 3, ', "args": {"x": -nan}')] * 2
    recording = read_bytes(tmp_path, f'{{"traceEvents": [{",".join(rows)}]}}\n'.encode())
    assert texts(recording) == ['a "q" \\x {', "b\\c", "b\\c", r"C:\users\me"]


def test_times_are_whole_nanoseconds(tmp_path: Path) -> None:
    template = '{"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": %s, "dur": %s}'
    for base, count in product((88511388202, 8511388202123, 1672876799191106, 1772876799191106), (9, 400)):
        rows = [template % (f"{base + i}.{i:03d}", f"0.{i + 1:03d}") for i in range(count)]
        ranges = read_bytes(tmp_path, f'{{"traceEvents": [{",".join(rows)}]}}'.encode()).ranges
        assert ranges.start_ns.tolist() == [i * 1001 for i in range(count)]
        assert (ranges.end_ns - ranges.start_ns).tolist() == [i + 1 for i in range(count)]


def test_entries_of_odd_types_are_counted_and_the_others_read(tmp_path: Path) -> None:
    odd = [7, {"ph": "X", "args": "text"}, {"ph": 3}, event("cpu_op", "late", "x", 1), event("cpu_op", "e", 1e30, 1)]
    recording = read(trace(tmp_path / "trace.json", *EVENTS, *odd, kernel(800, 1) | {"args": ["none"]}))
    assert len(texts(recording)) == 50
    assert recording.work.correlation_id.tolist() == [1, -1]
    assert recording.counters.counts == {("events", UNKNOWN_EVENT): 4, ("ranges", ABSURD_TIME): 2}


@pytest.mark.usefixtures("piece_bytes")
@pytest.mark.parametrize("odd", ["7", '{"ph": "X", "args": "text", "ts": 5, "dur": 7}'])
@pytest.mark.parametrize("form", ["[%s]", '{"traceEvents": [%s], "z": 1}'])
def test_beside_odd_entries_times_stay_those_of_their_events(tmp_path: Path, odd: str, form: str) -> None:
    template = '{"ph": "X", "cat": "cpu_op", "name": "%d", "pid": 1, "tid": 1, "ts": 167287679919%04d.%03d, "dur": 1}'
    rows = ",".join([odd, *(template % (i, i, i) for i in range(50)), odd])
    recording = read_bytes(tmp_path, (form % rows).encode())
    assert texts(recording) == [str(i) for i in range(50)]
    assert recording.ranges.start_ns.tolist() == [i * 1001 for i in range(50)]
    assert recording.counters.counts == {("events", UNKNOWN_EVENT): 2}


@pytest.mark.parametrize("name", [r"\ud83d", r"a\udE00b", r"\ud83d\u0041", r"\\ud83d", r"\ud83d\ude00"])
def test_half_a_character_of_a_name_is_replaced(tmp_path: Path, name: str) -> None:
    whole = json.dumps({"trace_id": EVENTS[3]["name"], "traceEvents": EVENTS})
    expected = json.loads(f'"{name}"').encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    recording = read_bytes(tmp_path, whole.replace(EVENTS[3]["name"], name).encode())
    assert (texts(recording)[3], recording.source.trace_id) == (expected, expected)
    assert len(recording.work) == 1


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
    "lists of that name without end": (lambda: b'{"a": [%s' % (b'"traceEvents":[' * 100_000), "is not valid JSON"),
    "deep": (lambda: DEEP, "nested too deeply"),
    "huge numbers": (lambda: b'[{"ph": "X", "cat": "cpu_op", "ts": 1%s, "dur": 1}]' % (b"0" * 9000), "JSON"),
    "events twice": (lambda: WHOLE[:-1] + b', "traceEvents": []}', "has traceEvents twice"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_whole_trace_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    content, problem = BROKEN[what]
    with pytest.raises(ReportError, match=problem) as raised:
        read_bytes(tmp_path, content())
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.usefixtures("piece_bytes")
def test_what_is_no_json_is_named_by_its_byte_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=rf"\(byte {len(WHOLE) + 1:,}\)"):
        read_bytes(tmp_path, WHOLE + b"?")


@pytest.mark.parametrize("form", ["dict", "list", "gzip"])
def test_a_trace_that_a_kill_cut_off_is_read_up_to_the_cut_which_is_counted(tmp_path: Path, form: str) -> None:
    whole = gzip.compress(WHOLE) if form == "gzip" else json.dumps(EVENTS).encode() if form == "list" else WHOLE
    sizes = []
    for size in range(len(whole) // 2, len(whole) - 12, len(whole) // 40):
        recording = read_bytes(tmp_path, whole[:size])
        assert texts(recording) == [row["name"] for row in EVENTS[: len(recording.ranges)]]
        assert recording.counters.counts[REPORT, CUT_OFF] == 1
        assert "where it is cut off" in recording.missing[0].what
        sizes.append(len(recording.ranges) + len(recording.launches))
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


TOO_LONG = r"unpacks to more|in its first|JSON is not valid after|nested|not valid"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (json.dumps([{}] * 200_000).encode(), "unpacks to more than 200 times its size"),
        *((b"{" + filling + b" " * (1 << 23), TOO_LONG) for filling in (b" ", b"[", b'{"traceEvents": [{"name": "')),
    ],
    ids=["whole events", "blanks", "a list", "a text"],
)
def test_what_unpacks_to_far_more_than_a_trace_is_refused(
    tmp_path: Path, content: bytes, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(stream, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(packed, "_SURELY_HARMLESS", 1 << 18)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(ReportError, match=problem):
        kineto.read(path, no_progress)


@pytest.mark.parametrize(
    ("category", "argument"),
    [(b"cpu_op", b'"Input Dims": ["\xff"]'), (b"kernel", b'"grid": [1%s, 1, 1]'), (b"cpu_op", b'"Input Dims": [1%s]')],
)
def test_arguments_that_are_damaged_are_not_known(tmp_path: Path, category: bytes, argument: bytes) -> None:
    rows = b"""{"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {%s}},
        {"ph": "X", "cat": "%s", "name": "x", "pid": 1, "tid": 1, "ts": 5, "dur": 1, "args": {%s}}"""
    damaged = argument.replace(b"%s", b"0" * 5_000)
    recording = read_bytes(tmp_path, b"[" + rows % (damaged, category, damaged) + b"]")
    assert len(recording.ranges) + recording.on_device.sum() == 1
    assert recording.work.grid_x.tolist() in ([-1], [])


def test_no_operator_behind_the_last_module_before_the_cut_belongs_to_an_outer_one(tmp_path: Path) -> None:
    operators = [event("cpu_op", "aten::mm", ts, 5) for ts in (12, 45)]
    calls = [("Net_0", 0, 100), ("Linear_0", 10, 20), ("ReLU_0", 32, 4), ("Linear_1", 40, 20)]
    path = trace(tmp_path / "trace.json", *operators, *(called(*call) for call in calls))
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b', {"ph": "X"')])
    assert kernels(tracekit.parse(path), "module") == ["Net_0.Linear_0", None]
