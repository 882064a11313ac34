"""Scopes of vLLM, of which ``gpu_model_runner: forward`` tells a phase.

It writes them with ``VLLM_NVTX_SCOPES_FOR_PROFILING=1``. The others are plain texts that count nothing (vLLM:
``vllm/v1/worker/gpu_model_runner.py``, ``vllm/v1/utils.py``).
"""

from __future__ import annotations

from tracekit.markers.base import RangeMarker
from tracekit.markers.fields import bare_name

CANDIDATES = r"^gpu_model_runner: forward"

_FORWARD = "gpu_model_runner: forward"


def parse(text: str) -> RangeMarker | None:
    """The scope; None if the text only starts like it."""
    return RangeMarker(_FORWARD, "forward") if bare_name(text) == _FORWARD else None
