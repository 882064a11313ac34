"""Keeps memory that was freed for the next array of this process."""

import ctypes
import os
import sys
from contextlib import suppress

#: Parameters of glibc's mallopt (malloc.h): what is kept at the end of the heap, from which size on memory is mapped
#: anew for each array, and how many heaps threads have.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_ALL = 2**31 - 1


def keep_memory() -> None:
    """Lets glibc use freed memory again, for large arrays too, instead of giving it back and asking for it again.

    Every page that is touched for the first time is a fault: without this a fifth of the time of reading a report. For
    a process that reads reports or datasets and nothing else; where there is no glibc, nothing changes.

    NumPy, if it is not loaded yet, asks for no pages of 2 MB, which a virtual machine may first have to find (seen:
    twice the time that the system took for all pages of 4 KB). Nor does it start threads for matrices, which nobody
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
