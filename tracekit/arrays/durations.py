"""Times as people read them, in sentences and in tables."""

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "\N{MICRO SIGN}s"), (1, "ns"))
#: The least share of a unit that three digits write as the whole; three digits would be written 1e+03 from the second.
_ROUNDED_UP, _FOUR_DIGITS = 0.9995, 999.5


def duration(ns: float) -> str:
    """Nanoseconds in the largest unit that fits, three digits: ``1.23 ms``."""
    if ns < 0:
        return f"-{duration(-ns)}"
    size, unit = next((unit for unit in _UNITS if ns >= _ROUNDED_UP * unit[0]), _UNITS[-1])
    return f"{ns / size:.3g} {unit}" if ns < _FOUR_DIGITS * size else f"{ns / size:,.0f} {unit}"
