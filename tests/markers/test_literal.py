"""The fast way of reading literals, against the slow one."""

from hypothesis import example, given, strategies as st

from tracekit.markers import layer_hooks, literal

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


@given(
    st.lists(
        st.sampled_from([*PIECES, "'Module': 'a'", ", 'Inputs': ", ", 'Outputs': ", "[[1]]", "}"]), max_size=10
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
    assert layer_hooks._layer_dict(text) == layer_hooks._whole(text)
