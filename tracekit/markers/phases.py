"""Ranges and operators that show a phase of a program: compiling, backward, optimizer, loading data and others.

Torch writes them for its profilers: ``Optimizer.step#SGD.step``, ``enumerate(DataLoader)#….__next__``,
``autograd::engine::evaluate_function: MulBackward0``, ``compile_file (dynamo_timed)``, ``Forward 3`` for a micro-batch;
under ``emit_nvtx`` with ``, seq = 4, op_id = 7`` behind the name. And our own: ``{"Optimizer": "SGD", "Number": 0}``,
to distinguish optimizers of one class, ``{"Training": "after evaluation"}`` where a model is trained again after it
was evaluated, ``{"Training": "after update", "Number": 0}`` where the parameters of a model have changed without a
known optimizer, and ``{"GarbageCollection": "Python"}``; earlier, the generation stood there.
"""

import re
from typing import NamedTuple

from tracekit.markers import literal
from tracekit.markers.literal import bare_name
from tracekit.markers.torch_texts import EVALUATION

#: The phases, in the order of their codes in tables.
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, DATA, COMPILE, GARBAGE_COLLECTION = range(7)
PHASES = ("forward", "backward", "recompute", "optimizer", "data", "compile", "garbage_collection")
AFTER_EVALUATION, AFTER_NO_GRAD, AFTER_UPDATE = "after evaluation", "after no_grad", "after update"

#: A regular expression (RE2) that rejects most texts without a phase.
CANDIDATES = (
    r"""\(dynamo_timed\)|^(dynamo|entire_(frame|backward)_compile|(inductor|backend)_compile|compile_file)(,|$)|"""
    r"""^Optimizer\.|^enumerate\(Data(Loader|Pipe)\)#|^(Forward|Backward) \d|"""
    rf"""^{EVALUATION}|^\{{"(Optimizer|Training|GarbageCollection)":"""
)
# Dynamo's own name for a whole phase encloses the one that ends in (dynamo_timed).
_COMPILE = re.compile(
    r".+ \(dynamo_timed\)|dynamo|entire_(?:frame|backward)_compile|(?:inductor|backend)_compile|compile_file", re.DOTALL
)
# With CUDA graphs, Inductor runs the model itself inside this one.
_RUNS_THE_MODEL = "cudagraphify (dynamo_timed)"
_OPTIMIZER = re.compile(r"Optimizer\.(step|zero_grad)#(.+)\.(?:step|zero_grad)")
_DATA = ("enumerate(DataLoader)#", "enumerate(DataPipe)#")
# Simple schedules of torch's pipelines (``torch/distributed/pipelining/schedules.py``).
_MICRO_BATCH = re.compile(r"(Forward|Backward) \d{1,9}")


class Phase(NamedTuple):
    """What a text records about the phase of a program.

    Attributes:
        code: Position in ``PHASES``; -1 if nothing runs inside.
        number: Its number in its process, or that of the model that is trained, if the text records it.
        training: What a model that is now trained did before: ``AFTER_EVALUATION``, ``AFTER_NO_GRAD`` or
            ``AFTER_UPDATE``.
        engine: Whether autograd's engine wrote it.
    """

    code: int
    optimizer: str | None = None
    number: int | None = None
    training: str | None = None
    engine: bool = False


def phase_of(text: str) -> Phase | None:
    """The phase that a text names; None if it names none."""
    if text.startswith("{"):
        return _own(text)
    if text.startswith(EVALUATION):
        return Phase(BACKWARD, engine=True)
    if text.startswith(_DATA):
        return Phase(DATA)
    name = bare_name(text)
    if match := _OPTIMIZER.fullmatch(name):
        return Phase(OPTIMIZER, match[2] if match[1] == "step" else None)
    if match := _MICRO_BATCH.fullmatch(name):
        return Phase(FORWARD if match[1] == "Forward" else BACKWARD)
    return Phase(COMPILE) if _COMPILE.fullmatch(name) and name != _RUNS_THE_MODEL else None


def _own(text: str) -> Phase | None:
    if not text.startswith(('{"Optimizer"', '{"Training"', '{"GarbageCollection"')):
        return None
    fields = literal.fields(text)
    if "GarbageCollection" in fields:
        return Phase(GARBAGE_COLLECTION)
    name, number = fields.get("Optimizer"), fields.get("Number")
    if (training := fields.get("Training")) in (AFTER_EVALUATION, AFTER_NO_GRAD, AFTER_UPDATE):
        return Phase(-1, number=number if type(number) is int else None, training=str(training))
    return None if not isinstance(name, str) or type(number) is not int else Phase(OPTIMIZER, name, number)
