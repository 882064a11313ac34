"""The line of Python that launched each kernel, beside the innermost frame found by searching all of them."""

import gzip
import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import tracekit
from tests.command import command
from tests.golden import expect, expect_frame
from tests.needs import TRACES
from tests.readers.files import kernels
from tests.readers.kineto.traces import PID, Event, called, event, kernel, launch, parsed, trace
from tests.views.page.pages import shown
from tracekit.answers import lines
from tracekit.dataset.opening import Dataset

TRAIN, MODEL = "/home/me/train.py(7): step", "model.py(20): forward"
LINEAR = "torch/nn/modules/linear.py(124): forward"
BUILT_IN = "<built-in function linear>"


def function(name: str, start: float, dur: float, tid: int = PID) -> Event:
    return event("python_function", name, start, dur, tid)


def small(path: Path) -> Dataset:
    functions = [
        function(TRAIN, 0, 100),
        called("Net_0", 5, 40),
        function(MODEL, 6, 38),
        function(LINEAR, 8, 20),
        function(BUILT_IN, 9, 10),
        function("/x/site-packages/torch/f.py(9): g", 9, 9),
        function("/tmp/torchinductor_x/c.py(5): call", 9, 8),
        function("other.py(1): f", 0, 100, PID + 1),
    ]
    launches = [launch(10, 1), launch(30, 2), launch(60, 3), launch(150, 4), launch(40, 5) | {"tid": PID + 2}]
    return tracekit.parse(trace(path, *functions, *launches, *(kernel(200 + 10 * at, at) for at in range(1, 6))))


def test_time_by_line_and_flame_graph(tmp_path: Path) -> None:
    """A kernel has the innermost function around its launch that is no part of torch."""
    dataset = small(tmp_path / "trace.json")
    expect(dataset, "kernels")("""
        module  source                    stack
        Net_0   model.py:20 forward       /home/me/train.py:7 step;model.py:20 forward
        Net_0   model.py:20 forward       /home/me/train.py:7 step;model.py:20 forward
        -       /home/me/train.py:7 step  /home/me/train.py:7 step
        -       -                         -
        -       -                         -
        """)
    rows = """
        file               line  function  gpu_ns  share  kernels  modules  module
        -                  -     -         10000   0.4    2        0        -
        model.py           20    forward   10000   0.4    2        1        Net_0
        /home/me/train.py  7     step      5000    0.2    1        0        -
    """
    expect_frame(lines.frame(dataset))(rows)
    both = tracekit.parse(
        [Path(small(tmp_path / f"{name}.json").folder).with_suffix(".json") for name in "ab"], tmp_path / "both"
    )
    doubled = lines.frame(both)
    assert doubled.assign(gpu_ns=doubled.gpu_ns // 2, kernels=doubled.kernels // 2).equals(lines.frame(dataset))
    assert lines.frame(dataset.subtree("Net_0"))["gpu_ns"].tolist() == [10000]
    sources = shown(dataset)["sources"]
    of_net = [at for at, node in enumerate(sources["of_modules"]["node"]) if node >= 0]
    assert [sources["texts"][sources["of_modules"]["source"][at]] for at in of_net] == ["model.py:20 forward"]
    outcome = command("export", dataset.folder, "--format", "stacks", "-o", tmp_path / "out", "--quiet")
    assert outcome == (0, "", "")
    assert (tmp_path / "out").read_text() == (
        "/home/me/train.py:7 step;gemm 5000\n"
        "/home/me/train.py:7 step;model.py:20 forward;gemm 10000\n"
        "[outside_modules];gemm 10000\n"
    )


def test_without_stacks_there_are_no_lines(tmp_path: Path) -> None:
    dataset = parsed(tmp_path, launch(10, 1), kernel(20, 1))
    assert not len(lines.frame(dataset))
    assert "no lines of Python were recorded" in command("show", "lines", dataset.folder)[1].replace("\n", " ")
    assert shown(dataset)["sources"]["texts"] == []


def test_a_function_that_two_others_call_has_the_stack_of_each(tmp_path: Path) -> None:
    callers = [function(f"{name}.py(1): {name};", at, 50) for name, at in (("a", 0), ("b", 100))]
    # The launch is inside f, and outlasts g.
    inner = [function(name, at + 10, dur) for at in (0, 100) for name, dur in (("f.py(2): f", 20), ("g.py(3): g", 5.5))]
    work = [row for at in (1, 2) for row in (launch(100 * at - 85, at), kernel(200 + 10 * at, at))]
    stacks = [f"{name}.py:1 {name},;f.py:2 f" for name in "ab"]
    assert kernels(parsed(tmp_path, *callers, *inner, *work), "stack") == stacks


def test_of_very_deep_stacks_the_innermost_lines_are_kept(tmp_path: Path) -> None:
    deep = 3_000
    functions = [function(f"f.py({at}): f", at, 3 * deep - 2 * at) for at in range(1, deep)]
    launches = [launch(at + 0.5, at) | {"dur": 0.1} for at in range(1, deep)]
    work = [kernel(4 * deep + 10 * at, at) for at in range(1, deep)]
    rows = kernels(parsed(tmp_path, *functions, *launches, *work), "source", "stack")
    for at, (source, stack) in enumerate(rows, 1):
        assert source == f"f.py:{at} f"
        first = max(at - len(stack.split(";")), 0)
        assert stack == ";".join(f"f.py:{line} f" for line in range(first + 1, at + 1))
    assert sum(len(stack) for _, stack in rows) < 4_000_000


def spelled(name: str) -> str | None:
    if (
        name.startswith(("nn.Module: ", "<built-in ", "torch/"))
        or "torchinductor_" in name
        or "/site-packages/torch/" in name
    ):
        return None
    file, line, function = re.split(r"\((\d+)\): ", name)
    return f"{file}:{line} {function}".replace(";", ",")


@pytest.mark.traces
@pytest.mark.parametrize("name", ["with_stack_qwen_h100", "sglang_prefill_decode_mi300x"])
def test_sums_by_line_of_real_traces_are_those_of_a_search_through_all_functions(tmp_path: Path, name: str) -> None:
    path = TRACES / "kineto" / f"{name}.json.gz"
    dataset = tracekit.parse(path, tmp_path / "out.tracekit")
    found = {
        None if row.file is None else f"{row.file}:{row.line} {row.function}": (row.gpu_ns, row.kernels)
        for row in lines.frame(dataset).itertuples()
    }
    expected = searched(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])
    assert found == {line: (sum(durations), len(durations)) for line, durations in expected.items()}


def searched(events: list[Event]) -> dict[str | None, list[int]]:
    """Durations of device work by line: for each launch the shortest of all functions of its thread that hold it."""
    functions, texts = defaultdict(list), defaultdict(list)
    for row in events:
        if row.get("cat") == "python_function" and (line := spelled(str(row["name"]))):
            functions[row["pid"], row["tid"]].append(edges(row))
            texts[row["pid"], row["tid"]].append(line)
    source: dict[object, str | None] = {}
    for row in events:
        if row.get("cat") in ("cuda_runtime", "cuda_driver"):
            begin, end = edges(row)
            begins, ends = np.array(functions[row["pid"], row["tid"]]).reshape(-1, 2).T
            held = np.flatnonzero((begins <= begin) & (end <= ends))
            lines_of = texts[row["pid"], row["tid"]]
            shortest = held[np.argmin((ends - begins)[held])] if held.size else None
            source[row["args"]["correlation"]] = lines_of[shortest] if shortest is not None else None  # type: ignore[index]
    sums: defaultdict[str | None, list[int]] = defaultdict(list)
    for row in events:
        if row.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            begin, end = edges(row)
            sums[source.get(row["args"]["correlation"])].append(end - begin)  # type: ignore[index]
    return sums


def edges(row: Event) -> tuple[int, int]:
    begin, duration = (round(float(str(row[name])) * 1000) for name in ("ts", "dur"))
    return begin, begin + duration
