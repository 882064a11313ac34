"""How often ``tracekit diff`` takes noise for a slow-down, and how many planted ones it finds.

Times of modules are drawn by chance, the first step takes twice as long, and of the second run some modules are 10 %
slower: ``python -m tests.benchmarks.difference_noise``. Then the same with steps of several sizes, of which the two
runs have another mix; a size ten times as large takes ten times as long.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import pandas as pd

from tracekit.analyses import difference
from tracekit.analyses.step_metrics import KEYS, KeyTimes
from tracekit.analyses.step_times import StepTimes
from tracekit.arrays.types import Floats

MODULES, SLOW, RUNS = 300, 30, 3
NANOSECONDS = 100_000
SCALE = 1.1
OWN = pd.DataFrame({name: [] for name in (*KEYS, "alike", "name", "ns", "kernels")})


def run(chance: np.random.Generator, steps: int, noise: float, *, slow: int, sizes: Floats | None = None) -> StepTimes:
    """The times of one run; its first modules are slower. Its steps are of the sizes that are drawn."""
    size = np.ones(steps, np.int64) if sizes is None else chance.choice(sizes.size, steps, p=sizes) + 1
    times = NANOSECONDS * size * chance.lognormal(0, noise, (MODULES, steps))
    times[:slow] *= SCALE
    times[:, 0] *= 2
    largest = int(size.max())
    rows = KeyTimes(
        keys=[("module", f"m{module}", "") for module in range(MODULES)],
        alikes=[f"step {one}" for one in range(largest + 1)],
        key=np.repeat(np.arange(MODULES), steps),
        alike=np.tile(size, MODULES),
        ns=times.round().astype(np.int64).ravel(),
        kernels=np.ones(times.size, np.int64),
    )
    return StepTimes(rows, OWN, steps, 0)


def tried(runs: int, make: Callable[[int, int], StepTimes]) -> str:
    alarms = found = 0
    for _ in range(runs):
        before, after = (make(at, slow) for at, slow in enumerate((0, SLOW)))
        rows = difference.judge(before, after)
        slower = rows[rows["status"] == "slower"]["path"].str[1:].astype(int)
        alarms += int((slower >= SLOW).sum())
        found += int((slower < SLOW).sum())
    return f"{alarms} false alarms of {runs * (MODULES - SLOW)}, {found} of {runs * SLOW} slow-downs found"


def mixes(sizes: int) -> list[Floats]:
    share = 1.0 / np.arange(1, sizes + 1)
    return [share / share.sum(), share[::-1] / share.sum()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    runs = parser.parse_args().runs
    chance = np.random.default_rng(1)
    for steps in (3, 5, 10, 20, 50, 200):
        for noise in (0.02, 0.05, 0.1):
            said = tried(runs, lambda _, slow: run(chance, steps, noise, slow=slow))  # noqa: B023
            print(f"{steps:3} steps, noise {noise:.0%}: {said}")
    for sizes in (2, 10, 100):
        of_size = mixes(sizes)
        for steps in (10, 50, 200):
            for noise in (0.02, 0.05):
                said = tried(
                    runs,
                    lambda at, slow: run(chance, steps, noise, slow=slow, sizes=of_size[at]),  # noqa: B023
                )
                print(f"{steps:3} steps of {sizes} sizes, noise {noise:.0%}: {said}")


if __name__ == "__main__":
    main()
