"""Merging sorted runs in batches, against sorting everything at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from tracekit.dataset.stretches.order import batches

KEYS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=40)


@given(st.lists(KEYS, min_size=1, max_size=5), st.integers(1, 30))
def test_batches_together_are_all_rows_in_order(rows, most) -> None:
    runs = [tuple(np.array(sorted(run), dtype=np.int64).reshape(-1, 2).T) for run in rows]
    found = []
    for slices in batches(runs, most):
        batch = [
            key
            for run, part in zip(runs, slices, strict=True)
            for key in zip(*(c[part].tolist() for c in run), strict=True)
        ]
        found += sorted(batch)
    assert found == sorted(key for run in rows for key in run)


def test_a_batch_holds_about_as_many_rows_as_asked_for() -> None:
    runs = [(np.repeat(np.arange(100), 50), np.tile(np.arange(50), 100)) for _ in range(4)]
    sizes = [sum(part.stop - part.start for part in slices) for slices in batches(runs, 1000)]
    assert max(sizes) <= 2000
    assert len(sizes) < 60
