"""A simulator of its own: programs of compiled graphs with kernel maps, as trace lines, and whom each kernel serves.

    made = program(7)                      # a program of features at random; program(7, Features()) has none
    dataset = parsed("\\n".join(made.lines))
    wrong(made, dataset)                   # what is neither right, nor unknown, nor a truthful common ancestor

The truth comes from the plan of each run, never from names or times. ``plan`` says what there is to choose, ``graphs``
makes compiled graphs, ``recording`` what a profiler leaves of what happened, ``runs`` lets a process run graphs, and
``truth`` compares.
"""

from __future__ import annotations

from tests.simulator.compiled.plan import Features
from tests.simulator.compiled.program import Program, program
from tests.simulator.compiled.truth import determined, undetermined, wrong

__all__ = ["Features", "Program", "determined", "program", "undetermined", "wrong"]
