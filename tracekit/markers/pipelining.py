"""Actions of torch's pipeline schedules: ``PP:2F0``, ``PP:(1F2;0B3)OVERLAP_F_B``.

An action is the number of a stage, a kind and the number of a micro-batch, which counts (pytorch:
``torch/distributed/pipelining/schedules.py``). Simple schedules write ``Forward 3``, as users do too: a text that tells
a phase and nothing else.
"""

from __future__ import annotations

import re

from tracekit.markers.base import RangeMarker
from tracekit.markers.fields import bare_name

CANDIDATES = r"^PP:[\d(]"

_SINGLE = re.compile(r"PP:\d{1,9}([A-Z]+(?:_[A-Z]+)*)\d{0,9}")
_SEVERAL = re.compile(r"PP:\([\dA-Z_;]*\)[A-Z]+(?:_[A-Z]+)*")
_MICRO_BATCH = re.compile(r"(?<=[A-Z])\d+")
_PHASES = {"F": "forward", "B": "backward", "I": "backward", "W": "backward"}


def parse(text: str) -> RangeMarker | None:
    """The action; None if the text only starts like one."""
    name = bare_name(text)
    single = _SINGLE.fullmatch(name)
    if not single and not _SEVERAL.fullmatch(name):
        return None
    return RangeMarker(_MICRO_BATCH.sub("*", name), _PHASES.get(single[1], "") if single else "")
