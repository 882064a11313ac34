"""The fast way of reading literals, against the slow one."""

from hypothesis import example, given, strategies as st

from tracekit.markers import layer_hooks, literal
from tracekit.trace.decoding import decode

VALUES = st.recursive(
    st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    max_leaves=12,
)
FIELDS = [", 'Class': 'b'", ", 'TrainableParams': {'w': [2, 's0']}", ", 'x': [[3]]", ", 'StaticParams': {'p': 1}", "?"]
FIELDS += [field.replace("'", '"') for field in ("'Module': 'a'", ", 'Inputs': ", ", 'Outputs': ", *FIELDS)]
PIECES = ["'", "{", "}", "[", "]", ", ", ": ", "'a'", "'a': 1", "1", "#", " ", "-", "0", "(", ")"]


@given(st.lists(st.tuples(st.sampled_from(["Module", "Inputs", "x", "x, 'y': 1"]), VALUES)))
def test_a_dict_is_read_the_fast_way_as_the_slow_way(items: list[tuple[str, object]]) -> None:
    text = f"{{{', '.join(f'{key!r}: {value!r}' for key, value in items)}}}"
    fast = literal._plain(text)
    assert fast is None or fast == literal._python(text)


@given(
    st.lists(
        st.sampled_from([*PIECES, "'Module': 'a'", ", 'Inputs': ", ", 'Outputs': ", "[[1]]", "}", *FIELDS]), max_size=10
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
@example("{'Module': '', 'Inputs': [[1]], 'Phase': 'recompute'}")
@example("{'Module': 'a', 'TrainableParams': {'w': 'x'}, 'Inputs': [['s0']], 'StaticParams': {'p': 1}}")
@example("{'Module': 'a', 'TrainableParams': {'w': ['s0']}, 'Inputs': [['s0']], 'x': [[1]]}")
@example("""{'Module': 'a', "x, 'Inputs': ": [[1]]}""")
@example(
    """{"Module": "a", "Class": "B", "Inputs": [[1]], "Types": ["f"], "Kwargs": {"x": [[2]]}, "Phase": "capture"}"""
)
@example("""{"Module": "a", 'Inputs': [[1]]}""")
def test_a_text_is_read_in_halves_as_it_is_as_a_whole(text: str) -> None:
    whole = layer_hooks.LAYER_DICTS._replace(halves=None)
    halved, read = decode([text], [layer_hooks.LAYER_DICTS]), decode([text], [whole])
    assert halved.markers == read.markers
    assert halved.of_text.tolist() == read.of_text.tolist()
