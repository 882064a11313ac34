"""What names and arguments of events mean: collectives, modules on work of CUDA graphs, copies, lines of Python."""

import re

from tracekit.kineto.stream import Args
from tracekit.markers.collectives import operation_of
from tracekit.markers.literal import is_path
from tracekit.markers.torch_texts import annotated_text
from tracekit.recording.values import COPY_KINDS, Collective, plausible, source_line

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
    """The arguments about a collective (``In msg nelems``), as they are written; None of all other kernels."""
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


_NAMES = re.compile(r"[^\s,;'\"()\[\]]+")


def named_modules(args: Args) -> tuple[bytes, ...] | None:
    """The arguments ``module_fqn``, ``module_type`` and ``name``, as they are written; None of work without modules."""
    if not args.module_fqn and not args.module_type:
        return None
    return bytes(args.module_fqn or b""), bytes(args.module_type or b""), bytes(args.name or b"")


def texts_of(fqn: object, types: object, name: object) -> tuple[str, ...]:
    """The texts of the innermost of the modules that some arguments name; several if they are siblings."""
    classes = _names(types)
    paths = [path for path in _names(fqn) or (_names(name) if classes else []) if is_path(path)]
    inner = [path for path in dict.fromkeys(paths) if not any(other.startswith(f"{path}.") for other in paths)]
    if len(classes) != len(paths):
        paths = inner
    class_of = dict(zip(paths, classes, strict=True)) if len(classes) == len(paths) else {}
    return tuple(annotated_text(path, class_of.get(path, "").rpartition(".")[2]) for path in inner)


def _names(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [name for text in values if isinstance(text, str) for name in _NAMES.findall(text)]


#: A function as torch names it, ``model.py(12): forward``; modules and built-in functions have no line.
_FUNCTION = re.compile(r"(.*)\((\d{1,9})\): (.*)", re.DOTALL)


def line_of(name: object) -> str | None:
    """The line of a function; None if it has none, or is torch's own."""
    match = _FUNCTION.fullmatch(name) if isinstance(name, str) else None
    return source_line(match[1], int(match[2]), match[3]) if match else None


#: Directions as Kineto writes them: ``Memcpy HtoD (Pageable -> Device)``.
_DIRECTIONS = {
    f"{source[0]}to{target[0]}": row
    for row, label in enumerate(COPY_KINDS)
    for source, _, target in [label.partition("-to-")]
    if target and " " not in label
}
_COPY = re.compile(r"(?:Memcpy|Copy) ?(\w+?to\w+)\b", re.IGNORECASE)


def direction_of(name: str) -> int:
    """The direction of a copy by its name, as a row of ``COPY_KINDS``."""
    match = _COPY.match(name)
    return _DIRECTIONS.get(match[1], 0) if match else 0
