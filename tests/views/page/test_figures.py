"""Every figure on the page is the one that pandas finds in the tables, and figures add up."""

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pytest

import tracekit
from tests.attribution.test_compiled import OTHER, kernel_map, run
from tests.command import ROOT
from tests.joined import joined_here
from tests.needs import TRACES
from tests.parsed_programs import of_plans
from tests.simulator import Plan, simulate, write_report
from tests.simulator.ranks import Job, reports, simulated
from tests.simulator.strategies import capturing_plans, plans
from tests.trace_lines import report
from tests.views.page.pages import Tables, nodes, pieces, reach, shown
from tracekit.aggregates.phase_times import outside
from tracekit.answers import kernels, launches, module_kernels, modules, stragglers
from tracekit.comparison import difference
from tracekit.dataset.opening import Dataset
from tracekit.views.formatting import records
from tracekit.views.page import limits
from tracekit.views.page.document import page

SMALL = {"MODULES": 3, "TYPES": 2, "KERNELS": 2, "PAIRS": 4, "PIECES": 5, "STEPS": 3, "NAMES": 1, "STREAMS": 1}
SMALL |= {"BARS": 2, "ROWS": 2, "SHAPES": 3, "HISTOGRAMS": 2, "BINS": 3, "RANK_STEPS": 2}
#: What the page shows of a module as the question ``modules`` answers it, and the columns of pairs.
FIGURES = ("calls", "kernels", "self_ns", "subtree_ns", "busy_ns", "steps", "step_mean_ns", "step_median_ns")
PAIR = ("node", "kernel", "kernels", "gpu_time_ns")


def check(dataset: Dataset) -> None:
    data, tables = shown(dataset), Tables(dataset)
    assert data["about"]["total_ns"] == tables.kernels["dur_ns"].sum()
    check_coverage(data, dataset)
    check_budget(data["budget"])
    check_modules(data, dataset)
    for name in ("modules", "lines"):
        check_sums(data["nodes"][name], data["phases"]["names"])
        check_pairs(data, name, dataset)
    check_lines(data)
    check_kernels(data, dataset)
    check_phases(data, dataset, tables)
    check_timeline(data, tables)
    check_bars(data, tables)
    check_durations(data, tables)
    check_ranks(data["ranks"])


def check_ranks(data: dict[str, Any]) -> None:
    """What a rank does in a step adds up to the step."""
    for row, own in zip(data["rows"], data["own"], strict=True):
        assert row["own_ns"] + row["collectives_ns"] == pytest.approx(row["step_ns"])
        assert row["work_ns"] + row["idle_ns"] == pytest.approx(row["own_ns"])
        assert len(own) <= min(row["steps"], limits.RANK_STEPS)
        if len(own) == row["steps"]:
            assert sum(own) == pytest.approx(row["own_ns"] * row["steps"])


def check_durations(data: dict[str, Any], tables: Tables) -> None:
    """Histograms hold every run of a kernel and every call of a module that took time, between the edges."""
    listed, paths = data["kernels"], [node.path for node in nodes(data["nodes"]["modules"])]
    work, calls = tables.kernels, tables.calls[tables.calls["phase"] != "capture"]
    for row in listed["durations"]["kernels"]:
        name, kind = listed["name"][row["of"]], listed["kind"][row["of"]]
        same = work["named"].isna() if name is None else work["named"] == name
        check_histogram(row, work[same & (work["kind"] == kind)]["dur_ns"])
    for row in listed["durations"]["modules"]:
        check_histogram(row, calls[calls["module"] == paths[row["of"]]]["gpu_time_ns"])


def check_histogram(row: dict[str, Any], times: pd.Series) -> None:
    times = times[times > 0]
    assert sum(row["counts"]) == len(times)
    assert len(row["counts"]) <= limits.BINS
    assert row["from_ns"] <= times.min() + 1
    assert times.max() <= row["until_ns"] + 1


def check_budget(data: dict[str, Any]) -> None:
    assert data["whole_ns"] == sum(row["step_ns"] for row in data["rows"])
    work = ("compute", "communication", "communication_wait", "copy")
    assert data["idle_ns"] == data["whole_ns"] - sum(row["step_ns"] for row in data["rows"] if row["kind"] in work)
    for name in ("share", "total_share"):
        assert sum(row[name] for row in data["rows"]) == pytest.approx(1 if data["rows"] else 0)


def check_coverage(data: dict[str, Any], dataset: Dataset) -> None:
    work = dataset.coverage().query("what == 'kernels'").groupby("cause")[["count", "time_ns"]].sum()
    by_cause = {row["cause"]: (row["count"], row["time_ns"]) for row in data["coverage"]["kernels"]}
    assert by_cause == {row.Index: tuple(row)[1:] for row in work.itertuples()}


def check_modules(data: dict[str, Any], dataset: Dataset) -> None:
    """Figures of a module are those that the questions tell of it."""
    names = (*FIGURES, *(f"{phase}_ns" for phase in data["phases"]["names"]))
    rows = {row["path"]: row for row in records(modules.frame(dataset))}
    launched = {row["path"]: row for row in records(launches.frame(dataset))}
    for node in nodes(data["nodes"]["modules"]):
        expected = {name: rows[node.path][name] for name in names}
        expected |= {name: launched[node.path][f"subtree_{name}"] for name in ("launches", "blocked_ns", "waiting_ns")}
        assert {name: node.figures[name] for name in expected} == pytest.approx(expected)


def check_sums(columns: dict[str, list[Any]], phases: list[str]) -> None:
    tree = nodes(columns)
    for node in tree:
        below = sum(tree[child].figures["subtree_ns"] for child in node.children)
        parts = node.figures["self_ns"] + below + node.figures["left_out_ns"]
        assert node.figures["subtree_ns"] == parts
        assert node.figures["left_out_ns"] >= 0
        assert node.figures["left_out"] or not node.figures["left_out_ns"]
        if phases:
            assert node.figures["subtree_ns"] == sum(node.figures[f"{name}_ns"] for name in phases)
            assert node.figures["self_ns"] == sum(node.figures[f"self_{name}_ns"] for name in phases)


def check_lines(data: dict[str, Any]) -> None:
    listed = data["nodes"]["modules"]
    for at, line in enumerate(nodes(data["nodes"]["lines"])):
        inside = [row for row, line in enumerate(listed["line"]) if line == at]
        assert len(inside) == line.figures["modules"]
        for name in ("calls", "kernels", "self_ns", "subtree_ns", "launch_bound_ns"):
            assert line.figures[name] == sum(listed[name][row] for row in inside)


def check_pairs(data: dict[str, Any], name: str, dataset: Dataset) -> None:
    """Kernels of every subtree are those that its modules ran."""
    pairs, listed, work = data["kernels"][f"of_{name}"], data["kernels"], module_kernels.frame(dataset)
    kernels, modules_shown = list(zip(listed["name"], listed["kind"], strict=True)), nodes(data["nodes"]["modules"])
    for node, below in zip(nodes(data["nodes"][name]), reach(data["nodes"][name]), strict=True):
        sums: dict[tuple[str, str], list[int]] = {}
        for owner, kernel, *figures in zip(*(pairs[key] for key in PAIR), strict=True):
            if owner in below:
                sums[kernels[kernel]] = [*map(sum, zip(sums.get(kernels[kernel], (0, 0)), figures, strict=True))]
        if name == "modules":
            inside = work["path"].map(lambda path, node=node: f"{path}.".startswith(f"{node.path}."))
        else:
            inside = work["path"].isin([one.path for one in modules_shown if one.figures["line"] in below])
        groups = work[inside & work["path"].notna()].groupby(["name", "kind"], dropna=False)[list(PAIR[2:])].sum()
        named = {(None if key[0] != key[0] else key[0], key[1]): list(row) for key, *row in groups.itertuples()}
        assert sums == {key: figures for key, figures in named.items() if key in kernels}


def check_kernels(data: dict[str, Any], dataset: Dataset) -> None:
    rows, listed = records(kernels.frame(dataset)), data["kernels"]
    shown_ = rows[: len(listed["name"])]
    for name in ("name", "kind", "kernels", "gpu_time_ns", "mean_ns", "median_ns", "max_ns"):
        assert listed[name] == pytest.approx([row[name] for row in shown_])
    assert listed["left_out"] == len(rows) - len(shown_)
    assert listed["left_out_ns"] == sum(row["gpu_time_ns"] for row in rows[len(shown_) :])


def check_phases(data: dict[str, Any], dataset: Dataset, tables: Tables) -> None:
    """Times by phase are those of the kernels, and add up to all of the work; without training there are none."""
    names, pairs, lost = data["phases"]["names"], data["kernels"]["of_modules"], outside(dataset)
    phase = tables.kernels["phase"].astype(object)
    assert bool(names) == phase.isin(["backward", "recompute", "optimizer"]).any()
    times_of = tables.kernels.groupby(phase.where(phase.isin(names), "other"))["dur_ns"].sum()
    assert data["phases"]["total_ns"] == [times_of.get(name, 0) for name in names]
    for at, name in enumerate(names):
        own = (
            sum(data["nodes"]["modules"][f"self_{name}_ns"]) if not sum(data["nodes"]["modules"]["left_out"]) else None
        )
        by_cause = {row["cause"]: row[f"{name}_ns"] for row in data["phases"]["causes"]}
        assert by_cause == dict(zip(lost["cause"], lost[f"{name}_ns"], strict=True))
        assert own in (None, data["phases"]["total_ns"][at] - sum(by_cause.values()))
        if not data["kernels"]["left_out"]:
            times = zip(pairs["phase"], pairs["gpu_time_ns"], strict=True)
            assert sum(time for phase, time in times if phase == at) == data["phases"]["total_ns"][at]


def check_timeline(data: dict[str, Any], tables: Tables) -> None:
    for drawn in data["timeline"]["drawn"]:
        step, work = drawn["step"], tables.kernels
        if step is not None and step["why"] == "all ranks":
            check_together(drawn, tables)
            continue
        if "report" in work.columns:
            work = work[work["report"] == drawn["report"]]
        if step is not None:
            work = work[work["step_id"] == step["step_id"]]
            assert step["gpu_time_ns"] == work["dur_ns"].sum()
        assert drawn["work"] == len(work)
        assert drawn["start_ns"] >= work["start_ns"].min() or "host" in drawn
        if "host" in drawn:
            check_host(drawn, tables, work)
        drawn_pieces = list(pieces(drawn))
        assert len(drawn_pieces) <= limits.PIECES + len(drawn["streams"])
        if drawn["left_out"]:
            continue
        assert sum(piece["count"] for piece in drawn_pieces) == len(work)
        assert sum(piece["ns"] for piece in drawn_pieces) == work["dur_ns"].sum()
        if len(drawn_pieces) == len(work):
            times = [(drawn["start_ns"] + piece["start_ns"], piece["length_ns"]) for piece in drawn_pieces]
            expected = zip(work["start_ns"], work["end_ns"] - work["start_ns"], strict=True)
            assert sorted(times) == sorted(expected)


def check_together(drawn: dict[str, Any], tables: Tables) -> None:
    """A drawing of all ranks has the work of all steps with the index of its step."""
    same = tables.steps[tables.steps["index"] == drawn["step"]["index"]]
    work = tables.kernels[tables.kernels["step_id"].isin(same["step_id"])]
    assert drawn["work"] <= len(work)
    if not drawn["left_out"]:
        assert sum(drawn["pieces"]["count"]) == drawn["work"]
    assert min(drawn["pieces"]["start_ns"]) == 0


def check_host(drawn: dict[str, Any], tables: Tables, work: pd.DataFrame) -> None:
    """Calls on the host are those of the tables, and each kernel's arrow comes from its launch."""
    host, begin = drawn["host"], drawn["start_ns"]
    calls = tables.calls[tables.calls["step_id"] == drawn["step"]["step_id"]]
    of_modules = sum(name == -2 for name in host["name"])
    assert of_modules <= len(calls)
    assert of_modules == len(calls) or len(host["name"]) == limits.HOST_CALLS
    assert drawn["calls"] == len(host["name"]) or len(host["name"]) == limits.HOST_CALLS < drawn["calls"]
    launch = drawn["pieces"].get("launch")
    if launch is None:
        return
    started = zip(work["launch_start_ns"], work["start_ns"], work["end_ns"] - work["start_ns"], strict=True)
    expected = sorted((None if pd.isna(at) else int(at), start, length) for at, start, length in started)
    columns = zip(launch, drawn["pieces"]["start_ns"], drawn["pieces"]["length_ns"], strict=True)
    of_launch = [begin + start for start in host["start_ns"]]
    found = [(of_launch[at] if at >= 0 else None, begin + start, length) for at, start, length in columns]
    if len(host["name"]) < limits.HOST_CALLS:
        assert sorted(found, key=str) == sorted(expected, key=str)


def check_bars(data: dict[str, Any], tables: Tables) -> None:
    steps, bars = data["steps"], data["steps"]["bars"]
    assert steps["count"] == len(tables.steps)
    by_step = tables.kernels.groupby("step_id")["dur_ns"].sum()
    times = [int(by_step.get(step, 0)) for step in tables.steps["step_id"]]
    assert [times[row] for row in bars["step"]] == bars["gpu_time_ns"]
    assert all(time > 0 for time, work in zip(bars["time_ns"], bars["gpu_time_ns"], strict=True) if work)
    for slow in steps["slow"]:
        assert slow["time_ns"] > slow["median_ns"]
        assert slow["gpu_time_ns"] == times[slow["row"]]


@of_plans(plans() | plans(faulty=True) | capturing_plans(), 12, chance=6)
def test_figures_of_simulated_programs_are_those_of_the_tables(plan: Plan) -> None:
    with TemporaryDirectory() as folder:
        source = write_report(simulate(plan), Path(folder) / "report.sqlite")
        dataset = tracekit.parse(source)
        check(dataset)
        with pytest.MonkeyPatch.context() as patch:
            for name, most in SMALL.items():
                patch.setattr(limits, name, most)
            check_cut(dataset)


def check_cut(dataset: Dataset) -> None:
    data, tables = shown(dataset), Tables(dataset)
    check_modules(data, dataset)
    for name in ("modules", "lines"):
        columns = data["nodes"][name]
        assert len(columns["name"]) <= limits.MODULES
        check_sums(columns, data["phases"]["names"])
        assert len(data["kernels"][f"of_{name}"]["node"]) <= limits.PAIRS
    check_pairs(data, "modules", dataset)
    check_kernels(data, dataset)
    check_phases(data, dataset, tables)
    check_timeline(data, tables)
    check_bars(data, tables)


@pytest.mark.traces
@pytest.mark.parametrize("name", ["fsdp_2rank_h100_v2026.2", "graph_mode_a100_v2024.6", "no_nvtx_v2026.1"])
def test_figures_of_real_traces_are_those_of_the_tables(name: str, tmp_path: Path) -> None:
    check(tracekit.parse(TRACES / "nsys" / f"{name}.sqlite", tmp_path / "out"))


def test_figures_of_a_training_are_those_of_the_tables(training: Dataset) -> None:
    check(training)
    assert shown(training)["phases"]["names"] == ["forward", "backward", "recompute", "optimizer", "other"]


def test_what_is_compared_is_what_diff_says(llama: Dataset, tiny: Dataset) -> None:
    changes = shown(tiny, llama)["changes"]
    rows = difference.frame(llama, tiny)
    changed = rows[(rows["what"] != "step") & (rows["status"] != "same")]
    assert changes["tally"] == changed["status"].value_counts().to_dict()
    assert sum(line["copies"] for line in changes["lines"]) == len(changed)
    assert sum(line["change_ns"] for line in changes["lines"]) == changed["change_ns"].sum()
    steps = rows[rows["what"] == "step"]
    assert [(step["path"], step["before_ns"], step["after_ns"]) for step in changes["steps"]] == [
        (row.path, *(None if time != time else time for time in (row.before_ns, row.after_ns)))
        for row in steps.itertuples()
    ]


def test_each_module_and_layer_has_its_change_and_both_runs_their_budget(tmp_path: Path) -> None:
    before, after = (
        tracekit.parse(ROOT / "data" / f"{name}.sqlite", tmp_path / name)
        for name in ("llama_graphs", "llama_graphs_changed")
    )
    data = shown(after, before)
    changes = data["changes"]
    rows = difference.frame(before, after)
    paths = [node.path for node in nodes(data["nodes"]["modules"])]
    changed = rows[(rows["what"] == "module") & rows["status"].isin(["slower", "faster"])]
    expected = changed.groupby("path")["change_ns"].sum().to_dict()
    found = {path: ns for path, ns in zip(paths, changes["modules"]["change_ns"], strict=True) if ns}
    assert found == pytest.approx(expected)
    assert changes["layers"]["names"] == ["0", "1", "2", "3"]
    for row in changes["layers"]["rows"]:
        for number, times in zip(changes["layers"]["names"], row["layers"], strict=True):
            assert times[1] == pytest.approx(expected.get(row["path"].replace("*", number), 0))
    assert changes["budget"] == shown(before)["budget"]


@pytest.mark.traces
def test_memory_is_told_by_module_and_over_a_step_as_the_events_of_the_trace_have_it(tmp_path: Path) -> None:
    trace = TRACES / "kineto" / "with_stack_qwen_h100.json.gz"
    dataset = tracekit.parse(trace, tmp_path / "out")
    data = shown(dataset)
    calls = dataset.table("calls", ["module", "allocated_bytes", "retained_bytes", "parent_call_id"]).to_pandas()
    paths = [node.path for node in nodes(data["nodes"]["modules"])]
    expected = calls.groupby("module", observed=True)[["allocated_bytes", "retained_bytes"]].sum()
    for row in data["memory"]["rows"]:
        times = expected.loc[paths[row["module"]]]
        assert (row["allocated_bytes"], row["retained_bytes"]) == tuple(times)
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    memory = [row for row in events if row["name"] == "[memory]" and row["args"]["Device Type"] == 1]
    memory.sort(key=lambda row: row["ts"])
    before = memory[0]["args"]["Total Allocated"] - memory[0]["args"]["Bytes"]
    held = data["memory"]["held"]
    assert max(held["bytes"]) == max(row["args"]["Total Allocated"] for row in memory) - before
    assert len(held["bytes"]) == limits.BARS < len(memory)


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("ranks")
    run = simulated(Job(seed=1, ranks=4, steps=12, slow={2: 300_000}))
    return joined_here(reports(run, folder), folder / "run.tracekit")


def test_ranks_are_told_apart_and_so_is_for_whom_the_others_waited(four_ranks: Dataset) -> None:
    data = shown(four_ranks)["ranks"]
    assert [row["slow"] for row in data["rows"]] == [True, False, False, False]
    check_ranks(data)
    waits = stragglers.frame(four_ranks)
    for row in data["rows"]:
        expected = waits[(waits["rank"] == row["rank"]).fillna(False)]["waited_ns"].sum()
        assert row["others_waited_ns"] * row["steps"] == pytest.approx(expected)
    assert data["rows"][0]["rank"] == 2
    assert data["rows"][0] == max(data["rows"], key=lambda row: row["others_waited_ns"])


def test_a_step_of_all_ranks_is_drawn_on_one_clock_with_its_collectives_tied(four_ranks: Dataset) -> None:
    data = shown(four_ranks)
    check_timeline(data, Tables(four_ranks))
    drawn = data["timeline"]["drawn"][0]
    assert drawn["step"]["why"] == "all ranks"
    assert {stream["report"] for stream in drawn["streams"]} == {f"rank{rank}" for rank in range(4)}
    ends: dict[int, list[int]] = {}
    for piece in pieces(drawn):
        if piece["meeting"] >= 0:
            ends.setdefault(piece["meeting"], []).append(piece["start_ns"] + piece["length_ns"])
    assert len(ends) > 5
    # All ranks of a collective end together, but for what their clocks and records differ by.
    assert max(max(times) - min(times) for times in ends.values()) < 20_000


def test_of_ranks_the_slowest_the_middle_one_and_the_fastest_are_drawn_first_and_in_full(
    four_ranks: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PIECES_OF_OTHERS", 40)
    data = shown(four_ranks)
    check_timeline(data, Tables(four_ranks))
    ranks = [row["report"] for row in data["ranks"]["rows"]]
    telling = ["rank2", ranks[2], ranks[3]]
    drawn = data["timeline"]["drawn"][1:]
    for step in (True, False):
        assert [one["report"] for one in drawn if bool(one["step"]) == step][:3] == telling
    for one in drawn:
        if one["step"] is None:
            assert (len(one["pieces"]["ns"]) == one["work"]) == (one["report"] in telling)
    others = [one for one in drawn if one["report"] not in telling]
    assert sum(len(one["pieces"]["ns"]) for one in others) <= 40 + sum(len(one["streams"]) for one in others)


def test_without_a_common_clock_ranks_are_not_drawn_together(tmp_path: Path) -> None:
    lines = "range 1 0 90 step 1\nlaunch 1 5 8 #1\nkernel 1 10 60 #1 gemm\n"
    sources = [report(tmp_path / f"{name}.sqlite", lines) for name in "ab"]
    drawn = shown(joined_here(sources, tmp_path / "run.tracekit"))["timeline"]["drawn"]
    assert {drawing["step"] and drawing["step"]["why"] for drawing in drawn} == {"median", None}


def test_slow_steps_are_those_whose_wall_clock_is_long_though_their_work_is_not(tmp_path: Path) -> None:
    starts = [0, 100, 200, 300, 700, 800]
    lines = [
        f"range 1 {at} {at + 90} step {number}\nlaunch 1 {at + 5} {at + 8} #{number + 1}\n"
        f"kernel 1 {at + 10} {at + 60} #{number + 1} gemm"
        for number, at in enumerate(starts)
    ]
    page = shown(tracekit.parse(report(tmp_path / "slow.sqlite", "\n".join(lines))))
    drawn = [drawing["step"] for drawing in page["timeline"]["drawn"] if drawing["step"]]
    assert [(step["why"], step["row"]) for step in drawn] == [("median", 2), ("slowest", 4), ("first", 0)]
    data = page["steps"]
    assert data["bars"]["time_ns"] == [60, 100, 100, 100, 400, 130]
    assert data["bars"]["gpu_time_ns"] == [50] * 6
    slow = [(step["row"], step["time_ns"], step["median_ns"]) for step in data["slow"]]
    assert slow == [(4, 400, 100), (5, 130, 100)]


def test_a_page_also_of_nothing_lets_nothing_be_loaded_and_no_other_script_run(tmp_path: Path) -> None:
    dataset = tracekit.parse(report(tmp_path / "report.sqlite", ""), tmp_path / "out")
    data = shown(dataset)
    assert data["about"]["total_ns"] == 0
    assert data["coverage"]["kernels"] == data["timeline"]["drawn"] == []
    assert data["nodes"]["modules"]["name"] == data["kernels"]["name"] == []
    text = page(dataset).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    assert directives["default-src"] == directives["base-uri"] == directives["form-action"] == "'none'"
    for element in ("script", "style"):
        (body,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert directives[f"{element}-src"] == f"'sha256-{digest}'"
    assert not re.findall(r"""(?:src|href)=["'](?!#)|@import|url\(|https?://(?!www\.w3\.org/2000/svg)""", text)


#: Two layers alike, of which one's end is fused with the next one's norm; and with what stands in another root.
FUSED = f"""
    range 1  0  90 {{'Module': 'top'}}
    range 1  1   1 {
    kernel_map(
        "[['triton_a', 1, [[0, 1]]], ['triton_b', 1, [[1, 3], [2, 1]]], ['triton_b', 1, [[2, 1], [3, 1], [4, 2]]]]",
        "0.norm 0.act 1.norm 1.act -",
    )
}
    range 1  2  80 {run("forward")}
    range 1 81  81 {kernel_map("[['triton_b', 1, [[0, 1], [1, 1]]]]", "1.act 0.act", map_id=OTHER)}
    range 1 82  89 {run("backward", map_id=OTHER)}
    launch 1 10 11 #1
    launch 1 20 21 #2
    launch 1 30 31 #3
    launch 1 84 85 #4
    kernel 1 100 108 #1 triton_a
    kernel 1 110 118 #2 triton_b
    kernel 1 120 136 #3 triton_b
    kernel 1 140 144 #4 triton_b
"""


@pytest.mark.parametrize("most", [5_000, 2])
def test_a_fused_kernel_is_one_of_every_subtree_that_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(limits, "MODULES", most)
    dataset = tracekit.parse(report(tmp_path / "fused.sqlite", FUSED), tmp_path / "fused.tracekit")
    data, paths = shown(dataset), dataset.table("modules", ["path"]).column("path").to_pylist()
    of_modules, of_lines = (nodes(data["nodes"][name]) for name in ("modules", "lines"))
    assert counted(data, "of_modules", None) == counted(data, "of_lines", None) == serving(dataset, paths)
    for node, below in zip(of_modules, reach(data["nodes"]["modules"]), strict=True):
        inside = [path for path in paths if f"{path}.".startswith(f"{node.path}.")]
        assert counted(data, "of_modules", below) == serving(dataset, inside)
    for below in reach(data["nodes"]["lines"]) if most > len(paths) else ():
        inside = [node.path for node in of_modules if node.figures["line"] in below]
        assert counted(data, "of_lines", below) == serving(dataset, inside)
    assert len(of_lines) < len(paths)


def counted(data: dict[str, Any], name: str, below: set[int] | None) -> dict[tuple[str, str], int]:
    sums: dict[tuple[str, str], int] = {}
    listed, pairs = data["kernels"], data["kernels"][name]
    for at, owner in enumerate(pairs["node"]):
        if below is None or owner in below:
            key = listed["name"][pairs["kernel"][at]], data["phases"]["names"][pairs["phase"][at]]
            sums[key] = sums.get(key, 0) + pairs["kernels"][at]
    return sums


def serving(dataset: Dataset, paths: list[str]) -> dict[tuple[str, str], int]:
    modules = dataset.table("modules", ["module_id", "path"]).to_pandas()
    served = dataset.table("kernel_modules").to_pandas().merge(modules[modules["path"].isin(paths)])
    work = dataset.table("kernels", ["kernel_id", "name", "phase"]).to_pandas().astype({"name": str, "phase": str})
    groups = served.merge(work, on="kernel_id").groupby(["name", "phase"])
    return dict(groups["kernel_id"].nunique())
