"""Properties of the whole pipeline over simulated programs: what it says against what truly happened."""

import json
from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from tests.parsed_programs import Rows, bare, over_programs, parsed, piece, place, placed, same, shapes, true_piece
from tests.simulator import eventful
from tests.simulator.events import Launch
from tests.simulator.strategies import plans

of_any_program = over_programs(plans() | plans(faulty=True), 150)


@of_any_program
def test_no_kernel_has_a_wrong_module_and_none_is_missing_where_the_file_holds_the_answer(it) -> None:
    actual = Counter((*piece(row), row["module"]) for row in it.tables["kernels"])
    expected = Counter((*true_piece(work), work.module) for work in it.truth.work)
    assert [one for one in (actual - expected) if one[-1] is not None] == [], "wrong"
    assert [one for one in (expected - actual) if one[-1] is not None] == [], "missing"


@of_any_program
def test_a_kernel_has_either_a_method_or_a_cause(it) -> None:
    for row in it.tables["kernels"]:
        assert (row["method"] is None) == (row["cause"] is not None)
        assert (
            (row["method"] is None) == (row["module"] is None) == (row["module_id"] is None) == (row["call_id"] is None)
        )
    causes = defaultdict(set)
    for work in it.truth.work:
        causes[true_piece(work)] |= {"any"} if work.work.correlation is None else work.causes or {None}
    for row in it.tables["kernels"]:
        assert row["cause"] in causes[piece(row)] or (row["cause"] and "any" in causes[piece(row)])


@of_any_program
def test_kernels_know_their_launch_and_what_was_open_at_it(it) -> None:
    calls, names = it.keys("calls", "call_id"), ("tid", "launch_start_ns", "launch_end_ns")
    same(
        (
            (*piece(row), calls[row["call_id"]], *(row[name] for name in names), bare(row["launch_name"]))
            for row in it.tables["kernels"]
        ),
        ((*true_piece(work), placed(work.call), *of_launch(work.launch)) for work in it.truth.work),
    )


def of_launch(launch: Launch | None) -> tuple:
    return (launch.thread.tid, launch.start_ns, launch.end_ns, bare(launch.name)) if launch else (None,) * 4


@of_any_program
def test_kernels_know_the_innermost_range_open_at_their_launch(it) -> None:
    """Start/end ranges have no nesting: one that began inside the innermost pushed one may count as innermost."""
    ranges = it.keys("ranges", "range_id")
    right = defaultdict(set)
    for work in it.truth.work:
        begun = [one for one in work.spans if work.range is None or one.start_ns >= work.range.start_ns]
        right[true_piece(work)] |= {placed(work.range), *map(placed, begun)}
    assert [row for row in it.tables["kernels"] if ranges[row["range_id"]] not in right[piece(row)]] == []


@of_any_program
def test_every_piece_of_device_work_is_there_once_with_what_the_file_says_of_it(it) -> None:
    named = [row["name"] if row["kind"] == "kernel" else None for row in it.tables["kernels"]]
    true = [one.work.name if one.work.kind == "kernel" else None for one in it.truth.work]
    same(
        ((*piece(row), row["bytes"], name) for row, name in zip(it.tables["kernels"], named, strict=True)),
        ((*true_piece(one), one.work.bytes, name) for one, name in zip(it.truth.work, true, strict=True)),
    )
    assert len({row["kernel_id"] for row in it.tables["kernels"]}) == len(it.tables["kernels"])
    assert all(row["dur_ns"] == row["end_ns"] - row["start_ns"] for row in it.tables["kernels"])


@of_any_program
def test_calls_are_those_that_the_program_made(it) -> None:
    calls = it.keys("calls", "call_id")
    assert {row["phase"] for row in it.tables["calls"]} <= {"forward"}
    kwargs = [frozenset((name, shapes(listed)) for name, listed in row["kwargs"] or ()) for row in it.tables["calls"]]
    same(
        (
            (*place(row), row["module"], shapes(row["inputs"]), own, calls[row["parent_call_id"]])
            for row, own in zip(it.tables["calls"], kwargs, strict=True)
        ),
        (
            (*placed(call.key), call.path, call.said.inputs, frozenset(call.said.kwargs.items()), placed(call.parent))
            for call in it.truth.calls
        ),
    )
    outputs = defaultdict(frozenset)
    for call in it.truth.calls:
        outputs[placed(call.key)] |= call.outputs
    assert [row for row in it.tables["calls"] if shapes(row["outputs"]) not in outputs[place(row)]] == []


@of_any_program
def test_modules_are_the_hierarchy_of_all_that_was_called(it) -> None:
    modules = it.tables["modules"]
    parts = [call.path.split(".") for call in it.truth.calls]
    same((row["path"] for row in modules), {".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)})
    assert [row["module_id"] for row in modules] == list(range(len(modules)))
    statements_by_path = defaultdict(list)
    for call in it.truth.calls:
        statements_by_path[call.path].append((call.alias_of, call.params, call.static))
    for row in modules:
        above, _, name = row["path"].rpartition(".")
        parent = None if row["parent_id"] is None else modules[row["parent_id"]]["path"]
        below = [one["module_id"] for one in modules if one["path"].startswith(row["path"] + ".")]
        assert (parent or "", row["name"], row["depth"]) == (above, name, row["path"].count("."))
        assert below == list(range(row["module_id"] + 1, row["subtree_end_id"]))
        params = {param["name"]: param["shape"] for param in row["params"] or ()}
        static = None if row["static_params"] is None else json.loads(row["static_params"])
        alternatives = statements_by_path.get(row["path"], [(None, {}, None)])
        assert row["alias_of"] in [alias for alias, _, _ in alternatives]
        assert params == agreed([candidate for _, candidate, _ in alternatives if candidate])
        settings = {json.dumps(candidate) for _, _, candidate in alternatives} - {"null"}
        assert static == (json.loads(*settings) if len(settings) == 1 else None)


def agreed(statements: list[dict]) -> dict:
    actual = {}
    for name in {name for params in statements for name in params}:
        shapes = [params.get(name) for params in statements]
        alike = None not in shapes and len({len(shape) for shape in shapes}) == 1
        actual[name] = (
            [sizes[0] if len({*sizes}) == 1 else None for sizes in zip(*shapes, strict=True)] if alike else None
        )
    return actual


@of_any_program
def test_times_of_calls_add_up(it) -> None:
    own, children = defaultdict(list), defaultdict(list)
    for row in it.tables["kernels"]:
        own[row["call_id"]].append(row)
    for row in it.tables["calls"]:
        children[row["parent_call_id"]].append(row)

    def subtree(call: dict) -> Rows:
        below = [work for child in children[call["call_id"]] for work in subtree(child)]
        return own[call["call_id"]] + below

    for row in it.tables["calls"]:
        mine, all_of_it, below = own[row["call_id"]], subtree(row), children[row["call_id"]]
        assert row["gpu_self_time_ns"] == sum(work["dur_ns"] for work in mine)
        assert row["gpu_time_ns"] == sum(work["dur_ns"] for work in all_of_it)
        inclusive = row["gpu_self_time_ns"] + sum(child["gpu_time_ns"] for child in below)
        assert row["gpu_time_ns"] == inclusive
        assert (row["kernel_self_count"], row["kernel_count"]) == (len(mine), len(all_of_it))
        assert row["gpu_start_ns"] == min((work["start_ns"] for work in all_of_it), default=None)
        assert row["gpu_end_ns"] == max((work["end_ns"] for work in all_of_it), default=None)
        assert row["gpu_busy_ns"] == busy([(work["start_ns"], work["end_ns"]) for work in all_of_it])
        launches = {
            (work["launch_start_ns"], work["launch_end_ns"]) for work in all_of_it if work["method"] != "graph_launch"
        }
        assert row["launch_time_ns"] == sum(end - start for start, end in launches)


def busy(intervals: list[tuple[int, int]]) -> int:
    edges = sorted({edge for interval in intervals for edge in interval})
    pieces = pairwise(edges)
    return sum(end - start for start, end in pieces if any(a <= start and end <= b for a, b in intervals))


@of_any_program
def test_shares_of_a_kernel_sum_to_one(it) -> None:
    shares = defaultdict(list)
    for row in it.tables["kernel_modules"]:
        shares[row["kernel_id"]].append((row["module_id"], row["weight"]))
    owned = {
        row["kernel_id"]: [(row["module_id"], 1.0)] for row in it.tables["kernels"] if row["module_id"] is not None
    }
    assert shares == owned


@of_any_program
def test_ranges_and_their_gpu_projection_are_nvidias(it) -> None:
    texts = {None: None} | {row["range_id"]: (*place(row), row["text"]) for row in it.tables["ranges"]}
    names = ("kind", "open", "gpu_start_ns", "gpu_end_ns", "gpu_op_count")

    def domain(name: str | None) -> object:
        return name is not None if it.plan.oddities.nameless_domains else name

    found = (
        (*texts[row["range_id"]], *(row[name] for name in names), domain(row["domain"])) for row in it.tables["ranges"]
    )
    same(found, ((*one.key, *(getattr(one, name) for name in names), domain(one.domain)) for one in it.truth.ranges))
    around = {row["range_id"]: row["parent_range_id"] for row in it.tables["ranges"] if row["kind"] == "push_pop"}
    same(
        ((texts[row], texts[outer]) for row, outer in around.items()),
        ((tuple(one.key), one.parent and tuple(one.parent)) for one in it.truth.ranges if one.kind == "push_pop"),
    )


@of_any_program
def test_steps_are_those_that_the_program_named(it) -> None:
    """Where a process names none, the outermost calls may stand in for them."""
    actual = Counter((*place(row), row["name"]) for row in it.tables["steps"])
    named = Counter((*placed(step.key), step.name) for step in it.truth.steps)
    assert named - actual == Counter()
    outermost = {placed(call.key) for call in it.truth.calls if call.parent is None}
    naming = set() if it.plan.same_pid else {step.key.pid for step in it.truth.steps}
    assert all(one[:4] in outermost and one[0] not in naming for one in actual - named)
    kinds = {row["name"]: row["kind"] for row in it.tables["steps"]}
    assert all(kinds[step.name] == step.kind for step in it.truth.steps if step.kind)


@of_any_program
def test_work_and_calls_are_of_the_step_that_was_open_on_their_thread(it) -> None:
    """A thread that names no steps may work for one of its process, or for none."""
    steps = it.keys("steps", "step_id")
    naming = set() if it.plan.same_pid else {step.key[:2] for step in it.truth.steps}
    kernels = [(row["pid"], row["tid"], *piece(row), steps[row["step_id"]]) for row in it.tables["kernels"]]
    true_kernels = [
        (*work.launch.thread[1:], *true_piece(work), placed(work.step)) for work in it.truth.work if work.launch
    ]
    calls = [(*place(row), steps[row["step_id"]]) for row in it.tables["calls"]]
    true_calls = [(*placed(call.key), placed(call.step)) for call in it.truth.calls]
    for actual, expected in ((kernels, true_kernels), (calls, true_calls)):
        same(*([one for one in side if one[:2] in naming] for side in (actual, expected)))
    for row in it.tables["kernels"]:
        step = steps[row["step_id"]]
        if step is not None:
            assert row["pid"] == step[0]
            assert step[2] <= row["launch_start_ns"] <= row["launch_end_ns"] <= step[3]


@pytest.mark.parametrize("number", range(4))
def test_work_of_a_graph_of_unknown_capture_goes_as_a_whole_to_the_call_around_the_replay(number) -> None:
    it = parsed(eventful(number, actions=60))
    of_launch = {true_piece(work): work.module for work in it.truth.work if work.methods == {"graph_launch"}}
    outside = {true_piece(work) for work in it.truth.work if work.causes & {"graph_unmapped", "graph_not_expanded"}}
    assert of_launch
    assert outside
    for row in it.tables["kernels"]:
        if piece(row) in of_launch:
            assert (row["module"], row["method"]) == (of_launch[piece(row)], "graph_launch")
        assert piece(row) not in outside or row["module"] is None
