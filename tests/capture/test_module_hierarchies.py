"""``tracekit capture --hierarchy``: operators of a Chrome trace name their modules, as hooks and the report do."""

import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tests.capture.places import Place
from tests.command import command
from tests.golden import expect
from tracekit.capture.kineto import ProcessTrace, keep_chrome_trace, rows_of_processes

pytestmark = pytest.mark.torch

MODEL = """
import multiprocessing, sys
import torch
from torch import nn
from torch.profiler import record_function

class Block(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.fc, self.shared, self.bag = nn.Linear(8, 8), shared, nn.ModuleDict({"a(b)": nn.Linear(8, 8)})
    def forward(self, x):
        return x + self.bag["a(b)"](self.shared(torch.relu(self.fc(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        shared = nn.LayerNorm(8)
        self.layers = nn.ModuleList(Block(shared) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
    def forward(self, x):
        for layer in reversed(self.layers):
            x = layer(x)
        return self.head(x).sigmoid()

def make():
    net, opened = Net(), []
    def before(module, args):
        above, path, _ = opened[-1] if opened else (module, "", None)
        names = {part: name for name, part in above.named_modules()}
        path = f"{path}.{names[module]}".strip(".")
        opened.append((module, path, record_function(f"truth {path}").__enter__()))
    def after(module, args, result):
        opened.pop()[2].__exit__(None, None, None)
    for module in net.modules():
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
    return net, torch.randn(3, 8)

def work(turns):
    net, x = make()
    for _ in range(turns):
        net(x).sum().backward()

if __name__ == "__main__":
    other = multiprocessing.get_context("spawn").Process(target=work, args=(2,))
    other.start()
    work(1)
    other.join()
    sys.exit(other.exitcode)
"""
FRAME = re.compile(r"(?P<name>[^.()]+)\((?P<class>[^()]*)\)::forward\.")


@pytest.fixture
def folder(place: Place) -> Path:
    return place.write(MODEL).parent


def captured(folder: Path, *args: str) -> list[dict[str, Any]]:
    outcome = command("capture", "--hierarchy", "--backward", "-o", "run", *args)
    assert (outcome.code, "warning" in outcome.err) == (0, False), outcome.err
    assert "Chrome trace: run.json.gz" in outcome.err
    events = content(folder)["traceEvents"]
    assert_same_as_hooks(events)
    assert_same_as_report(folder, events)
    return events


def content(folder: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress((folder / "run.json.gz").read_bytes()))


def operators(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == "cpu_op"]


def path_of(hierarchy: str | None) -> str | None:
    if hierarchy is None:
        return None
    frames = list(FRAME.finditer(hierarchy))
    assert "".join(frame[0] for frame in frames) == hierarchy
    assert (frames[0]["name"], frames[0]["class"]) == ("TOP", "Net")
    return "/".join(frame["name"] for frame in frames[1:])


def around(event: dict[str, Any], truth: list[dict[str, Any]]) -> str | None:
    inside = [
        one
        for one in truth
        if (one["pid"], one["tid"]) == (event["pid"], event["tid"])
        and one["ts"] <= event["ts"]
        and event["ts"] + event["dur"] <= one["ts"] + one["dur"]
    ]
    return min(inside, key=lambda one: one["dur"])["name"].removeprefix("truth").strip() if inside else None


def assert_same_as_hooks(events: list[dict[str, Any]]) -> None:
    truth = [event for event in events if event.get("cat") == "user_annotation" and event["name"].startswith("truth")]
    forward = [(event, path) for event in operators(events) if (path := around(event, truth)) is not None]
    for event, path in forward:
        expected = path.replace(".", "/").replace("a(b)", "INSTANCE_NAME_UNKNOWN")
        assert path_of(event["args"].get("Module Hierarchy")) == expected, event["name"]
    assert len(forward) > 50


def assert_same_as_report(folder: Path, events: list[dict[str, Any]]) -> None:
    ours, theirs = (tracekit.parse(folder / name, folder / f"{name}.out") for name in ("run.sqlite", "run.json.gz"))
    columns = {
        "kernels": "name start_ns end_ns pid tid module call_id method cause phase step_id",
        "calls": "call_id parent_call_id module start_ns end_ns phase pid tid inputs outputs",
        "modules": "path class_name params",
        "steps": "start_ns end_ns pid",
    }
    for table, names in columns.items():
        one, other = (dataset.table(table, names.split()).to_pylist() for dataset in (ours, theirs))
        assert one == other, table
    modules = [module and module.split(".")[1:] for module in ours.table("kernels", ["module"])["module"].to_pylist()]
    paths = [names if names is None else "/".join(names).replace("a(b)", "INSTANCE_NAME_UNKNOWN") for names in modules]
    assert Counter(path_of(event["args"].get("Module Hierarchy")) for event in operators(events)) == Counter(paths)
    assert len(set(paths)) > 10


def test_operators_of_forward_and_backward_name_their_modules(folder: Path) -> None:
    events = captured(folder, "--steps", "2", "model.py:make")
    backward = {event["name"]: event["args"].get("Module Hierarchy") for event in operators(events)}
    assert path_of(backward["SigmoidBackward0"]) == ""
    assert path_of(backward["AddmmBackward0"]) == "layers/1/fc"
    assert path_of(backward["autograd::engine::evaluate_function: AddmmBackward0"]) == "layers/1/fc"


def test_all_processes_are_in_one_trace(folder: Path) -> None:
    events = captured(folder, "--", sys.executable, "model.py")
    assert len({event["pid"] for event in operators(events)}) == 2
    ends = Counter((event["id"], event["ph"]) for event in events if event.get("cat") == "fwdbwd")
    assert set(ends.values()) <= {1}


BASE_NS = 1_790_000_000_000_000_000


def process(folder: Path, pid: int, base_ns: int, device: int) -> ProcessTrace:
    def host(cat: str, name: str, ts: float, dur: float, **args: int) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": pid, "ts": ts, "dur": dur, "args": args}

    on_device = {"device": 0, "context": 1, "stream": 7, "correlation": 5, "External id": 3}
    events = [
        host("cpu_op", "tracekit:0", 10.125, 80, **{"External id": 2}),
        host("cpu_op", "aten::mm", 20, 30, **{"External id": 3}),
        host("cuda_runtime", "cudaLaunchKernel", 30, 5, correlation=5),
        {"ph": "s", "id": 5, "pid": pid, "tid": pid, "ts": 30, "cat": "ac2g", "name": "ac2g"},
        {**host("kernel", "gemm", 50, 20, **on_device), "pid": 0, "tid": 7},
    ]
    path = folder / f"{pid}.json"
    trace = {"baseTimeNanoseconds": base_ns, "distributedInfo": {"rank": pid}, "traceEvents": events}
    path.write_text(json.dumps(trace))
    return ProcessTrace(path, [f"{{'Module': 'net{pid}'}}"], pid, devices={0: device})


def merged(tmp_path: Path, *processes: ProcessTrace) -> dict[str, Any]:
    warnings: list[str] = []
    keep_chrome_trace(processes, rows_of_processes(processes), tmp_path / "run.json.gz", warnings)
    assert warnings == []
    return content(tmp_path)


def test_each_process_keeps_its_kernels_and_ids_flows_and_tracks_of_devices_are_told_apart(tmp_path: Path) -> None:
    later = process(tmp_path, 300, BASE_NS + 1_000_000_001, 0)
    trace = merged(tmp_path, process(tmp_path, 100, BASE_NS, 0), process(tmp_path, 200, BASE_NS, 1), later)
    expect(tracekit.parse(tmp_path / "run.json.gz", tmp_path / "out"), "kernels")("""
    pid  module  start_ns    device
    100  net100  39875       0
    200  net200  39875       1
    300  net300  1000039876  0
    """)
    events = trace["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert "distributedInfo" not in trace
    assert len({event["args"]["correlation"] for event in kernels}) == 3
    assert len({event["args"]["device"] for event in kernels}) == 2
    assert len({(event["pid"], event["tid"]) for event in kernels}) == 3
    assert len({event["id"] for event in events if event["ph"] == "s"}) == 3
    assert len({event["args"]["External id"] for event in events if event.get("cat") in ("cpu_op", "kernel")}) == 3


def test_our_ranges_are_annotations_with_their_texts_in_a_trace_of_one_process(tmp_path: Path) -> None:
    trace = merged(tmp_path, process(tmp_path, 100, BASE_NS, 0))
    marker = trace["traceEvents"][0]
    assert (marker["cat"], marker["name"], marker["ts"]) == ("user_annotation", "{'Module': 'net100'}", 10.125)
    assert trace["traceEvents"][1:] == json.loads((tmp_path / "100.json").read_text())["traceEvents"][1:]
    assert trace["distributedInfo"] == {"rank": 100}
