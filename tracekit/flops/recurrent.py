"""Layers whose FLOPs torch counts differently from device to device, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.flops.base import Unknown

if TYPE_CHECKING:
    from tracekit.flops.base import Call

_CLASSES = frozenset({"RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "Bilinear"})


def flops(call: Call) -> Unknown | None:
    """Always unknown: cuDNN and oneDNN run a recurrent layer as one operator, which ``flop_counter`` does not know."""
    if call.class_name not in _CLASSES:
        return None
    return Unknown(f"torch counts {call.class_name} differently per device, or not at all")
