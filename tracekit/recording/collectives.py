"""What a report records of a collective: how much it moved, among whom."""

from typing import NamedTuple

#: What NCCL calls the size of one rank's message in payloads of its ranges, today and in releases up to 2.18.
SIZE_FIELDS = ("Message size [bytes]", "Bytes")
#: More bytes than memories of a whole machine room; sums of fewer fit into 64 bits.
_MOST_BYTES = 1 << 48


class Collective(NamedTuple):
    """A collective, or what several that are alike have in common; None where it is unknown.

    Attributes:
        kind: One name for all spellings, as ``markers.collectives.operation_of`` gives it.
        bytes: The whole result of an all_gather, the whole input of a reduce_scatter or all_to_all, what a group of
            sends and receives moves one way, else the message.
        dtype: Such as ``bfloat16``.
        group_size: How many ranks take part.
        communicator: Name of the process group, or NCCL's id of the communicator.
    """

    kind: str
    bytes: int | None = None
    dtype: str | None = None
    group_size: int | None = None
    communicator: str | None = None


def plausible(size: int) -> int | None:
    """A number of bytes; None if it cannot be true."""
    return size if 0 < size < _MOST_BYTES else None
