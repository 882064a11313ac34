"""A run on the CPU: every operator with its module and its time, as torch's profiler itself counts them."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import pytest
import torch
from torch.profiler import record_function

import tracekit
from tests.capture.models import Cnn, Encoder, Failing, Tagger
from tests.capture.recordings import recorded, spans, written
from tracekit.capture import layer_markers, step
from tracekit.capture.recorder import Recorder

if TYPE_CHECKING:
    from pathlib import Path

    from tests.capture.recordings import Span
    from tracekit.dataset.opening import Dataset

pytestmark = pytest.mark.torch

THREADS = 3


class Run(NamedTuple):
    recorder: Recorder
    path: Path
    dataset: Dataset


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    torch.manual_seed(0)
    recorder, folder = Recorder(), tmp_path_factory.mktemp("recorded")
    cnn, encoder, tagger = Cnn(), Encoder(), Tagger()
    failing, caught = Failing(ValueError("no")), Failing(KeyError("no"), caught=True)
    ids = torch.zeros(2, 3, dtype=torch.int64)
    with (
        recorded(recorder),
        layer_markers(cnn, "cnn"),
        layer_markers(encoder, "encoder"),
        layer_markers(tagger, "tagger"),
        layer_markers(failing, "failing"),
        layer_markers(caught, "caught"),
    ):
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
    return Run(recorder, path, tracekit.parse(path))


def kernels(run: Run) -> pd.DataFrame:
    return run.dataset.kernels()


def test_counts_and_times_are_those_of_torchs_own_profiler(run: Run) -> None:
    found = kernels(run)
    found["whole_ns"] = found.end_ns - found.start_ns
    # Torch counts an operator that does nothing but call itself in another form as one.
    once = found[~found.kernel_id.isin(forwarded(found))]
    names = found.name.astype(str)
    counted = once.groupby(once.name.astype(str)).whole_ns.agg(["size", "sum"])
    own = found.groupby(names).dur_ns.sum()
    mine = {name: (count, own[name], whole) for name, count, whole in counted.itertuples() if name.startswith("aten::")}
    theirs = {
        average.key: (
            average.count,
            round(average.self_cpu_time_total * 1000),
            round(average.cpu_time_total * 1000),
        )
        for average in run.recorder._profile.key_averages()
        if average.key.startswith("aten::")
    }
    assert len(theirs) > 20
    assert mine == theirs


def forwarded(found: pd.DataFrame) -> set[int]:
    """The operators that are the only one called by one of the same name."""
    inside: dict[int, list[tuple[int, str]]] = defaultdict(list)
    names: dict[int, str] = {}
    for _, rows in found.groupby("tid"):
        around: list[tuple[int, int]] = []
        in_order = rows.assign(last=-rows.end_ns).sort_values(["start_ns", "last", "kernel_id"])
        for row in in_order.itertuples():
            while around and around[-1][1] <= row.start_ns:
                around.pop()
            names[row.kernel_id] = str(row.name)
            if around:
                inside[around[-1][0]].append((row.kernel_id, str(row.name)))
            around.append((row.kernel_id, row.end_ns))
    return {called[0][0] for caller, called in inside.items() if len(called) == 1 and called[0][1] == names[caller]}


def test_every_operator_is_there_once_as_work_of_the_cpu(run: Run) -> None:
    found, (_, operators) = kernels(run), spans(run.path)
    assert set(found.kind) == {"cpu_op"}
    assert found.device.isna().all()
    assert Counter(zip(found.name.astype(str), found.start_ns, found.end_ns, strict=True)) == (
        Counter((span.text, span.start, span.end) for span in operators)
    )
    assert {"aten::conv2d", "aten::lstm", "aten::gelu", "aten::cos", "aten::tan"} <= set(found.name)


def test_an_operator_has_the_innermost_module_around_it_and_none_if_there_is_none(run: Run) -> None:
    """The slow obvious way: every operator against every range of its thread."""
    found, calls = kernels(run), run.dataset.calls()
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


def test_modules_ran_the_operators_that_their_code_calls(run: Run) -> None:
    found = kernels(run)
    by_module = found.groupby(found.module.astype(str)).name.agg(set)
    assert {"aten::conv2d", "aten::convolution"} <= by_module["cnn.stem.0"]
    assert {"aten::relu"} <= by_module["cnn.stem.2"]
    assert {"aten::mean"} <= by_module["cnn"]
    assert {"aten::lstm"} <= by_module["tagger.lstm"]
    assert {"aten::linear"} <= by_module["tagger.out"]
    outside = found[found.module.isna()]
    assert {"aten::cos", "aten::tan"} <= set(outside.name)
    assert set(outside.cause) == {"outside_modules"}
    layers = found[(found.name == "aten::layer_norm")].module.astype(str)
    assert Counter(layers) == {"encoder.layers.0.norm": 2, "encoder.layers.1.norm": 4}


def test_self_time_adds_up_to_inclusive_time(run: Run) -> None:
    found, calls = kernels(run), run.dataset.calls()
    assert (found.dur_ns >= 0).all()
    children = calls.groupby("parent_call_id").gpu_time_ns.sum()
    whole = calls.gpu_self_time_ns + calls.call_id.map(children).fillna(0)
    assert whole.tolist() == calls.gpu_time_ns.tolist()
    owned = found[found.call_id.notna()].groupby("call_id").dur_ns.sum()
    assert calls.gpu_self_time_ns.tolist() == calls.call_id.map(owned).fillna(0).tolist()
    roots = calls[calls.parent_call_id.isna()].gpu_time_ns.sum()
    assert roots + found[found.call_id.isna()].dur_ns.sum() == found.dur_ns.sum()


def test_own_times_of_operators_never_exceed_the_time_of_their_thread(run: Run) -> None:
    found = kernels(run)
    outermost = outermost_ns(spans(run.path)[1])
    assert found.groupby("tid").dur_ns.sum().to_dict() == outermost


def outermost_ns(operators: list[Span]) -> dict[int, int]:
    """By thread, the time of the operators that no other one called."""
    found: dict[int, int] = defaultdict(int)
    last: dict[int, int] = defaultdict(int)
    for span in sorted(operators, key=lambda span: (span.start, -(span.end or 0))):
        thread = span.thread & 0xFFFFFF
        if span.start >= last[thread]:
            found[thread] += (span.end or 0) - span.start
            last[thread] = span.end or 0
    return dict(found)


def test_every_call_is_there_with_its_step_and_thread(run: Run) -> None:
    calls = run.dataset.calls()
    cnn = calls[calls.module == "cnn"]
    assert len(cnn) == 2 + THREADS
    assert cnn.step_id.isna().sum() == THREADS
    assert cnn.tid.nunique() == 2 or cnn.tid.nunique() == 1 + THREADS
    encoder = calls[calls.module == "encoder"]
    assert encoder.step_id.tolist() == [0, 1]
    assert [list(map(list, shapes)) for shapes in encoder.inputs] == [[[2, 3]], [[2, 3]]]
    assert run.dataset.steps()[["name", "kind"]].values.tolist() == [["both", "train"]] * 2


def test_calls_that_raised_are_closed_and_what_came_after_is_not_inside_of_them(run: Run) -> None:
    calls, ranges = run.dataset.calls(), run.dataset.ranges()
    assert not ranges.open.any()
    (raised,) = calls[calls.module == "failing"].end_ns
    (caught,) = calls[calls.module == "caught"].start_ns
    assert raised <= caught
    parents = dict(zip(calls.call_id, calls.module.astype(str), strict=True))
    above = {str(row.module): parents.get(row.parent_call_id) for row in calls.itertuples()}
    assert above["failing.inner.1"] == "failing.inner"
    assert above["caught.after"] == "caught"
    assert "failing.after" not in above


def test_the_users_own_ranges_are_ranges_around_calls(run: Run) -> None:
    ranges, calls = run.dataset.ranges(), run.dataset.calls()
    (mine,) = ranges[ranges.text == "the user's own"].itertuples()
    (tagger,) = calls[calls.module == "tagger"].itertuples()
    assert mine.start_ns <= tagger.start_ns
    assert tagger.end_ns <= mine.end_ns


def test_nothing_was_lost_and_the_recorder_says_so(run: Run) -> None:
    ranges, operators = spans(run.path)
    figures = run.recorder.figures
    assert figures["markers"] == len([span for span in ranges if span.text != "the user's own"])
    assert figures["markers_lost"] == 0
    assert figures["operators"] == len(operators)
