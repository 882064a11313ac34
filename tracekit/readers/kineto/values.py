"""Values of events as arrays: times in whole nanoseconds, ids, dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
import numpy as np

from tracekit.readers.kineto.events import ExactTimes
from tracekit.readers.rows.times import nanoseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.arrays.types import Flags, Floats, Ints
    from tracekit.readers.kineto.events import Event, Number

#: Doubles from here on are further apart than one nanosecond, in microseconds: 102 days.
_INEXACT_US = 2.0**43
#: Larger than any true time, even since 1970, in microseconds: 73 years.
_LAST_US = 2.0**61 / 1000
LARGEST_ID = 2**62
_NO_TIMES = ExactTimes()
#: The tables keep ids of threads and processes in 31 bits.
_ID_BITS = 0x7FFFFFFF


def numbers(values: Sequence[Number]) -> Floats:
    """Numbers, also those that are written as texts; NaN for what is none."""
    try:
        return np.array(values, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        return np.array([_number(value) for value in values], dtype=np.float64)


def _number(value: Number) -> float:
    try:
        return float(value) if value is not None else float("nan")
    except (ValueError, OverflowError):
        return float("nan")


def integers_of(values: Sequence[Number]) -> Ints:
    """Ids and sizes; -1 for what is none."""
    try:
        return np.array(values, dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        return np.array([_integer(value) for value in values], dtype=np.int64)


def _integer(value: Number) -> int:
    try:
        number = int(value) if value is not None else -1
    except (ValueError, OverflowError):
        return -1
    return number if abs(number) <= LARGEST_ID else -1


def identity(value: Number) -> int:
    """The id of a thread or process in 31 bits, also if it is a text."""
    try:
        return int(value or 0) & _ID_BITS
    except (ValueError, OverflowError):
        return crc32(str(value).encode("utf-8", "replace")) & _ID_BITS


def decoded(text: bytes) -> object:
    """The value of an argument that was left as JSON; None if that is damaged."""
    try:
        return msgspec.json.decode(text.decode("utf-8", "replace")) if text else None
    except msgspec.MsgspecError:
        return None


def start_and_duration(
    events: Sequence[Event], rows: Sequence[int], exact: Callable[[], list[ExactTimes]]
) -> tuple[Ints, Ints, Flags]:
    """Starts and durations of some events of a piece, and whether each has times that can be.

    Args:
        events: The events.
        rows: Their places in the piece.
        exact: Reads the times of the whole piece again in full, where doubles do not hold them.
    """
    start, duration = numbers([event.ts for event in events]), numbers([event.dur for event in events])
    known = (np.abs(start) < _LAST_US) & (np.abs(duration) < _LAST_US)
    start, duration = np.where(known, start, 0.0), np.where(known, duration, 0.0)
    if bool((np.abs(start) >= _INEXACT_US).any()) and not all(isinstance(event.ts, int) for event in events):
        return *_exact(exact(), rows, known), known
    return nanoseconds(start), nanoseconds(duration), known


def _exact(times: list[ExactTimes], rows: Sequence[int], known: Flags) -> tuple[Ints, Ints]:
    some = [times[row] if fits else _NO_TIMES for row, fits in zip(rows, known.tolist(), strict=True)]
    start = [round(one.ts * 1000) if one.ts is not None else 0 for one in some]
    duration = [round(one.dur * 1000) if one.dur is not None else 0 for one in some]
    return np.array(start, dtype=np.int64), np.array(duration, dtype=np.int64)
