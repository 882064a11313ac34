"""The fast way of reading literals, against the slow one."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from tracekit.markers import layer_dict, literal

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


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Module", "Class", "TrainableParams", "Inputs", "Outputs", "mask"]),
            st.sampled_from(
                [
                    "top.a",
                    "",
                    [[1, 2]],
                    [3],
                    [],
                    {"weight": [4, 4]},
                    {},
                    None,
                    7,
                    True,
                    "x, 'Inputs': 1",
                ]
            ),
        ),
        max_size=5,
    )
)
def test_a_marker_read_in_two_parts_says_what_it_says_as_a_whole(
    items: list[tuple[str, object]],
) -> None:
    text = f"{{{', '.join(f'{key!r}: {value!r}' for key, value in items)}}}"
    assert layer_dict.parse(text) == layer_dict._whole(text)


@given(
    st.lists(
        st.sampled_from([*PIECES, "'Module': 'a'", ", 'Inputs': ", ", 'Outputs': ", "[[1]]", "}"]),
        max_size=10,
    ).map("".join)
)
@example("{'Module': 'a', 'Inputs': [[1]]}")
@example("{'Module': 'a', 'Inputs': [[1]]} ")
@example("{'Module': 'a', 'Inputs': [[1]]")
@example("{'Module': 'a'}, 'Inputs': [[1]]}")
@example("{'Module': 'a, 'Inputs': [[1]]}")
@example("{'x': {'Module': 'a', 'Inputs': [[1]]}}")
@example("{'Module': 'a', 'Inputs': [[1]], 'Inputs': [[2]]}")
@example("{'Module': 'a', 'Outputs': [[1]]}")
@example("{'Module': 'a', 'Inputs': [[1]], 'Outputs': [[2]]}")
@example("{'Module': 'a', 'Outputs': [[1]], 'Inputs': [[2]]}")
def test_a_text_that_only_looks_like_a_marker_is_read_as_a_whole(text: str) -> None:
    assert layer_dict.parse(text) == layer_dict._whole(text)


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
