"""Counters are compared over a block, and what differs is named."""

import pytest

from tracekit.capture.compile import Counters, CountersDiffer

pytestmark = pytest.mark.torch


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
