"""Names of kernels: nvprof stores C++ symbols, which are spelled out here as Nsight does.

A symbol may refer to its own parts, and these again to others, so that one of 200 letters can stand for gigabytes. One
that could be so long is left as it is.
"""

from __future__ import annotations

import re

from tracekit.nsight.kernel_names import short_name

#: A symbol, or the name of a type as autograd's functions have it in old releases of PyTorch.
_MANGLED = re.compile(r"_Z.|N\d+\w*E$")
_REFERENCE = re.compile(r"S[0-9A-Z]*_|T\d*_")
_PACK = re.compile(r"Dp|sP")
#: Parts that refer to three others each make the longest name; a pack repeats what is around it.
_GROWTH = 3 ** (1 / 3)
_LONGEST = 2**28
#: Longer names are no names of people's kernels.
_LONGEST_SYMBOL, _LONGEST_NAME = 8_192, 65_536


def full_name(symbol: str) -> str:
    """What a symbol stands for; the symbol itself if it is none or cannot be spelled out.

    >>> full_name("_Z3addPfi")
    'add(float*, int)'
    """
    if not _MANGLED.match(symbol) or _longest(symbol) > _LONGEST:
        return symbol
    import cxxfilt  # noqa: PLC0415 - it searches for the C++ library when imported, which takes programs of its own

    try:
        name = str(cxxfilt.demangle(symbol, external_only=False))
    except (cxxfilt.Error, UnicodeError):
        return symbol
    return name if len(name) <= _LONGEST_NAME else symbol


def kernel_name(symbol: str) -> str:
    """The short name of the kernel that a symbol stands for."""
    return short_name(full_name(symbol))


def _longest(symbol: str) -> float:
    """How long the name can be at most that a symbol stands for."""
    size = len(symbol)
    if size > _LONGEST_SYMBOL:
        return float("inf")
    references, packs = len(_REFERENCE.findall(symbol)), len(_PACK.findall(symbol))
    return size * _GROWTH ** min(references, 1_000) * float(size) ** min(packs, 50)
