"""Arguments of kernels that torch.profiler writes of collectives: ``Collective name``, ``In msg nelems``, ``dtype``."""

import re

from tracekit.markers.collectives import operation_of
from tracekit.readers.kineto.stream import Args
from tracekit.recording.collectives import Collective, plausible

#: torch's names of scalar types; all others are names of dtypes but for capitals (``BFloat16``).
_DTYPES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "ComplexDouble": "complex128",
    "ComplexFloat": "complex64",
}
_BITS = re.compile(r"[a-z]+(\d+)")
#: torch records the elements of only the first of several tensors.
_SEVERAL = "coalesced"
_LARGEST, _LONGEST = 2**31, 128


def fields_of(args: Args) -> tuple[bytes, ...] | None:
    """The arguments about a collective, as they are written; None of all other kernels."""
    if not args.collective:
        return None
    fields = (args.collective, args.dtype, args.group_size, args.group, args.elements_in, args.elements_out)
    return tuple(bytes(field or b"") for field in fields)


def collective_of(values: list[object]) -> Collective | None:
    """The collective that arguments describe, in the order of :func:`fields_of`; None if they name none."""
    name, dtype, group_size, group, *elements = values
    if not isinstance(name, str) or len(name) > _LONGEST:
        return None
    dtype = _DTYPES.get(dtype, dtype.lower()) if isinstance(dtype, str) and len(dtype) < _LONGEST else None
    counts = [count for count in elements if isinstance(count, int)]
    width = 0 if dtype is None or _SEVERAL in name else _width(dtype)
    size = max(counts, default=0) * width
    return Collective(
        kind=operation_of(name) or name,
        bytes=plausible(size),
        dtype=dtype,
        group_size=group_size if isinstance(group_size, int) and 0 < group_size < _LARGEST else None,
        communicator=str(group)[:_LONGEST] if isinstance(group, str | int) and group != "" else None,
    )


def _width(dtype: str) -> int:
    bits = _BITS.match(dtype)
    return int(bits[1]) // 8 if bits else int(dtype == "bool")
