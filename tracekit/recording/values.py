"""Values that are stored once, so that columns refer to them by row: directions of copies, collectives, stacks.

The text of a stack has the lines of Python that are no part of torch, each ``file:line function``, the outermost first.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

#: CUPTI's directions of a copy, by code (CUpti_ActivityMemcpyKind), as NVIDIA labels them.
COPY_KINDS = (
    "Unknown",
    "Host-to-Device",
    "Device-to-Host",
    "Host-to-Array",
    "Array-to-Host",
    "Array-to-Array",
    "Array-to-Device",
    "Device-to-Array",
    "Device-to-Device",
    "Host-to-Host",
    "Peer-to-Peer",
    "Unified Host-to-Device",
    "Unified Device-to-Host",
    "Unified Device-to-Device",
)

#: What NCCL calls the size of one rank's message in payloads of its ranges, today and in releases up to 2.18.
SIZE_FIELDS = ("Message size [bytes]", "Bytes")
#: More bytes than memories of a whole machine room; sums of fewer fit into 64 bits.
_MOST_BYTES = 1 << 48


class Collective(NamedTuple):
    """A collective, or what several that are alike have in common; None where it is unknown."""

    kind: str  # one name for all spellings, as ``markers.collectives.operation_of`` gives it
    #: The whole result of an all_gather, the whole input of a reduce_scatter or all_to_all, what a group of sends and
    #: receives moves one way, else the message.
    bytes: int | None = None
    dtype: str | None = None  # such as ``bfloat16``
    group_size: int | None = None  # how many ranks take part
    communicator: str | None = None  # name of the process group, or NCCL's id of the communicator


def plausible(size: int) -> int | None:
    """A number of bytes; None if it cannot be true."""
    return size if 0 < size < _MOST_BYTES else None


BETWEEN = ";"
#: Files of torch, and those that Inductor writes.
_OF_TORCH = re.compile(r"(?:.*[/\\](?:site|dist)-packages[/\\])?torch[/\\]|.*[/\\]torchinductor_")
_FILE, _FUNCTION = 200, 100
#: The most lines of a stack, and of all stacks of a report together: of deeper ones, the outermost are left out.
_DEEPEST, _MOST_LINES = 128, 1 << 18


def source_line(file: str, line: int, function: str) -> str | None:
    """A line of a stack; None for those of torch."""
    if _OF_TORCH.match(file):
        return None
    return f"{file[-_FILE:]}:{line} {function[:_FUNCTION]}".replace(BETWEEN, ",")


def stack_text(lines: Sequence[str]) -> str:
    """The text of a stack, from the innermost line outwards."""
    return BETWEEN.join(reversed(lines))


def innermost_line(stack: str) -> str:
    """The innermost line of a stack's text."""
    return stack.rpartition(BETWEEN)[2]


def deepest(stacks: int) -> int:
    """How many lines are kept of each of so many stacks."""
    return max(1, min(_DEEPEST, _MOST_LINES // max(stacks, 1)))
