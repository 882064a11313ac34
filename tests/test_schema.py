"""Tables that conform to their declaration."""

import pyarrow as pa
import pytest

from tracekit.schema import CATEGORY, SHAPES, ArrowValues, Categories, Column, Integers, TableSpec, TypedTable

TYPES = {"flag": pa.bool_(), "small": pa.int8(), "number": pa.int64(), "ratio": pa.float64(), "text": pa.string()}
TYPES |= {"word": CATEGORY, "shapes": SHAPES}
NULLABLE = [Column(name, type_, "", nullable=True) for name, type_ in TYPES.items()]
SPEC = TableSpec("things", "", (Column("id", pa.int32(), ""), *NULLABLE))


@pytest.mark.parametrize("rows", [0, 1, 7, 1000])
def test_columns_without_values_are_null_in_every_type(rows: int) -> None:
    given = {name: pa.nulls(rows, type_) for name, type_ in TYPES.items()}
    for columns in (dict.fromkeys(TYPES), given):
        table = SPEC.table({"id": range(rows), **columns})
        table.validate(full=True)
        assert table.schema == SPEC.schema()
        assert table.to_pylist() == [{"id": at, **dict.fromkeys(TYPES)} for at in range(rows)]


def test_a_column_that_is_never_null_needs_values() -> None:
    with pytest.raises(TypeError, match=r"things\.id: 2 nulls in a column that is never null"):
        SPEC.table({"id": None, **dict.fromkeys(TYPES), "number": [1, 2]})


class Things(TypedTable, name="things", sorted_by=("at_ns",)):
    """One row per thing."""

    at_ns = Integers("When.", null=-5)
    word = Categories("Its word.", nullable=True)
    shapes = ArrowValues("Its shapes.", SHAPES)


def test_typed_columns_are_those_that_the_class_declares_made_once() -> None:
    assert TableSpec("things", "One row per thing.", Things.SPEC.columns, ("at_ns",)) == Things.SPEC
    assert [column.type_name for column in Things.SPEC.columns] == ["int64?", "category?", "list<list<int64>>"]
    things = Things(Things.SPEC.table({"at_ns": [3, None], "word": pa.array(["a", None]), "shapes": [[[1]], []]}))
    assert things.at_ns.tolist() == [3, -5]
    assert things.at_ns is things.at_ns
    assert things.word.named(things.word.code) == ["a", None]
    assert things.shapes.to_pylist() == [[[1]], []]
    assert (len(things), things.filter(things.at_ns < 0).word.code.tolist()) == (2, [-1])
