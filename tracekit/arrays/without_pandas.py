"""Keeps pyarrow from importing pandas before anybody asks for a DataFrame.

The first array that pyarrow makes of anything but Arrow's own has it import pandas, to ask whether the thing is one of
pandas's: 0.2 s of CPU time in every short command. pyarrow has no switch for it, and takes a failed import for an
answer; only a finder makes an import fail without touching anybody's modules.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa
from typing_extensions import override


class _NoPandas(MetaPathFinder):
    """Finds no pandas."""

    @override
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ImportError("not now")


def without_pandas() -> None:
    """Lets pyarrow do without pandas; DataFrames work as ever."""
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas())
    try:
        pa.array([0])
    finally:
        del sys.meta_path[0]
