"""Extremes and sums over slices, against Python's own min, max and sum."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tracekit.arrays.slices import greatest_of, least_of, sums_to

INT64 = np.iinfo(np.int64)
EMPTY = 12345


@st.composite
def slices(draw: st.DrawFn, values: st.SearchStrategy[int]) -> tuple[list[int], list, list]:
    size = draw(st.sampled_from([0, 1, 2, 12, 100]))
    found = draw(st.lists(values, min_size=size, max_size=size))
    edge = st.integers(0, size)
    pairs = draw(st.lists(st.tuples(edge, edge), max_size=20))
    return found, [low for low, _ in pairs], [high for _, high in pairs]


def arrays(*lists: list[int]) -> list[np.ndarray]:
    return [np.array(one, dtype=np.int64) for one in lists]


@given(case=slices(st.integers(-50, 50) | st.sampled_from([INT64.min, INT64.max])))
@pytest.mark.parametrize("in_order", [False, True], ids=["any order", "rising"])
def test_extremes_of_slices_are_those_of_python(case: tuple[list, list, list], in_order: bool) -> None:
    values, low, high = case
    values = sorted(values) if in_order else values
    expected = [values[a:b] for a, b in zip(low, high, strict=True)]
    array, *ends = arrays(values, low, high)
    for extremes, of in ((least_of, min), (greatest_of, max)):
        assert extremes(array)(*ends, EMPTY).tolist() == [of(part, default=EMPTY) for part in expected]


@given(slices(st.integers(-(2**50), 2**50)))
def test_sums_of_slices_that_begin_at_each_row_are_those_of_python(case: tuple[list, list, list]) -> None:
    values, _, high = case
    ends = [max(row, high[row % len(high)]) if high else row + 1 for row in range(len(values))]
    expected = [sum(values[row:end]) for row, end in enumerate(ends)]
    assert sums_to(*arrays(values, ends)).tolist() == expected
