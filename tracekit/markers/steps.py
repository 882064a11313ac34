"""Ranges that are iterations: vLLM's ``execute_context_…``, SGLang's ``step[…]``, torch.profiler's ``ProfilerStep#N``.

And our own: ``{"Step": 12, "Name": "train", "Kind": "train", "BatchSize": 8, "Tokens": 4096}``.
"""

from __future__ import annotations

import re

from tracekit.markers import literal
from tracekit.markers.base import StepMarker
from tracekit.markers.fields import count_of

CANDIDATES = r"""^(execute_(\d+_)?context_\d|step\[|ProfilerStep#\d|\{['"]Step['"]:)"""

#: What a step can be.
KINDS = ("train", "prefill", "decode", "mixed")

_VLLM = re.compile(r"execute_(?:\d+_)?context_(\d{1,9})\((\w*)\)_generation_(\d{1,9})\((\w*)\)")
# What begins with a number counts somebody's own steps: step[3].
_SGLANG = re.compile(r"step\[([^\W\d]\w*)((?: +[^\]\s]+)*) *\]")
_PROFILER = re.compile(r"(ProfilerStep#(\d{1,18}))(?:, op_id = \d+)?")
_FIELD = re.compile(r"(?<!\S)(\w+)=(\d{1,18})(?!\S)")
_TOKENS = re.compile(r"(?:sq)?(\d{1,18})")
_SGLANG_KINDS = {"EXTEND": "prefill", "PREFILL": "prefill", "DECODE": "decode", "MIXED": "mixed"}


def parse(text: str) -> StepMarker | None:
    """The step; None if the text only starts like one."""
    if match := _VLLM.match(text):
        return _vllm(text, *match.groups())
    if match := _SGLANG.match(text):
        return _sglang(text, *match.groups())
    if match := _PROFILER.fullmatch(text):
        return StepMarker(match[1], "train", index=int(match[2]))
    return _own(text) if text.startswith("{") else None


def _own(text: str) -> StepMarker | None:
    try:
        fields = {str(key): item for key, item in literal.pairs(text)}
    except literal.Refused:
        return None
    kind = fields.get("Kind")
    index, batch_size, tokens = (count_of(fields.get(key)) for key in ("Step", "BatchSize", "Tokens"))
    name = fields.get("Name")
    return StepMarker(
        name if isinstance(name, str) else text,
        kind if isinstance(kind, str) and kind in KINDS else None,
        index,
        batch_size,
        tokens,
    )


def _vllm(text: str, contexts: str, context_tokens: str, generations: str, generation_tokens: str) -> StepMarker:
    """``execute_context_<requests>(<tokens>)_generation_<requests>(<tokens>)``; newer: ``sq<tokens>sk…``."""
    prefills, decodes = int(contexts), int(generations)
    tokens = [_TOKENS.match(number) for number in (context_tokens, generation_tokens)]
    total = sum(int(number.group(1)) for number in tokens if number) if all(tokens) else None
    kind = "mixed" if prefills and decodes else "prefill" if prefills else "decode" if decodes else None
    return StepMarker(text, kind, batch_size=prefills + decodes, tokens=total)


def _sglang(text: str, mode: str, fields: str) -> StepMarker:
    """``step[EXTEND bs=15 toks=15360]``, ``step[DECODE bs=32]``."""
    numbers = {key: int(number) for key, number in _FIELD.findall(fields)}
    kind = _SGLANG_KINDS.get(mode.upper())
    batch_size = numbers.get("bs")
    # A decode step computes one token a request.
    tokens = numbers.get("toks", batch_size if kind == "decode" else None)
    return StepMarker(text, kind, batch_size=batch_size, tokens=tokens)
