"""Keeps pyarrow from importing pandas before anybody asks for a DataFrame.

The first time pyarrow makes an array of something that is not its own, it imports pandas to check whether that is a
pandas object: 0.2 s of CPU time in every short command. pyarrow has no switch for that, but accepts a failed import.
``sys.modules["pandas"] = None`` does not make it fail: pyarrow is compiled and takes the None for pandas. So a finder
has to raise.

Modules of ours that make DataFrames import pandas when they are loaded. For them a stand-in loads it when it is used.
(``importlib.util.LazyLoader`` loads at the second ``import``, since that looks at ``__spec__``.)
"""

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from types import ModuleType

import pyarrow as pa
from typing_extensions import override

_PANDAS = "pandas"


class _NoPandas(MetaPathFinder):
    @override
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == _PANDAS:
            raise ImportError("pandas is not needed yet")


class _Late(ModuleType):
    """Stands for pandas until the first time that something in it is used."""

    @override
    def __getattr__(self, name: str) -> object:
        if sys.modules.get(_PANDAS) is self:
            del sys.modules[_PANDAS]
        return getattr(import_module(_PANDAS), name)


def without_pandas() -> None:
    """Lets pyarrow make its first array without pandas, and others import it unused; DataFrames work as before."""
    if _PANDAS in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
    sys.modules[_PANDAS] = _Late(_PANDAS)
