"""A simulator of profilers: programs that run in simulated time, the report nsys would write, and the truth.

    from tests.simulator import Faults, Plan, simulate, truth_of, write_report

    plan = Plan(seed=7, processes=2, shared=True, faults=Faults(lost_ranges=0.1))
    run = simulate(plan)                                   # what happened
    report = write_report(run, tmp_path / "report.sqlite")  # what the profiler left of it
    truth = truth_of(run)                                   # what a reader of the report should find

The truth comes from links that the simulation made as things happened (``events.py``), never from comparing times.
``strategies.plans()`` and ``strategies.capturing_plans()`` give plans to Hypothesis; ``eventful(seed)`` is one plan
with everything in it but captures of CUDA graphs, ``capturing(seed)`` one with these, too.

``compiled`` (graphs with kernel maps), ``ranks`` (that meet in collectives, each with a clock of its own) and
``timelines`` (what waits for what) are simulators of their own.

Reading order: ``plan`` (what there is to choose), ``events`` and ``models`` (what can happen, to what), ``threads``
(the clock and the open ranges), ``graphs``, ``script`` and ``loops`` (who does what), ``run``, ``truth``, ``report``.
Tables of reports are declared in ``tests/nsight_tables.py``; the other simulators write ``tests/trace_lines.py``.

To add a thing that happens: an act in ``script.py``, a switch in ``plan.py``, a link in ``events.py`` if the truth
needs one, and the climb along it in ``truth.py``.
"""

from tests.nsight_tables import GENERATIONS
from tests.simulator.plan import Faults, Oddities, Plan, capturing, eventful
from tests.simulator.report import write_report
from tests.simulator.run import Run, simulate
from tests.simulator.truth import RangeKey, TrueCall, TrueRange, TrueStep, TrueWork, Truth, truth_of

__all__ = ["GENERATIONS", "Faults", "Oddities", "Plan", "RangeKey", "Run", "TrueCall", "TrueRange", "TrueStep"]
__all__ += ["TrueWork", "Truth", "capturing", "eventful", "simulate", "truth_of", "write_report"]
