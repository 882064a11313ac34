"""What the self-test records: a row for each program, as data. It imports neither torch nor what judges.

To add a program: write its target into ``models.py``, its row into ``PROGRAMS``, naming rules of ``judge.py`` that must
hold, and next to the tests of its rules one that breaks its report.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

#: What a step does, which is also its name.
EAGER, CAPTURE, REPLAY = "eager", "capture", "replay"
#: Calls of the model in a step of each kind. Before a graph capture the model runs once on the same stream.
CALLS_IN = {EAGER: 1, CAPTURE: 2, REPLAY: 0}
#: Layers of the model. Each has an activation, at which compiled pieces are split.
LAYERS = 2
#: Calls of the model in each of two processes.
WORKERS = (2, 3)
#: How the ranges of torch's profiler begin that a program's own hooks open around calls; a path follows.
PREFIX = "truth:"

MODELS = "tracekit.selftest.models"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program, how it is recorded with ``tracekit capture``, and what must be true of its report.

    Attributes:
        name: Its name.
        about: What holds if it passes, in one line.
        rules: Names of what is compared.
        limit_s: How long it may take, in seconds.
        needs_gpu: Whether it is missing without a GPU.
        arguments: Of ``tracekit capture``, the target first; nothing is recorded without any.
        module: A module and its arguments that are run before, in the folder of the report; none if empty.
        engine: ``nsys`` or ``torch``; None for the best one here.
        warmup, steps: What the steps before the recording and in it do.
    """

    name: str
    about: str
    rules: tuple[str, ...]
    limit_s: int = 300
    needs_gpu: bool = False
    arguments: tuple[str, ...] = ()
    module: tuple[str, ...] = ()
    engine: str | None = None
    warmup: tuple[str, ...] = (EAGER, EAGER)
    steps: tuple[str, ...] = (EAGER, EAGER, EAGER)

    @property
    def calls(self) -> int:
        """How often the model is called in the recording."""
        return sum(CALLS_IN[step] for step in self.steps)


#: In the order in which they run.
PROGRAMS = (
    Program(
        name="markers",
        about="markers under nsys are the calls that hooks counted",
        rules=("calls",),
        arguments=(f"{MODELS}:make",),
        engine="nsys",
    ),
    Program(
        name="eager",
        about="calls are those that hooks counted; work and time by module are those of torch.profiler's own trace, to "
        "the ns",
        rules=("calls", "times"),
        arguments=(f"{MODELS}:make", "--hierarchy"),
        engine="torch",
    ),
    Program(
        name="backward",
        about="with --backward and --ops, each Linear has as many backward calls as forward ones, and every product is "
        "of the module whose weight has its shape: one in each forward call, two in each backward one",
        rules=("calls", "products", "backward"),
        arguments=(f"{MODELS}:make", "--backward", "--ops"),
    ),
    Program(
        name="graph_in_window",
        about="a graph captured while recording: each replay has the kernels of an eager step, each of the same module",
        rules=("right", "replays"),
        needs_gpu=True,
        arguments=(f"{MODELS}:replay_in_window",),
        steps=(CAPTURE, EAGER, REPLAY, REPLAY),
    ),
    Program(
        name="graph_in_warmup",
        about="a graph captured in the warm-up: under nsys as if captured while recording; with torch's engine, whose "
        "report lacks the graph capture, replayed work has a cause and no module",
        rules=("right", "replays"),
        needs_gpu=True,
        arguments=(f"{MODELS}:replay_in_warmup",),
        warmup=(EAGER, EAGER, CAPTURE),
        steps=(EAGER, REPLAY, REPLAY),
    ),
    Program(
        name="pieces",
        about="compiled pieces: as many graphs as follow from the layers, right results, products of the modules of "
        "the weights",
        rules=("right", "products", "pieces"),
        arguments=(f"{MODELS}:run_pieces", "--ops"),
        warmup=(EAGER,),
        steps=(EAGER, REPLAY, REPLAY, REPLAY),
    ),
    Program(
        name="compiled",
        about="under torch.compile, every product is of the module whose weight has its shape, and all work has a "
        "module",
        rules=("products", "compiled"),
        arguments=(f"{MODELS}:make_compiled", "--ops"),
    ),
    Program(
        name="processes",
        about="tracekit capture -- COMMAND: two processes at once are in one report; the calls of each are those that "
        "its hooks counted, its work is its own",
        rules=("processes",),
        arguments=("--", sys.executable, "-m", MODELS, "workers"),
    ),
    Program(
        name="script",
        about="a script's calls are those that hooks counted: tracekit capture script.py -- ARGUMENTS",
        rules=("calls",),
        arguments=(str(Path(__file__).with_name("models.py")), "--", "script", "3"),
    ),
)
