"""Arrow values as JSON; texts that no spreadsheet runs as a formula; times as people read them."""

import json
import re

import pyarrow as pa
import pyarrow.compute as pc


def json_text(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Every value as JSON text, such as ``[[8,4096],[8]]``, nested to any depth; null stays null."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    type_ = array.type
    if pa.types.is_map(type_):
        return _map(array)
    if pa.types.is_list(type_):
        return _bracketed("[", _joined(array, _or_null(json_text(array.values))), "]")
    if pa.types.is_struct(type_):
        return _struct(array)
    if pa.types.is_dictionary(type_) or pa.types.is_string(type_):
        return _string(array)
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return array.cast(pa.string())
    raise TypeError(f"cannot write {type_} as JSON")


def _string(array: pa.Array) -> pa.Array:
    distinct = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    spelled = [json.dumps(text) for text in distinct.dictionary.to_pylist()]
    return pa.array(spelled, pa.string()).take(distinct.indices)


def _map(array: pa.MapArray) -> pa.Array:
    pairs = pc.binary_join_element_wise(json_text(array.keys), _or_null(json_text(array.items)), ": ")
    return _bracketed("{", _joined(array, pairs), "}")


def _struct(array: pa.StructArray) -> pa.Array:
    names = [array.type.field(at).name for at in range(array.type.num_fields)]
    members = [
        _bracketed(f"{json.dumps(name)}: ", _or_null(json_text(member)), "")
        for name, member in zip(names, array.flatten(), strict=True)
    ]
    text = _bracketed("{", pc.binary_join_element_wise(*members, ", "), "}")
    return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string()))


def _joined(array: pa.ListArray | pa.MapArray, members: pa.Array) -> pa.Array:
    lists = pa.ListArray.from_arrays(array.offsets, members)
    return pc.if_else(array.is_valid(), pc.binary_join(lists, ", "), pa.scalar(None, pa.string()))


def _bracketed(before: str, text: pa.Array, after: str) -> pa.Array:
    return pc.binary_join_element_wise(before, text, after, "")


def _or_null(text: pa.Array) -> pa.Array:
    return pc.fill_null(text, "null")


#: What a spreadsheet may take for a formula or an error. A sign before a number is harmless; an apostrophe is ours.
_CALCULATED = re.compile(r"['=@#\t\r\n]|[+-](?!\d+(\.\d*)?([eE][+-]?\d+)?\Z)")


def safe_in_a_sheet(text: str) -> str:
    """The text, with an apostrophe in front if a spreadsheet would take it for a formula.

    Such texts start with ``=``, ``@``, ``#``, a tab, a line break or an apostrophe, or with ``+`` or ``-`` without
    being a number. Removing one leading apostrophe restores every text.
    """
    return f"'{text}" if _CALCULATED.match(text) else text


_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "\N{MICRO SIGN}s"), (1, "ns"))
#: The least share of a unit that three digits write as the whole; three digits would be written 1e+03 from the second.
_ROUNDED_UP, _FOUR_DIGITS = 0.9995, 999.5


def duration(ns: float) -> str:
    """Nanoseconds in the largest unit that fits, three digits: ``1.23 ms``."""
    if ns < 0:
        return f"-{duration(-ns)}"
    size, unit = next((unit for unit in _UNITS if ns >= _ROUNDED_UP * unit[0]), _UNITS[-1])
    return f"{ns / size:.3g} {unit}" if ns < _FOUR_DIGITS * size else f"{ns / size:,.0f} {unit}"
