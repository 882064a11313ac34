"""Runs a model the way it is served: traced once, split at chosen operators, compiled, replayed from CUDA graphs.

>>> from tracekit.capture.compile import CompileConfig, PiecewiseBackend
>>> config = CompileConfig(splitting_ops=["vllm::unified_attention"], cudagraph_sizes=[1, 2, 4])
>>> model = torch.compile(model, backend=PiecewiseBackend(config))  # doctest: +SKIP

In the order in which a graph goes through them: ``config`` says what is wanted, ``backend`` takes the graph from
Dynamo, ``split`` cuts it into pieces, ``sizes`` finds what varies in their shapes, ``compiler`` compiles each (once
for all that ``keys`` finds equal), ``stitching`` puts them together, ``piece`` runs one, ``cudagraph`` captures it,
and ``inputs`` keeps what it reads in place (``writes`` tells what it writes). ``readable`` writes all that down,
``bar`` shows how far it is, and ``counters`` counts.

``dispatch`` traces a model once and then calls its code past the guards, one ``tracing`` for each of the ``forms`` of a
call; ``proxy`` and ``root`` let it pass for the model, ``state`` tells what a forward must not reassign.

``cache`` keeps compiled pieces on ``disk``, in a folder named by the ``factors`` that they depend on, and compilers
work in ``scratch`` folders. Nothing here is imported with :mod:`tracekit.capture`: Dynamo and Inductor take their time.
"""

from __future__ import annotations

from tracekit.capture.compile.backend import PiecewiseBackend
from tracekit.capture.compile.cache import ArtifactStore
from tracekit.capture.compile.config import CompileConfig
from tracekit.capture.compile.counters import Counters, CountersDiffer, counters
from tracekit.capture.compile.dispatch import CompiledModel, compile_model

__all__ = [
    "ArtifactStore",
    "CompileConfig",
    "CompiledModel",
    "Counters",
    "CountersDiffer",
    "PiecewiseBackend",
    "compile_model",
    "counters",
]
