"""Stands in for g++ where only the names and the order of Inductor's C++ kernels matter, because it is slow.

Its kernels tell the profiler their names, if the generated code would, and compute nothing.
"""

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_NAME = re.compile(r'RAIIAtenRecordFunctionHandle \w+\("([^"]+)"')


@contextmanager
def hollow_compiler() -> Iterator[None]:
    from unittest.mock import patch

    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import CppWrapperCodeCache

    wrappers = patch.object(CppWrapperCodeCache, "load_pybinding", _hollow_wrapper)
    with patch.object(AsyncCompile, "cpp_pybinding", _hollow), wrappers:
        yield


def _hollow_wrapper(*, num_outputs: int, **_: object) -> Callable[[object], object]:
    import torch

    return lambda _inputs: torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([torch.zeros(())] * num_outputs)


def _hollow(_: object, __: Sequence[str], source_code: str) -> Callable[..., None]:
    name = _NAME.search(source_code)
    return _Named(name[1].encode()) if name else lambda *_: None


class _Named:
    """A kernel that tells the profiler its name."""

    def __init__(self, name: bytes) -> None:
        import torch

        torch_cpu = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
        self._name = name
        self._start, self._end = torch_cpu.aoti_record_function_start, torch_cpu.aoti_record_function_end

    def __call__(self, *_: object) -> None:
        told = ctypes.c_void_p()
        self._start(self._name, None, None, ctypes.c_size_t(0), ctypes.byref(told))
        self._end(told)
