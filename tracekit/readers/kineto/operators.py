"""Texts of operators: as torch's ``emit_nvtx`` writes them, which all later stages understand."""

from __future__ import annotations

from functools import lru_cache

import msgspec

_SCALARS = (b"", b"[]")
#: Larger numbers are -1 without its sign.
_NO_SEQUENCE = 10**18


def operator_text(name: object, sequence: object, dims: bytes, dims_2020: bytes, types: bytes) -> str:
    """``aten::addmm, seq = 4, sizes = [[8], [2, 4]]``.

    Args:
        name: The operator.
        sequence: Its sequence number; negative if it has none.
        dims: The dimensions of its inputs as JSON; empty if they were not recorded.
        dims_2020: The same, as releases of 2020 call it.
        types: The types of its inputs. In 2020, dimensions without types are placeholders.
    """
    text = str(name)
    if isinstance(sequence, int) and 0 <= sequence < _NO_SEQUENCE:
        text += f", seq = {sequence}"
    if not dims and types not in _SCALARS:
        dims = dims_2020
    sizes = _sizes(dims)
    return f"{text}, sizes = {sizes}" if sizes is not None else text


@lru_cache(maxsize=4_096)
def _sizes(dims: bytes) -> str | None:
    value = msgspec.json.decode(dims) if dims else None
    return str(value) if isinstance(value, list) else None
