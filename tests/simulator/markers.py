"""The texts that programs leave in NVTX: a call's marker in three dialects, plain texts and steps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.simulator.events import Step

if TYPE_CHECKING:
    from random import Random

    from tests.simulator.events import Call

PLAIN = (
    "forward",
    "aten::linear, op_id = 990347",
    "ncclAllReduce",
    "cudaMalloc retry",
    "loss.backward",
    "a range of the user's own",
    "Optimizer of the user",
    "{ForeignNode[conv1.weight + (Unnamed Layer* 0) [Shuffle]...(Unnamed Layer* 9)]}",
    '{"model_config": {"emit_nvtx": true}}',
    "{'Modul': 'top.fc1'}",
    "höhe ≥ 3, 模型",
    "",
    None,
)
DOMAINS = ("NCCL", "CCCL", "MPI")


def marker(call: Call, dialect: str, *, second: bool = False) -> str:
    """The text of a call's range, or of the second range that tells its outputs."""
    if dialect == "compact":
        shapes = [list(shape) for shape in call.inputs]
        return f"{call.module.path} in={shapes}"
    fields: dict[str, object] = {"Module": call.module.path}
    if call.module.params:
        fields["TrainableParams"] = {name: list(shape) for name, shape in call.module.params.items()}
    if second and call.outputs:
        fields["Outputs"] = [list(shape) for shape in call.outputs]
    elif second:
        pass
    else:
        if call.inputs:
            fields["Inputs"] = [list(shape) for shape in call.inputs]
        for name, shapes in call.kwargs.items():
            fields[name] = [list(shape) for shape in shapes]
    if call.module.static:
        fields["StaticParams"] = call.module.static
    return json.dumps(fields) if dialect == "json" else str(fields)


def plain(rng: Random, sequence: int) -> str | None:
    """A text that is no marker. ``sequence`` is new each time, so that no backward range finds a forward one."""
    return rng.choice((*PLAIN, f"aten::addmm, seq = {sequence}", f"aten::mul, seq = {sequence}, op_id = 7"))


def step(rng: Random, style: str, index: int) -> Step:
    """A step's name and, where the name says it, its kind."""
    if style == "torch":
        return Step(f"ProfilerStep#{index}", None)
    if style == "sglang":
        word = rng.choice(("DECODE", "EXTEND"))
        kind = {"DECODE": "decode", "EXTEND": "prefill"}[word]
        return Step(f"step[{word} bs={rng.choice((1, 32))}]", kind)
    context, generation = rng.choice(((1, 0), (0, 8), (2, 3)))
    kind = "mixed" if context and generation else "prefill" if context else "decode"
    return Step(f"execute_context_{context}({context * 10})_generation_{generation}({generation})", kind)
