"""Two datasets compared: what changed beside the traces, what is noise, and what the command says of it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracekit
from tests.benchmarks.difference_noise import rates
from tests.benchmarks.serving_report import Program, write_program
from tests.command import command
from tests.golden import expect_frame
from tests.trace_lines import report
from tests.views.printing import printed
from tracekit.aggregates.subtrees import hierarchy
from tracekit.comparison import difference
from tracekit.comparison.difference import compare
from tracekit.comparison.step_times import step_times
from tracekit.dataset.opening import Dataset
from tracekit.views import difference as view


def steps(*bodies: str, module: str = "top", apart: int = 10_000) -> str:
    """A trace of steps in which ``top`` and ``top.a`` are called; each body is kernels of ``top.a``: name and time."""
    lines, number = [], 0
    for at, body in enumerate(bodies):
        start = at * apart
        lines.append(f"range 1 {start} {start + 9_000} {{'Step': {at}, 'Name': 'ProfilerStep', 'Kind': 'train'}}")
        lines.append(f"range 1 {start + 1} {start + 8_000} {{'Module': '{module}'}}")
        lines.append(f"range 1 {start + 2} {start + 7_000} {{'Module': '{module}.a', 'Inputs': [[2]]}}")
        clock = start + 100
        for work in body.split(","):
            name, time = work.split()
            number += 1
            lines.append(f"launch 1 {clock} {clock + 1} #{number}")
            lines.append(f"kernel 1 {clock + 10} {clock + 10 + int(time)} #{number} {name}")
            clock += 20 + int(time)
    return "\n".join(lines)


FAST, SLOW = (steps(*[f"gemm {time}"] * 5) for time in (100, 150))


def parsed(folder: Path, name: str, lines: str) -> Dataset:
    return tracekit.parse(report(folder / f"{name}.sqlite", lines))


def both(folder: Path, before: str, after: str) -> list[Dataset]:
    return [parsed(folder, name, lines) for name, lines in (("a", before), ("b", after))]


def said(before: Dataset, after: Dataset, *args: str) -> tuple[int, str]:
    outcome = command("diff", before.folder, after.folder, *args)
    assert not outcome.err
    return outcome.code, " ".join(outcome.out.replace("\N{MICRO SIGN}", "u").split())


def as_json(*args: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(command("diff", *args, "--json").out)
    return answer


def rows(before: Dataset, after: Dataset, *, shapes: bool = True) -> list[tuple[object, ...]]:
    found = difference.frame(before, after, shapes=shapes)
    names = ["what", "path", "shapes", "status", "before_ns", "after_ns", "own_change_ns"]
    return [tuple(None if value != value else value for value in row) for row in found[names].itertuples(index=False)]


def test_what_changed_stands_beside_the_traces(tmp_path: Path) -> None:
    before, after = both(tmp_path, steps(*["gemm 100,relu 10"] * 5), steps(*["gemm 150,gelu 20"] * 5))
    found = compare(before, after)
    expect_frame(found.rows)("""
        what    path   shapes  status  before_ns  after_ns  own_change_ns
        step    train  -       slower  110        170       0
        module  top    []      slower  110        170       0
        module  top.a  [[2]]   slower  110        170       60
    """)
    expect_frame(found.kernels)("""
        path   name  before_kernels  after_kernels  change_ns
        top.a  gemm  1               1              50
        top.a  gelu  0               1              20
        top.a  relu  1               0              -10
    """)
    code, text = said(before, after)
    assert code == 0
    expected = """
        Wall clock of a train step: 10 us before, 10 us after (0.0 %)
        GPU time per step before after change kernels
        ─
        train 110 ns 170 ns +60 ns (+54.5 %) slower 2
        top.a [[2]] 110 ns 170 ns +60 ns (+54.5 %) slower 2
        gemm 100 ns 150 ns +50 ns (+50.0 %) 1
        gelu 0 ns 20 ns +20 ns 0 → 1
        relu 10 ns 0 ns -10 ns (-100.0 %) 1 → 0
        top [] by a 110 ns 170 ns +60 ns (+54.5 %) slower 2
        Modules: 2 slower (1 only in submodules)
    """
    assert re.sub("─+", "─", text) == " ".join(expected.split())


@pytest.mark.parametrize(("unknown", "step"), [("^$", "train step"), (".*ProfilerStep.*", "step")])
def test_the_wall_clock_of_steps_is_told_also_if_no_module_changed(tmp_path: Path, unknown: str, step: str) -> None:
    traces = [re.sub(unknown, "", steps(*["gemm 100"] * 5, apart=apart)) for apart in (10_000, 15_000)]
    text = said(*both(tmp_path, *traces))[1]
    assert text.startswith(f"Wall clock of a {step}: 10 us before, 15 us after (+50.0 %)")
    assert text.endswith("No module changed by more than the spread between steps.")


def test_another_mix_of_batch_sizes_does_not_change_the_wall_clock(tmp_path: Path) -> None:
    def served(name: str, *batches: int) -> Dataset:
        lines, at = [], 0
        for number, batch in enumerate(batches, 1):
            lines.append(f"range 1 {at} {at + 9} execute_context_0(0)_generation_{batch}({batch})")
            lines.append(f"launch 1 {at + 1} {at + 2} #{number}\nkernel 1 {at + 3} {at + 1_000 * batch} #{number} gemm")
            at += 1_000 * batch
        return parsed(tmp_path, name, "\n".join(lines))

    few, many = served("a", 1, 1, 1, 8, 1, 1), served("b", 1, 1, 8, 8, 8, 8, 1)
    assert difference.wall_clocks(few, many) == {"decode": difference.WallClock(before_ns=2_750, after_ns=2_750)}


@pytest.mark.parametrize("lines", [steps("gemm 100", "gemm 300", "gemm 50"), ""])
def test_a_dataset_does_not_differ_from_itself(tmp_path: Path, lines: str) -> None:
    one = parsed(tmp_path, "a", lines)
    found = compare(one, one)
    assert set(found.rows["status"]) == ({"same"} if lines else set())
    assert not len(found.kernels)
    code, text = said(one, one, "--fail-over", "0%")
    assert code == 0
    assert "No module changed by more than the spread between steps." in text


def test_modules_and_shapes_of_one_side_are_added_or_gone(tmp_path: Path) -> None:
    before = parsed(tmp_path, "a", steps(*["gemm 100"] * 3))
    after = parsed(tmp_path, "b", steps(*["gemm 100"] * 3).replace("top.a'", "top.b'").replace("[[2]]", "[[4]]"))
    found = {row[1:3]: row[3] for row in rows(before, after)}
    assert found["top.a", "[[2]]"] == "gone"
    assert found["top.b", "[[4]]"] == "added"
    assert found["top", "[]"] == "same"
    assert {row[3] for row in rows(parsed(tmp_path, "empty", ""), before)} == {"added"}
    other_shapes = parsed(tmp_path, "c", steps(*["gemm 100"] * 3).replace("[[2]]", "[[4]]"))
    assert {row[3] for row in rows(before, other_shapes)} == {"same", "added", "gone"}
    assert {row[3] for row in rows(before, other_shapes, shapes=False)} == {"same"}


class Noisy(Program):
    """A serving engine of four layers whose kernels take 5 % more or less, by chance."""

    def __init__(self, seed: int, slow: str = "", scale: float = 1.0) -> None:
        super().__init__(layers=4)
        self.chance, self.slow, self.scale = np.random.default_rng(seed), slow, scale

    def duration(self, kernel: str, number: int) -> int:
        time = 20_000 * self.chance.lognormal(0, 0.05)
        return int(time * (self.scale if kernel == self.slow else 1))


def served(path: Path, program: Noisy) -> Dataset:
    return tracekit.parse(write_program(path, program, [("decode", 8)] * 60))


def test_planted_slow_downs_are_found_in_noise_on_one_line_and_nothing_else_is(tmp_path: Path) -> None:
    before = served(tmp_path / "a.sqlite", Noisy(1))
    same = served(tmp_path / "b.sqlite", Noisy(2))
    slow = served(tmp_path / "c.sqlite", Noisy(3, "o_proj_kernel", 1.2))
    assert said(before, same, "--fail-over", "5%")[0] == 0
    found = difference.slower_than(difference.frame(before, slow), 0.05)
    assert {path for path in found["path"] if path.endswith("_proj")} == {
        f"LlamaForCausalLM.model.layers.{layer}.self_attn.o_proj" for layer in range(4)
    }
    assert said(before, slow, "--fail-over", "5%")[0] == 3
    text = " ".join(printed(view.as_text(compare(before, slow), 1, 80), 200).split())
    assert "LlamaForCausalLM.model.layers.*.self_attn.o_proj 4 x [[8, 4096]]" in text


def test_changed_layers_are_numbered_and_what_grew_names_the_child_that_did_it() -> None:
    paths = [f"net.layers.{at}.mlp" for at in (2, 10, 3)]
    figures = dict.fromkeys(("before_ns", "after_ns", "before_kernels", "after_kernels"), 1.0)
    row = {"what": "module", "shapes": None, "status": "slower", **figures}
    changed = [row | {"path": path, "change_ns": 10.0, "own_change_ns": 10.0} for path in paths]
    changed.append(row | {"path": "net", "change_ns": 30.0, "own_change_ns": 0.0})
    patterns = {f"net.layers.{at}.mlp": "net.layers.*.mlp" for at in range(12)}
    lines = view.by_own_change(changed, patterns)
    assert [line["path"] for line in lines] == ["net.layers.{2,3,10}.mlp", "net"]
    assert [view.grown_by(line, lines) for line in lines] == [None, "layers.{2,3,10}.mlp"]


def test_equal_runs_do_not_fail_and_small_changes_are_found() -> None:
    found = rates(12, 20, 1)
    assert found["fails at 5%"] == 0
    assert found["finds the module"] >= 0.75
    assert found["finds the step"] == 1


def test_replayed_kernels_count_in_the_steps_of_their_replays(tmp_path: Path) -> None:
    capture = """
        launch 1  10  90 #1 cudaStreamBeginCapture_v10000
        range  1  20  80 {'Module': 'top', 'Inputs': [[2]]}
        launch 1  30  40 #2
        node!9 1  31  31
        launch 1  95  96 #3 cudaStreamEndCapture_v10000
    """
    replays = "".join(
        f"""
        range  1 {at}000 {at}900 ProfilerStep#{at}
        launch 1 {at}010 {at}020 #{at}0 cudaGraphLaunch_v10000
        kernel!9 1 {at}100 {at}100 #{at}0 gemm
        """
        for at in range(1, 6)
    )
    fast = re.sub(r"(kernel!9 1 (\d))100 \d100", r"\g<1>100 \g<2>130", replays)
    slow = re.sub(r"(kernel!9 1 (\d))100 \d100", r"\g<1>100 \g<2>150", replays)
    before = parsed(tmp_path, "a", capture + fast)
    assert before.table("kernels", ["method"]).column("method").to_pylist() == ["graph_node"] * 5
    after = parsed(tmp_path, "b", capture + slow)
    assert ("module", "top", "[[2]]", "slower", 30.0, 50.0, 20.0) in rows(before, after)
    assert difference.frame(before, after)["before_steps"].tolist() == [5, 5]


def test_without_steps_totals_are_compared_and_it_says_so(tmp_path: Path) -> None:
    lines = "launch 1 1 2 #1\nkernel 1 10 30 #1 gemm"
    before, after = both(tmp_path, lines, lines.replace("30", "40"))
    assert rows(before, after) == [
        ("step", "all", None, "slower", 20.0, 30.0, 0.0),
        ("unknown", "(no module)", None, "slower", 20.0, 30.0, 0.0),
    ]
    with_steps = parsed(tmp_path, "c", steps("gemm 20", "gemm 20"))
    assert rows(before, with_steps)[0][:6] == ("step", "all", None, "slower", 20.0, 40.0)
    for sides, words in (
        ((before, after), "Neither run has steps"),
        ((with_steps, after), "The second run has no steps"),
        ((before, with_steps), "The first run has no steps"),
    ):
        assert f"{words}: totals are compared, and their spread is unknown." in said(*sides)[1]


def between(*times: int, module: str = "") -> str:
    lines = []
    for at, time in enumerate(times):
        start = at * 10_000 + 9_500
        if module:
            lines.append(f"\nrange 1 {start - 10} {start + 50} {{'Module': '{module}'}}")
        if time:
            lines.append(f"\nlaunch 1 {start} {start + 1} #9{at}")
            lines.append(f"\nkernel 1 {start + 10} {start + 10 + time} #9{at} adam")
    return "".join(lines)


def test_modules_that_run_between_steps_are_named(tmp_path: Path) -> None:
    sides = both(tmp_path, *(FAST + between(*[time] * 5, module="decoder") for time in (100, 200)))
    changed = [row for row in rows(*sides) if row[3] == "slower"]
    assert changed == [
        ("between", "(between steps)", None, "slower", 100.0, 200.0, 0.0),
        ("between", "(between steps).decoder", "[]", "slower", 100.0, 200.0, 100.0),
    ]


def test_work_between_steps_is_compared_as_a_whole_and_it_says_so(tmp_path: Path) -> None:
    body = FAST
    before, after = both(tmp_path, body + between(7, 7, 7, 7, 7), body + between(9, 9, 9, 9, 9))
    whole = ("between", "(between steps)", None)
    assert rows(before, before)[0][4:6] == (100.0, 100.0)
    assert (*whole, "slower", 7.0, 9.0, 2.0) in rows(before, after)
    text = said(before, after, "--fail-over", "5%")[1]
    assert "The first run has 35 ns of work between steps, under (between steps)." in text
    assert "slower by 28.6 %, more than 5.0 %: between (between steps)" in text
    assert "adam 7 ns 9 ns +2 ns (+28.6 %) 1" in text
    for one, other in ((before, before), (after, before)):
        assert said(one, other, "--fail-over", "5%")[0] == 0


def serving(*sizes: tuple[str, int, int]) -> str:
    lines = []
    for at, (kind, size, time) in enumerate(sizes):
        start = at * 10_000
        lines += [
            f"range 1 {start} {start + 9_000} step[{kind} bs={size} toks={size}]",
            f"range 1 {start + 1} {start + 8_000} {{'Module': 'top'}}",
            f"launch 1 {start + 10} {start + 11} #{at}1",
            f"kernel 1 {start + 20} {start + 20 + time} #{at}1 gemm",
        ]
    return "\n".join(lines)


FEW, MANY = ("DECODE", 1, 100), ("DECODE", 16, 400)


def test_another_mix_of_sizes_is_no_slow_down_and_it_says_so(tmp_path: Path) -> None:
    before, after = both(tmp_path, serving(*[FEW] * 8, *[MANY] * 2), serving(*[FEW] * 2, *[MANY] * 8))
    assert {row[3] for row in rows(before, after)} == {"same"}
    code, text = said(before, after, "--fail-over", "5%")
    assert code == 0
    assert (
        "Only steps of the same kind and size are compared: 100.0 % of the time in steps of the first run, "
        "100.0 % of the second." in text
    )
    assert (
        "The mix of steps changed, which does not count as a change of speed: "
        "decode of batch_size 1, tokens 1: 80.0 % of the steps before, 20.0 % after; "
        "decode of batch_size 16, tokens 16: 20.0 % of the steps before, 80.0 % after."
    ) in text


def test_sizes_that_one_side_lacks_are_not_compared_and_it_says_so(tmp_path: Path) -> None:
    before = parsed(tmp_path, "a", serving(*[FEW] * 5, *[("DECODE", 2, 500)] * 5))
    after = parsed(tmp_path, "b", serving(*[FEW] * 5, *[("DECODE", 4, 900)] * 5))
    found = {row[:3]: row[3] for row in rows(before, after)}
    assert found["step", "decode", None] == found["module", "top", "[]"] == "same"
    assert found["step", "decode", '{"batch_size": 2, "tokens": 2}'] == "gone"
    code, text = said(before, after, "--fail-over", "5%")
    assert code == 0
    assert "16.7 % of the time in steps of the first run, 10.0 % of the second" in text
    nothing = parsed(tmp_path, "c", serving(*[("DECODE", 4, 900)] * 5))
    assert {row[:2]: row[3] for row in rows(before, nothing) if not row[2] or row[0] == "module"} == {
        ("step", "decode"): "unlike",
        ("module", "top"): "unlike",
    }
    code, text = said(before, nothing, "--fail-over", "5%")
    assert code == 3
    assert "no steps of the same kind and size in both datasets, cannot be compared: step decode" in text
    assert "Only steps of the same kind and size are compared: 0.0 % of the time" in text
    assert "have no steps of the same kind and size in both runs and are not compared." in text


def gemms(*times: int) -> str:
    return steps(*(f"gemm {time}" for time in times))


def outside(*times: int) -> str:
    return steps(*["gemm 100"] * len(times)) + between(*times)


NOISY = gemms(100, 130, 90, 120, 110, 95)
BOTH_KINDS, ONE_KIND = serving(*[FEW] * 5, *[("EXTEND", 1, 900)] * 2), serving(*[FEW] * 5)
#: Two traces, by how much the second may be slower, and what is said if it is by more.
GATES = {
    "a threshold that is met": (gemms(*[1000] * 5), gemms(*[1050] * 5), "5%", ""),
    "a threshold that is exceeded": (
        *(gemms(*[1000] * 5), gemms(*[1050] * 5), "4.9%"),
        "slower by 5.0 %, more than 4.9 %: module top.a [[2]]",
    ),
    "faster": (gemms(*[1050] * 5), gemms(*[1000] * 5), "0%", ""),
    "within the spread between steps": (NOISY, gemms(120, 150, 110, 129, 125, 118), "5%", ""),
    "beyond the spread between steps": (NOISY, gemms(140, 170, 135, 160, 150, 138), "5%", "module top.a [[2]]"),
    "from none": (gemms(*[0] * 5), gemms(*[50] * 5), "5%", "slower by 50 ns, from 0 ns: module top.a [[2]]"),
    "a kind that goes": (BOTH_KINDS, ONE_KIND, "5%", "only in the first dataset, cannot be compared: step prefill"),
    "a kind that comes": (ONE_KIND, BOTH_KINDS, "5%", "only in the second dataset, cannot be compared: step prefill"),
    "new between steps": (outside(0, 0, 0, 0, 0), outside(7, 7, 7, 7, 7), "5%", "between (between steps)"),
    "gone between steps": (outside(7, 7, 7, 7, 7), outside(0, 0, 0, 0, 0), "5%", ""),
    "more often between steps": (outside(0, 7, 0, 0, 0), outside(7, 7, 7, 7, 7), "5%", "between (between steps)"),
    "once but much": (outside(0, 0, 7, 0, 0), outside(0, 0, 300, 0, 0), "5%", "between (between steps)"),
    "once and next to nothing of all the time": (outside(0, 0, 7, 0, 0), outside(0, 0, 9, 0, 0), "5%", ""),
    "now and then": (outside(7, 0, 7, 0, 0, 0), outside(70, 0, 70, 0, 0, 0), "5%", "between (between steps)"),
    "as it spreads anyway": (outside(50, 70, 90, 40, 95), outside(60, 80, 95, 45, 99), "5%", ""),
}


@pytest.mark.parametrize("case", GATES)
def test_it_fails_only_if_something_became_slower_by_more(tmp_path: Path, case: str) -> None:
    *traces, limit, words = GATES[case]
    before, after = both(tmp_path, *traces)
    code, text = said(before, after, "--fail-over", limit)
    assert code == (3 if words else 0)
    assert words in text
    assert said(before, after)[0] == 0


def test_modules_of_little_time_fail_nothing_and_are_left_out_below_a_share(tmp_path: Path) -> None:
    def with_little(time: int) -> str:
        more = (
            f"\nrange 1 {start + 7_100} {start + 7_900} {{'Module': 'top.b'}}"
            f"\nlaunch 1 {start + 7_200} {start + 7_201} #9{start}"
            f"\nkernel 1 {start + 7_300} {start + 7_300 + time} #9{start} tiny"
            for start in range(0, 50_000, 10_000)
        )
        return steps(*["gemm 4000"] * 5) + "".join(more)

    sides = both(tmp_path, with_little(10), with_little(20))
    assert said(*sides, "--fail-over", "5%")[0] == 0
    assert said(*sides, "--fail-over", "5%", "--min-share", "0.1%")[0] == 3
    assert "top.b" in said(*sides)[1]
    assert "top.b" not in said(*sides, "--min-share", "1%")[1]


def test_roots_of_other_names_are_one_where_that_is_certain(tmp_path: Path) -> None:
    before, after = both(tmp_path, steps(*["gemm 100"] * 3, module="top"), steps(*["gemm 100"] * 3, module="Net"))
    assert {row[3] for row in rows(before, after)} == {"same"}
    assert "The root Net of the second dataset is matched with top of the first." in said(before, after)[1]
    other = parsed(tmp_path, "c", steps(*["gemm 100"] * 3, module="Net").replace(".a'", ".b'"))
    assert {row[3] for row in rows(before, other)} == {"same", "added", "gone"}


def test_times_of_modules_are_those_of_their_subtrees_in_every_step(tmp_path: Path) -> None:
    dataset = served(tmp_path / "a.sqlite", Noisy(4))
    [found] = step_times([(dataset, hierarchy(dataset).path)], steps=True, shapes=False)
    kernels = dataset.kernels(["module", "step_id", "dur_ns"])
    for path in ("LlamaForCausalLM", "LlamaForCausalLM.model.layers.2.self_attn"):
        inside = kernels[kernels.module.astype(str).str.startswith(path)]
        expected = inside.groupby("step_id").dur_ns.sum()
        assert found.times.of(lambda key: key == ("module", path, "")).ns.tolist() == expected.tolist()  # noqa: B023


def test_a_run_on_a_cpu_is_not_compared_with_one_on_a_gpu(tmp_path: Path) -> None:
    cpu = parsed(tmp_path, "a", "range 1 0 90 {'Module': 'top'}\nop 1 10 20 aten::addmm")
    gpu = parsed(tmp_path, "b", steps("gemm 100"))
    outcome = command("diff", cpu.folder, gpu.folder)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == (
        f"tracekit: {gpu.folder}: was recorded on a GPU, but {cpu.folder} on a CPU; "
        "compare runs on the same kind of device\n"
    )
    assert said(cpu, cpu)[0] == 0


def test_json_says_everything_compared_and_what_failed_also_of_a_part(tmp_path: Path) -> None:
    before, after = both(tmp_path, FAST, SLOW)
    folders = (before.folder, after.folder)
    found = as_json(*folders, "--fail-over", "10%")
    assert set(found) == {"notes", "wall_clocks", "rows", "phases", "kernels", "failed"}
    assert found["wall_clocks"] == {"train": {"before_ns": 10_000, "after_ns": 10_000}}
    assert [row["path"] for row in found["failed"]] == ["train", "top", "top.a"]
    assert found["kernels"][0]["name"] == "gemm"
    part = as_json(*folders, "--path", "top.a", "--fail-over", "5%")
    assert [row["path"] for row in part["failed"]] == ["train", "top.a"]
    assert [row["path"] for row in as_json(*folders, "--min-share", "100.1%")["rows"]] == ["train"]
    from_none = (parsed(tmp_path, f"{time}", gemms(*[time] * 5)).folder for time in (0, 50))
    assert {row["change"] for row in as_json(*from_none, "--fail-over", "5%")["failed"]} == {None}
    outcome = command("diff", *folders, "--path", "top.b")
    assert outcome.code == 2
    assert "neither dataset has a module top.b" in outcome.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "the following arguments are required: BEFORE, AFTER"),
        (("x", "y", "--fail-over", "5"), "5 could be 5 % or 500 %; write 5%"),
    ],
)
def test_a_call_that_makes_no_sense_has_exit_code_2(args: tuple[str, ...], words: str) -> None:
    outcome = command("diff", *args)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert words in outcome.err


def test_a_failing_gate_names_a_step_once() -> None:
    row = {"what": "step", "path": "step", "shapes": None, "status": "slower", "change": 0.2, "own_change_ns": 5}
    assert view.judged([row, row | {"path": "train"}], 0.05) == [
        "slower by 20.0 %, more than 5.0 %: step",
        "slower by 20.0 %, more than 5.0 %: step train",
    ]


def decoding(steps: int, scale: float = 1.0) -> str:
    """Steps of decoding, the attention of which takes longer from one to the next."""
    chance = np.random.default_rng(steps)
    times = (scale * (2_000 + 10 * np.arange(steps)) * chance.normal(1, 0.005, steps)).astype(int)
    return serving(*[("DECODE", 1, int(time)) for time in times])


@pytest.mark.parametrize("limit", ["2%", "3%"])
@pytest.mark.parametrize("lengths", [(160, 200), (200, 160)])
def test_runs_of_other_lengths_are_compared_where_steps_have_the_same_place(
    tmp_path: Path, lengths: tuple[int, int], limit: str
) -> None:
    before, after = (parsed(tmp_path, f"{length}", decoding(length)) for length in lengths)
    slower = parsed(tmp_path, "slower", decoding(lengths[1], 1.035))
    code, text = said(before, after, "--fail-over", limit)
    assert code == 0
    assert "same place in a row of such steps, are compared" in text
    assert ("100.0 % of the time in steps of the first run" in text) == (lengths[0] == 160)
    assert said(before, slower, "--fail-over", limit)[0] == 3


def test_the_noise_between_runs_is_learned_from_several_baselines(tmp_path: Path) -> None:
    runs = {time: parsed(tmp_path, f"r{time}", serving(*[("DECODE", 1, time)] * 5)) for time in (900, 1000, 1050, 1100)}
    equal, slow = (
        parsed(tmp_path, name, serving(*[("DECODE", 1, time)] * 5)) for name, time in (("e", 1120), ("s", 3000))
    )
    folders = [run.folder for run in runs.values()]
    assert said(runs[1000], equal, "--fail-over", "5%")[0] == 3
    assert command("diff", *folders, equal.folder, "--fail-over", "5%").code == 0
    outcome = command("diff", *folders, slow.folder, "--fail-over", "5%", "--json")
    assert outcome.code == 3
    found = json.loads(outcome.out)
    assert set(found) == {"notes", "wall_clocks", "rows", "phases", "kernels", "failed"}
    assert found["notes"][0].startswith("Noise between runs is learned from 4 baselines: whole steps vary by ")
    assert {row["path"] for row in found["failed"]} == {"decode", "top"}
    assert {row["before_ns"] for row in found["rows"]} == {1050}


def test_several_equal_baselines_let_small_changes_pass_as_before(tmp_path: Path) -> None:
    same = [parsed(tmp_path, f"r{at}", steps(*["gemm 1000,relu 10"] * 5)).folder for at in range(3)]
    slow = parsed(tmp_path, "s", steps(*["gemm 1030,gelu 10"] * 5)).folder
    assert command("diff", *same, same[0], "--fail-over", "0%").code == 0
    outcome = command("diff", *same, slow, "--fail-over", "2%")
    assert outcome.code == 3
    assert "gelu" in outcome.out


def layered(seed: int, slow: float = 1.0, clocks: float = 0.0) -> str:
    """Ten steps of twelve layers that vary by 0.3 % between runs, and by 1 % between steps; one may be slow, or all."""
    chance, lines = np.random.default_rng(seed), []
    level = 20_000 * chance.normal(1, 0.003, 12) * np.where(np.arange(12) == 5, slow, 1 + clocks * chance.random(12))
    for step, times in enumerate((level * chance.normal(1, 0.01, (10, 12))).astype(int).tolist()):
        start = step * 400_000
        lines.append(f"range 1 {start} {start + 399_000} {{'Step': {step}, 'Name': 'ProfilerStep', 'Kind': 'train'}}")
        for layer, time in enumerate(times):
            begin, number = start + 10 + 30_000 * layer, 12 * step + layer
            lines += [
                f"range 1 {begin} {begin + 29_000} {{'Module': 'top.{layer}'}}",
                f"launch 1 {begin + 1} {begin + 2} #{number}",
                f"kernel 1 {begin + 3} {begin + 3 + time} #{number} gemm",
            ]
    return "\n".join(lines)


def test_three_baselines_are_enough_for_a_layer_that_is_5_percent_slower(tmp_path: Path) -> None:
    baselines = [parsed(tmp_path, f"base{seed}", layered(seed)).folder for seed in (1, 2, 3)]
    for seed in (4, 5):
        equal, slow = (parsed(tmp_path, f"{share}{seed}", layered(seed, share)).folder for share in (1.0, 1.05))
        assert command("diff", *baselines, equal, "--fail-over", "2%").code == 0
        failed = as_json(*baselines, slow, "--fail-over", "2%")["failed"]
        assert [row["path"] for row in failed] == ["top.5"]


@pytest.mark.parametrize(
    ("kernel", "slow", "failed"),
    [("gemm", 1.0, []), ("gemm", 1.5, ["top.5"]), ("other", 1.0, ["train", "top.0", "top.1"])],
)
def test_what_modules_with_the_same_kernels_share_is_the_machine(
    tmp_path: Path, kernel: str, slow: float, failed: list[str]
) -> None:
    baselines = [parsed(tmp_path, f"base{seed}", layered(seed)).folder for seed in (1, 2, 3)]
    new = parsed(tmp_path, "new", layered(4, slow, 0.15).replace(" gemm", f" {kernel}")).folder
    found = as_json(*baselines, new, "--fail-over", "4%")
    assert {*failed} <= {row["path"] for row in found["failed"]}
    assert (len(found["failed"]) > len(failed)) == (kernel == "other")
    told = re.search("Modules together are (.*) % slower than in each .*: clocks", found["notes"][0])
    assert bool(told) == (kernel == "gemm")
    assert not told or 5 < float(told[1]) < 10
