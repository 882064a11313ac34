"""What is compared of a piece of work: its name without noise, its class, its sizes.

Names are compared as digests, so that those of two reports, or of two machines, need no common numbering.
"""

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from tracekit.arrays.types import Ints, Rows
from tracekit.flops.kernels import Work, kind_of
from tracekit.markers.collectives import communication
from tracekit.recording.tables import CPU_OP, GRAPH, KERNEL, MEMCPY, MEMSET, WORK_KINDS

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
ATTENTION, PRODUCT = map(_CLASSES.index, ("attention", _PRODUCT))
NORM, REDUCE, SOFTMAX, SPLIT = map(_CLASSES.index, ("norm", "reduce", "softmax", "split"))
UNKNOWN = -1
_DIMENSIONS = 3


class Signatures(NamedTuple):
    """Pieces of work, in some order."""

    # Digest of the name without noise; the same for all products, which run as other kernels for other sizes.
    name: Ints
    code: Ints  # digest of the whole name
    exact: Ints  # digest of the whole name with grid and block, or with bytes
    group: Ints  # class of the kernel, or ``UNKNOWN``
    grid: Ints  # size of the grid, three columns

    def at(self, rows: Rows | slice) -> "Signatures":
        """Some of them."""
        return Signatures(*(column[rows] for column in self))


#: The columns of sizes, in their order; the first three are the grid.
SIZES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "bytes")


def signatures_of(kind: Ints, name: Rows, copy_kind: Rows, sizes: Sequence[Ints], names: Sequence[str]) -> Signatures:
    """The signatures of work: ``name`` and ``copy_kind`` are rows of ``names`` and ``COPY_KINDS``, sizes -1 if null."""
    # Of all names, and last of no name: the class, and digests without noise and with it.
    group = np.array([*map(_group, names), UNKNOWN], dtype=np.int64)
    without_noise = _digests([*map(_without_noise, names, group.tolist()), ""])
    code = _digests([*names, ""])
    of_name = np.where(np.isin(kind, (MEMCPY, MEMSET, GRAPH)), -1, name)
    other = mixed(_digests(WORK_KINDS)[kind], np.where(kind == MEMCPY, copy_kind, -1))
    whole = np.where(of_name >= 0, code[of_name], other)
    exact = whole
    for size in sizes:
        exact = mixed(exact, size)
    return Signatures(
        name=np.where(of_name >= 0, without_noise[of_name], other),
        code=whole,
        exact=exact,
        group=np.where(np.isin(kind, (KERNEL, CPU_OP)), group[of_name], _CLASSES.index(WORK_KINDS[0]) + kind),
        grid=np.stack(sizes[:_DIMENSIONS], axis=1),
    )


def _without_noise(name: str, group: int) -> str:
    if group == PRODUCT and not _FUSED.search(name):
        return _PRODUCT
    return _NUMBER_OF_INDUCTOR.sub(r"\1", _NOISE.sub("", name))


def mixed(digest: Ints, values: Ints | int) -> Ints:
    """A digest of both, row by row."""
    whole = (digest ^ np.asarray(values).astype(np.int64)).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (whole ^ (whole >> np.uint64(29))).view(np.int64)


def _digests(texts: Iterable[str]) -> Ints:
    digests = (blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype=np.int64)


def _group(name: str) -> int:
    if communication(name) is not None:
        return _CLASSES.index(_COLLECTIVE)
    for found, pattern in _BEFORE_PRODUCTS:
        if re.search(pattern, name, re.IGNORECASE):
            return _CLASSES.index(found)
    if Work.PRODUCT in kind_of(name):
        return PRODUCT
    for found, pattern in _AFTER_PRODUCTS:
        if re.search(pattern, name, re.IGNORECASE):
            return _CLASSES.index(found)
    return UNKNOWN
