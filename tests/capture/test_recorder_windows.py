"""The recorder's windows, texts and losses."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.profiler import record_function

from tests.capture.recordings import parsed, recorded, texts_of
from tracekit.capture import layer_markers
from tracekit.capture.recorder import ProfilerEmitter, Recorder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch

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
from tests.capture.recordings import recorded, texts_of

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
    print(*texts_of(recorder), sep="\\n")
"""


def marked(recorder: Recorder, text: str) -> None:
    recorder.emitter.opener(text)()
    recorder.emitter.close()


def test_texts_of_markers_arrive_unharmed() -> None:
    recorder = Recorder()
    with recorded(recorder):
        for text in TEXTS:
            marked(recorder, text)
    assert texts_of(recorder) == TEXTS


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_names_of_the_users_ranges_arrive_and_never_spoil_the_report(text: str) -> None:
    recorder = Recorder()
    with recorded(recorder):
        marked(recorder, "before")
        with record_function(text):
            torch.zeros(1)
        marked(recorder, "after")
    assert texts_of(recorder) == ["before", text, "after"]


def test_a_range_of_the_users_that_is_named_like_ours_breaks_nothing() -> None:
    recorder = Recorder()
    with recorded(recorder), record_function("tracekit:no number"), record_function("tracekit:9"):
        marked(recorder, "ours")
    assert texts_of(recorder) == ["tracekit:no number", "tracekit:9", "ours"]


def test_a_marker_left_open_is_open_or_counted_as_lost(tmp_path: Path) -> None:
    recorder = Recorder()
    with recorded(recorder):
        recorder.emitter.opener("left open")()
        marked(recorder, "closed")
    ranges = parsed(recorder, tmp_path).ranges()
    assert ranges[ranges.text == "closed"].open.tolist() == [False]
    left = ranges[ranges.text == "left open"]
    assert left.open.all()
    assert len(left) + recorder.figures["markers_lost"] == 1


def test_what_was_opened_before_the_window_does_not_upset_those_inside() -> None:
    recorder = Recorder()
    recorder.emitter.opener("before")()
    with recorded(recorder):
        marked(recorder, "inside")
        recorder.emitter.close()
        marked(recorder, "after")
    assert texts_of(recorder) == ["inside", "after"]
    assert recorder.figures["markers_lost"] == 0


def test_markers_after_the_window_are_not_lost_but_outside() -> None:
    recorder = Recorder()
    with recorded(recorder):
        marked(recorder, "inside")
    for _ in range(3):
        marked(recorder, "after")
    assert texts_of(recorder) == ["inside"]
    assert (recorder.figures["markers"], recorder.figures["markers_lost"]) == (1, 0)


def test_a_window_that_is_opened_anew_drops_what_it_held() -> None:
    recorder = Recorder()
    with recorded(recorder):
        marked(recorder, "dropped")
    with recorded(recorder):
        marked(recorder, "kept")
        marked(recorder, "dropped")
    assert texts_of(recorder) == ["kept", "dropped"]
    assert (recorder.figures["markers"], recorder.figures["markers_lost"]) == (2, 0)


def test_ranges_that_are_open_from_one_window_to_the_next_do_not_crash_the_program() -> None:
    outcome = subprocess.run([sys.executable, "-c", TWO_WINDOWS], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.splitlines() == ["kept", "again"] * 20


def test_a_window_that_was_never_opened_or_is_empty_says_so(tmp_path: Path) -> None:
    recorder = Recorder()
    assert not recorder.recorded
    with recorded(recorder):
        pass
    assert recorder.recorded
    assert len(parsed(recorder, tmp_path).ranges()) == 0


def test_threads_that_make_texts_at_once_do_not_mix_them_up() -> None:
    emitter = ProfilerEmitter()
    before = sys.getswitchinterval()
    said: dict[str, str] = {}

    gate = threading.Barrier(8)

    def make(thread: int) -> None:
        gate.wait()
        for at in range(2000):
            text = f"{thread} {at}"
            said[text] = emitter.opener(text).args[0]  # type: ignore[attr-defined]

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=make, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(set(said.values())) == len(said) == len(emitter.texts)
    assert all(emitter.texts[int(name.rpartition(":")[2])] == text for text, name in said.items())


def test_threads_at_work_together_keep_their_own_nesting(tmp_path: Path) -> None:
    recorder, model = (
        Recorder(),
        nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Tanh()),
    )
    gate = threading.Barrier(4)

    def work() -> None:
        gate.wait()
        for _ in range(5):
            model(torch.zeros(2, 4))

    with recorded(recorder), layer_markers(model, "m"):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    dataset = parsed(recorder, tmp_path)
    calls, found = dataset.calls(), dataset.kernels()
    assert calls.groupby(calls.module.astype(str)).size().to_dict() == dict.fromkeys(
        ["m", "m.0", "m.0.0", "m.0.1", "m.1"], 20
    )
    assert calls.tid.nunique() == 4
    tids = dict(zip(calls.call_id, calls.tid, strict=True))
    owned = found[found.call_id.notna()]
    assert [tids[call] for call in owned.call_id] == owned.tid.tolist()
    assert set(owned[owned.name == "aten::tanh"].module) == {"m.1"}


def test_operators_that_are_marked_speak_the_words_of_emit_nvtx() -> None:
    recorder = Recorder(ops=True)
    x = torch.zeros(2, 4, requires_grad=True)
    with recorded(recorder):
        y = nn.Linear(4, 8)(x)
        z = y.relu()
        z.sum().backward()
    form = re.compile(r"([\w:]+)(?:, seq = (\d+))?, op_id = (\d+)(?:, sizes = (\[.*\]))?")
    said = [form.fullmatch(text) for text in texts_of(recorder)]
    operators = [found for found in said if found and found[1].startswith("aten::")]
    sizes = {found[1]: found[4] for found in operators}
    assert sizes["aten::addmm"].startswith("[[8], [2, 4], [4, 8]")
    seqs = {found[1]: int(found[2]) for found in operators if found[2]}
    assert seqs["aten::addmm"] == y.grad_fn._sequence_nr()
    assert seqs["aten::relu"] == z.grad_fn._sequence_nr()
    assert len({found[3] for found in operators}) == len(operators)


def test_backward_markers_are_calls_in_the_phase_backward_with_their_operators(
    tmp_path: Path,
) -> None:
    recorder, model = Recorder(), nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with recorded(recorder), layer_markers(model, "m", backward=True):
        model(torch.zeros(2, 4)).sum().backward()
    dataset = parsed(recorder, tmp_path)
    calls, found = dataset.calls(), dataset.kernels()
    back = calls[calls.phase == "backward"]
    assert {"m.0", "m.1"} <= set(back.module)
    phases = dict(zip(calls.call_id, calls.phase.astype(str), strict=True))
    tanh = found[found.name == "aten::tanh_backward"]
    assert set(tanh.module) == {"m.1"}
    assert {phases[call] for call in tanh.call_id} == {"backward"}


def test_tensors_of_other_widths_and_scalars_do_not_disturb_it() -> None:
    recorder = Recorder(ops=True)
    with recorded(recorder):
        torch.tensor(3).item()
        torch.zeros(0, 3).to(torch.bfloat16)
        torch.cat([torch.zeros(1), torch.zeros(2)])
        nn.functional.gelu(torch.einsum("ij,jk->ik", torch.ones(1, 2), torch.ones(2, 1)), approximate="tanh")
    assert len(recorder.rows().operators) > 3
