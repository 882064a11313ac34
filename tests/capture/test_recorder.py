"""A run on the CPU: every operator with its module and time, as torch's profiler counts them; windows and losses."""

import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.profiler import record_function

import tracekit
from tests.capture.models import Cnn, Encoder, Failing, Tagger
from tests.capture.recordings import file_of, recorded, rows_of, texts_of, written
from tracekit.capture import layer_markers, step
from tracekit.capture.recorder import Recorder
from tracekit.errors import CaptureError

pytestmark = pytest.mark.torch


def run_models() -> Recorder:
    torch.manual_seed(0)
    recorder = Recorder()
    cnn, encoder, tagger = Cnn(), Encoder(), Tagger()
    failing, caught = Failing(ValueError("no")), Failing(KeyError("no"), caught=True)
    with recorded(recorder), ExitStack() as marked:
        for number, model in enumerate((cnn, encoder, tagger, failing, caught)):
            marked.enter_context(layer_markers(model, f"model{number}"))
        for _ in range(2):
            with step("both", kind="train"):
                cnn(torch.zeros(2, 3, 8, 8))
                encoder(torch.zeros(2, 3, dtype=torch.int64), mask=torch.ones(2, 3))
        with record_function("the user's own"):
            torch.zeros(7).cos()
            tagger(torch.zeros(2, 4, 6))
        with pytest.raises(ValueError, match="no"):
            failing(torch.zeros(3))
        caught(torch.zeros(3))
        torch.zeros(3).tan()
        for _ in range(3):
            other = threading.Thread(target=cnn, args=(torch.zeros(2, 3, 8, 8),))
            other.start()
            other.join()
    return recorder


def test_every_operator_is_there_once_and_has_the_innermost_module_around_it(tmp_path: Path) -> None:
    """The slow obvious way: every operator against every range of its thread."""
    path = written(run_models(), tmp_path / "run.sqlite")
    dataset = tracekit.parse(path)
    found, calls = dataset.kernels(), dataset.calls()
    with closing(sqlite3.connect(path)) as db:
        operators = db.execute('SELECT value, start, "end" FROM TRACEKIT_CPU_OPS JOIN StringIds ON id = nameId')
        recorded_ones = Counter(operators)
    assert set(found.kind) == {"cpu_op"}
    assert found.device.isna().all()
    assert Counter(zip(found.name.astype(str), found.start_ns, found.end_ns, strict=True)) == recorded_ones
    assert {"aten::conv2d", "aten::lstm", "aten::gelu", "aten::cos", "aten::tan"} <= set(found.name)

    given = [None if pd.isna(call) else int(call) for call in found.call_id]
    expected = []
    for row in found.itertuples():
        around = calls[(calls.tid == row.tid) & (calls.start_ns <= row.start_ns) & (row.end_ns <= calls.end_ns)]
        innermost = (around.end_ns - around.start_ns).idxmin() if len(around) else None
        expected.append(innermost if innermost is None else calls.call_id[innermost])
    assert given == expected
    assert None in expected


#: Texts that Kineto writes otherwise, and others.
ODD = [
    """both " and ' quotes, back \\ slash \\n \\u0041, line\nline\r\ttab, control \x01\x1f, </script> %s %d {}""",
    "größer als 東京 🚀",
]
TEXTS = ['", "pid": 1, "tid": 1,', "{'Module': 'top', 'Inputs': [[2, 3]]}", "x" * 8192, " "]

TWO_WINDOWS = """
import threading
import torch
from torch.profiler import record_function
from tracekit.capture.recorder import Recorder
from tests.capture.recordings import recorded, rows_of, texts_of

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
    print(*texts_of(rows), recorder.opened - rows.numbered, sep="\\n")
"""


def marked(recorder: Recorder, text: str) -> None:
    recorder.emitter.opener(text)()
    recorder.emitter.close()


def test_texts_of_markers_and_names_of_the_users_ranges_arrive_unharmed() -> None:
    with recorded(recorder := Recorder()):
        for text in [*ODD, *TEXTS]:
            marked(recorder, text)
        for text in TEXTS:
            with record_function(text):
                torch.zeros(1)
    texts = texts_of(rows_of(recorder))
    ours = len(ODD) + len(TEXTS)
    assert texts[:ours] == [*ODD, *TEXTS]
    replaced = [text.replace('"', "'") for text in TEXTS]  # by torch 2.15 itself
    assert texts[ours:] in (TEXTS, replaced)


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


def test_ranges_that_are_open_from_one_window_to_the_next_do_not_crash_the_program() -> None:
    outcome = subprocess.run([sys.executable, "-c", TWO_WINDOWS], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.splitlines() == ["kept", "again", "0"] * 20


def test_a_trace_that_torch_could_not_write_is_an_error_with_its_folder(tmp_path: Path) -> None:
    with recorded(recorder := Recorder()):
        torch.zeros(1).cos()
    with pytest.raises(CaptureError, match=r"gone: torch\.profiler could not write its trace here"):
        recorder.write_trace(tmp_path / "gone" / "trace.json")
