"""Checks: what is recorded and compared with the truth, one file per check.

To add a check: write ``checks/<check>.py`` with the six names of :class:`~tracekit.proof.base.Check`, add the
module to ``CHECKS``, to a group in ``tests/proof/proofs.py``, and beside it a test that breaks what it proves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.proof.checks import (
    backward,
    command,
    compiled,
    eager,
    graph_in_warmup,
    graph_in_window,
    markers,
    nccl,
    operators,
    pieces,
    processes,
    script,
    whole_graph,
)

if TYPE_CHECKING:
    from tracekit.proof.base import Check

#: In the order in which they run: what the later ones need comes first.
CHECKS: tuple[Check, ...] = (
    markers,
    eager,
    operators,
    backward,
    graph_in_window,
    graph_in_warmup,
    whole_graph,
    pieces,
    compiled,
    processes,
    nccl,
    script,
    command,
)
