"""Runs a model the way it is served: traced once, split at chosen operators, compiled, replayed from CUDA graphs.

>>> from tracekit.capture.compile import CompileConfig, PiecewiseBackend
>>> config = CompileConfig(splitting_ops=["vllm::unified_attention"], cudagraph_sizes=[1, 2, 4])
>>> model = torch.compile(model, backend=PiecewiseBackend(config))  # doctest: +SKIP

In the order in which a graph goes through them: ``config`` says what is wanted, ``backend`` takes the graph from
Dynamo, ``split`` cuts it into pieces, ``sizes`` finds what varies in their shapes, ``compiler`` compiles each (once
for all that ``isomorphic`` finds equal), ``stitching`` puts them together, ``piece`` runs one, ``cudagraph`` captures
it, and ``inputs`` keeps what it reads in place (``writes`` tells what it writes). ``readable`` writes all that down, ``bar`` shows how far it is, and
``counters`` counts. It is not imported with :mod:`tracekit.capture`: Dynamo and Inductor take their time.
"""

from __future__ import annotations

from tracekit.capture.compile.backend import PiecewiseBackend
from tracekit.capture.compile.config import CompileConfig
from tracekit.capture.compile.counters import Counters, CountersDiffer, counters

__all__ = ["CompileConfig", "Counters", "CountersDiffer", "PiecewiseBackend", "counters"]
