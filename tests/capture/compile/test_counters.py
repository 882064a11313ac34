"""Counters are compared over a block, and what differs is named."""

from __future__ import annotations

import pytest

from tracekit.capture.compile import Counters, CountersDiffer

pytestmark = pytest.mark.torch


def test_all_begin_at_zero_and_can_be_set_to_it() -> None:
    found = Counters(graphs_seen=3)
    found.reset()
    assert set(found.snapshot().values()) == {0}


def test_a_block_is_expected_to_count_by_so_much() -> None:
    found = Counters(graphs_seen=5)
    with found.expect(graphs_seen=1, pieces_seen=0):
        found.graphs_seen += 1
        found.cache_hits += 7
    assert (found.graphs_seen, found.cache_hits) == (6, 7)


def test_what_differs_is_named_with_what_was_expected_and_found() -> None:
    found = Counters()

    def count() -> None:
        with found.expect(graphs_seen=1, pieces_seen=5, cache_hits=0):
            found.graphs_seen += 1
            found.pieces_seen += 3
            found.cache_hits += 2

    with pytest.raises(CountersDiffer) as raised:
        count()
    assert str(raised.value) == "pieces_seen: expected 5, found 3; cache_hits: expected 0, found 2"
    assert raised.value.differences == {"pieces_seen": (5, 3), "cache_hits": (0, 2)}
    assert isinstance(raised.value, AssertionError)


def test_a_counter_that_there_is_not_is_named() -> None:
    with (
        pytest.raises(TypeError, match="no counter piece_seen; there are graphs_seen"),
        Counters().expect(piece_seen=1),
    ):
        pass


def test_what_the_block_raises_comes_through() -> None:
    with pytest.raises(ValueError, match="mine"), Counters().expect(graphs_seen=1):
        raise ValueError("mine")
