"""How often ``tracekit diff`` takes noise for a slow-down, and how many planted ones it finds.

Times of modules are drawn by chance, the first step takes twice as long, and of the second run some modules are 10 %
slower: ``python -m tests.benchmarks.difference_noise``.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

from tracekit.analyses import difference
from tracekit.analyses.step_times import KEYS, StepTimes

MODULES, SLOW, RUNS = 300, 30, 3
NANOSECONDS = 100_000
SCALE = 1.1
OWN = pd.DataFrame({name: [] for name in (*KEYS, "name", "ns", "kernels")})


def run(chance: np.random.Generator, steps: int, noise: float, *, slow: int) -> StepTimes:
    """The times of one run; its first modules are slower."""
    times = NANOSECONDS * chance.lognormal(0, noise, (MODULES, steps))
    times[:slow] *= SCALE
    times[:, 0] *= 2
    rows = pd.DataFrame(
        {
            "what": "module",
            "path": np.repeat([f"m{module}" for module in range(MODULES)], steps),
            "shapes": None,
            "step": np.tile(np.arange(steps), MODULES),
            "ns": times.round().astype(np.int64).ravel(),
            "kernels": 1,
        }
    )
    return StepTimes(rows, OWN, steps, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    runs = parser.parse_args().runs
    chance = np.random.default_rng(1)
    for steps in (3, 5, 10, 20, 50, 200):
        for noise in (0.02, 0.05, 0.1):
            alarms = found = 0
            for _ in range(runs):
                before, after = (run(chance, steps, noise, slow=slow) for slow in (0, SLOW))
                rows = difference.judge(before, after)
                slower = rows[rows["status"] == "slower"]["path"].str[1:].astype(int)
                alarms += int((slower >= SLOW).sum())
                found += int((slower < SLOW).sum())
            print(
                f"{steps:3} steps, noise {noise:.0%}: {alarms} false alarms of {runs * (MODULES - SLOW)}, "
                f"{found} of {runs * SLOW} slow-downs found"
            )


if __name__ == "__main__":
    main()
