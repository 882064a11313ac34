"""Numbers as people read them."""

from __future__ import annotations

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "\N{MICRO SIGN}s"))
_SHOWN_AS_ZERO = 0.0005


def duration(ns: int) -> str:
    """Nanoseconds in the largest unit that fits, three digits: ``1.23 ms``."""
    for size, unit in _UNITS:
        if ns >= size:
            return f"{ns / size:.3g} {unit}" if ns < 1_000 * size else f"{ns / size:,.0f} {unit}"
    return f"{ns} ns"


def percent(share: float) -> str:
    """A share as a percentage: ``12.3 %``; what rounds to nothing or to all is not called so."""
    if 0 < share < _SHOWN_AS_ZERO:
        return "<0.1 %"
    if 1 - _SHOWN_AS_ZERO < share < 1:
        return ">99.9 %"
    return f"{share:.1%}".replace("%", " %")


def plain(text: str) -> str:
    """Text of unknown origin without what would command the terminal."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def count(number: int, singular: str, plural: str | None = None) -> str:
    """``1 kernel``, ``1,000 kernels``."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
