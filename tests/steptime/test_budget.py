"""The budget of steps: traces with the expected rows, and simulated programs against a look at every instant."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest
from hypothesis import example, given, settings, strategies as st

import tracekit
from tests.command import command
from tests.golden import Parse, expect_frame
from tests.joined import joined_here
from tests.needs import REPORTS, TRACES
from tests.simulator.ranks import Job, reports, simulated
from tests.trace_lines import report
from tracekit.answers import budget, stragglers
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError
from tracekit.steptime import budget as step_budget
from tracekit.steptime.whatif import Changes, predict

LOADS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
COMPILES = "compile_file (dynamo_timed)"
#: The second stream waits for the work of the first.
DEPENDS = """
        launch    1   0   1 #1
        kernel+7  1   2  50 #1 awaited
        launch    1   2   3 #2 cudaEventRecord stream=7 event=1
        launch    1   4   5 #3
        kernel+8  1  10  20 #3
        launch    1   6   7 #4 cudaStreamWaitEvent stream=8 event=1
        launch    1   8   9 #5
        kernel+8  1  60  70 #5 waits
"""
CALLS = (
    *("cudaLaunchKernel",) * 6,
    *("cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemcpy", "cudaMalloc", "cudaStreamSynchronize"),
    *("cudaEventQuery", "cudaEventRecord", "cudaStreamWaitEvent", "cudaStreamWaitEvent"),
)
KEYS = ["pid", "device", "step_id"]
Row = dict[str, Any]
Check = Callable[[str], None]


@pytest.fixture
def check(parsed: Parse) -> Check:
    """Compares the budget of a trace with the rows that stand below it."""

    def checked(text: str) -> None:
        lines, _, expected = text.partition("=>\n")
        expect_frame(budget.frame(parsed(lines))[expected.split("\n")[0].split()])(expected)

    return checked


def test_a_launch_that_loads_its_kernel_blocks_the_host(check: Check) -> None:
    check("""
        launch   1   0   2 #1
        kernel   1   5  10 #1
        launch   1  12  60 #2
        overhead 1  12  50 Runtime Triggered Module Loading
        kernel   1  70  90 #2
        =>
        kind          ns
        host_blocked  38
        compute       25
        launch        10
        latency       10
        host_code     2
    """)


def test_a_device_waits_for_what_the_thread_does_that_launches_the_next_work(check: Check) -> None:
    check(f"""
        range     1    0 400 ProfilerStep#1
        range     1    0 300 {{'Module': 'top'}}
        launch    1    5  10 #1
        kernel    1   20  40 #1
        range     1   30 100 {{'Module': 'top.a'}}
        launch    1   45  50 #2 cudaStreamSynchronize
        launch    1   60  70 #3
        kernel    1   75  90 #3
        kernel+8  1   80  85 #3
        range     1  110 120 {LOADS}
        range     1  122 125 {COMPILES}
        launch    1  126 128 #4 cudaEventQuery
        launch    1  130 140 #5
        memcpy    1  160 170 #5 8
        launch    2   40  41 #6 cudaStreamSynchronize
        =>
        step_id  kind          path   ns   share   window_ns
        0        host_code     top    150  0.375   400
        0        host_code     -      100  0.25    400
        0        latency       top    30   0.075   400
        0        host_code     top.a  25   0.0625  400
        0        compute       top    20   0.05    400
        0        launch        top    17   0.0425  400
        0        compute       top.a  15   0.0375  400
        0        copy          top    10   0.025   400
        0        launch        top.a  10   0.025   400
        0        data_loading  top    10   0.025   400
        0        host_blocked  top.a  5    0.0125  400
        0        latency       top.a  5    0.0125  400
        0        compilation   top    3    0.0075  400
    """)


def test_one_step_alone_is_the_whole_step(check: Check) -> None:
    check("""
        range    1  0         90000000 ProfilerStep#3
        launch   1  89990000  89995000 #1
        kernel   1  91000000  96000000 #1
        range    1  97000000  99000000 {'Module': 'top'}
        kernel   1  97000000  98000000 #- after
        =>
        step_id  kind       ns        window_ns
        0        host_code  89990000  96000000
        0        compute    5000000   96000000
        0        latency    1005000   96000000
        0        launch     5000      96000000
    """)


def test_a_window_begins_where_the_one_before_ended_on_its_device(check: Check) -> None:
    check("""
        range     1   0   4  {'Module': 'top'}
        launch    1   0   1  #1
        kernel    1   2   3  #1 before
        range     1  10  19  ProfilerStep#1
        launch    1  11  12  #2
        kernel    1  20  50  #2 first
        launch    1  13  14  #3
        kernel:1  1  20  25  #3 elsewhere
        range     1  22  49  ProfilerStep#2
        launch    1  23  24  #4
        memcpy+9  1  30  35  #4 8
        launch    1  53  54  #5
        kernel    1  60  65  #5 between
        launch    1  44  45  #6
        kernel    1  70  80  #6 second
        kernel    1  90  95  #- after
        =>
        device  step_id  kind       ns  window_ns
        0       0        compute    30  40
        0       0        latency    8   40
        0       0        launch     1   40
        0       0        host_code  1   40
        0       1        compute    15  30
        0       1        latency    11  30
        0       1        host_code  3   30
        0       1        launch     1   30
        1       0        latency    6   15
        1       0        compute    5   15
        1       0        launch     2   15
        1       0        host_code  2   15
    """)


def test_a_step_that_ends_no_later_than_an_earlier_one_has_no_window(parsed: Parse) -> None:
    dataset = parsed("""
        range    1   0  10 ProfilerStep#1
        launch   1   1   2 #1
        kernel   1   5  80 #1
        range    1  10  20 ProfilerStep#2
        launch   1  11  12 #2
        kernel+8 1  15  80 #2
        range    1  20  95 ProfilerStep#3
        launch   1  21  22 #3
        kernel   1  85  90 #3
    """)
    windows = budget.frame(dataset)[["step_id", "window_ns"]].drop_duplicates()
    assert windows.to_numpy().tolist() == [[0, 80], [2, 15]]


def test_after_the_last_work_counts_what_the_thread_of_the_step_does(check: Check) -> None:
    check("""
        range    1   0  100 ProfilerStep#1
        launch   1   0   2  #1
        kernel   1   2  50  #1
        launch   1  10  60  #2 cudaDeviceSynchronize
        range    1  65  90  {'Module': 'top.log'}
        launch   1  70  72  #3 cudaEventQuery
        launch   2  50  99  #4 cudaStreamSynchronize
        launch   2  99 120  #5
        kernel   1 130 140  #5 later
        =>
        kind          path     ns  window_ns
        compute       -        48  100
        host_code     top.log  23  100
        host_code     -        15  100
        host_blocked  -        10  100
        launch        -        2   100
        launch        top.log  2   100
    """)


#: Two processes, of which the second comes later to every all-reduce.
RANKS = "".join(
    f"""
    launch 7/1 {at} {at + 100} #{number}
    kernel 7/1 {at + 1000} {at + 90_000} #{number} ncclDevKernel_AllReduce_Sum_f32_RING_LL
    launch 8/1 {at} {at + 100} #{number}
    kernel:1 8/1 {at + late + 1000} {at + 90_200} #{number} ncclDevKernel_AllReduce_Sum_f32_RING_LL
    """
    for number, (at, late) in enumerate(
        ((0, 20_000), (201_000, 30_000), (403_000, 40_000), (606_000, 10), (810_000, 7))
    )
)


def test_collectives_count_where_nothing_computes(check: Check) -> None:
    check("""
        launch    1   0   1 #1
        kernel+7  1   2  20 #1 ncclDevKernel_AllReduce
        launch    1   1   2 #2
        kernel+8  1   5  10 #2 gemm
        launch    1   3   4 #3
        memcpy+9  1   2  30 #3 8
        =>
        kind           ns
        communication  13
        copy           10
        compute        5
    """)


def test_a_collective_waits_until_its_last_rank_has_begun_also_where_a_rank_is_seen_by_itself(parsed: Parse) -> None:
    dataset = parsed(RANKS)
    rows = budget.frame(dataset)
    waited = rows[rows.kind == "communication_wait"]
    assert waited[["pid", "device", "ns"]].to_numpy().tolist() == [[7, 0, 90_017]]
    communicates = rows[rows.kind == "communication"]
    assert communicates.ns.tolist() == [5 * 89_000 - 90_017, 5 * 89_200 - 90_017]
    for pid in (7, 8):
        alone = budget.frame(dataset.of_processes({None: [pid]}))
        assert alone.to_dict("records") == rows[rows.pid == pid].to_dict("records")


def test_ranks_of_several_reports_wait_for_each_other(tmp_path: Path) -> None:
    dataset = joined_here(reports(simulated(Job(seed=1, ranks=2, steps=6)), tmp_path), tmp_path / "run")
    together = budget.frame(dataset)
    check_sums(dataset)
    waited = together[together.kind == "communication_wait"].ns.sum()
    assert waited == pytest.approx(stragglers.frame(dataset).waited_ns.sum(), rel=0.05)
    for name in dataset.reports:
        alone = budget.frame(dataset.of_reports(name))
        assert alone.ns.tolist() == together[together.report == name].ns.tolist()


def test_a_budget_is_of_whole_devices(parsed: Parse) -> None:
    dataset = parsed("""
        range  1 0 9 {'Module': 'top'}
        launch 1 1 2 #1
        kernel 1 3 4 #1
    """)
    with pytest.raises(UsageError, match="a budget is of whole devices"):
        budget.frame(dataset.subtree("top"))


class Program:
    """A random program: threads that call modules and CUDA, and devices that do the work at some time after that."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lines: list[str] = []
        self.events = 0
        self.ids = 0
        for pid in range(7, 7 + self.random.choice((1, 1, 2))):
            for tid in range(1, self.random.choice((2, 3, 4))):
                self.body((pid, tid), self.random.randrange(20), 4, "net")
            for _ in range(self.random.choice((0, 0, 1))):
                stream, at = self.random.choice((7, 8)), self.random.randrange(150)
                self.lines.append(f"kernel+{stream} {pid}/1 {at} {at + 3} #-")

    def body(self, thread: tuple[int, int], at: int, depth: int, path: str) -> int:
        for number in range(self.random.randrange(1, 5)):
            at += self.random.randrange(4)
            inner = ("module", "step", "data", "compile") if depth else ()
            action = self.random.choice((*inner, *("call",) * 3))
            if action == "call":
                at = self.call(thread, at)
                continue
            start, name = at, f"{path}.m{number}"
            at = self.body(thread, at + self.random.randrange(3), depth - 1, name) + self.random.randrange(1, 3)
            text = {"module": f"{{'Module': '{name}'}}", "step": f"ProfilerStep#{at}", "data": LOADS}
            text["compile"] = COMPILES
            self.lines.append(f"range {thread[0]}/{thread[1]} {start} {at} {text[action]}")
        return at

    def call(self, thread: tuple[int, int], at: int) -> int:
        self.ids += 1
        end = at + self.random.randrange(1, 6)
        stream = self.random.choice((7, 7, 8, 9))
        name = self.random.choice(CALLS)
        event = 0
        if name == "cudaEventRecord":
            self.events = event = self.events + 1
        elif name == "cudaStreamWaitEvent" and self.events:
            event = self.random.randrange(1, self.events + 1)
        of = f" stream={stream} event={event}" if event else ""
        self.lines.append(f"launch {thread[0]}/{thread[1]} {at} {end} #{self.ids} {name}{of}")
        self.work(name, f":{int(stream == 9)}+{stream}", thread[0], at + self.random.choice((0, 1, 5, 20, 60)))
        return end

    def work(self, name: str, place: str, pid: int, at: int) -> None:
        end = at + self.random.choice((0, 1, 4, 20))
        if name == "cudaLaunchKernel":
            kernel = self.random.choice(("gemm", "gemm", "ncclKernel_AllReduce"))
            self.lines.append(f"kernel{place} {pid}/1 {at} {end} #{self.ids} {kernel}")
        elif name == "cudaGraphLaunch":
            for node in range(3):
                self.lines.append(f"kernel{place}!{node + 1} {pid}/1 {at} {at + 2} #{self.ids} node")
                at += self.random.randrange(1, 6)
        elif name.startswith("cudaMemcpy"):
            source = self.random.randrange(2)
            self.lines.append(f"memcpy{place} {pid}/1 {at} {end} #{self.ids} 8 from={source}")


def plain_budget(dataset: Dataset) -> Counter[tuple[object, ...]]:
    """The budget by a look at every instant."""
    names = "kernels", "calls", "steps", "waits", "api_calls", "ranges"
    tables = {name: dataset.table(name).to_pylist() for name in names}
    rows, steps = tables["kernels"], tables["steps"]
    answer: Counter[tuple[object, ...]] = Counter()
    for line in {(row["pid"], row["device"]) for row in rows}:
        own = [row for row in rows if (row["pid"], row["device"]) == line]
        for step, start, end in plain_windows(own, steps):
            thread = next(((one["pid"], one["tid"]) for one in steps if one["step_id"] == step), None)
            for at in range(start, end):
                kind, path = plain_kind(tables, own, (start, at, end, thread))
                answer[*line, step, kind, path, end - start] += 1
    return answer


def plain_windows(work: list[Row], steps: list[Row]) -> Iterator[tuple[object, int, int]]:
    """The windows of a process and device, step by step in the order in which they begin on the host."""
    begun: list[tuple[Row, list[Row]]] = []
    finished = None
    for step in sorted(steps, key=lambda one: (one["start_ns"], one["step_id"])):
        own = [row for row in work if row["step_id"] == step["step_id"]]
        if own and (finished is None or max(row["end_ns"] for row in own) > finished):
            finished = max(row["end_ns"] for row in own)
            begun.append((step, own))
    if not begun:
        yield None, min(row["start_ns"] for row in work), max(row["end_ns"] for row in work)
        return
    border = min(begun[0][0]["start_ns"], *(row["start_ns"] for row in begun[0][1]))
    for step, own in begun:
        start, border = border, max(row["end_ns"] for row in own)
        yield step["step_id"], start, max(border, step["end_ns"]) if step is begun[-1][0] else border


def plain_kind(
    tables: dict[str, list[Row]], own: list[Row], when: tuple[int, int, int, tuple[int, int] | None]
) -> tuple[str, object]:
    begin, at, until, thread = when
    running = [row for row in own if row["start_ns"] <= at < row["end_ns"]]
    kinds = [
        (2 if row["kind"] == "memcpy" else int("nccl" in row["name"]), -row["start_ns"], row["kernel_id"], row)
        for row in running
    ]
    if kinds:
        least = min(kinds, key=lambda one: one[:3])
        return ("compute", "communication", "copy")[least[0]], least[-1]["module"]
    coming = [row for row in own if at < row["start_ns"] < until]
    after = min(coming, key=lambda row: (row["start_ns"], row["kernel_id"]), default=None)
    if after is not None and after["launch_start_ns"] is None:
        return "unknown", None
    thread = thread if after is None else (after["pid"], after["tid"])

    def open_(name: str) -> list[Row]:
        rows = [row for row in tables[name] if (row["pid"], row["tid"]) == thread]
        ends = (row["end_ns"] if "end_ns" in row else row["start_ns"] + row["dur_ns"] for row in rows)
        return [row for row, end in zip(rows, ends, strict=True) if row["start_ns"] <= at < end]

    around = open_("calls")
    path = max(around, key=lambda row: (row["start_ns"], -row["end_ns"]))["module"] if around else None
    if after is not None and at >= after["launch_end_ns"]:
        ended = [row for row in own if row["start_ns"] <= at]
        before = max(ended, key=lambda row: (row["end_ns"], -row["kernel_id"]), default=None)
        since = max(begin, after["launch_end_ns"], *(row["end_ns"] for row in ended))
        return plain_after_launch(tables, before, after, since), path
    launches = (
        row for row in tables["kernels"] if (row["pid"], row["tid"]) == thread and row["launch_start_ns"] is not None
    )
    phases = {row["phase"] for row in open_("ranges")}
    if open_("waits"):
        return "host_blocked", path
    if open_("api_calls") or any(row["launch_start_ns"] <= at < row["launch_end_ns"] for row in launches):
        return "launch", path
    return ("compilation" if "compile" in phases else "data_loading" if "data" in phases else "host_code"), path


def plain_after_launch(tables: dict[str, list[Row]], before: Row | None, after: Row, since: int) -> str:
    is_node = after["graph_node_id"] and before is not None and before["graph_node_id"]
    if is_node and before["correlation_id"] == after["correlation_id"]:
        return "graph"
    launched = [row for row in tables["kernels"] if row["launch_start_ns"] is not None]
    ends = {row["kernel_id"]: row["end_ns"] for row in launched}
    for wait in tables["api_calls"]:
        place = wait["pid"], wait["stream"]
        later = (row for row in launched if (row["pid"], row["stream"]) == place)
        later = (row for row in later if row["launch_start_ns"] >= wait["start_ns"])
        first = min(later, key=itemgetter("launch_start_ns", "kernel_id"), default=None)
        if wait["kernel_id"] is not None and first is after and ends[wait["kernel_id"]] >= since:
            return "dependency"
    return "latency"


def as_counter(frame: pd.DataFrame) -> Counter[tuple[object, ...]]:
    rows = frame.astype(object).where(frame.notna(), None)
    columns = [*KEYS, "kind", "path", "window_ns"]
    return Counter({tuple(row[name] for name in columns): row["ns"] for row in rows.to_dict("records")})


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
@example(seed=1)
def test_every_row_is_what_a_look_at_every_instant_gives(seed: int) -> None:
    with TemporaryDirectory() as folder:
        dataset = tracekit.parse(report(Path(folder) / "report.sqlite", "\n".join(Program(seed).lines)))
        assert as_counter(budget.frame(dataset)) == plain_budget(dataset)
        if step_budget.summed(dataset).windows[1].any():
            unchanged = predict(dataset, Changes())
            assert (unchanged.step_after_ns, unchanged.after) == (unchanged.step_before_ns, unchanged.before)


def check_sums(dataset: Dataset) -> None:
    rows = budget.frame(dataset)
    keys = [*(["report"] if dataset.reports else []), *KEYS]
    windows = rows.groupby(keys, dropna=False)
    assert (windows.ns.sum() == windows.window_ns.first()).all()
    assert (rows.window_ns == windows.window_ns.transform("first")).all()
    assert (rows.ns > 0).all()
    devices = dataset.table("kernels", ["device"]).column("device").to_pylist()
    assert {*rows.device.dropna()} == {*devices} - {None}


@pytest.mark.traces
@pytest.mark.parametrize("path", [*REPORTS, *sorted((TRACES / "kineto").glob("*.json*"))], ids=lambda path: path.name)
def test_kinds_of_real_reports_add_up_to_their_windows(path: Path, tmp_path: Path) -> None:
    check_sums(tracekit.parse(path, tmp_path / "out"))


@pytest.mark.traces
@pytest.mark.parametrize("name", ["one_step_timesformer_h100", "flux_graph_replays", "with_stack_qwen_h100"])
def test_a_real_trace_of_one_step_is_as_long_as_the_step_and_its_work(name: str, tmp_path: Path) -> None:
    path = TRACES / "kineto" / f"{name}.json.gz"
    events = [one for one in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if one.get("ph") == "X"]
    (step,) = (one for one in events if one["name"].startswith("ProfilerStep") and one["cat"] == "user_annotation")
    start, end = step["ts"], step["ts"] + step["dur"]
    calls = {
        one["args"]["correlation"] for one in events if one["cat"].startswith("cuda_") and start <= one["ts"] < end
    }
    work = [one for one in events if one["cat"] in {"kernel", "gpu_memcpy", "gpu_memset"}]
    own = [one for one in work if one["args"]["correlation"] in calls]
    begins, ends = min(start, *(one["ts"] for one in own)), max(end, *(one["ts"] + one["dur"] for one in own))
    rows = budget.frame(tracekit.parse(path, tmp_path / "out", scheduler="here"))
    assert set(rows.window_ns) == {rows.ns.sum()}
    assert rows.ns.sum() == pytest.approx(1000 * (ends - begins), abs=1000)


def test_the_overview_is_of_the_mean_window(parsed: Parse) -> None:
    lines = "".join(
        f"""
        range   1 {at} {at + 90} ProfilerStep#{at}
        range   1 {at} {at + 80} {{'Module': 'top.layers.{at % 2}'}}
        launch  1 {at + 1} {at + 2} #{at + 1}
        kernel  1 {at + 10} {at + 10 + length} #{at + 1}
        launch  1 {at + 3} {at + 5} #{at + 2}
        kernel  1 {at + 50} {at + 60} #{at + 2}
        """
        for at, length in ((0, 40), (100, 20), (201, 20))
    )
    found = step_budget.overview(parsed(lines))
    assert found["kind"].tolist() == ["compute", "launch", "host_code", "latency"]
    assert found["step_ns"].tolist() == [36, 1, 38, 22]  # of (60 + 100 + 131) / 3
    assert found["share"].tolist() == [36 / 97, 1 / 97, 38 / 97, 22 / 97]
    assert found["leading"][0] == [("top.layers.*", 1.0)]


def test_the_heading_tells_that_devices_without_steps_share_a_mean(parsed: Parse) -> None:
    folder = parsed("launch 1 0 4 #1\nkernel:0+7 1 6 16 #1\nlaunch 1 5 8 #2\nkernel:1+7 1 10 40 #2").folder
    heading = command("show", "budget", folder).out.splitlines()[0]
    assert heading == "Wall clock of the recording (mean of 2 by process and device), 20 ns"


def test_the_terminal_has_a_line_for_each_kind(parsed: Parse) -> None:
    folder = str(parsed(DEPENDS).folder)
    lines = command("show", "budget", folder).out.splitlines()
    assert lines[0] == "Wall clock of the recording, 68 ns"
    assert {*lines[1]} == {"C", "W"}
    assert [line.split()[:4] for line in lines if "ns" in line][1:] == [
        ["C", "compute", "58", "ns"],
        ["W", "dependency", "10", "ns"],
    ]
    assert "dependency" in command("show", "budget", folder, "--by", "rank").out
    assert "compute" not in command("show", "budget", folder, "--sort", "share", "--min-share", "90%").out
    printed = json.loads(command("show", "budget", folder, "--json").out)
    assert [row["kind"] for row in printed] == ["compute", "dependency"]
