"""Judges what is known about a call, from its class and shapes and from the work that it ran.

A formula is believed unless the work contradicts it. A module of a class without a formula has 0 FLOPs only where all
work that it ran itself is known to multiply no matrices.
"""

from typing import NamedTuple

from tracekit.flops.kernels import Work
from tracekit.flops.layers import Call, Unknown, flops_of
from tracekit.flops.tensors import Tensors, bytes_of

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
        example: Name of a piece of it that may multiply matrices.
        multiplied: The dtype in which its operators multiply, if their markers record it.
    """

    work: Work
    example: str | None
    multiplied: str | None

    @property
    def idle(self) -> bool:
        """Whether there was none."""
        return Work.NONE in self.work and Work.UNSEEN not in self.work

    @property
    def harmless(self) -> bool:
        """Whether there was some, none of which multiplies matrices."""
        return not self.work & (Work.NONE | Work.UNLISTED | Work.UNSEEN)


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
    call = call._replace(cpu_attention=Work.CPU_ATTENTION in seen.work)
    formula = flops_of(call)
    flops, source, unknown = _flops(call, formula, seen)
    believed = isinstance(formula, int) and unknown is None
    if dtype is not None and tensors.has_no_dtypes and believed and formula:
        tensors = tensors.all_of(dtype, call)
    params, inputs, outputs, least = bytes_of(call, tensors)
    multiplied = tensors.computed_in(call) or seen.multiplied
    precision = seen.work & (Work.TENSOR_FLOAT | Work.SINGLE)
    if multiplied == "float32" and precision == Work.TENSOR_FLOAT:
        multiplied = "tfloat32"
    return Judged(
        flops=flops,
        bytes=_least(call, seen, least if believed else None, idle_is_nothing=flops == 0),
        param_bytes=params,
        input_bytes=inputs,
        output_bytes=outputs,
        dtype=multiplied,
        tf32_possible=multiplied == "float32" and precision != Work.SINGLE,
        source=source,
        unknown=unknown,
    )


def _flops(call: Call, formula: int | Unknown | None, seen: Seen) -> tuple[int | None, str | None, str | None]:
    work = seen.work
    if Work.BY_OPERATORS in work:
        return None, OPERATORS, None
    if Work.COMPILED in work:
        flops = _by_work(seen, f"it may multiply matrices outside of compiled graphs, in {seen.example}")
    elif Work.BACKWARD in work:
        flops = _by_work(seen, _BACKWARD)
    elif isinstance(formula, Unknown):
        flops = formula
    elif formula is None:
        flops = _without_formula(call, seen)
    else:
        flops = _contradicted(call, formula, seen) or formula
    if isinstance(flops, Unknown):
        return None, None, _UNCLEAR_OPERATORS if Work.OPERATORS_UNCLEAR in work else flops.reason
    if Work.COMPILED in work:
        return flops, None, None
    by_class = (formula is not None or Work.UNSEEN in work) and Work.BACKWARD not in work
    return flops, MODULE if by_class else KERNELS, None


def _contradicted(call: Call, formula: int, seen: Seen) -> Unknown | None:
    if formula and seen.idle and seen.work & (Work.RECORDED | Work.NEVER) == Work.RECORDED:
        return Unknown(_NOT_RECORDED)
    if formula and (seen.harmless or (call.class_name is None and Work.UNLIKE_LINEAR in seen.work)):
        return Unknown("its shapes are those of a Linear, its kernels are not")
    if not formula and Work.PRODUCT in seen.work:
        return Unknown(f"a class that multiplies no matrices runs {seen.example}")
    return None


def _without_formula(call: Call, seen: Seen) -> int | Unknown:
    unseen = Work.UNSEEN in seen.work
    if Work.RECORDED not in seen.work or unseen:
        only_calls = call.class_name in _CONTAINERS and Work.AROUND in seen.work
        why = _UNSEEN if unseen else "no work is recorded, and its class is not one of torch.nn"
        return 0 if only_calls else Unknown(why)
    return _by_work(seen, f"it may multiply matrices itself, in {seen.example}; record operators (--ops)")


def _by_work(seen: Seen, otherwise: str) -> int | Unknown:
    if Work.UNSEEN in seen.work:
        return Unknown(_UNSEEN)
    if Work.RECORDED in seen.work and seen.idle:
        return Unknown(_LOST) if seen.work & (Work.LOST | Work.OPERATORS_UNCLEAR) else 0
    return 0 if seen.harmless else Unknown(otherwise)


def _least(call: Call, seen: Seen, least: int | None, *, idle_is_nothing: bool) -> int | None:
    """The least that one run must move; None where several kernels exchange tensors that no marker records."""
    if idle_is_nothing and seen.idle and seen.work & (Work.RECORDED | Work.LOST | Work.COMPILED) == Work.RECORDED:
        return 0
    exchanges = seen.work & (Work.COMPILED | Work.BACKWARD) or call.class_name == "MultiheadAttention"
    return None if exchanges else least
