"""Arrow values as JSON; texts that no spreadsheet runs as a formula; numbers with units as people read them."""

import json
import re
from collections.abc import Sequence

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


_TIMES = ((10**9, "s"), (10**6, "ms"), (10**3, "\N{MICRO SIGN}s"), (1, "ns"))
#: The least share of a unit that three digits write as the whole.
_ROUNDED_UP = 0.9995
#: From the first on, three digits would be written 1e+03; below the second, with a negative power of ten.
_FOUR_DIGITS, _LEAST = 999.5, 0.001


def duration(ns: float) -> str:
    """Nanoseconds in the largest unit that fits, three digits: ``1.23 ms``."""
    return in_units(ns, _TIMES)


def in_units(number: float, units: Sequence[tuple[int, str]]) -> str:
    """A number in the largest of some units that fits, three digits; units come from the largest to the smallest."""
    if number < 0:
        return f"-{in_units(-number, units)}"
    size, unit = next((one for one in units if number >= _ROUNDED_UP * one[0]), units[-1])
    return f"{rounded(number / size)} {unit}"


def rounded(number: float) -> str:
    """Three digits, never as a power of ten: ``1,470``, ``0.123``, ``0.000``."""
    if number == 0 or abs(number) >= _FOUR_DIGITS:
        return f"{number:,.0f}"
    return f"{number:.3g}" if abs(number) >= _LEAST else f"{number:.3f}"
