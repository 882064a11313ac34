"""Two trainings compared: what became slower in forward, backward or the optimizer, by the same rules as the whole."""

from pathlib import Path

import pytest

import tracekit
from tests.command import command
from tests.golden import expect_frame
from tests.trace_lines import report
from tracekit.aggregates.phase_times import PHASES
from tracekit.comparison.difference import compare
from tracekit.dataset.opening import Dataset

Ranges = tuple[tuple[int, int, int, str], ...]
CHANGES = [f"{phase}_change_ns" for phase in PHASES]


FORWARD = (
    (1, 0, 3_000, '{"Module": "top", "Class": "Net", "Inputs": [[2]]}'),
    (1, 100, 900, '{"Module": "top.0", "Class": "Layer", "Inputs": [[2]]}'),
    (1, 8_100, 8_900, "Optimizer.step#SGD.step"),
)
#: How backward work says whose it is: by the module, or by the number of the operator whose gradient it works out.
MARKED = (
    (2, 4_000, 8_000, '{"Module": "top", "Class": "Net", "Phase": "backward"}'),
    (2, 5_000, 6_000, '{"Module": "top.0", "Class": "Layer", "Phase": "backward"}'),
)
NUMBERED = (
    (1, 150, 400, "aten::mm, seq = NUMBER"),
    (2, 5_000, 6_000, "autograd::engine::evaluate_function: MmBackward0, seq = NUMBER"),
)


def training(folder: Path, name: str, forward: int, backward: int, *, steps: int = 6, by: Ranges = MARKED) -> Path:
    """Steps of a training; each phase of the layer takes so long, by turns a little longer."""
    lines = []
    for step in range(steps):
        start, number = step * 10_000, step * 3 + 1
        for thread, begin, end, text in FORWARD + by:
            lines.append(f"range {thread} {start + begin} {start + end} {text.replace('NUMBER', str(step))}")
        work = ((1, 200, forward, "gemm"), (2, 5_200, backward, "gemm_backward"), (1, 8_200, 30, "sgd"))
        for at, (thread, begin, time, kernel) in enumerate(work):
            lines.append(f"launch {thread} {start + begin} {start + begin + 1} #{number + at}")
            end = start + begin + 2 + time + step % 2
            lines.append(f"kernel 1 {start + begin + 2} {end} #{number + at} {kernel}")
    return report(folder / f"{name}.sqlite", "\n".join(lines))


def trained(folder: Path, name: str, forward: int, backward: int, by: Ranges = MARKED) -> Dataset:
    return tracekit.parse(training(folder, name, forward, backward, by=by))


def diff(before: Dataset, after: Dataset, *args: str) -> tuple[int, list[str]]:
    outcome = command("diff", before.folder, after.folder, *args)
    return outcome.code, [" ".join(line.split()) for line in outcome.out.splitlines() if line.strip()]


def test_what_is_slower_in_one_phase_says_so(tmp_path: Path) -> None:
    before, after = trained(tmp_path, "a", 100, 200), trained(tmp_path, "b", 100, 260)
    found = compare(before, after, shapes=False)
    expect_frame(found.rows[["what", "path", "status", *CHANGES]])("""
        what     path         status  forward_change_ns  backward_change_ns  recompute_change_ns  optimizer_change_ns  other_change_ns
        step     train        slower  0                  60                  -                    0                    -
        module   top          slower  0                  60                  -                    -                    -
        module   top.0        slower  0                  60                  -                    -                    -
        unknown  (no module)  same    -                  -                   -                    0                    -
    """)  # noqa: E501
    expect_frame(found.phases[found.phases["path"].isin(["train", "top.0"])])("""
        phase      path   status  before_ns  after_ns  change_ns  before_steps
        forward    train  same    100.5      100.5     0          6
        forward    top.0  same    100.5      100.5     0          6
        backward   train  slower  200.5      260.5     60         6
        backward   top.0  slower  200.5      260.5     60         6
        optimizer  train  same    30.5       30.5      0          6
    """)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ((), "train 332|in backward|top.0 backward|gemm_backward 200|top backward"),
        (("--ignore-shapes",), "train 332|in backward|top.0 301|in backward|gemm_backward 200|top by|in backward"),
    ],
)
def test_the_command_shows_the_phases_that_changed(tmp_path: Path, options: tuple[str, ...], shown: str) -> None:
    _, lines = diff(trained(tmp_path, "a", 100, 200), trained(tmp_path, "b", 100, 260), *options)
    assert [" ".join(line.split()[:2]) for line in lines[3:-1]] == shown.split("|")


def test_changes_of_phases_that_cancel_each_other_out_are_shown_and_fail_nothing(tmp_path: Path) -> None:
    before, after = trained(tmp_path, "a", 100, 200), trained(tmp_path, "b", 140, 160)
    code, lines = diff(before, after, "--ignore-shapes", "--fail-over", "5%")
    assert code == 0
    assert sum(line.startswith("in forward") and "slower" in line for line in lines) == 3
    assert sum(line.startswith("in backward") and "faster" in line for line in lines) == 3
    assert lines[-1] == "Modules: 2 the same in total, not in each phase"


def test_a_phase_that_only_one_run_has_is_told(tmp_path: Path) -> None:
    after = trained(tmp_path, "b", 100, 200)
    only = "\n".join(
        f"range 1 {at} {at + 900} {{'Module': 'top', 'Inputs': [[2]]}}\n"
        f"launch 1 {at + 1} {at + 2} #{at}\nkernel 1 {at + 3} {at + 103} #{at} gemm"
        for at in range(0, 50_000, 10_000)
    )
    forward = tracekit.parse(report(tmp_path / "forward.sqlite", only))
    phases = compare(forward, after, shapes=False).phases
    told = {(row.path, row.phase): row.status for row in phases.itertuples()}
    assert told["top", "backward"] == "added"
    assert told["top", "forward"] != "added"


@pytest.mark.parametrize("shapes", [True, False])
def test_backward_work_without_a_call_counts_for_its_module_and_those_above(tmp_path: Path, shapes: bool) -> None:
    sides = [trained(tmp_path, name, 100, time, NUMBERED) for name, time in (("a", 200), ("b", 260))]
    found = compare(*sides, shapes=shapes)
    rows = found.rows[["what", "path", "shapes", "status", "before_ns", "after_ns", "own_change_ns"]]
    expected = {
        True: """
        what     path         shapes  status  before_ns  after_ns  own_change_ns
        step     train        -       slower  331.5      391.5     0
        module   top          -       slower  200.5      260.5     0
        module   top.0        -       slower  200.5      260.5     60
        unknown  (no module)  -       same    30.5       30.5      0
        module   top          [[2]]   same    100.5      100.5     0
        module   top.0        [[2]]   same    100.5      100.5     0
        """,
        False: """
        what     path         shapes  status  before_ns  after_ns  own_change_ns
        step     train        -       slower  331.5      391.5     0
        module   top          -       slower  301        361       0
        module   top.0        -       slower  301        361       60
        unknown  (no module)  -       same    30.5       30.5      0
        """,
    }
    expect_frame(rows)(expected[shapes])
