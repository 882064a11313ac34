"""Programs that capture and replay CUDA graphs: the owner of every kernel, against what truly happened."""

from collections import defaultdict

import pytest

from tests.parsed_programs import Parsed, over_programs, parsed, piece, place, placed, same, true_piece
from tests.simulator import GENERATIONS, Faults, TrueWork, capturing
from tests.simulator.events import signed
from tests.simulator.strategies import FIRST_GRAPHS, capturing_plans

ANY_PLAN = capturing_plans() | capturing_plans(faulty=True)
of_any_program = over_programs(ANY_PLAN, 60)


def pieces(it: Parsed) -> dict[tuple, list[TrueWork]]:
    found = defaultdict(list)
    for work in it.truth.work:
        found[*true_piece(work), node_of(work)].append(work)
    return found


def node_of(true: TrueWork) -> int | None:
    return true.work.node and signed(true.work.node.id)


def rows_with_truth(it: Parsed) -> list[tuple[dict, list[TrueWork]]]:
    truth = pieces(it)
    return [(row, truth[*piece(row), row["graph_node_id"]]) for row in it.tables["kernels"]]


@of_any_program
def test_every_piece_of_work_is_there_once_with_its_node(it) -> None:
    same(
        ((*piece(row), row["graph_node_id"]) for row in it.tables["kernels"]),
        ((*true_piece(work), node_of(work)) for work in it.truth.work),
    )


def wrong(it: Parsed) -> list[dict]:
    """Kernels with a module that was not open when they were launched or captured."""
    calls = it.keys("calls", "call_id")
    return [
        row
        for row, truth in rows_with_truth(it)
        if row["module"] is not None
        and (row["module"], calls[row["call_id"]], row["method"])
        not in {(module, placed(call), method) for one in truth for module, call, method in one.answers}
    ]


def missing(it: Parsed) -> list[dict]:
    """Kernels that lack their module although the file holds it."""
    return [row for row, truth in rows_with_truth(it) if row["module"] is None and not any(one.causes for one in truth)]


def wrongly_explained(it: Parsed) -> list[dict]:
    without = [(row, truth) for row, truth in rows_with_truth(it) if row["module"] is None]
    causes = [(row, {cause for one in truth for cause in one.causes}) for row, truth in without]
    return [row for row, right in causes if row["correlation_id"] is not None and row["cause"] not in right]


@of_any_program
def test_no_kernel_has_a_wrong_module_or_lacks_one_or_has_another_cause_than_the_right_one(it) -> None:
    assert (wrong(it), missing(it), wrongly_explained(it)) == ([], [], [])


@of_any_program
def test_the_method_says_how_the_module_is_known(it) -> None:
    for row, truth in rows_with_truth(it):
        assert (row["method"] is None) == (row["module"] is None) == (row["cause"] is not None)
        if row["method"] is not None:
            assert row["method"] in {method for work in truth for *_, method in work.answers}


@of_any_program
def test_a_call_made_inside_a_graph_capture_is_of_that_phase(it) -> None:
    phases = defaultdict(set)
    for call in it.truth.calls:
        phases[placed(call.key)] |= call.phases
    same(map(place, it.tables["calls"]), (placed(call.key) for call in it.truth.calls))
    assert [row for row in it.tables["calls"] if row["phase"] not in phases[place(row)]] == []


VARIANTS = {
    **{f"schema {version}": {"generation": version} for version in GENERATIONS},
    **{f"graphs from {number}": {"first_graph": number} for number in FIRST_GRAPHS},
    "four threads": {"threads": 4, "processes": 1},
    "late nodes": {"faults": Faults(node_records="late")},
    "late nodes in twos, some lost": {"faults": Faults(node_records="late", node_batch=2, lost_nodes=0.2)},
    "no nodes": {"faults": Faults(node_records="never")},
    "captured before, no nodes": {"faults": Faults(captured_before=True, node_records="never")},
    "lost nodes": {"faults": Faults(lost_nodes=0.3)},
    "lost ranges": {"faults": Faults(lost_ranges=0.3)},
    "cut off": {"faults": Faults(cut_off=True)},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_a_program_with_everything_nothing_is_wrong_and_nothing_missing(variant) -> None:
    it = parsed(capturing(4, actions=25, **VARIANTS[variant]))
    assert any(one.work.node for one in it.truth.work)
    assert (wrong(it), missing(it), wrongly_explained(it)) == ([], [], [])


WHOLE = {"graph_traces": True, "graph_replays": False}


def rows_of_whole_graphs(it: Parsed) -> list[tuple[dict, list[TrueWork]]]:
    return [(row, truth) for row, truth in rows_with_truth(it) if row["kind"] == "graph"]


@pytest.mark.parametrize("number", range(3))
def test_graphs_traced_as_a_whole_belong_to_the_call_that_holds_their_graph_capture(number) -> None:
    it = parsed(capturing(number, actions=30, graph_updates=False, orphans=False, **WHOLE))
    rows = rows_of_whole_graphs(it)
    assert wrong(it) == []
    assert {row["method"] for row, truth in rows if any("graph_capture" in one.methods for one in truth)} == {
        "graph_capture"
    }


@pytest.mark.parametrize(
    "faults",
    [
        Faults(),
        Faults(lost_launches=0.4),
        Faults(lost_ranges=0.3),
        Faults(captured_before=True),
        Faults(late_start=True, capture_range=True),
        Faults(cut_off=True),
    ],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_no_graph_traced_as_a_whole_belongs_to_a_call_that_does_not_hold_it(threads, faults) -> None:
    it = parsed(capturing(threads, actions=25, threads=threads, graph_captures=6, faults=faults, **WHOLE))
    assert rows_of_whole_graphs(it)
    assert (wrong(it), wrongly_explained(it)) == ([], [])


@pytest.mark.parametrize("version", ["2020.3", "2.9.1", "3.7.2"])
def test_without_any_record_of_graph_captures_a_replay_is_as_a_whole_of_the_call_that_launched_it(version) -> None:
    faults = Faults(node_records="never", skipped_capture_calls=True)
    it = parsed(capturing(2, actions=30, generation=version, faults=faults))
    rows = [(row, truth) for row, truth in rows_with_truth(it) if row["graph_node_id"] is not None]
    assert {(row["method"], row["cause"]) for row, _ in rows} == {("graph_launch", None), (None, "graph_unmapped")}
    for row, truth in rows:
        assert row["module"] in {one.as_a_whole[0] if one.as_a_whole else None for one in truth}


ONE_GRAPH = {"graph_captures": 2, "graph_extras": False, "graph_clones": False, "piecewise": False, "threads": 1}
"""Programs simple enough for an order of launches to tell something without any record of a graph."""


@pytest.mark.parametrize("version", GENERATIONS)
@pytest.mark.parametrize("number", range(4))
def test_without_records_a_graph_from_before_is_not_taken_for_its_graph_capture_repeated(version, number) -> None:
    faults = Faults(node_records="never", captured_before=True)
    it = parsed(capturing(number, actions=6, generation=version, faults=faults, graph_replays=False, **ONE_GRAPH))
    assert any(one.work.node for one in it.truth.work)
    assert (wrong(it), missing(it), wrongly_explained(it)) == ([], [], [])
