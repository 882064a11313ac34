"""Iterations of TensorRT-LLM: ``[Executor] _forward_step 12: 1 ctx reqs, 128 ctx tokens, 4 gen reqs``.

Its PyTorch runtime writes one around each step of its loop, in the domain ``TensorRT-LLM`` (TensorRT-LLM:
``tensorrt_llm/_torch/pyexecutor/py_executor.py``). The first versions wrote no number, and no tokens.
"""

from __future__ import annotations

import re

from tracekit.markers.base import StepMarker

CANDIDATES = r"^\[Executor\] _forward_step"

_FORM = re.compile(
    r"\[Executor\] _forward_step(?: (\d{1,18}))?: (\d{1,9}) ctx reqs, (?:(\d{1,18}) ctx tokens, )?(\d{1,9}) gen reqs"
)


def parse(text: str) -> StepMarker | None:
    """The step; None if the text only starts like one."""
    match = _FORM.fullmatch(text)
    if not match:
        return None
    index, tokens = (int(number) if number else None for number in match.group(1, 3))
    context, generation = int(match[2]), int(match[4])
    kind = "mixed" if context and generation else "prefill" if context else "decode" if generation else None
    # With speculative decoding a request that generates computes more than one token.
    return StepMarker(text, kind, index, context + generation, tokens if not generation else None)
