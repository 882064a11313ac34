"""Arrow values as JSON; texts that no spreadsheet runs as a formula; names, and numbers with units, in sentences."""

import json
import re
from collections.abc import Sequence

import pyarrow as pa

from tracekit.arrays.codes import codes
from tracekit.arrays.groups import grouped


def json_text(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Every value as JSON text, such as ``[[8, 4096], [8]]``, nested to any depth; null stays null."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
        return array.cast(pa.string())
    equal = grouped([codes(array)])
    distinct = array.take(pa.array(equal.first)).to_pylist()
    as_python = dict if pa.types.is_map(array.type) else lambda value: value
    texts = [None if value is None else json.dumps(as_python(value)) for value in distinct]
    return pa.array(texts, pa.string()).take(pa.array(equal.group))


#: What a spreadsheet may take for a formula or an error. A sign before a number is harmless; an apostrophe is ours.
_CALCULATED = re.compile(r"['=@#\t\r\n]|[+-](?!\d+(\.\d*)?([eE][+-]?\d+)?\Z)")


def safe_in_a_sheet(text: str) -> str:
    """The text, with an apostrophe in front if a spreadsheet would take it for a formula.

    Such texts start with ``=``, ``@``, ``#``, a tab, a line break or an apostrophe, or with ``+`` or ``-`` without
    being a number. Removing one leading apostrophe restores every text.
    """
    return f"'{text}" if _CALCULATED.match(text) else text


#: How many names a sentence has.
_MOST_NAMED = 3


def listed(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


_TIMES = ((10**9, "s"), (10**6, "ms"), (10**3, "\N{MICRO SIGN}s"), (1, "ns"))
#: The least share of a unit that three digits write as the whole.
_ROUNDED_UP = 0.9995
#: From the first on, three digits would be written 1e+03; below the second, with a negative power of ten.
_FOUR_DIGITS, _LEAST = 999.5, 0.001
#: Shares below this are not shown as 0.0 %, and as close to 1 not as 100.0 %.
SHOWN_AS_ZERO = 0.0005


def percent(share: float) -> str:
    """A share as a percentage: ``12.3 %``. Only exactly nothing is 0.0 %, only exactly all is 100.0 %."""
    if share and abs(share) < SHOWN_AS_ZERO:
        return "<0.1 %"
    return ">99.9 %" if 1 - SHOWN_AS_ZERO <= share < 1 else f"{share or 0.0:.1%}".replace("%", " %")


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
