"""Simulated programs of compiled graphs: no kernel has a wrong module, and what a report tells for certain is known."""

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.golden import Parse
from tests.simulator.compiled import Features, Program, determined, program, undetermined, wrong

_TOGETHER = 20


def together(seeds: Iterable[int], has: Features | None = None) -> list[Program]:
    return [
        program(seed, has, first_process=1 + 5 * number, tag=f"program{number}") for number, seed in enumerate(seeds)
    ]


def lines(programs: list[Program]) -> str:
    return "\n".join(line for made in programs for line in made.lines)


@pytest.mark.parametrize("first", range(0, 4 * _TOGETHER, _TOGETHER))
def test_no_kernel_of_a_compiled_graph_has_a_wrong_module(parsed: Parse, first: int) -> None:
    programs = together(range(first, first + _TOGETHER))
    dataset = parsed(lines(programs))
    for made in programs:
        assert wrong(made, dataset) == []
        assert undetermined(made, dataset) == []


@pytest.mark.parametrize("first", range(1000, 1000 + 2 * _TOGETHER, _TOGETHER))
def test_no_kernel_has_a_wrong_module_where_ranges_are_the_nodes(parsed: Parse, first: int) -> None:
    has = Features(unmarked=True, user_ranges=True, copies=True, backward=True, varying=True, graphs=True)
    programs = together(range(first, first + _TOGETHER), has)
    dataset = parsed(lines(programs), rows="ranges")
    for made in programs:
        assert [answer for answer in wrong(made, dataset) if answer.row["method"] == "compiled"] == []


def test_most_kernels_have_just_their_modules(parsed: Parse) -> None:
    programs = together(range(_TOGETHER), Features(backward=True, graphs=True, copies=True))
    dataset = parsed(lines(programs))
    counts: Counter[str] = Counter()
    for made in programs:
        counts.update(determined(made, dataset))
    assert counts["none"] == 0
    assert counts["exact"] > 0.6 * counts.total()
