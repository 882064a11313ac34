"""Runs a model as serving engines do: traced once, split at chosen operators, compiled, replayed from CUDA graphs.

>>> from tracekit.capture.compile import CompileConfig, PiecewiseBackend
>>> config = CompileConfig(splitting_ops=["vllm::unified_attention"], cudagraph_sizes=[1, 2, 4])
>>> model = torch.compile(model, backend=PiecewiseBackend(config))  # doctest: +SKIP

``README.md`` in this folder explains the modules, in the order in which a graph passes through them. Nothing here is
imported by :mod:`tracekit.capture` itself, because Dynamo and Inductor are slow to import.
"""

from tracekit.capture.compile.backend import PiecewiseBackend
from tracekit.capture.compile.compiler import Counters, counters
from tracekit.capture.compile.model import compile_model
from tracekit.capture.compile_config import CompileConfig

__all__ = ["CompileConfig", "Counters", "PiecewiseBackend", "compile_model", "counters"]
