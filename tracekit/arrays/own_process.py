"""What a process that does nothing else settles first: it keeps freed memory, and does not load pandas unasked.

The first time pyarrow makes an array of something that is not its own, it imports pandas to check whether that is a
pandas object: 0.2 s of CPU time in every short command. pyarrow has no switch for that, but accepts a failed import.
``sys.modules["pandas"] = None`` does not make it fail: pyarrow is compiled and takes the None for pandas. So a finder
has to raise.

Modules of ours that make DataFrames import pandas when they are loaded. For them a stand-in loads it when it is used.
(``importlib.util.LazyLoader`` loads at the second ``import``, since that looks at ``__spec__``.)
"""

import ctypes
import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from types import ModuleType

from typing_extensions import override

#: Parameters of glibc's mallopt (malloc.h): what is kept at the end of the heap, from which size on memory is mapped
#: anew for each array, and how many heaps threads have.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_ALL = 2**31 - 1


def keep_memory() -> None:
    """Lets glibc use freed memory again, for large arrays too, instead of giving it back and asking for it again.

    Every page that is touched for the first time is a fault: without this a fifth of the time of reading a report.
    NumPy, if it is not loaded yet, asks for no pages of 2 MB, which a virtual machine may first have to find (seen:
    twice the time that the system took for all pages of 4 KB), and starts no threads for matrices, which nobody
    multiplies here.
    """
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):  # other C libraries have no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _ALL)
        mallopt(_MMAP_THRESHOLD, _ALL) or mallopt(_MMAP_THRESHOLD, 1 << 25)  # older glibc takes no more than this
        mallopt(_ARENA_MAX, 1)


def give_back() -> None:
    """Gives kept memory back, before work that needs less."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


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
    import pyarrow as pa  # noqa: PLC0415 - loads NumPy, which memory is kept before

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
    sys.modules[_PANDAS] = _Late(_PANDAS)
