"""Keeps pyarrow from importing pandas before anybody asks for a DataFrame.

The first time pyarrow makes an array of something that is not its own, it imports pandas to check whether that is a
pandas object: 0.2 s of CPU time in every short command. pyarrow has no switch for that, but accepts a failed import.
``sys.modules["pandas"] = None`` does not make it fail: pyarrow is compiled and takes the None for pandas. So a finder
has to raise.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa
from typing_extensions import override


class _NoPandas(MetaPathFinder):
    """Fails every import of pandas."""

    @override
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ImportError("pandas is not needed yet")


def without_pandas() -> None:
    """Lets pyarrow make its first array without pandas; DataFrames work as before."""
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
