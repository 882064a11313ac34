"""Texts of operators: as torch's ``emit_nvtx`` writes them, which all later stages understand, and with dtypes."""

from __future__ import annotations

import json
from functools import lru_cache

from tracekit.readers.kineto.values import decoded

_SCALARS = (b"", b"[]")
#: Larger numbers are -1 without its sign.
_NO_SEQUENCE = 10**18
#: Names of dtypes by those of C++; all others are no tensors.
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "unsigned char": "uint8",
    "signed char": "int8",
    "short": "int16",
    "short int": "int16",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::complex<c10::Half>": "complex32",
    "unsigned short": "uint16",
    "short unsigned int": "uint16",
    "unsigned int": "uint32",
    "unsigned long": "uint64",
    "long unsigned int": "uint64",
    **{f"c10::Float8_{form}": f"float8_{form}" for form in ("e5m2", "e4m3fn", "e5m2fnuz", "e4m3fnuz", "e8m0fnu")},
    "c10::qint8": "qint8",
    "c10::quint8": "quint8",
    "c10::qint32": "qint32",
}


def operator_text(name: object, sequence: object, dims: bytes, dims_2020: bytes, types: bytes) -> str:
    """``aten::addmm, seq = 4, sizes = [[8], [2, 4]], types = ["float32", "float32"]``.

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
    return text if sizes is None else f"{text}, sizes = {sizes}{_types(types)}"


@lru_cache(maxsize=4_096)
def _sizes(dims: bytes) -> str | None:
    value = decoded(dims)
    return str(value) if isinstance(value, list) else None


@lru_cache(maxsize=4_096)
def _types(types: bytes) -> str:
    """The dtypes of inputs behind a comma; nothing if no input is a tensor whose dtype is known."""
    value = decoded(types)
    words = [_DTYPES.get(str(word), "") for word in value] if isinstance(value, list) else []
    return f", types = {json.dumps(words)}" if any(words) else ""
