"""What a marked call costs beside a bare one, whatever tool is attached."""

from __future__ import annotations

import torch

from tests.benchmarks.marker_cost import measured
from tracekit.capture import step
from tracekit.proof.programs.observed import told

ROUNDS, REPEATS = 5, 10

if __name__ == "__main__":
    torch.set_num_threads(1)
    with step():  # what is recorded can be told from what is not
        costs = measured(ROUNDS, REPEATS)
    told(costs_ns={name: cost * 1e3 for name, cost in costs.items()})
