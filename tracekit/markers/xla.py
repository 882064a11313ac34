"""Ranges of XLA, which runs JAX: ``XlaModule:#hlo_module=jit_f,program_id=3#``, ``Thunk:#name=…,hlo_op=fusion.3#``.

A module is a compiled program, a thunk what it launches for one of its operations; its name is where the operation
comes from: scopes that ``jax.named_scope`` and Flax write, and ``jvp(…)`` and ``transpose(jvp(…))`` for the forward
and backward pass of what is differentiated. Others, such as ``XlaCompile:#module=jit_f,program_id=3#``, are parts of
compiling (XLA: ``xla/backends/gpu/runtime/annotation.cc``, before 2025 ``xla/service/gpu/runtime/annotation.cc``;
before 2024 the fields of a thunk were ``hlo_op``, ``hlo_module`` and ``program_id``). All are in the domain ``TSL``
(``tsl/profiler/lib/nvtx_utils.cc``). Numbers of programs and operations count; names of operations are places.
"""

from __future__ import annotations

import re

from tracekit.markers.base import RangeMarker
from tracekit.markers.fields import bare_name

CANDIDATES = r"^(Xla\w+|Thunk):#\w+="

_FORM = re.compile(r"(\w+):#(.*)#", re.DOTALL)
# Values may hold commas and equal signs, so only these names begin a field.
_FIELD = re.compile(r"(?:^|,)(prefix|name|hlo_op|hlo_module|module|program_id|unique_hlo_op_id)=")
_COMPILING = re.compile(r"Xla(?:Compile|Pass|Emit|Autotuner|MakeKernel|Create|Dump|Memory|Buffer|Optimize|Llvm)\w*")
_RECOMPUTE = re.compile(r"(?:^|/)rematted_computation(?:/|$)")
_BACKWARD = re.compile(r"(?:^|/)transpose\(jvp\(")
_FORWARD = re.compile(r"(?:^|/)jvp\(")


def parse(text: str) -> RangeMarker | None:
    """The range; None if the text only starts like one."""
    match = _FORM.fullmatch(bare_name(text))
    if not match:
        return None
    parts = _FIELD.split(match[2])
    fields = dict(zip(parts[1::2], parts[2::2], strict=True))
    kind, name = match[1], fields.get("name")
    thing = fields.get("hlo_op") or fields.get("hlo_module") or fields.get("module")
    if not name and not thing:
        return None
    title = f"{kind} {name} ({thing})" if name and thing else f"{kind} {name or thing}"
    return RangeMarker(title, _phase(kind, name or ""))


def _phase(kind: str, name: str) -> str:
    if _COMPILING.fullmatch(kind):
        return "compile"
    if _RECOMPUTE.search(name):
        return "recompute"
    if _BACKWARD.search(name):
        return "backward"
    return "forward" if _FORWARD.search(name) else ""
