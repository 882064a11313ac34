"""Chrome traces tell on which thread the forward pass made a node of autograd: it belongs to no other thread."""

from pathlib import Path

import tracekit
from tests.golden import expect
from tests.readers.files import kernels
from tests.readers.kineto.traces import Event, event, marked, parsed, trace
from tracekit.dataset.opening import Dataset

NODE = "autograd::engine::evaluate_function: MulBackward0"
FIRST, SECOND, AUTOGRAD = 101, 102, 103


def flow(number: int, end: str, ts: float, tid: int) -> Event:
    return {"ph": end, "id": number, "pid": 100, "tid": tid, "ts": ts, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e"}


def operator(name: str, ts: float, dur: float, tid: int, number: int = 3, forward_thread: int = 0) -> Event:
    return event("cpu_op", name, ts, dur, tid, **{"Sequence number": number, "Fwd thread id": forward_thread})


def forward(ts: float, tid: int, module: str) -> list[Event]:
    return [marked(module, ts, 10, tid), operator("aten::mul", ts + 1, 5, tid)]


def backward(ts: float, forward_thread: int) -> list[Event]:
    times = {NODE: (ts, 8), "MulBackward0": (ts + 1, 6)}
    return [operator(name, *time, AUTOGRAD, forward_thread=forward_thread) for name, time in times.items()]


def modules(dataset: Dataset) -> list[tuple[str | None, str | None]]:
    return [(module, cause) for name, module, cause in kernels(dataset, "name", "module", "cause") if name == NODE]


def test_flows_tell_which_thread_has_which_number(tmp_path: Path) -> None:
    passes = (
        *forward(10, FIRST, "a"),
        *forward(12, SECOND, "b"),
        *backward(100, 7),
        *backward(120, 4),
        *backward(140, 9),
    )
    flows = flow(1, "s", 11, FIRST), flow(1, "f", 101, AUTOGRAD), flow(2, "s", 13, SECOND), flow(2, "f", 121, AUTOGRAD)
    assert modules(parsed(tmp_path, *passes, *flows)) == [("a", None), ("b", None), (None, "backward")]
    # Without flows, several threads are not told apart.
    events = *forward(10, FIRST, "a"), *backward(100, 1), *backward(120, 2)
    assert modules(parsed(tmp_path, *events)) == [(None, "backward")] * 2


def test_where_operators_are_nodes_backward_passes_are_calls_of_theirs(tmp_path: Path) -> None:
    events = [item for item in (*forward(10, FIRST, "a"), *backward(100, 1)) if item["cat"] == "cpu_op"]
    expect(parsed(tmp_path, *events), "calls")("""
        module                  phase
        aten::mul               -
        aten::mul               backward
        aten::mul.MulBackward0  backward
    """)


def test_backward_work_stands_in_the_range_of_its_operator_where_ranges_name_modules(tmp_path: Path) -> None:
    paths = ["layers.0.attention", "layers.1.attention", "output", "metric"]
    events = [event("user_annotation", "ProfilerStep#0", 0, 500, FIRST)]
    for number, path in enumerate(paths):
        events.append(event("user_annotation", path, 20 * number + 10, 12, FIRST))
        events.append(operator("aten::mul", 20 * number + 12, 5, FIRST, number))
        events.append(operator(NODE, 400 - 20 * number, 8, FIRST, number, 7))
    node = NODE.replace("Mul", "Sum")
    events += [operator("aten::sum", 95, 2, FIRST, 9), operator(node, 450, 8, FIRST, 9, 7)]
    dataset = parsed(tmp_path, *events)
    step = "ProfilerStep#*"
    assert modules(dataset) == [(f"{step}.{path}.aten::mul", None) for path in reversed(paths)]
    assert (node, f"{step}.aten::sum", "backward") in kernels(dataset, "name", "module", "phase")
    # Without the path of a module in a list, nothing shows that ranges name modules.
    for row in events:
        row["name"] = str(row["name"]).replace(".", "_")
    flat = tracekit.parse(trace(tmp_path / "flat.json", *events))
    assert {module for module, _ in modules(flat)} == {f"{step}.aten::mul"}
