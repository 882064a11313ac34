"""A script that calls the model in a loop of its own. ``python script.py N`` calls it N times."""

from __future__ import annotations

import sys

import torch

from tracekit.proof.programs.chain import make
from tracekit.proof.programs.observed import synchronize, warmed


def main(calls: int) -> None:
    """Calls the model."""
    model, x = make()
    with torch.no_grad():
        warmed()
        for _ in range(calls):
            model(x)
    synchronize()


if __name__ == "__main__":
    main(int(sys.argv[1]))
