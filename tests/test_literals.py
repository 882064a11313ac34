"""The fast way of reading literals, against the slow one."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from tracekit.markers import literal

VALUES = st.recursive(
    st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    max_leaves=12,
)
PIECES = ["'", "{", "}", "[", "]", ", ", ": ", "'a'", "'a': 1", "1", "#", " ", "-", "0", "(", ")"]


@given(st.lists(st.tuples(st.sampled_from(["Module", "Inputs", "x", "x, 'y': 1"]), VALUES)))
def test_a_dict_is_read_the_fast_way_as_the_slow_way(items: list[tuple[str, object]]) -> None:
    text = f"{{{', '.join(f'{key!r}: {value!r}' for key, value in items)}}}"
    fast = literal._plain(text)
    assert fast is None or fast == literal._python(text)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@example("{, 'a': 1}")
@example("{'a': 1, 'b': 2}")
@example("{'a': {'b': 1, 'c': 2}}")
@example("{'a': 'x, 'b': 1}")
@example("{'a': 1, 'a': 2}")
@example("{'a': 1}, 'b': {}")
def test_what_the_fast_way_reads_is_what_the_slow_way_does(text: str) -> None:
    fast = literal._plain(text)
    assert fast is None or fast == literal._python(text.strip())


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("{'Module': 'a', 'Inputs': [[1, 2]]}", [("Module", "a"), ("Inputs", [[1, 2]])]),
        ("{'Module': 'a', 'x': 1, 'x': 2}", [("Module", "a"), ("x", 1), ("x", 2)]),
        ("{'a': {'b': 1, 'c': 2}}", [("a", {"b": 1, "c": 2})]),
    ],
)
def test_most_texts_are_read_the_fast_way(text: str, items: list[tuple[str, object]]) -> None:
    assert literal._plain(text) == items
