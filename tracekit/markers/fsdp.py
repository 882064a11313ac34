"""Ranges of torch's data parallel wrappers: FSDP, FSDP2, DistributedDataParallel, DataParallel.

``FSDP::pre_forward (layers.3)``, ``FSDP::all_gather (layers.3) [pg=8]`` and ``FSDP::backward_prefetch for layers.3``
are of FSDP2 (pytorch: ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`` and ``_fsdp_state.py``, before 2.6
in ``torch/distributed/_composable/fsdp``); ``FullyShardedDataParallel._post_backward_hook`` of FSDP
(``torch/distributed/fsdp/_runtime_utils.py``); ``DistributedDataParallel.forward`` of ``torch/nn/parallel``. The
place in brackets names a module, without the wrappers around it.
"""

from __future__ import annotations

import re

from tracekit.markers.base import RangeMarker
from tracekit.markers.fields import bare_name

CANDIDATES = r"^(FSDP::\w|FullyShardedDataParallel\._?[a-z]|(Distributed)?DataParallel\.forward)"

_FORM = re.compile(r"(?:FSDP::|(?:FullySharded|Distributed)?DataParallel\._?)(\w+)(?: .*)?", re.DOTALL)
_WRAPPERS = re.compile(r"\b(?:_checkpoint_wrapped_module|_fsdp_wrapped_module|_orig_mod)\b\.?")
_LEFT_BEHIND = re.compile(r"\.(?=[,)]|$)| \(\)")


def parse(text: str) -> RangeMarker | None:
    """The range; None if the text only starts like one."""
    name = bare_name(text)
    match = _FORM.fullmatch(name)
    return RangeMarker(_LEFT_BEHIND.sub("", _WRAPPERS.sub("", name)), _phase(match[1])) if match else None


def _phase(what: str) -> str:
    """Where it is told; an ``all_gather`` may be part of either."""
    if "backward" in what:
        return "backward"
    return "forward" if "forward" in what or what == "inputs_to_device" else ""
