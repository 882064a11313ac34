"""The dtype in which a layer multiplies, from the dtypes of its inputs, parameters and results."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_HALF = frozenset({"float16", "bfloat16"})
_NAMES = {
    "fp64": "float64",
    "double": "float64",
    "fp32": "float32",
    "float": "float32",
    "tf32": "tfloat32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8",
}
#: Dtypes in which GPUs multiply.
MULTIPLIED = ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8", "int8")


def plain(dtype: str) -> str:
    """One name for all spellings of a dtype: ``float8`` for ``float8_e4m3fn``, ``bfloat16`` for ``bf16``."""
    short = dtype.strip().lower().removeprefix("torch.")
    return "float8" if short.startswith("float8_") else _NAMES.get(short, short)


def computed_in(given: Iterable[str], returned: Iterable[str]) -> str | None:
    """The dtype of the products; None where the dtypes leave a doubt.

    Under autocast, float32 goes in and half precision comes out: the product had the dtype of the result. A layer whose
    weights and inputs differ otherwise may convert either.

    Args:
        given: Dtypes of inputs and parameters.
        returned: Dtypes of results.
    """
    before = {plain(dtype) for dtype in given} & {*MULTIPLIED, "uint8"}
    after = {plain(dtype) for dtype in returned} & {*MULTIPLIED}
    if len(both := before | after) == 1:
        (only,) = both
        return only if only in MULTIPLIED else None
    if len(after) == 1 and after <= _HALF and before <= {"float32", *after}:
        return next(iter(after))
    return None
