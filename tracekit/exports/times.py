"""Times as the microseconds of Chrome's trace format, written so that a viewer's arithmetic moves no slice.

A slice has a start and a length. Viewers that add them as floating-point numbers (speedscope) may place an end just
after the start of the next slice. Perfetto multiplies each by a thousand and drops the fraction, so that 52.207 us can
become 52206 ns. Either way slices that touch overlap: speedscope draws them one inside the other, Perfetto leaves one
out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracekit.arrays.types import Floats, Ints

    #: Start and end in nanoseconds → start and length in microseconds, as JSON.
    Spelling = Callable[[Ints, Ints], tuple[pa.Array, pa.Array]]


#: Steps of a microsecond that binary numbers hold exactly, up to six days; each is 0.06 ns.
_STEPS = 1 << 14


def for_sums(start_ns: Ints, end_ns: Ints) -> tuple[pa.Array, pa.Array]:
    """Start and length in steps whose sums are exact; rounded to a nanosecond they are the original times."""
    start, end = (np.rint(ns * (_STEPS / 1_000)) for ns in (start_ns, end_ns))
    return _shortest(start / _STEPS), _shortest((end - start) / _STEPS)


def for_truncation(start_ns: Ints, end_ns: Ints) -> tuple[pa.Array, pa.Array]:
    """Start and length plus a quarter of a nanosecond, which the viewer drops."""
    return (
        pc.binary_join_element_wise(_decimal(start_ns), "25", ""),
        pc.binary_join_element_wise(_decimal(end_ns - start_ns), "25", ""),
    )


def _shortest(numbers: Floats) -> pa.Array:
    """The fewest digits that read back as the same number."""
    return pa.array(numbers).cast(pa.string())


def _decimal(ns: Ints) -> pa.Array:
    """Nanoseconds as exact decimal microseconds: ``-1234`` is ``-1.234``."""
    whole, rest = np.divmod(np.abs(ns), 1_000)
    sign = pc.if_else(pa.array(ns < 0), "-", "")
    decimals = pc.utf8_lpad(pa.array(rest).cast(pa.string()), 3, "0")
    number = pc.binary_join_element_wise(pa.array(whole).cast(pa.string()), decimals, ".")
    return pc.binary_join_element_wise(sign, number, "")
