"""A simulator of its own: programs of compiled graphs with kernel maps, as trace lines, and whom each kernel serves.

    made = program(7)                      # a program of features at random; program(7, Features()) has none
    dataset = parsed("\\n".join(made.lines))
    wrong(made, dataset)                   # what is neither right, nor unknown, nor a truthful common ancestor

The truth comes from the plan of each run, never from names or times.
"""

from tests.simulator.compiled.graphs import Features
from tests.simulator.compiled.judge import determined, undetermined, wrong
from tests.simulator.compiled.program import Program, program

__all__ = ["Features", "Program", "determined", "program", "undetermined", "wrong"]
