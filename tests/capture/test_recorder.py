"""A run on the CPU: every operator with its module and time, as torch's profiler counts them; windows and losses."""

import subprocess
import sys
import threading
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
import torch
from torch.profiler import record_function

import tracekit
from tests.capture.models import Cnn, Encoder, Failing, Tagger
from tests.capture.recordings import file_of, recorded, rows_of, spans, texts_of, written
from tracekit.capture import layer_markers, step
from tracekit.capture.recorder import Recorder
from tracekit.dataset.opening import Dataset
from tracekit.errors import CaptureError

pytestmark = pytest.mark.torch

THREADS = 3


class Run(NamedTuple):
    path: Path
    dataset: Dataset


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    torch.manual_seed(0)
    recorder, folder = Recorder(), tmp_path_factory.mktemp("recorded")
    cnn, encoder, tagger = Cnn(), Encoder(), Tagger()
    failing, caught = Failing(ValueError("no")), Failing(KeyError("no"), caught=True)
    ids = torch.zeros(2, 3, dtype=torch.int64)
    with recorded(recorder), ExitStack() as marked:
        for number, model in enumerate((cnn, encoder, tagger, failing, caught)):
            marked.enter_context(layer_markers(model, f"model{number}"))
        for _ in range(2):
            with step("both", kind="train"):
                cnn(torch.zeros(2, 3, 8, 8))
                encoder(ids, mask=torch.ones(2, 3))
        with record_function("the user's own"):
            torch.zeros(7).cos()
            tagger(torch.zeros(2, 4, 6))
        with pytest.raises(ValueError, match="no"):
            failing(torch.zeros(3))
        caught(torch.zeros(3))
        torch.zeros(3).tan()
        for _ in range(THREADS):
            other = threading.Thread(target=cnn, args=(torch.zeros(2, 3, 8, 8),))
            other.start()
            other.join()
    path = written(recorder, folder / "run.sqlite")
    return Run(path, tracekit.parse(path))


def test_every_operator_is_there_once_as_work_of_the_cpu(run: Run) -> None:
    found, (_, operators) = run.dataset.kernels(), spans(run.path)
    assert set(found.kind) == {"cpu_op"}
    assert found.device.isna().all()
    assert Counter(zip(found.name.astype(str), found.start_ns, found.end_ns, strict=True)) == (
        Counter((span.text, span.start, span.end) for span in operators)
    )
    assert {"aten::conv2d", "aten::lstm", "aten::gelu", "aten::cos", "aten::tan"} <= set(found.name)


def test_an_operator_has_the_innermost_module_around_it_and_none_if_there_is_none(run: Run) -> None:
    """The slow obvious way: every operator against every range of its thread."""
    found, calls = run.dataset.kernels(), run.dataset.calls()
    on_thread: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for call, tid, start, end in zip(calls.call_id, calls.tid, calls.start_ns, calls.end_ns, strict=True):
        on_thread[tid].append((end - start, start, call))
    expected, given = {}, {}
    for row in found.itertuples():
        around = [
            (length, call)
            for length, start, call in on_thread[row.tid]
            if start <= row.start_ns and row.end_ns <= start + length
        ]
        expected[row.kernel_id] = min(around)[1] if around else None
        given[row.kernel_id] = None if pd.isna(row.call_id) else int(row.call_id)
    assert given == expected
    assert None in expected.values()


TEXTS = [
    "plain",
    """both " and ' quotes""",
    "back \\ slash \\n \\u0041",
    "line\nline\r\ttab",
    "größer als 東京 🚀",
    "{'Module': 'top', 'Inputs': [[2, 3]]}",
    "x" * 8192,
    "control \x01\x1f",
    "</script>",
    '", "pid": 1, "tid": 1,',
    "%s %d {}",
    " ",
]

TWO_WINDOWS = """
import threading
import torch
from torch.profiler import record_function
from tracekit.capture.recorder import Recorder
from tests.capture.recordings import recorded, rows_of

decorated = record_function("again")

def other():
    recorder.emitter.opener("dropped")()
    entered.wait(), leave.wait()
    recorder.emitter.close()

for turn in range(20):
    recorder, ranges = Recorder(), [record_function("dropped") for _ in range(30)]
    entered, leave = threading.Barrier(2), threading.Barrier(2)
    with recorded(recorder):
        torch.zeros(1)
        thread = threading.Thread(target=other)
        thread.start()
        entered.wait()
        for range_ in [*ranges, decorated]:
            range_.__enter__()
            recorder.emitter.opener("dropped")()
    if turn % 2:
        recorder.forget()  # as in a forked process
    with recorded(recorder):
        for _ in range(500):
            torch.zeros(1)
        recorder.emitter.opener("kept")()
        recorder.emitter.close()
        for range_ in [*ranges, decorated]:
            recorder.emitter.close()
            range_.__exit__(None, None, None)
        del ranges
        leave.wait()
        thread.join()
        with decorated:
            for _ in range(500):
                torch.zeros(1)
    rows = rows_of(recorder)
    texts = [rows.strings[row["textId"]] for row in sorted(rows.ranges, key=lambda row: row["start"])]
    print(*texts, recorder.opened - rows.numbered, sep="\\n")
"""


def marked(recorder: Recorder, text: str) -> None:
    recorder.emitter.opener(text)()
    recorder.emitter.close()


def test_texts_of_markers_and_names_of_the_users_ranges_arrive_unharmed() -> None:
    with recorded(recorder := Recorder()):
        for text in TEXTS:
            marked(recorder, text)
            with record_function(text):
                torch.zeros(1)
    assert texts_of(recorder) == [text for text in TEXTS for _ in range(2)]


def test_a_marker_left_open_is_open_or_counted_as_lost(tmp_path: Path) -> None:
    recorder = Recorder()
    with recorded(recorder):
        recorder.emitter.opener("left open")()
        marked(recorder, "closed")
    rows = rows_of(recorder)
    ranges = tracekit.parse(file_of(rows, tmp_path / "report.sqlite")).ranges()
    assert ranges[ranges.text == "closed"].open.tolist() == [False]
    left = ranges[ranges.text == "left open"]
    assert left.open.all()
    assert len(left) + recorder.opened - rows.numbered == 1


def test_a_range_left_open_in_one_recording_ends_none_of_the_next() -> None:
    first, second = Recorder(), Recorder()
    with recorded(first):
        first.emitter.opener("left open")()
    with recorded(second):
        marked(second, "kept")
        first.emitter.close()
        marked(second, "after")
    kept, after = rows_of(second).ranges
    assert kept["start"] <= kept["end"] <= after["start"]


def test_ranges_that_are_open_from_one_window_to_the_next_do_not_crash_the_program() -> None:
    outcome = subprocess.run([sys.executable, "-c", TWO_WINDOWS], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.splitlines() == ["kept", "again", "0"] * 20


def test_a_trace_that_torch_could_not_write_is_an_error_with_its_folder(tmp_path: Path) -> None:
    with recorded(recorder := Recorder()):
        torch.zeros(1).cos()
    with pytest.raises(CaptureError, match=r"gone: torch\.profiler could not write its trace here"):
        recorder.write_trace(tmp_path / "gone" / "trace.json")
