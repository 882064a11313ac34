"""Judges what is known about a call, from its class and shapes and from the work that it ran.

A formula is believed unless the work contradicts it. A module of a class without a formula has 0 FLOPs only where all
work that it ran itself is known to multiply no matrices.
"""

from typing import NamedTuple

from tracekit.flops.base import Call, Unknown
from tracekit.flops.layers import flops_of
from tracekit.flops.tensors import Bytes, Tensors, bytes_of

#: Classes of torch.nn that only call others.
_CONTAINERS = frozenset(
    {
        *("Sequential", "ModuleList", "ModuleDict", "Transformer", "TransformerEncoder", "TransformerEncoderLayer"),
        *("TransformerDecoder", "TransformerDecoderLayer"),
    }
)
#: Sources of FLOPs: the class and shapes of the module, the names of its kernels, the markers of its operators.
MODULE, KERNELS, OPERATORS = "module", "kernels", "operators"

_BACKWARD = "backward work: markers record no shapes of it; record operators (--ops)"
_LOST = "it launched work that could not be attributed"
_NOT_RECORDED = "none of its work is recorded"
_UNSEEN = "its work is inside a CUDA graph traced as a whole: nsys profile --cuda-graph-trace=node"
_UNCLEAR_OPERATORS = (
    "operators that are not understood or may have been stopped, work outside of operators, or no operators recorded"
)


class Seen(NamedTuple):
    """The work that a call ran itself, without that of modules it calls.

    Attributes:
        recorded: Whether the dataset holds any work at all.
        backward: Whether the call is part of a backward pass.
        unseen: Whether work of it lies in a CUDA graph traced as a whole; then it is neither idle nor harmless.
        harmless: Whether it ran work, none of which multiplies matrices.
        product: Whether some work has the name of a matrix product.
        cpu_attention: Whether some work is the fused attention of CPUs.
        tensor_float: Whether some work multiplies float32 as TF32.
        single: Whether some work multiplies float32 in full precision.
        unlike_linear: Whether some work has the name of another kind of layer than a Linear.
        lost: Whether its module launched work that could not be attributed.
        around: Whether the call calls other modules.
        never: Whether it ran during a graph capture and was never replayed.
        by_operators: Whether markers of its operators record its FLOPs.
        operators_unclear: Whether there are such markers that do not record them.
        example: Name of a piece of its work that may multiply matrices.
        compiled: Whether it also holds work of compiled graphs, which is that of the modules inside.
        multiplied: The dtype in which its operators multiply, if their markers record it.
    """

    recorded: bool
    backward: bool
    unseen: bool
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
    multiplied: str | None = None
    compiled: bool = False


class Judged(NamedTuple):
    """What is known about one run of a call itself; None where it is not known.

    Attributes:
        flops: Its FLOPs; None also where operators record them, since these differ from run to run.
        tf32_possible: Whether float32 may have been multiplied as TF32.
        source: Where its FLOPs are from: MODULE, KERNELS or OPERATORS.
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
    """What is known about a call. ``dtype`` is assumed for its tensors where markers record none and it multiplies."""
    call = call._replace(cpu_attention=seen.cpu_attention)
    formula = flops_of(call)
    flops, source, unknown = _flops(call, formula, seen)
    believed = isinstance(formula, int) and unknown is None
    if dtype is not None and tensors.has_no_dtypes and believed and formula:
        tensors = tensors.all_of(dtype, call)
    size = bytes_of(call, tensors)
    multiplied = tensors.computed_in(call) or seen.multiplied
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
    if seen.by_operators:
        return None, OPERATORS, None
    if seen.compiled:
        flops = _by_work(seen, f"it may multiply matrices outside of compiled graphs, in {seen.example}")
    elif seen.backward:
        flops = _by_work(seen, _BACKWARD)
    elif isinstance(formula, Unknown):
        flops = formula
    elif formula is None:
        flops = _without_formula(call, seen)
    else:
        flops = _contradicted(call, formula, seen) or formula
    if isinstance(flops, Unknown):
        return None, None, _UNCLEAR_OPERATORS if seen.operators_unclear else flops.reason
    if seen.compiled:
        return flops, None, None
    by_class = (formula is not None or seen.unseen) and not seen.backward
    return flops, MODULE if by_class else KERNELS, None


def _contradicted(call: Call, formula: int, seen: Seen) -> Unknown | None:
    if formula and seen.recorded and seen.idle and not seen.never:
        return Unknown(_NOT_RECORDED)
    if formula and (seen.harmless or (call.class_name is None and seen.unlike_linear)):
        return Unknown("its shapes are those of a Linear, its kernels are not")
    if not formula and seen.product:
        return Unknown(f"a class that multiplies no matrices runs {seen.example}")
    return None


def _without_formula(call: Call, seen: Seen) -> int | Unknown:
    if not seen.recorded or seen.unseen:
        only_calls = call.class_name in _CONTAINERS and seen.around
        why = _UNSEEN if seen.unseen else "no work is recorded, and its class is not one of torch.nn"
        return 0 if only_calls else Unknown(why)
    return _by_work(seen, f"it may multiply matrices itself, in {seen.example}; record operators (--ops)")


def _by_work(seen: Seen, otherwise: str) -> int | Unknown:
    if seen.unseen:
        return Unknown(_UNSEEN)
    if seen.recorded and seen.idle:
        return Unknown(_LOST) if seen.lost or seen.operators_unclear else 0
    return 0 if seen.harmless else Unknown(otherwise)


def _least(call: Call, seen: Seen, size: Bytes, *, idle_is_nothing: bool, believed: bool) -> int | None:
    """The least that one run must move; None where several kernels exchange tensors that no marker records."""
    if seen.compiled:
        return None
    if seen.recorded and seen.idle and idle_is_nothing and not seen.lost:
        return 0
    alone = believed and call.class_name != "MultiheadAttention" and not seen.backward
    return size.least if alone else None
