"""Ranges and operators that tell which phase of a program they are: compiling, backward, optimizer, loading data.

Torch writes them for its profilers: ``Optimizer.step#SGD.step``, ``enumerate(DataLoader)#….__next__``,
``autograd::engine::evaluate_function: MulBackward0``, ``compile_file (dynamo_timed)``; under ``emit_nvtx`` with
``, seq = 4, op_id = 7`` behind the name. And our own: ``{"Optimizer": "SGD", "Number": 0}``, which tells optimizers of
one class apart, and ``{"Training": "after evaluation"}`` where a model is trained again after it was evaluated.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tracekit.markers import literal

#: The phases, in the order of their codes in tables.
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, DATA, COMPILE = range(6)
PHASES = ("forward", "backward", "recompute", "optimizer", "data", "compile")
AFTER_EVALUATION, AFTER_NO_GRAD = "after evaluation", "after no_grad"

#: A regular expression (RE2) that rejects most texts without a phase.
CANDIDATES = (
    r"""\(dynamo_timed\)|^(dynamo|entire_(frame|backward)_compile|(inductor|backend)_compile|compile_file)(,|$)|"""
    r"""^Optimizer\.|^enumerate\(DataLoader\)#|^autograd::engine::evaluate_function: |^\{"(Optimizer|Training)":"""
)
_BEHIND_THE_NAME = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = .*", re.DOTALL)
# Dynamo's own name for a whole phase stands around the one that ends in (dynamo_timed).
_COMPILE = re.compile(
    r".+ \(dynamo_timed\)|dynamo|entire_(?:frame|backward)_compile|(?:inductor|backend)_compile|compile_file", re.DOTALL
)
# With CUDA graphs, Inductor runs the model itself inside this one.
_RUNS_THE_MODEL = "cudagraphify (dynamo_timed)"
_OPTIMIZER = re.compile(r"Optimizer\.(step|zero_grad)#(.+)\.(?:step|zero_grad)")
_DATA = "enumerate(DataLoader)#"
_BACKWARD = "autograd::engine::evaluate_function: "


class Phase(NamedTuple):
    """What a text tells about the phase of a program.

    Attributes:
        code: Position in ``PHASES``; -1 if nothing runs inside.
        optimizer: Class of the optimizer that takes a step.
        number: Its number in its process, if the text tells it.
        training: What a model that is now trained did before: ``AFTER_EVALUATION`` or ``AFTER_NO_GRAD``.
    """

    code: int
    optimizer: str | None = None
    number: int | None = None
    training: str | None = None


def phase_of(text: str) -> Phase | None:
    """The phase that a text tells; None if it tells none."""
    if text.startswith("{"):
        return _own(text)
    if text.startswith(_BACKWARD):
        return Phase(BACKWARD)
    if text.startswith(_DATA):
        return Phase(DATA)
    name = _BEHIND_THE_NAME.sub("", text)
    if match := _OPTIMIZER.fullmatch(name):
        return Phase(OPTIMIZER, match[2] if match[1] == "step" else None)
    return Phase(COMPILE) if _COMPILE.fullmatch(name) and name != _RUNS_THE_MODEL else None


def _own(text: str) -> Phase | None:
    if not text.startswith(('{"Optimizer"', '{"Training"')):
        return None
    try:
        fields = {str(key): item for key, item in literal.pairs(text)}
    except literal.Refused:
        return None
    if (training := fields.get("Training")) in (AFTER_EVALUATION, AFTER_NO_GRAD):
        return Phase(-1, training=str(training))
    name, number = fields.get("Optimizer"), fields.get("Number")
    if not isinstance(name, str) or type(number) is not int:
        return None
    return Phase(OPTIMIZER, name, number)
