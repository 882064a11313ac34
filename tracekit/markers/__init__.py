"""The language of markers: what capture writes and :mod:`tracekit.trace.decoding` reads.

To add a dialect: write ``markers/<dialect>.py`` with the two names of :class:`~tracekit.markers.base.Dialect`, add
the module to ``DIALECTS`` (the first that understands a text wins), and some of its texts with their markers to
``tests/markers/test_dialects.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.markers import (
    compact,
    compiled,
    deepspeed,
    fsdp,
    inductor,
    kernel_maps,
    layer_dict,
    lightning,
    megatron,
    numbered,
    pieces,
    pipelining,
    pyprof,
    scripted,
    steps,
    tensorrt_llm,
    transformer_engine,
    vllm_scopes,
    xla,
)

if TYPE_CHECKING:
    from tracekit.markers.base import Dialect

#: Dialects whose ranges are no calls of modules: they tell a name, and maybe a phase or a step.
FRAMEWORKS: tuple[Dialect, ...] = (
    *(fsdp, pipelining, inductor, deepspeed, megatron, transformer_engine, lightning),
    *(tensorrt_llm, vllm_scopes, xla),
)
DIALECTS: tuple[Dialect, ...] = (
    *(compiled, layer_dict, pyprof, compact, steps, pieces, kernel_maps, numbered, scripted),
    *FRAMEWORKS,
)
