"""Models of others: calls, operators of training steps and FLOPs are those that independent hooks and torch count."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
import torch

from tests.capture.others import OTHERS, Other, loss_of, recompute
from tests.capture.recordings import parsed, recorded
from tests.capture.truth import TRUTH, Truth, flops_of
from tracekit.answers import roofline
from tracekit.capture import layer_markers
from tracekit.capture.recorder import Recorder
from tracekit.dataset.opening import Dataset
from tracekit.views.formatting import records

pytestmark = [pytest.mark.torch, pytest.mark.models, pytest.mark.filterwarnings("ignore")]

#: A model, and what is recorded of it: a forward pass, or a training step without and with recomputation.
CASES = [
    *((name, mode) for name in OTHERS for mode in ("forward", "training")),
    *(("llama", "recomputing"), ("llama", "recomputing, reentrant"), ("unet", "recomputing")),
]
CASES.remove(("llama_generates", "training"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads of tiny operators wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_calls_operators_and_flops_are_those_that_hooks_and_torch_see(name: str, mode: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    other, training = OTHERS[name](), mode != "forward"
    other.model.train(training)
    if mode.startswith("recomputing"):
        recompute(other.model, reentrant=mode.endswith("reentrant"))
    step = partial(training_step if training else forward, other)
    step()
    own_flops = flops_of(other.model, step)
    recorder = Recorder(ops=training)
    with recorded(recorder), layer_markers(other.model, emitter=recorder.emitter, backward=training):
        truth = Truth(other.model)
        step()
    dataset = parsed(recorder, tmp_path)

    assert recorded_calls(dataset) == seen_calls(truth)
    if training:
        ran = work(dataset, truth)
        known = [one for one in ran if one.cause != "recomputed"]
        assert [one for one in known if (one.module, one.phase) != one.true] == []
        assert sum(one.phase == "backward" for one in known) > 200
        # What a checkpointed function computes itself, between its modules, is no module's when it runs again.
        assert {one.phase for one in ran if one.cause == "recomputed"} <= {"recompute"}
        assert len(known) > 0.98 * len(ran)
    rows = records(roofline.frame(dataset))
    for row in rows:
        true = sum(number for path, number in own_flops.items() if f"{path}.".startswith(f"{row['path']}."))
        assert row["subtree_flops"] == true or (row["subtree_flops"] is None and row["unknown"]), row
    assert sum(row["subtree_flops"] is not None for row in rows) > len(rows) / 3


def forward(other: Other) -> None:
    with torch.no_grad():
        other.run()


def training_step(other: Other) -> None:
    loss_of(other.run()).backward()


def recorded_calls(dataset: Dataset) -> list[tuple[Any, ...]]:
    table = dataset.calls()
    table = table[table.phase != "backward"].sort_values("start_ns")
    row = {call_id: at for at, call_id in enumerate(table.call_id)}
    class_name = dataset.modules().set_index("module_id").class_name
    return [
        (
            *(call.module, class_name[call.module_id], call.phase, row.get(call.parent_call_id)),
            *(_shapes(call.inputs), {name: _shapes(shapes) for name, shapes in call.kwargs}, _shapes(call.outputs)),
        )
        for call in table.itertuples()
    ]


def _shapes(column: Any) -> list[list[int]]:
    return [] if column is None or column is pd.NA else [[int(size) for size in shape] for shape in column]


def seen_calls(truth: Truth) -> list[tuple[Any, ...]]:
    return [
        (call.module, call.class_name, call.phase, call.parent, call.inputs, call.kwargs, call.outputs)
        for call in truth.calls
    ]


class Work(NamedTuple):
    """An operator, its module and phase by what the hooks saw, and what the dataset says."""

    name: str
    true: tuple[str | None, str | None]
    module: str | None
    phase: str | None
    cause: str | None


class _Around(NamedTuple):
    """Something that operators run in: a call, or a node of a backward pass."""

    start: int
    end: int
    owner: str | None
    phase: str


def work(dataset: Dataset, truth: Truth) -> list[Work]:
    """The operators of the main thread, but for those that accumulate gradients."""
    columns = ["name", "module", "phase", "cause", "start_ns", "end_ns", "tid"]
    operators = dataset.kernels(columns).sort_values(["start_ns", "end_ns"], ascending=[True, False])
    # Torch's own threads allocate memory for some operators.
    operators = operators[operators.tid == dataset.calls(["tid"]).tid[0]]
    open_: list[_Around] = []
    ahead = _around(dataset, truth)[::-1]
    result = []
    for row in operators.astype(object).itertuples():
        while ahead and ahead[-1].start <= row.start_ns:
            open_.append(ahead.pop())
        open_ = [around for around in open_ if around.end >= row.end_ns]
        if not any(around.phase == "unknown" for around in open_):
            # What was made in a node that ran again is of the module that made that node.
            owner = next((around.owner for around in reversed(open_) if around.owner), None)
            true = owner, open_[-1].phase if open_ else None
            said = [None if pd.isna(value) else value for value in (row.module, row.phase, row.cause)]
            result.append(Work(row.name, true, *said))
    return result


_NODE = "autograd::engine::evaluate_function: "
#: Nodes that accumulate gradients have this number or none: no forward made them.
_NO_NUMBER = 2**63


def _around(dataset: Dataset, truth: Truth) -> list[_Around]:
    ranges = dataset.ranges(["text", "start_ns", "end_ns"]).sort_values(["start_ns", "end_ns"], ascending=[True, False])
    result = []
    nodes: list[tuple[str, int, int]] = []
    for start, end, text in zip(ranges.start_ns, ranges.end_ns, ranges.text.astype(str), strict=True):
        name, number = text.partition(", ")[0], re.search(r", seq = (\d+), op_id", text)
        if text.startswith(TRUTH):
            call = truth.calls[int(text.removeprefix(TRUTH))]
            result.append(_Around(start, end, call.module, call.phase))
        elif name.startswith(_NODE):
            nodes.append((name.removeprefix(_NODE), start, end))
        elif nodes and name == nodes[-1][0] and end <= nodes[-1][2]:
            # Only the node's own range has the number of a node that Python made.
            made = int(number[1]) if number else _NO_NUMBER
            phase = "backward" if made < _NO_NUMBER else "unknown"
            result.append(_Around(*nodes.pop()[1:], truth.owner(made), phase))
    return sorted(result, key=lambda around: (around.start, -around.end))
