"""Operators as torch's ``emit_nvtx`` and ``nsys --pytorch=autograd-nvtx`` write them: the only place that knows how.

``aten::addmm, seq = 12, op_id = 317, sizes = [[8, 16], [16, 4]], input_op_ids = [(316,0)]`` is a name, and fields that
torch leaves out where it does not know them. Chrome traces also tell ``types = ["float32", "float32"]``. Older
releases wrote fewer: ``addmm, seq = 12`` (1.3 to 1.7), and before, ``addmm, seq=12`` with ``AddmmBackward, stashed
seq=12`` for backward nodes. All texts of a report may differ, so these are expressions for RE2, which reads a column
of texts at once.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from tracekit.markers.fields import shapes_of

if TYPE_CHECKING:
    from tracekit.markers.base import Shapes

#: Stands before the name of a node that the engine of autograd runs.
EVALUATION = "autograd::engine::evaluate_function: "
#: The fields that differ from call to call, and what stands behind the sizes.
COUNTING_FIELDS = r", (?:seq|op_id) = -?\d+|, input_op_ids = .*$"
#: A text of torch 1.8 and newer, in which either all operators are marked or none: with the number of a call, or as a
#: Chrome trace has it, with sizes.
COMPLETE = r"^\S.*, op_id = \d+|^(?:[\w.]+::.*|\w+Backward\d*(?:, seq = \d+)?), sizes = \["
#: A name, and behind it the sizes and types.
NAME_AND_INPUTS = r"(?s)^(?P<name>.*?)(?:, sizes = (?P<sizes>\[.*?))?(?:, types = (?P<types>\[\"[^\]]*\]))?$"
#: Only releases without a blank around ``=`` wrote this; elsewhere, ``seq=128`` is the length of somebody's sequence.
OLD_SIGN = ", stashed seq="
#: The beginning of a name that says by itself that it is an operator's, and such names.
NAMES = (
    r"^(?:aten|prims?|c10d?|_?c10d_functional|torch|torchvision|torchaudio|autograd|quantized|profiler|_C\w*|"
    r"vllm|fbgemm|xformers|flash_attn\w*|transformer_engine)::.|^[A-Za-z]\w*Backward\d*$|^Optimizer\.\w+#."
)
#: What an operator or a function of autograd can be called. ``record_function("iteration 17")`` gets an ``op_id``, too,
#: but neither a sequence number nor sizes.
IDENTIFIER = r"^[A-Za-z_][\w.:]*$"

_NUMBERS_ALONE = re.compile(r"[\[\]\d, ]*")


class Fields(NamedTuple):
    """Expressions for the fields of a release.

    Attributes:
        any: What only texts with fields hold.
        sequence: The sequence number, as ``seq``.
        counting: The fields that differ from call to call.
    """

    any: str
    sequence: str
    counting: str


def fields(*, old: bool) -> Fields:
    """How fields are written.

    Args:
        old: Whether the texts are of a release that wrote ``OLD_SIGN``.
    """
    sequence = ", (?:stashed )?seq ?= ?" if old else ", seq = "
    later = r"(?:, (?:op_id|sizes|input_op_ids) = |$)"
    return Fields(
        any=rf"(?:{sequence}-?|, op_id = )\d+{later}|, sizes = \[\[",
        sequence=rf"{sequence}(?P<seq>-?\d{{1,18}}){later}",
        counting=rf"(?s)(?:{sequence}-?\d+|, op_id = \d+|, input_op_ids = .*$)",
    )


def types_in(types: str) -> tuple[str, ...] | None:
    """The dtypes of inputs; None if they cannot be read, or there is no text."""
    try:
        words = json.loads(types) if types else None
    except ValueError:
        return None
    return tuple(words) if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def shapes_in(sizes: str) -> Shapes | None:
    """The shapes of inputs; None if they cannot be read, or there is no text."""
    if not _NUMBERS_ALONE.fullmatch(sizes):
        return None
    try:
        return shapes_of(json.loads(sizes)) if sizes else None
    except (ValueError, RecursionError):
        return None
