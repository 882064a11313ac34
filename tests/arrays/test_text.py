"""Arrow values as JSON text against Python's json, value by value."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from tracekit.arrays.text import json_text

STRINGS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=5)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
SHAPES = st.lists(st.lists(NUMBERS, max_size=3), max_size=3)
FIELDS = {'na"me': st.none() | STRINGS, "shape": st.none() | st.lists(NUMBERS, max_size=2)}
TYPES = {
    "numbers": (pa.int64(), NUMBERS),
    "flags": (pa.bool_(), st.booleans()),
    "strings": (pa.string(), STRINGS),
    "categories": (pa.dictionary(pa.int32(), pa.string()), STRINGS),
    "shapes": (pa.list_(pa.list_(pa.int64())), SHAPES),
    "maps": (
        pa.map_(pa.string(), pa.list_(pa.list_(pa.int64()))),
        st.dictionaries(STRINGS, SHAPES, max_size=3).map(lambda one: list(one.items())),
    ),
    "structs": (
        pa.list_(pa.struct({'na"me': pa.string(), "shape": pa.list_(pa.int64())})),
        st.lists(st.none() | st.fixed_dictionaries(FIELDS), max_size=3),
    ),
}


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
def test_it_is_what_json_says_of_every_value(name: str, data: st.DataObject) -> None:
    type_, values = TYPES[name]
    rows = data.draw(st.lists(st.one_of(st.none(), values), max_size=6))
    skipped = data.draw(st.integers(0, len(rows)))
    array = pa.array(rows, type_).slice(skipped)
    found = [None if text is None else json.loads(text) for text in json_text(array).to_pylist()]
    assert found == [dict(row) if name == "maps" and row is not None else row for row in rows[skipped:]]


def test_chunks_are_one_after_the_other() -> None:
    column = pa.chunked_array([[[1, 2]], [], [None, [3]]], pa.list_(pa.int64()))
    assert json_text(column).to_pylist() == ["[1, 2]", None, "[3]"]
