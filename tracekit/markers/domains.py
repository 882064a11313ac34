"""NVTX domains: those of libraries, whose ranges never stand above a user's, and that of TensorRT's layers.

Names as the libraries register them: ``NCCL`` (nccl: ``src/include/nvtx.h``), ``CCCL`` (cccl:
``libcudacxx/include/cuda/__nvtx/nvtx.h``), ``libcudf``, ``cudf_python``, ``cudf_pandas`` (cudf:
``cpp/include/cudf/detail/nvtx/ranges.hpp``, ``python/cudf``), ``librmm`` (rmm), ``TensorRT`` and ``myelin-exec``
(reports of TensorRT 8.5). ``DeepSpeed``, ``TensorRT-LLM`` and ``TSL`` (XLA) are frameworks: what they run is inside
their ranges.
"""

from __future__ import annotations

import re

_LIBRARIES = re.compile(
    r"(nccl|aws-ofi-nccl|cublas|cudnn|cusparse|cusolver|cufft|curand|cutensor|custatevec|cudss|cufile|cccl|thrust|cub|"
    r"libcu\w+|libkvikio|kvikio|(lib)?rmm|(lib)?raft|cudf|cuml|cugraph|cuvs|cucim|dali|tensorrt(?![-_ ]?llm)|myelin|"
    r"nvimgcodec|nvjpeg|nvtiff|nvcomp|nvcv|nvmath|mpi|shmem|ucx|ucp|nvshmem|cupy|openacc|openmp|osrt)"
    r"([\W_].*|lt|exec|\d.*)?",
    re.IGNORECASE,
)


_LAYERS = re.compile(r"tensorrt", re.IGNORECASE)


def has_layers(domain: str) -> bool:
    """Whether the texts of a domain are names of layers, in which no number counts."""
    return _LAYERS.fullmatch(domain.strip()[:64]) is not None


def is_library(domain: str) -> bool:
    """Whether a domain is the one of a library, as ``NCCL`` and ``cuBLASLt`` are."""
    return _LIBRARIES.fullmatch(domain.strip()[:64]) is not None
