"""Ranges that are iterations: vLLM's ``execute_context_…``, SGLang's ``step[…]``, torch.profiler's ``ProfilerStep#N``.

And our own: ``{"Step": 12, "Name": "train", "Kind": "train", "BatchSize": 8, "Tokens": 4096}``.
"""

from __future__ import annotations

import re

from tracekit.markers import literal
from tracekit.markers.base import StepMarker

CANDIDATES = r"""^(execute_(\d+_)?context_\d|step\[|ProfilerStep#\d|\{['"]Step['"]:)"""

#: What a step can be.
KINDS = ("train", "prefill", "decode", "mixed")
_LARGEST = 2**63 - 1

_VLLM = re.compile(r"execute_(?:\d+_)?context_(\d{1,9})\((\w*)\)_generation_(\d{1,9})\((\w*)\)")
_SGLANG = re.compile(r"step\[(\w+)((?: +[^\]\s]+)*) *\]")
_PROFILER = re.compile(r"ProfilerStep#(\d{1,18})")
_FIELD = re.compile(r"(?<!\S)(\w+)=(\d{1,18})(?!\S)")
_TOKENS = re.compile(r"(?:sq)?(\d{1,18})")
_SGLANG_KINDS = {"EXTEND": "prefill", "PREFILL": "prefill", "DECODE": "decode", "MIXED": "mixed"}


def parse(text: str) -> StepMarker | None:
    """The step; None if the text only begins like one."""
    if found := _VLLM.match(text):
        return _vllm(text, *found.groups())
    if found := _SGLANG.match(text):
        return _sglang(text, *found.groups())
    if found := _PROFILER.fullmatch(text):
        return StepMarker(text, "train", index=int(found.group(1)))
    return _own(text) if text.startswith("{") else None


def _own(text: str) -> StepMarker | None:
    try:
        said = {str(key): item for key, item in literal.pairs(text)}
    except literal.Refused:
        return None
    kind = said.get("Kind")
    index, batch_size, tokens = (_count(said.get(key)) for key in ("Step", "BatchSize", "Tokens"))
    name = said.get("Name")
    return StepMarker(
        name if isinstance(name, str) else text,
        kind if isinstance(kind, str) and kind in KINDS else None,
        index,
        batch_size,
        tokens,
    )


def _count(item: object) -> int | None:
    return item if type(item) is int and 0 <= item <= _LARGEST else None


def _vllm(text: str, contexts: str, context_tokens: str, generations: str, generation_tokens: str) -> StepMarker:
    """``execute_context_<requests>(<tokens>)_generation_<requests>(<tokens>)``; newer ones spell ``sq<tokens>sk…``."""
    prefills, decodes = int(contexts), int(generations)
    tokens = [_TOKENS.match(said) for said in (context_tokens, generation_tokens)]
    total = sum(int(said.group(1)) for said in tokens if said) if all(tokens) else None
    kind = "mixed" if prefills and decodes else "prefill" if prefills else "decode" if decodes else None
    return StepMarker(text, kind, batch_size=prefills + decodes, tokens=total)


def _sglang(text: str, mode: str, fields: str) -> StepMarker:
    """``step[EXTEND bs=15 toks=15360]``, ``step[DECODE bs=32]``."""
    said = {key: int(number) for key, number in _FIELD.findall(fields)}
    kind = _SGLANG_KINDS.get(mode.upper())
    batch_size = said.get("bs")
    # A decode step computes one token a request.
    tokens = said.get("toks", batch_size if kind == "decode" else None)
    return StepMarker(text, kind, batch_size=batch_size, tokens=tokens)
