"""Programs in which every process runs two models that were hooked with one prefix."""

import json
import re
from collections import Counter, defaultdict
from dataclasses import replace

from tests.parsed_programs import Parsed, over_programs, parsed, piece, place, placed, true_piece
from tests.simulator import Plan, TrueCall
from tests.simulator.strategies import plans

Facts = tuple[object, ...]


def twice(plan: object) -> object:
    return replace(plan, namesakes=True, dialect="json", modules=max(plan.modules, 4), same_pid=False)  # type: ignore[type-var, attr-defined]


of_two_models = over_programs(plans().map(twice), 60)


def facts_of(call: TrueCall) -> Facts:
    return tuple(sorted(call.params.items())), json.dumps(call.static)


def without_numbers(path: str) -> str:
    return re.sub(r"~\d+", "", path)


@of_two_models
def test_every_call_stands_at_its_path_or_is_counted(it: Parsed) -> None:
    true = {placed(call.key): call for call in it.truth.calls}
    for row in it.tables["calls"]:
        assert without_numbers(row["module"]) == true[place(row)].path
    missing = len(true) - len(it.tables["calls"])
    counted = {row["cause"]: row["count"] for row in it.tables["coverage"] if row["what"] == "calls: losses"}
    assert counted.get("module_unclear", 0) == missing


@of_two_models
def test_no_module_of_a_process_is_of_two_models_that_are_told_apart(it: Parsed) -> None:
    true = {placed(call.key): call for call in it.truth.calls}
    numbers = defaultdict(set)
    facts = defaultdict(set)
    for row in it.tables["calls"]:
        call = true[place(row)]
        numbers[row["pid"], row["module"]].add(call.said.module.number)
        facts[row["pid"], row["module"]].add(facts_of(call)[0] if call.params else None)
    often = Counter((pid, without_numbers(path)) for pid, path in numbers)
    for (pid, path), its in numbers.items():
        assert len(facts[pid, path] - {None}) <= 1, "parameters of two models"
        if often[pid, without_numbers(path)] > 1:
            assert len(its) == 1, "calls of two models"


@of_two_models
def test_kernels_are_their_calls_or_counted(it: Parsed) -> None:
    calls = {row["call_id"]: place(row) for row in it.tables["calls"]}
    paths = {place(row): row["module"] for row in it.tables["calls"]}
    expected = Counter((*true_piece(work), paths.get(placed(work.call))) for work in it.truth.work)
    assert Counter((*piece(row), row["module"]) for row in it.tables["kernels"]) == expected
    for row in it.tables["kernels"]:
        assert row["call_id"] is None or paths[calls[row["call_id"]]] == row["module"]
    unclear = [row for row in it.tables["kernels"] if row["cause"] == "module_unclear"]
    lost = [work for work in it.truth.work if work.call and placed(work.call) not in paths]
    assert len(unclear) == len(lost)


def test_most_programs_of_two_models_tell_them_apart() -> None:
    """Else the tests above would test nothing."""
    programs = [parsed(Plan(seed=seed, namesakes=True, modules=12, iterations=3)) for seed in range(8)]
    apart = [any("~" in row["path"] for row in it.tables["modules"]) for it in programs]
    assert sum(apart) > 6
