"""Numbers of different analyses, of the page and of exports add up to the same whole, and to each other."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tracekit
from tests.aggregates.test_phase_times import TRAINING
from tests.answers.test_plain_ranges import MARKED, training
from tests.command import ROOT
from tests.comparison.test_difference_phases import NUMBERED, trained
from tests.needs import TRACES
from tests.simulator.compiled import Features, program
from tests.trace_lines import report
from tracekit.aggregates.phase_times import COLUMNS, outside
from tracekit.aggregates.weighted_kernels import certainty_of_work
from tracekit.answers import (
    classes,
    coverage,
    fusions,
    kernels,
    module_kernels,
    modules,
    phases,
    processes,
    shapes,
    steps,
    tree,
)
from tracekit.dataset.opening import Dataset
from tracekit.exports import stacks
from tracekit.exports.base import Target
from tracekit.progress import no_progress
from tracekit.views.page.document import contents

#: Small real traces of every kind; in the first replays have no module, in the last all work is that of operators.
REAL = (
    "kineto/vllm_graph_decode_mi300x.json.gz",
    "kineto/with_stack_qwen_h100.json.gz",
    "nsys/fsdp_2rank_h100_v2026.2.sqlite",
    "nsys/graph_mode_a100_v2024.6.sqlite",
    "nvprof/pyprof_markers.sql",
)


def phases_add_up(frame: pd.DataFrame, whole: str) -> bool:
    return bool((frame[list(COLUMNS)].sum(axis=1) == frame[whole]).all())


def counted_as_sure(dataset: Dataset) -> dict[str, int]:
    """The time by how sure its modules are, as the coverage tells it, which tells nothing where all of it is exact."""
    time, rows = certainty_of_work(dataset), coverage.frame(dataset)
    rows = rows[rows.what == coverage.CERTAINTY]
    told = rows.groupby("cause").time_ns.sum().to_dict() or {"exact": time["exact"]}
    assert time == dict.fromkeys(time, 0) | told
    return time


def check(dataset: Dataset, folder: Path) -> None:
    work = dataset.kernels(["module", "step_id", "call_id", "dur_ns"])
    total, owned = int(work.dur_ns.sum()), int(work.dur_ns[work.module.notna()].sum())
    _check_tables(dataset, work, total, owned)
    _check_hierarchy(dataset, work, owned)
    _check_page(contents(dataset, (), no_progress, {}, None), total, owned)
    stacks.write(dataset, Target(str(folder / "stacks"), force=True), no_progress)
    lines = (folder / "stacks").read_text("utf-8").splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == total


def _check_tables(dataset: Dataset, work: pd.DataFrame, total: int, owned: int) -> None:
    rest, counted, by_process = pd.DataFrame(outside(dataset)), coverage.frame(dataset), processes.frame(dataset)
    assert int(rest.self_ns.sum()) == total - owned
    assert phases_add_up(rest, "self_ns")
    counted = counted[counted.what == "kernels"]
    assert (int(counted.time_ns.sum()), int(counted["count"].sum())) == (total, len(work))
    assert int(counted.time_ns[counted.known].sum()) == owned
    assert int(by_process.gpu_time_ns.sum()) == total
    assert float((by_process.known * by_process.gpu_time_ns).sum()) == pytest.approx(owned)
    for frame in (kernels.frame(dataset), module_kernels.frame(dataset), module_kernels.frame(dataset, phases=True)):
        assert int(frame.gpu_time_ns.sum()) == total
    sure = counted_as_sure(dataset)
    assert sum(sure.values()) == owned
    assert int(fusions.frame(dataset).gpu_time_ns.sum()) == sure["weighted"]
    in_steps = int(work.dur_ns[work.step_id.notna()].sum())
    assert int(steps.frame(dataset).gpu_time_ns.sum()) == int(phases.frame(dataset).gpu_time_ns.sum()) == in_steps


def _check_hierarchy(dataset: Dataset, work: pd.DataFrame, owned: int) -> None:
    """Self times add up to what has a module, and subtrees to their parts."""
    by_module, lines, types = modules.frame(dataset), tree.frame(dataset), classes.frame(dataset)
    calls = dataset.manifest["rows"]["calls"]
    for frame in (by_module, lines, types):
        assert (int(frame.self_ns.sum()), int(frame.calls.sum())) == (owned, calls)
        assert phases_add_up(frame, "subtree_ns")
    assert int(types.modules.sum()) == int(lines.modules.sum()) == len(by_module)
    tops = by_module[by_module.depth == 0]
    assert int(tops.subtree_ns.sum()) == int(lines[lines.depth == 0].subtree_ns.sum()) == owned
    in_steps = work.dur_ns[work.module.notna() & work.step_id.notna()].sum()
    assert float((tops.steps * tops.step_mean_ns.fillna(0)).sum()) == pytest.approx(float(in_steps))
    called = shapes.frame(dataset)
    assert phases_add_up(called, "gpu_time_ns")
    outermost = dataset.calls(["parent_call_id", "gpu_time_ns", "gpu_self_time_ns"])
    in_calls = int(work.dur_ns[work.call_id.notna()].sum())
    assert int(outermost.gpu_self_time_ns.sum()) == in_calls
    assert int(outermost.gpu_time_ns[outermost.parent_call_id.isna()].sum()) == in_calls
    for path in by_module.path.head(3):
        part = dataset.subtree(path)
        whole = int(by_module.subtree_ns[by_module.path == path].iloc[0])
        assert int(modules.frame(part).self_ns.sum()) == int(tree.frame(part).self_ns.sum()) == whole


def _check_page(data: dict[str, Any], total: int, owned: int) -> None:
    assert data["about"]["total_ns"] == total
    assert sum(data["phases"]["total_ns"]) in (total, 0)
    for name in ("modules", "lines"):
        nodes = data["nodes"][name]
        assert sum(nodes["self_ns"]) + sum(nodes["left_out_ns"]) == owned
    shown = data["kernels"]
    assert sum(shown["gpu_time_ns"]) + shown["left_out_ns"] == total
    for name in ("of_modules", "of_lines"):
        assert sum(shown[name]["gpu_time_ns"]) == sum(shown["gpu_time_ns"])
    assert sum(row["time_ns"] for row in data["coverage"]["kernels"]) == total
    for drawing in data["timeline"]["drawn"]:
        assert drawing["left_out"] or drawing["step"] is None or sum(drawing["pieces"]["ns"]) <= total


@pytest.mark.parametrize(
    ("lines", "by"),
    [(TRAINING, "auto"), (TRAINING, "ranges"), (training(), "auto"), (MARKED, "ranges")],
    ids=["training", "training by ranges", "ranges", "modules and ranges"],
)
def test_sums_of_small_programs(tmp_path: Path, lines: str, by: str) -> None:
    check(tracekit.parse(report(tmp_path / "a.sqlite", lines), rows=by), tmp_path)


def test_sums_of_backward_work_without_a_call(tmp_path: Path) -> None:
    dataset = trained(tmp_path, "a", 100, 200, NUMBERED)
    assert (dataset.kernels(["method"]).method == "backward").any()
    check(dataset, tmp_path)


_COMPILED = Features(backward=True, graphs=True), Features(nested=True, copies=True, lost_launches=True)


@pytest.mark.parametrize("number", range(6))
def test_sums_of_compiled_graphs(tmp_path: Path, number: int) -> None:
    path = report(tmp_path / "a.sqlite", "\n".join(program(number, _COMPILED[number % 2]).lines))
    dataset = tracekit.parse(path)
    check(dataset, tmp_path)
    for module in modules.frame(dataset).path.head(4):
        part = dataset.subtree(module)
        shared = module_kernels.frame(part).gpu_time_ns.sum()
        assert 0 <= fusions.frame(part).gpu_time_ns.sum() <= shared


def test_sums_of_several_reports(tmp_path: Path) -> None:
    paths = [report(tmp_path / f"{name}.sqlite", lines) for name, lines in (("a", TRAINING), ("b", training()))]
    check(tracekit.parse([*paths, ROOT / "data" / "llama_graphs.sqlite"], tmp_path / "all"), tmp_path)


@pytest.mark.traces
@pytest.mark.parametrize("name", REAL)
def test_sums_of_real_traces(tmp_path: Path, name: str) -> None:
    check(tracekit.parse(TRACES / name, tmp_path / "a"), tmp_path)
