"""Many runs side by side: what changed for good, what is noise or clocks, and what the command says of it."""

import json
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tracekit
from tests.command import command, refusal
from tests.trace_lines import report
from tracekit.arrays.types import Flags, Floats, Ints
from tracekit.comparison.noise import changes, common_shifts, outliers, scales
from tracekit.comparison.trend import Trend, trend
from tracekit.dataset.opening import load

DAY_NS = 86_400 * 10**9


class Found(NamedTuple):
    """What is found in the values of runs drawn by chance."""

    places: list[tuple[int, int]]
    shifts: Floats
    differing: list[int]
    off: Flags


def found_in(values: Floats, machine: Ints | None = None) -> Found:
    machine = np.zeros(values.shape[1], np.int64) if machine is None else machine
    shifts, differing = common_shifts(values, machine)
    scale = scales(values - shifts, machine)
    off = outliers(values - shifts, scale, machine)
    changed = changes(np.where(off, np.nan, values - shifts), shifts, float(np.median(scale)), machine, differing)
    return Found([one[:2] for one in changed], shifts, differing, off)


def noise_of(seed: int, modules: int, runs: int, kind: str = "equal") -> Floats:
    """Logarithms of times of equal software, as they differ in practice; it knows nothing of the model of noise."""
    chance = np.random.default_rng(seed)
    if kind == "heavy tails":
        return 0.003 * chance.standard_t(3, (modules, runs))
    noise = chance.normal(0, 0.003, runs) + chance.normal(0, 0.0037, (modules, runs))
    if kind == "a third off in one run":
        noise[chance.permutation(modules)[: modules // 3], chance.integers(runs)] += 0.06
    if kind == "a third off in two runs":
        at = chance.integers(1, runs - 2)
        noise[chance.permutation(modules)[: modules // 3], at : at + 2] += 0.06
    if kind == "machines in turns":
        noise[:, 1::2] += chance.normal(0, 0.03, (modules, 1))
    if kind == "clocks that drop":
        noise[:, runs // 2 :] += 0.08 * chance.uniform(0, 1, (modules, 1))
    if kind == "clocks that wander":
        noise += np.cumsum(chance.normal(0, 0.004, runs)) * chance.uniform(0, 1, (modules, 1))
    if kind == "a module that varies more":
        noise[1] += chance.normal(0, 0.05, runs)
    return noise


def step_up(modules: int, runs: int, changed: Sequence[int], at: int, share: float) -> Floats:
    """A change of some modules from one run on."""
    change = np.zeros((modules, runs))
    change[list(changed), at:] = np.log1p(share)
    return change


KINDS = ["equal", "a third off in one run", "a third off in two runs", "heavy tails", "machines in turns"]
KINDS += ["clocks that wander", "clocks that drop", "a module that varies more"]
SIZES = [(12, 12), (60, 12), (12, 30)]


@pytest.mark.parametrize(
    ("kind", "size"), [*product(KINDS, SIZES), *product(["equal"], [(2, 12), (200, 12), (40, 30), (40, 4)])]
)
def test_no_kind_of_noise_raises_more_than_one_alarm_in_20_series(kind: str, size: tuple[int, int]) -> None:
    assert sum(bool(found_in(noise_of(seed, *size, kind)).places) for seed in range(20)) <= 1


@pytest.mark.parametrize("modules", [12, 200])
def test_changes_of_3_percent_from_run_8_of_12_on_are_found_and_nothing_else_is(modules: int) -> None:
    change = step_up(modules, 12, [3], 7, 0.03)
    found = [found_in(noise_of(seed, modules, 12) + change).places for seed in range(20)]
    assert sum((3, 7) in one for one in found) >= 19
    assert sum(any(row != 3 for row, _ in one) for one in found) <= 1


def test_runs_of_two_machines_are_compared_among_themselves() -> None:
    chance, machine = np.random.default_rng(1), np.arange(16) % 2
    values = chance.normal(0, 0.002, (30, 16))
    values[:, 1::2] += chance.normal(0.2, 0.05, (30, 1))
    values[3, 9:] += 0.03
    assert found_in(values, machine).places == [(3, 9)]
    assert found_in(values).places == []


def test_a_run_that_is_off_and_comes_back_hides_no_change_and_is_none() -> None:
    values = np.random.default_rng(1).normal(0, 0.002, (30, 12))
    values[:10, 4] += 0.06
    values[3, 7:] += 0.03
    found = found_in(values)
    assert found.places == [(3, 7)]
    assert np.argwhere(found.off).tolist() == [[row, 4] for row in range(10)]


def test_several_changes_of_a_module_are_found_if_they_stay() -> None:
    for then, places in ((0.03, [(3, 6), (3, 13)]), (1 / 1.03 - 1, [])):
        change = step_up(12, 20, [3], 6, 0.03) + step_up(12, 20, [3], 13, then)
        assert found_in(noise_of(1, 12, 20) + change).places == places


@pytest.mark.parametrize("modules", [2, 60])
def test_what_all_modules_share_is_the_clocks(modules: int) -> None:
    found = found_in(noise_of(1, modules, 12) + step_up(modules, 12, range(modules), 7, 0.05))
    assert not found.places
    assert found.shifts[7:].mean() - found.shifts[:7].mean() == pytest.approx(0.05, abs=0.006)


def test_a_change_of_many_modules_is_theirs_also_if_the_clocks_change() -> None:
    change = step_up(60, 12, range(60), 4, 0.05) + step_up(60, 12, range(20), 8, 0.03)
    found = found_in(noise_of(1, 60, 12) + change).places
    assert set(found) <= {(row, 8) for row in range(20)}
    assert len(found) >= 18


def test_if_modules_change_each_in_its_own_way_that_is_no_clock() -> None:
    change = np.zeros((30, 12))
    change[:, 6:] = np.random.default_rng(2).uniform(0.5, 2.5, 30)[:, None]
    found = found_in(noise_of(1, 30, 12) + change)
    assert found.differing == [6]
    assert found.places == [(row, 6) for row in range(30)]
    assert np.abs(found.shifts).max() < 0.02


def test_runs_in_which_a_module_does_nothing_are_skipped() -> None:
    values = np.log(np.random.default_rng(1).normal(1, 0.002, (12, 14)))
    values[3, 7:] += 0.03
    values[3, 5] = values[4, 2:] = np.nan
    assert found_in(values).places == [(3, 7)]


TRAIN = "{{'Step': {}, 'Name': 'ProfilerStep', 'Kind': 'train'}}"


def lines(times: Sequence[int], kind: str = TRAIN, module: str = "top.a", begin: int = 0) -> str:
    """A trace of steps in which ``top`` calls two modules, one of which takes so long."""
    rows, number = [], begin
    for at, time in enumerate(times):
        start = begin + at * 100_000
        rows += [f"range 1 {start} {start + 90_000} {kind.format(at)}"]
        rows.append(f"range 1 {start + 1} {start + 80_000} {{'Module': 'top'}}")
        for place, (name, spent) in enumerate(((module, time), ("top.b", 5_000))):
            called, number = start + 10 + 30_000 * place, number + 1
            rows.append(f"range 1 {called} {called + 29_000} {{'Module': '{name}'}}")
            rows.append(f"launch 1 {called + 1} {called + 2} #{number}")
            rows.append(f"kernel 1 {called + 3} {called + 3 + spent} #{number} gemm")
    return "\n".join(rows)


def began(folder: Path, start: int | None) -> None:
    """Corrects the start of a run, as people may by hand."""
    place = folder / "manifest.json"
    fields = json.loads(place.read_text())
    fields["source"]["started_utc_ns"] = start
    place.write_text(json.dumps(fields))


def series(folder: Path, *traces: str, start: bool = True) -> list[Path]:
    """Datasets of traces, a day apart."""
    runs = []
    for at, text in enumerate(traces):
        runs.append(tracekit.parse(report(folder / f"run{at:02}.sqlite", text)).folder)
        began(runs[-1], at * DAY_NS if start else None)
    return runs


def said(*args: object) -> tuple[int, str]:
    outcome = command("trend", *args)
    assert not outcome.err
    text = outcome.out.replace("\N{MICRO SIGN}", "u")
    return outcome.code, " ".join(text.split())


def read(*args: object) -> dict[str, Any]:
    outcome = command("trend", *args, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    answer: dict[str, Any] = json.loads(outcome.out)
    return answer


def named(found: Trend) -> list[tuple[str, str]]:
    return [(one.module.path, found.runs[one.run].name) for one in found.changes]


NO_STEPS = "launch 1 1 2 #1\nkernel 1 100 1100 #1 gemm"
SLOWER = [lines([1_000] * 3)] * 5 + [lines([1_030] * 3)] * 5


def test_a_change_is_told_of_the_module_that_changed_and_its_parent_is_what_that_sums(tmp_path: Path) -> None:
    answer = read(*series(tmp_path, *SLOWER))
    assert answer["changes"] == [
        {
            "module": "top.a",
            "step": "train",
            "run": "run05",
            "before_ns": 1_000,
            "after_ns": 1_030,
            "change": pytest.approx(0.03),
            "confidence": pytest.approx(1, abs=1e-4),
        }
    ]
    assert [(one["path"], one["median_ns"][4:6], one["own_median_ns"][4:6]) for one in answer["modules"]] == [
        ("top", [6_000, 6_030], [0, 0]),
        ("top.b", [5_000, 5_000], [5_000, 5_000]),
        ("top.a", [1_000, 1_030], [1_000, 1_030]),
    ]
    assert answer["runs"][1] == {"name": "run01", "started_utc_ns": DAY_NS, "factor": 1.0}


def test_the_command_shows_it_as_text_a_table_and_a_page(tmp_path: Path) -> None:
    hostile = [text.replace("top.b", "top.<script>alert(1)</script>") for text in SLOWER]
    runs, out = series(tmp_path, *hostile), tmp_path / "trend.html"
    code, text = said(tmp_path)
    assert code == 0
    assert "10 runs from 1970-01-01 00:00 to 1970-01-10 00:00." in text
    assert "top.a run05 1 us 1.03 us +3.0 %" in text
    assert "top.a 1.03 us 1.03 us ▁▁▁▁▁▃▃▃▃▃" in text
    assert said(*runs, "--path", "top.<script>alert(1)</script>")[1].count("run05") == 0
    assert command("trend", tmp_path, "--path", "top.c").code == 2
    heading, *rows = command("trend", tmp_path, "--csv").out.splitlines()
    assert heading == "path,step,run,started_utc_ns,median_ns,own_median_ns,change,confidence"
    assert len(rows) == 3 * 10
    [changed] = [row for row in rows if not row.endswith(",,")]
    assert changed.startswith(f"top.a,train,run05,{5 * DAY_NS},1030,1030,0.03")
    assert said(tmp_path, "-o", out)[0] == 0
    page = out.read_text("utf-8")
    assert page.count("<svg") == 3
    assert '<span class="slower">+3.0% from run05 on</span>' in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "already exists" in command("trend", tmp_path, "-o", out).err
    assert said(tmp_path, "-o", out, "-f")[0] == 0


def test_it_fails_only_if_a_module_of_some_time_became_slower_by_more(tmp_path: Path) -> None:
    runs = series(tmp_path, *SLOWER)
    code, text = said(*runs, "--fail-over", "2%")
    assert code == 3
    assert text.endswith("slower by 3.0%, more than 2.0%: top.a from run05 on")
    assert said(*runs, "--fail-over", "4%")[0] == 0
    assert said(*runs, "--fail-over", "2%", "--min-share", "50%")[0] == 0
    for at, run in enumerate(runs):
        began(run, (10 - at) * DAY_NS)
    assert said(*runs, "--fail-over", "0%")[0] == 0  # the other way round it became faster


def test_runs_are_in_the_order_of_their_start_and_else_as_given(tmp_path: Path) -> None:
    runs = series(tmp_path, *[lines([1_000] * 3)] * 4)
    for run, start in zip(runs, (5, 1, 3, 3), strict=True):
        began(run, start)
    assert [run.name for run in trend(runs[::-1]).runs] == ["run01", "run03", "run02", "run00"]
    began(runs[2], None)
    assert [run.name for run in trend(runs[::-1]).runs] == ["run03", "run02", "run01", "run00"]
    assert "run02: no start is recorded, so runs are in the order given." in said(*runs)[1]


def test_a_folder_stands_for_the_datasets_in_it_and_each_counts_once(tmp_path: Path) -> None:
    runs = series(tmp_path, *[lines([1_000] * 3)] * 2)
    shutil.copytree(runs[0], tmp_path / "more" / "run00.tracekit")
    names = [run.name for run in trend([tmp_path, runs[1], tmp_path / "more"]).runs]
    assert names == [str(runs[0]), str(tmp_path / "more" / "run00.tracekit"), "run01"]
    assert [run.name for run in trend([f"{tmp_path}/*1.tracekit"]).runs] == ["run01"]
    (tmp_path / "empty").mkdir()
    refusal(command("trend", tmp_path / "empty"), tmp_path / "empty")


def test_a_folder_at_a_url_is_listed(tmp_path: Path) -> None:
    upath = pytest.importorskip("upath")
    target = upath.UPath("memory://trend-runs")
    for run in series(tmp_path, *[lines([1_000] * 3)] * 2):
        for file in (file for file in run.rglob("*") if file.is_file()):
            copy = target / str(file.relative_to(tmp_path))
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    assert [run.name for run in trend(["memory://trend-runs"]).runs] == ["run00", "run01"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_of_few_runs_no_change_is_told_and_it_says_so(tmp_path: Path, count: int) -> None:
    runs = series(tmp_path, *[lines([1_000 * 2**at] * 3) for at in range(count)])
    found = trend(runs)
    assert not found.changes
    assert "noise between runs is learned from 4 or more" in found.notes[-1]
    assert [one.own_ns.tolist() for one in found.modules if one.path == "top.a"] == [
        [1_000 * 2**at for at in range(count)]
    ]


def test_modules_that_come_or_go_are_named_and_no_changes(tmp_path: Path) -> None:
    old, new = lines([1_000] * 3), lines([1_000] * 3, module="top.c")
    found = trend(series(tmp_path, *[old] * 4, *[new] * 5))
    assert not found.changes
    assert found.notes == ["Gone from run04 on: top.a.", "New from run04 on: top.c."]
    [gone] = [one["median_ns"] for one in read(tmp_path)["modules"] if one["path"] == "top.a"]
    assert gone == [1_000] * 4 + [None] * 5


def test_steps_are_compared_with_those_of_their_kind_and_size(tmp_path: Path) -> None:
    def mixed(small: int, large: int) -> str:
        step = "{{'Step': {0}, 'Kind': 'decode', 'BatchSize': 8}}"
        return f"{lines([small] * 3, step)}\n{lines([large] * 3, step.replace('8', '64'), begin=10**6)}"

    found = trend(series(tmp_path, *[mixed(1_000, 9_000)] * 4, *[mixed(1_000, 9_500)] * 4))
    assert len({one.step for one in found.modules}) == 2
    assert [(one.module.step, one.run) for one in found.changes] == [("decode of batch_size 64", 4)]


def test_a_run_without_steps_is_left_out_and_it_says_so(tmp_path: Path) -> None:
    found = trend(series(tmp_path, *[lines([1_000] * 3)] * 2, NO_STEPS, *[lines([1_000] * 3)] * 2))
    assert "run02: no work in steps, so left out." in found.notes
    assert all(np.isnan(one.subtree_ns[2]) and not np.isnan(one.subtree_ns[3]) for one in found.modules)


def test_totals_are_compared_where_no_run_has_steps(tmp_path: Path) -> None:
    plain = [NO_STEPS.replace("1100", f"{100 + time}") for time in [1_000] * 4 + [1_100] * 4]
    found = trend(series(tmp_path, *plain))
    assert "No run has steps: totals are compared." in found.notes
    assert named(found) == [("(no module)", "run04")]


def test_runs_without_any_work_have_no_trend_and_it_says_so(tmp_path: Path) -> None:
    found = trend(series(tmp_path, *["range 1 0 50 {'Module': 'top'}"] * 4))
    assert "No run has any work to compare." in found.notes
    assert (found.modules, found.changes) == ([], [])
    assert "median per step" not in said(tmp_path)[1]


def test_runs_on_a_cpu_have_a_trend_but_none_together_with_those_on_a_gpu(tmp_path: Path) -> None:
    def on_cpu(time: int) -> str:
        steps = (f"range 1 {at * 9_000} {at * 9_000 + 8_000} ProfilerStep#{at}\n" for at in range(3))
        calls = (
            f"range 1 {at * 9_000 + 1} {at * 9_000 + 7_000} {{'Module': 'top'}}\n"
            f"op 1 {at * 9_000 + 10} {at * 9_000 + 10 + time} aten::mm\n"
            for at in range(3)
        )
        return "".join([*steps, *calls])

    runs = series(tmp_path, *[on_cpu(1_000)] * 4, *[on_cpu(1_200)] * 4)
    assert named(trend(runs)) == [("top", "run04")]
    gpu = tracekit.parse(report(tmp_path / "gpu.sqlite", lines([1_000] * 3))).folder
    assert "was recorded on a GPU" in refusal(command("trend", *runs, gpu), gpu)


def test_medians_are_those_of_pandas(tmp_path: Path) -> None:
    runs = series(tmp_path, *[lines([900 + at, 1_000, 1_300 * at, 5]) for at in range(1, 4)])
    kernels = load(runs[1]).kernels(["module", "step_id", "dur_ns"]).astype({"module": str})
    modules = {one.path: one for one in trend(runs).modules}
    assert modules.keys() == {"top", "top.a", "top.b"}
    for path, module in modules.items():
        own = kernels[kernels["module"] == path].groupby("step_id")["dur_ns"].sum()
        subtree = kernels[kernels["module"].str.startswith(path)].groupby("step_id")["dur_ns"].sum()
        assert module.subtree_ns[1] == subtree.median()
        assert module.own_ns[1] == (own.median() if len(own) else 0)
