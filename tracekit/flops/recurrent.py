"""Layers of which torch counts other things on one device than on another, or nothing at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.flops.base import Unknown

if TYPE_CHECKING:
    from tracekit.flops.base import Call

_CLASSES = frozenset({"RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "Bilinear"})


def flops(call: Call) -> Unknown | None:
    """Never known: cuDNN and oneDNN run a recurrent layer as one operator, which ``flop_counter`` does not know."""
    if call.class_name not in _CLASSES:
        return None
    return Unknown(f"no count is agreed on for {call.class_name}")
