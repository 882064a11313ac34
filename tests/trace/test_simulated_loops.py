"""Steps of simulated loops whose turns nobody marks: what tracekit takes for steps beside the turns that there were."""

from collections import Counter
from dataclasses import replace

from tests.parsed_programs import Parsed, over_programs, parsed, piece, true_piece
from tests.simulator import Plan
from tests.simulator.loops import LOOPS
from tests.simulator.strategies import loops


def with_all_markers(plan: Plan) -> Plan:
    """Without its markers a root may as well not have been there, and what is left looks like another loop."""
    return replace(plan, faults=replace(plan.faults, lost_ranges=0.0))


of_any_loop = over_programs(loops(), 80)
of_any_cut_loop = over_programs(loops(faulty=True).map(with_all_markers), 120)


def turns(it: Parsed) -> dict[int | None, str | None]:
    began = {
        (call.key.pid, call.key.tid, call.key.start_ns): call.iteration
        for call in it.truth.calls
        if call.parent is None
    }
    return {None: None} | {row["step_id"]: began[row["pid"], row["tid"], row["start_ns"]] for row in it.tables["steps"]}


def unclear(it: Parsed) -> bool:
    return any(row["cause"] == "steps_unclear" for row in it.tables["coverage"])


@of_any_loop
def test_each_turn_is_one_step_or_it_is_said_that_this_is_not_certain(it) -> None:
    actual = Counter(turn for turn in turns(it).values() if turn is not None)
    if unclear(it):
        assert actual <= Counter(it.truth.iterations)
    else:
        assert actual == Counter(it.truth.iterations)


def test_nearly_all_turns_are_steps() -> None:
    actual = expected = 0
    for number, loop in enumerate(LOOPS * 3):
        it = parsed(Plan(seed=number, loop=loop, iterations=4, threads=1 + (loop == "apart")))
        actual += len({*turns(it).values()} - {None})
        expected += len(it.truth.iterations)
    assert actual > 0.9 * expected


@of_any_cut_loop
def test_of_what_is_left_of_a_loop_no_turn_is_two_steps(it) -> None:
    leads = {call.key[:2] for call in it.truth.calls if call.path.startswith("net")}
    seen = {row["step_id"] for row in it.tables["steps"] if (row["pid"], row["tid"]) in leads}
    actual = Counter(turn for step, turn in turns(it).items() if step in seen)
    assert actual <= Counter(it.truth.iterations)


@of_any_cut_loop
def test_work_is_of_the_step_of_its_turn_or_of_none(it: Parsed) -> None:
    step = turns(it)
    true = {true_piece(one): one.launch and one.launch.iteration for one in it.truth.work}
    kernels = [row for row in it.tables["kernels"] if row["step_id"] is not None]
    assert [row for row in kernels if step[row["step_id"]] != true[piece(row)]] == []
    called = {tuple(call.key[:4]): call.iteration for call in it.truth.calls}
    calls = [row for row in it.tables["calls"] if row["step_id"] is not None]
    assert [
        row for row in calls if step[row["step_id"]] != called[row["pid"], row["tid"], row["start_ns"], row["end_ns"]]
    ] == []


@of_any_loop
def test_all_that_a_root_runs_is_of_its_step(it) -> None:
    steps = {row["step_id"]: row for row in it.tables["steps"]}
    inside = [
        row
        for row in it.tables["kernels"]
        if row["launch_start_ns"] is not None and row["step_id"] is None
        for step in steps.values()
        if (row["pid"], row["tid"]) == (step["pid"], step["tid"])
        and step["start_ns"] <= row["launch_start_ns"] < row["launch_end_ns"] <= step["end_ns"]
    ]
    assert inside == []
