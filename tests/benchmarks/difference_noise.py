"""How often ``tracekit diff`` fails without a change, and how many planted changes it finds.

``python -m tests.benchmarks.difference_noise`` draws runs of a model by chance: 32 layers of 8 modules, in as many
steps as asked for. Kernels vary by themselves, steps as a whole, runs by the clocks of their GPU and each module by
where its data lies; one step in 20 is an outlier and the first takes twice as long. Steps may be of several sizes, of
which the two runs have another mix. In the second run either nothing changed, or a module with 5 % of the time became
5 % slower, or everything did.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from tests.benchmarks.measuring import benchmark
from tracekit.arrays.types import Floats
from tracekit.comparison import difference
from tracekit.comparison.step_metrics import Key, KeyTimes
from tracekit.comparison.step_times import StepTimes

LAYERS, OF_LAYER = 32, 8
STEP_NS = 20e6
CHANGE = 0.05
#: How much kernels of a module vary from step to step; steps; runs; and modules between runs.
KERNEL, STEP, RUN, MODULE = 0.02, 0.01, 0.01, 0.005
OUTLIERS, OUTLIER = 0.05, 1.5
OWN = pd.DataFrame({name: [] for name in ("key", "alike", "name", "ns", "kernels")})
PLANTED = "net.layers.0.m0"


def shares(chance: np.random.Generator) -> Floats:
    """Which share of a step each module takes: the first one the share that is to be found."""
    rest = chance.lognormal(0, 1, LAYERS * OF_LAYER - 1)
    return np.concatenate(([CHANGE], rest / rest.sum() * (1 - CHANGE)))


def run(chance: np.random.Generator, share: Floats, steps: int, sizes: Floats) -> StepTimes:
    """The times of one run, given the share of each module and how frequent each size of steps is."""
    size = chance.choice(sizes.size, steps, p=sizes) + 1
    of_step = size * chance.normal(1, RUN) * chance.lognormal(0, STEP, steps)
    of_step *= np.where(chance.random(steps) < OUTLIERS, OUTLIER, 1)
    of_step[0] *= 2
    of_module = STEP_NS * share * chance.lognormal(0, MODULE, share.size)
    own = of_module[:, None] * of_step * chance.lognormal(0, KERNEL, (share.size, steps))
    layers = own.reshape(LAYERS, OF_LAYER, steps)
    names = [f"net.layers.{at}" for at in range(LAYERS)]
    keys: list[Key] = [("step", "step", ""), ("module", "net", ""), *(("module", name, "") for name in names)]
    keys += [("module", f"{name}.m{at}", "") for name in names for at in range(OF_LAYER)]
    times = np.concatenate([own.sum(axis=0)[None], own.sum(axis=0)[None], layers.sum(axis=1), own])
    order = sorted(range(len(keys)), key=keys.__getitem__)
    times = times[order]
    rows = KeyTimes(
        keys=[keys[at] for at in order],
        alikes=[f"step {one}" for one in range(sizes.size + 1)],
        key=np.repeat(np.arange(len(keys)), steps),
        alike=np.tile(size, len(keys)),
        ns=times.round().astype(np.int64).ravel(),
        kernels=np.ones(times.size, np.int64),
    )
    return StepTimes(rows, OWN, steps, 0, rows.at(np.zeros(0, np.int64)))


def rates(pairs: int, steps: int, sizes: int, seed: int = 1) -> dict[str, float]:
    """The share of pairs of equal runs that fail, and of changed ones in which the change is found."""
    chance = np.random.default_rng(seed)
    frequent = 1.0 / np.arange(1, sizes + 1)
    frequent /= frequent.sum()
    seen = dict.fromkeys(("fails at 5%", "fails at 3%", "finds the module", "finds the step"), 0)
    for _ in range(pairs):
        share = shares(chance)
        before = run(chance, share, steps, frequent)
        slower = share * np.where(np.arange(share.size) == 0, 1 + CHANGE, 1)
        after = [run(chance, one, steps, frequent[::-1]) for one in (share, slower, share * (1 + CHANGE))]
        equal, module, step = (difference.judge(before, one)[0] for one in after)
        seen["fails at 5%"] += len(difference.slower_than(equal, 0.05)) > 0
        seen["fails at 3%"] += len(difference.slower_than(equal, 0.03)) > 0
        seen["finds the module"] += "slower" in set(module["status"][module["path"] == PLANTED])
        seen["finds the step"] += "slower" in set(step["status"][step["what"] == "step"])
    return {name: count / pairs for name, count in seen.items()}


def measure(args: argparse.Namespace, _folder: Path) -> None:
    for sizes, all_steps in ((1, (3, 5, 10, 20, 50)), (3, (20, 50))):
        for steps in all_steps:
            told = ", ".join(f"{name} {share:.0%}" for name, share in rates(args.pairs, steps, sizes).items())
            print(f"{steps:3} steps of {sizes} sizes: {told}", flush=True)


if __name__ == "__main__":
    benchmark(__doc__, measure, pairs=100)
