"""What all best alignments agree on, against all of them written out."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tracekit.unmarked import sequences
from tracekit.unmarked.sequences import agreement
from tracekit.unmarked.step_borders import Borders

LETTERS = st.lists(st.integers(0, 2), min_size=1, max_size=5)


def alignments(left: Sequence[int], right: Sequence[int], at: int = 0, other: int = 0) -> Iterator[dict[int, int]]:
    """All ways to pair equal elements in order."""
    yield {}
    pairs = ((row, place) for row in range(at, len(left)) for place in range(other, len(right)))
    for row, place in pairs:
        if left[row] == right[place]:
            for rest in alignments(left, right, row + 1, place + 1):
                yield {row: place} | rest


@settings(max_examples=200, deadline=None)
@given(
    left=LETTERS,
    right=LETTERS,
    labels=st.lists(st.integers(-1, 2), min_size=5, max_size=5),
    band=st.sampled_from((0, 1, 32)),
)
def test_an_element_is_told_only_if_all_alignments_that_match_the_most_agree(
    left: list[int], right: list[int], labels: list[int], band: int
) -> None:
    every = [*alignments(left, right)]
    most = max(map(len, every))
    best = [pairs for pairs in every if len(pairs) == most]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "_FIRST_BAND", band)
        found = agreement(*(np.array(one) for one in (left, right, labels[: len(right)])))
    assert found is not None
    assert found.matched == most
    for row in range(len(left)):
        places = {pairs.get(row, -1) for pairs in best}
        assert found.place[row] == (next(iter(places)) if len(places) == 1 else -1)
        told = {labels[place] if place >= 0 else -1 for place in places}
        assert found.label[row] == (next(iter(told)) if len(told) == 1 else -1)
        assert found.some[row] in places
    assert {*np.flatnonzero(found.used).tolist()} == {place for pairs in best for place in pairs.values()}


def test_of_alike_layers_of_which_one_is_missing_none_is_told_even_if_one_alignment_matches_more() -> None:
    layers = np.tile(np.arange(1, 9), 4)
    left, right = np.append(layers[:24], [1, 2, 0]), np.append(layers, 0)
    found = agreement(left, right, np.arange(33))
    assert found is not None
    assert found.matched == 27
    assert (found.label[:24] == -1).all()
    assert found.label[26] == 32


def test_finer_signatures_decide_where_equally_many_match() -> None:
    left, right, labels = np.array([1, 1]), np.array([1, 1, 1]), np.array([5, 6, 7])
    found = agreement(left, right, labels, (np.array([10, 12]), np.array([10, 11, 12])))
    assert found is not None
    assert found.place.tolist() == [0, 2]


def test_sequences_with_nothing_in_common_are_given_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "MOST_CELLS", 10_000)
    assert agreement(np.arange(200), np.arange(1_000, 1_200), np.zeros(200, dtype=np.int64)) is None


@pytest.mark.parametrize(
    ("names", "inside_step"),
    [([1, 2, 3, 9], True), ([9, 2, 3, 4], True), ([2, 3, 4], True), ([9, 2, 3, 9], False), ([3, 4, 1, 2], False)],
)
def test_a_step_goes_on_where_three_names_follow_each_other_as_within_one(names: list[int], inside_step: bool) -> None:
    cuts = Borders([np.array([1, 2, 3, 4])]).cuts(np.array(names), np.zeros(len(names), np.int64), np.array([2]))
    assert cuts.inside_step.tolist() == [inside_step]
