"""What is compared of a piece of work: its name without noise, its class, its sizes.

Names are compared as digests, so that those of two reports, or of two machines, need no common numbering.
"""

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.flops.kernels import kind_of
from tracekit.markers.collectives import communication
from tracekit.recording.tables import CPU_OP, GRAPH, KERNEL, MEMCPY, MEMSET, WORK_KINDS
from tracekit.recording.values import COPY_KINDS

#: What differs in the name of one kernel from build to build, or with sizes: addresses, numbers of lambdas and clones,
#: numbers among template arguments, and those that Inductor gives its kernels.
_NOISE = re.compile(
    r"0x[0-9a-fA-F]+|\(instance \d+\)|\{lambda[^{}]*\}#\d+|\[clone [^\]]*\]|\s+"
    r"|(?<=[<,(])(\((unsigned )?(int|long)\))?-?\d+(?=[,>)])"
)
_NUMBER_OF_INDUCTOR = re.compile(r"^(triton_\w+?)_\d+(d\w*)?$")
_FUSED = re.compile(r"fused|fusion|epilog|_and_|^triton_", re.IGNORECASE)
#: Classes by a part of the name, the first that fits; matrix products stand between.
_BEFORE_PRODUCTS = (("attention", r"flash|fmha|attention|attn|sdpa"), ("split", r"splitk.*reduce"))
_AFTER_PRODUCTS = (
    ("batch_norm", r"batch_?norm|bn_[fb]w"),
    ("norm", r"norm|RowwiseMoments|rsqrt"),
    ("softmax", r"softmax"),
    ("gather", r"gather|indexSelect|index|embedding|scatter"),
    ("copy", r"CatArray|copy_kernel|direct_copy|transpose|permute"),
    ("sort", r"sort|topk|scan|argmax|argmin"),
    ("reduce", r"reduce|triton_(red|per)_"),
    ("elementwise", r"elementwise|triton_poi_|_and_mul|rotary|fill|dropout|activation|gelu|silu|relu"),
)
_COLLECTIVE, _PRODUCT = "collective", "product"
_CLASSES = (
    _COLLECTIVE,
    *(name for name, _ in _BEFORE_PRODUCTS),
    _PRODUCT,
    *(name for name, _ in _AFTER_PRODUCTS),
    *(kind for kind in WORK_KINDS),
)
ATTENTION, PRODUCT, GRAPHS = map(_CLASSES.index, ("attention", _PRODUCT, WORK_KINDS[GRAPH]))
NORM, REDUCE, SOFTMAX, SPLIT = map(_CLASSES.index, ("norm", "reduce", "softmax", "split"))
UNKNOWN = -1
_DIMENSIONS = 3


class Signatures(NamedTuple):
    """Pieces of work, in some order.

    Attributes:
        name: Digest of the name without noise; the same for all products, which run as other kernels for other sizes.
        code: Digest of the whole name.
        exact: Digest of the whole name with grid and block, or with bytes.
        group: Class of the kernel, or ``UNKNOWN``.
        grid: Size of the grid, three columns.
        fused: Whether its name says that it does what several kernels did.
    """

    name: Ints
    code: Ints
    exact: Ints
    group: Ints
    grid: Ints
    fused: Flags

    def at(self, rows: Rows | slice) -> "Signatures":
        """Some of them."""
        columns = (self.name, self.code, self.exact, self.group, self.grid)
        name, code, exact, group, grid = (column[rows] for column in columns)
        return Signatures(name, code, exact, group, grid, self.fused[rows])


class Described(NamedTuple):
    """Columns of work: ``name`` and ``copy_kind`` as rows of ``names`` and ``COPY_KINDS``, sizes with -1 as null."""

    kind: Ints
    name: Rows
    copy_kind: Rows
    sizes: Sequence[Ints]
    names: Sequence[str]


#: The columns of sizes, in their order; the first three are the grid.
SIZES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "bytes")


def signatures_of(work: Described) -> Signatures:
    """The signatures of some work."""
    name, code, group = _of_kernels(work.names)
    of_name = np.where(np.isin(work.kind, (MEMCPY, MEMSET, GRAPH)), -1, work.name)
    other = mixed(_digests(WORK_KINDS)[work.kind], np.where(work.kind == MEMCPY, work.copy_kind, -1))
    whole = np.where(of_name >= 0, code[of_name], other)
    exact = whole
    for sizes in work.sizes:
        exact = mixed(exact, sizes)
    return Signatures(
        name=np.where(of_name >= 0, name[of_name], other),
        code=whole,
        exact=exact,
        group=np.where(np.isin(work.kind, (KERNEL, CPU_OP)), group[of_name], _CLASSES.index(WORK_KINDS[0]) + work.kind),
        grid=np.stack(work.sizes[:_DIMENSIONS], axis=1),
        fused=np.array([*(_FUSED.search(text) is not None for text in work.names), False])[of_name],
    )


def clean(name: str) -> str:
    """The name of a kernel without noise."""
    return _NUMBER_OF_INDUCTOR.sub(r"\1", _NOISE.sub("", name))


def mixed(digest: Ints, values: Ints | int) -> Ints:
    """A digest of both, row by row."""
    whole = (digest ^ np.asarray(values).astype(np.int64)).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (whole ^ (whole >> np.uint64(29))).view(np.int64)


def _of_kernels(names: Sequence[str]) -> tuple[Ints, Ints, Ints]:
    """Every name's digest without noise, that of all of it, and its class; last those of no name."""
    group = np.array([*map(_group, names), UNKNOWN], dtype=np.int64)
    one_product = (group[:-1] == PRODUCT) & [_FUSED.search(name) is None for name in names]
    cleaned = [_PRODUCT if product else clean(name) for name, product in zip(names, one_product, strict=True)]
    return _digests([*cleaned, ""]), _digests([*names, ""]), group


def _digests(texts: Iterable[str]) -> Ints:
    digests = (blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype=np.int64)


def _group(name: str) -> int:
    if communication(name) is not None:
        return _CLASSES.index(_COLLECTIVE)
    for found, pattern in _BEFORE_PRODUCTS:
        if re.search(pattern, name, re.IGNORECASE):
            return _CLASSES.index(found)
    if kind_of(name).product:
        return PRODUCT
    for found, pattern in _AFTER_PRODUCTS:
        if re.search(pattern, name, re.IGNORECASE):
            return _CLASSES.index(found)
    return UNKNOWN


def copy_kinds(labels: Sequence[str]) -> Rows:
    """Rows of ``COPY_KINDS`` of labels; of unknown ones that of the first."""
    return np.array([COPY_KINDS.index(label) if label in COPY_KINDS else 0 for label in labels] + [-1], dtype=np.int64)
