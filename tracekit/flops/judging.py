"""Decides what is known of a call: what its class and shapes say, and what its work says of that.

A formula is believed unless the work contradicts it. A module of another class does nothing that counts only where all
that it ran itself is known to multiply no matrices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.flops import flops_of
from tracekit.flops.base import Unknown
from tracekit.flops.tensors import bytes_of

if TYPE_CHECKING:
    from tracekit.flops.base import Call
    from tracekit.flops.tensors import Bytes, Tensors

#: Classes of torch.nn that only call others.
_CONTAINERS = frozenset(
    {
        "Sequential",
        "ModuleList",
        "ModuleDict",
        "Transformer",
        "TransformerEncoder",
        "TransformerEncoderLayer",
        "TransformerDecoder",
        "TransformerDecoderLayer",
    }
)
#: What knows: the module's class and shapes, the names of its kernels, the markers of its operators.
MODULE, KERNELS, OPERATORS = "module", "kernels", "operators"

_BACKWARD = "backward work, which no shapes tell; record operators (--ops)"
_LOST = "it launched work of which it is not known whose it is"
_NOT_RECORDED = "none of its work is recorded"
_UNCLEAR_OPERATORS = "operators in it that are not understood, work outside of them, or none recorded"


class Seen(NamedTuple):
    """What is seen of a call.

    Attributes:
        recorded: Whether the dataset holds any work.
        backward: Whether it is part of a backward pass.
        idle: Whether it ran no work itself.
        harmless: Whether it ran some, none of which multiplies matrices.
        product: Whether some of it has the name of a matrix product.
        cpu_attention: Whether some of it is the fused attention of CPUs.
        tensor_float: Whether some of it multiplies float32 as TF32.
        single: Whether some of it multiplies float32 as such.
        unlike_linear: Whether some of it has the name of another kind of layer than a Linear.
        lost: Whether its module launched work that is nobody's.
        around: Whether it calls other modules.
        never: Whether it was captured and never replayed.
        by_operators: Whether markers of its operators tell its FLOPs.
        operators_unclear: Whether there are such markers that do not.
        example: Name of a piece of its work that may multiply matrices.
    """

    recorded: bool
    backward: bool
    idle: bool
    harmless: bool
    product: bool
    cpu_attention: bool
    tensor_float: bool
    single: bool
    unlike_linear: bool
    lost: bool
    around: bool
    never: bool
    by_operators: bool
    operators_unclear: bool
    example: str | None


class Judged(NamedTuple):
    """What is known of one run of a call itself; None where it is not.

    Attributes:
        flops: Its FLOPs; those that operators tell are told call by call.
        bytes: What it must move at least.
        param_bytes: Size of its parameters.
        input_bytes: Size of what goes in.
        output_bytes: Size of what comes out.
        dtype: In what it multiplies.
        tf32_possible: Whether float32 may have been multiplied as TF32.
        source: What knows its FLOPs.
        unknown: Why they are not known.
    """

    flops: int | None
    bytes: int | None
    param_bytes: int | None
    input_bytes: int | None
    output_bytes: int | None
    dtype: str | None
    tf32_possible: bool
    source: str | None
    unknown: str | None


def judged(call: Call, tensors: Tensors, seen: Seen, dtype: str | None = None) -> Judged:
    """What is known of a call.

    Args:
        call: What markers tell of it.
        tensors: What they tell of its dtypes.
        seen: What is seen of it.
        dtype: That of its tensors if nothing is told of them, and it multiplies.
    """
    call = call._replace(cpu_attention=seen.cpu_attention)
    formula = flops_of(call)
    flops, source, unknown = _flops(call, formula, seen)
    believed = isinstance(formula, int) and unknown is None
    if dtype is not None and tensors.untold and believed and formula:
        tensors = tensors.all_of(dtype, call)
    size = bytes_of(call, tensors)
    multiplied = tensors.computed_in(call)
    if multiplied == "float32" and seen.tensor_float and not seen.single:
        multiplied = "tfloat32"
    return Judged(
        flops=flops,
        bytes=_least(call, seen, size, idle_is_nothing=flops == 0, believed=believed),
        param_bytes=size.params,
        input_bytes=size.inputs,
        output_bytes=size.outputs,
        dtype=multiplied,
        tf32_possible=multiplied == "float32" and not (seen.single and not seen.tensor_float),
        source=source,
        unknown=unknown,
    )


def _flops(call: Call, formula: int | Unknown | None, seen: Seen) -> tuple[int | None, str | None, str | None]:
    """The FLOPs, what knows them, and why they are not known."""
    if seen.by_operators:
        return None, OPERATORS, None
    if seen.backward:
        found = _by_work(seen, _BACKWARD)
    elif isinstance(formula, Unknown):
        found = formula
    elif formula is None:
        found = _without_formula(call, seen)
    else:
        found = _contradicted(call, formula, seen) or formula
    if isinstance(found, Unknown):
        return None, None, _UNCLEAR_OPERATORS if seen.operators_unclear else found.reason
    return found, MODULE if formula is not None and not seen.backward else KERNELS, None


def _contradicted(call: Call, formula: int, seen: Seen) -> Unknown | None:
    """Why a formula is not believed."""
    if formula and seen.recorded and seen.idle and not seen.never:
        return Unknown(_NOT_RECORDED)
    if formula and (seen.harmless or (call.class_name is None and seen.unlike_linear)):
        return Unknown("its shapes are those of a Linear, its kernels are not")
    if not formula and seen.product:
        return Unknown(f"a class that multiplies no matrices runs {seen.example}")
    return None


def _without_formula(call: Call, seen: Seen) -> int | Unknown:
    """Of a class that no formula knows."""
    if not seen.recorded:
        only_calls = call.class_name in _CONTAINERS and seen.around
        return 0 if only_calls else Unknown("no work is recorded, and its class is none of torch.nn's")
    return _by_work(seen, f"it may multiply matrices itself, in {seen.example}; record operators (--ops)")


def _by_work(seen: Seen, otherwise: str) -> int | Unknown:
    """Nothing, if nothing that it ran itself multiplies."""
    if seen.recorded and seen.idle:
        return Unknown(_LOST) if seen.lost or seen.operators_unclear else 0
    return 0 if seen.harmless else Unknown(otherwise)


def _least(call: Call, seen: Seen, size: Bytes, *, idle_is_nothing: bool, believed: bool) -> int | None:
    """What one run must move at least. Of what several kernels do in turn, nobody tells what lies between them."""
    if seen.recorded and seen.idle and idle_is_nothing and not seen.lost:
        return 0
    alone = believed and call.class_name != "MultiheadAttention" and not seen.backward
    return size.least if alone else None
