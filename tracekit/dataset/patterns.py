"""Patterns of paths: which modules ``top.layers.*.mlp`` names, wherever a path can be given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

_EVERYTHING = "*"
_NUMBER = re.compile(r"(?<!\d)\d{1,9}(?!\d)", re.ASCII)
#: Numbers in a part of a pattern, and one run of them.
_NUMBERS = re.compile(r"\{[\d…:,]+\}|(?<!\d)\d{1,9}…\d{1,9}(?!\d)", re.ASCII)
_RUN = re.compile(r"(\d{1,9})(?:…(\d{1,9})(?::([1-9]\d{0,8}))?)?", re.ASCII)
#: How many paths an unknown one is compared with: each takes some microseconds.
_MOST_COMPARED = 10_000


class _Part(NamedTuple):
    """A part of a pattern: globs before and after a number, and which numbers; without these only the first glob."""

    glob: str
    numbers: list[range]
    after: str

    def fits(self, name: str) -> bool:
        if not self.numbers:
            return fnmatchcase(name, self.glob)
        return any(
            any(int(found[0]) in run for run in self.numbers)
            and fnmatchcase(name[: found.start()], self.glob)
            and fnmatchcase(name[found.end() :], self.after)
            for found in _NUMBER.finditer(name)
        )


class Pattern:
    """Names modules by their path from the root, part by part.

    ``*`` is one part, or stands for some of one (``*_proj``), but as the first part it is all parts in front, and alone
    everything. ``0…31`` stands for the numbers from 0 to 31, ``{0…30:2}`` for each second of them, ``{1,4,7}`` for
    three. A path names its own module, whatever characters it holds; brackets are a glob's only where they else name
    none.
    """

    def __init__(self, text: str) -> None:
        first, *rest = text.split(".")
        self._text, self._anywhere = text, first == _EVERYTHING
        parts = rest if self._anywhere else [first, *rest]
        self._readings = [[_part(part.replace("[", bracket)) for part in parts] for bracket in ("[[]", "[")]

    def rows(self, paths: Sequence[str]) -> list[int]:
        """The rows of the paths that it names."""
        found = [row for row, path in enumerate(paths) if path == self._text]
        for parts in self._readings:
            found = found or [row for row, path in enumerate(paths) if self._names(path.split("."), parts)]
        return found

    def inside(self, paths: Iterable[str]) -> list[bool]:
        """Which paths are named by it, or below one that is."""
        lineages = [[*accumulate(path.split("."), "{}.{}".format)] for path in paths]
        known = [*dict.fromkeys(chain.from_iterable(lineages))]
        named = {known[row] for row in self.rows(known)}
        return [not named.isdisjoint(lineage) for lineage in lineages]

    def closest(self, paths: Sequence[str]) -> str | None:
        """The path that was meant, perhaps, where it names none."""
        longer = (path for path in paths if path.endswith(f".{self._text}"))
        return next(longer, None) or next(iter(get_close_matches(self._text, paths[:_MOST_COMPARED], 1)), None)

    def _names(self, names: list[str], parts: list[_Part]) -> bool:
        own = names[len(names) - len(parts) :] if self._anywhere else names
        enough = len(names) >= len(parts) + (self._anywhere and len(parts) > 0)
        return enough and len(own) == len(parts) and all(part.fits(name) for part, name in zip(parts, own, strict=True))


def _part(glob: str) -> _Part:
    found = _NUMBERS.search(glob)
    runs = [] if found is None else [_RUN.fullmatch(run) for run in found[0].strip("{}").split(",")]
    known = [run for run in runs if run is not None]
    if found is None or len(known) < len(runs):
        return _Part(glob, [], "")
    numbers = [range(int(run[1]), int(run[2] or run[1]) + 1, int(run[3] or 1)) for run in known]
    return _Part(glob[: found.start()], numbers, glob[found.end() :])


def literals(pattern: str) -> list[str]:
    """What a pattern has around its stars and numbers."""
    return re.split(rf"\*|{_NUMBERS.pattern}", pattern, flags=re.ASCII)


def numbers_as_text(numbers: Iterable[int]) -> str:
    """Numbers as a part of a pattern: ``0…31``, ``{0…30:2}``, ``{1,4,7…9}``."""
    known = sorted(set(numbers))
    gaps = {right - left for left, right in pairwise(known)}
    if len(gaps) == 1:
        step = gaps.pop()
        return f"{known[0]}…{known[-1]}" if step == 1 else f"{{{known[0]}…{known[-1]}:{step}}}"
    ends = [at for at, (left, right) in enumerate(pairwise(known), 1) if right - left > 1]
    runs = [known[low:high] for low, high in pairwise([0, *ends, len(known)])]
    texts = [f"{run[0]}…{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return texts[0] if len(texts) == 1 else f"{{{','.join(texts)}}}"
