"""What Lightning's profiler for torch writes: ``[pl][profile]…`` around actions, ``[pl][module]…`` around modules.

``[pl][profile][Strategy]DDPStrategy.training_step`` (Lightning: ``src/lightning/pytorch/trainer/call.py``, before 2.0
``trainer/trainer.py``) and ``[pl][module]torch.nn.modules.linear.Linear: encoder.0``, the class and place of a module
(``src/lightning/pytorch/profilers/pytorch.py``), since 1.6. ``run_training_batch`` is one iteration of training.
"""

from __future__ import annotations

import re

from tracekit.markers.base import RangeMarker, StepMarker
from tracekit.markers.fields import bare_name

CANDIDATES = r"^\[pl\]\[(module|profile)\]"

_MODULE = re.compile(r"\[pl\]\[module\](?:[\w<>]+\.)*([\w<>]+): (\S+)")
_ACTION = "[pl][profile]"
_STEP = "run_training_batch"
#: A callback's name ends in its settings.
_SETTINGS = re.compile(r"\{.*\}", re.DOTALL)
_PHASES = {
    "forward": r"(?:training|validation|test|predict)_step|forward",
    "backward": r"backward",
    # What an optimizer's step calls to compute the loss tells its own phase.
    "optimizer": r"optimizer_step|optimizer_zero_grad|configure_gradient_clipping|lr_scheduler_step",
    "data": r"\w+_next|\w*batch_to_device|on_(?:before|after)_batch_transfer|(?:train|val|test|predict)_dataloader",
}
_PHASE = re.compile("|".join(f"(?P<{phase}>{hooks})" for phase, hooks in _PHASES.items()))


def parse(text: str) -> RangeMarker | StepMarker | None:
    """The action or module; None if the text only starts like one."""
    name = bare_name(text)
    if module := _MODULE.fullmatch(name):
        return RangeMarker(f"{module[2]} ({module[1]})", "forward")
    if not name.startswith(_ACTION):
        return None
    action = _SETTINGS.sub("", name.removeprefix(_ACTION))
    if action == _STEP:
        return StepMarker(action, "train")
    phase = _PHASE.fullmatch(action.rsplit(".", 1)[-1])
    return RangeMarker(action, phase.lastgroup or "" if phase else "") if action else None
