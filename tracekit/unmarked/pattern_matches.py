"""Which pattern of the marked run a stretch of production work is like, and the modules that follow from it.

What aligns without doubt gets the module of its counterpart. Between two such neighbours, as many kernels of the same
classes on both sides are the same with other names.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracekit import causes
from tracekit.arrays.codes import lookup
from tracekit.arrays.groups import counts, grouped, maxima, minima
from tracekit.arrays.slices import members
from tracekit.arrays.types import Flags, Floats, Ints, Rows
from tracekit.unmarked.reference import Pattern, Reference
from tracekit.unmarked.sequences import Agreement, agreement, comparable
from tracekit.unmarked.signatures import ATTENTION, NORM, PRODUCT, REDUCE, SOFTMAX, UNKNOWN, Signatures, mixed
from tracekit.unmarked.step_borders import Borders

_UNMATCHED, _AMBIGUOUS, _CONTRADICTED = (
    causes.CAUSES.index(cause) for cause in (causes.LIKE_UNMATCHED, causes.LIKE_AMBIGUOUS, causes.LIKE_CONTRADICTED)
)
#: The least share of a step, on both sides, that must have a certain counterpart, and how much of it more may run.
_LEAST_SHARE, _MOST_LONGER = 0.6, 0.15
#: The share of a step that may have several counterparts: of more, a layer is missing, or there is one too many.
_MOST_AMBIGUOUS = 0.2
#: The least share of equal names, in any order, without which two sequences are not compared; and how many are.
_LEAST_COMMON = 0.3
_MOST_COMPARED = 6
#: A size or kernel that similar kernels have more than so many times as often belongs to another.
_RARE_RATIO = 3
#: How many places a kernel may run earlier or later than in the marked run.
_FARTHEST_MOVE = 16
#: The share, relative to the most similar pattern, from which another one may be the right one.
_AS_LIKELY = 0.8
#: Stands for the name of an unknown kernel.
_ANY = np.iinfo(np.int64).min
#: The share of equal sizes from which two steps have the same batch.
_SAME_SIZES = 0.9
#: Cells of all comparisons of a reference and a report, after which no further ones are made; and how many a row costs
#: beside those for the difference of the lengths.
_MOST_CELLS, _CELLS_OF_ROW = 1_000_000_000, 200


class StretchMatch(NamedTuple):
    """What a pattern shows about a stretch of work."""

    pattern: Pattern
    module: Rows  # for each piece of work the row of its module in the reference, or -1
    cause: Rows  # why it has none, as a position in ``causes.CAUSES``; -1 where it has one
    core: tuple[int, int]  # the first piece of the step or call itself, and the end of the last
    share: float  # how much of both is alike
    same_sizes: bool  # whether sizes are equal, too


class Matcher:
    """Compares stretches of work with a reference, each different one once."""

    def __init__(self, reference: Reference, patterns: list[Pattern]) -> None:
        self._reference, self._patterns = reference, patterns
        self._repeating = [_repeats(pattern.work.name) for pattern in patterns]
        self._exact: dict[bytes, list[int]] = {}
        for at in (at for at, one in enumerate(patterns) if not _repeats(one.work.exact)):
            self._exact.setdefault(patterns[at].work.exact.tobytes(), []).append(at)
        self._names = np.unique(np.concatenate([[0], *(pattern.work.name for pattern in patterns)]))
        alike: dict[tuple[bytes, ...], int] = {}
        #: Patterns with the same number differ by their sizes alone, and show the same.
        self._alike = [
            alike.setdefault((one.work.name.tobytes(), one.module.tobytes(), one.cause.tobytes()), at)
            for at, one in enumerate(patterns)
        ]
        self._varying = _varying([(one.work, lookup(reference.like, one.module)) for one in patterns])
        self._twins = _twins(patterns)
        self._counts = np.stack([self._counted(pattern.work.name) for pattern in patterns])
        self.borders = Borders([pattern.work.name for pattern in patterns])
        self._known: dict[bytes, StretchMatch | None] = {}
        self._cells = 0
        #: Whether the search has ended, so that no further work is compared with patterns.
        self.ended = False

    def answer(self, work: Signatures, *, whole: bool) -> StretchMatch | None:
        """What the most similar pattern shows; None if none is like it.

        ``whole`` is whether something ran before and after it. If not, the recording may cut it.
        """
        key = work.exact.tobytes() + bytes([whole])
        if key not in self._known:
            same = self._exact.get(work.exact.tobytes())
            if same:
                alike = (self._patterns[at] for at in same)
                equal = [StretchMatch(one, one.module, one.cause, (0, one.core), 1.0, same_sizes=True) for one in alike]
                answer = _most_alike(equal)
                self._known[key] = _without(answer, self._twins[same[0]] & (answer.module >= 0))
            else:
                self._known[key] = self._most_similar(work, whole=whole)
        return self._known[key]

    def _counted(self, names: Ints) -> Ints:
        at = np.minimum(np.searchsorted(self._names, names), self._names.size - 1)
        return counts(np.where(self._names[at] == names, at, -1), self._names.size)

    def _most_similar(self, work: Signatures, *, whole: bool) -> StretchMatch | None:
        common = np.minimum(self._counts, self._counted(work.name)).sum(axis=1)
        sizes = np.array([pattern.work.name.size for pattern in self._patterns])
        share = common / np.maximum(1, np.minimum(sizes, work.name.size))
        found: list[StretchMatch] = []
        compared, like = 0, set[int]()
        if self.borders.holds_a_border(work.name):
            return None
        for at in np.argsort(-common / (sizes + work.name.size), kind="stable").tolist():
            if self._repeating[at] or self._alike[at] in like:
                continue
            if share[at] < _LEAST_COMMON or compared == _MOST_COMPARED:
                continue
            compared += 1
            answer = self._compared(work, at, whole=whole)
            if answer is not None:
                like.add(self._alike[at])
                found.append(answer)
        return _most_alike(found) if found else None

    def _compared(self, work: Signatures, at: int, *, whole: bool) -> StretchMatch | None:
        pattern = self._patterns[at]
        if not comparable(work.name.size, pattern.work.name.size):
            return None
        self._cells += work.name.size * (abs(work.name.size - pattern.work.name.size) + _CELLS_OF_ROW)
        self.ended = self._cells > _MOST_CELLS
        if self.ended:
            return None
        shared = np.isin(work.code, pattern.work.code) & (work.group != PRODUCT)
        same_sizes = np.isin(work.exact[shared], pattern.work.exact).sum() >= _SAME_SIZES * max(1, shared.sum())
        exact = (work.exact, pattern.work.exact) if same_sizes else None
        found = agreement(work.name, pattern.work.name, pattern.module, exact)
        if found is None:
            return None
        comparison = _Comparison(work, pattern, found, self._reference, self._varying[at])
        answer = comparison.answer(whole=whole)
        return None if answer is None else answer._replace(same_sizes=bool(same_sizes))


def _twins(patterns: Sequence[Pattern]) -> list[Flags]:
    """The work of each pattern that one with equal kernels has in another module, such as a model beside its like.

    What follows steps and calls may differ, as it depends on what runs next.
    """
    alike: dict[bytes, list[Pattern]] = {}
    for one in patterns:
        alike.setdefault(one.work.exact[: one.core].tobytes(), []).append(one)
    found = []
    for one in patterns:
        differs = np.zeros(one.module.size, dtype=bool)
        for other in alike[one.work.exact[: one.core].tobytes()]:
            differs[: one.core] |= _disagree(one.module[: one.core], other.module[: one.core])
        found.append(differs)
    return found


def _disagree(module: Rows, other: Rows) -> Flags:
    return np.asarray((module != other) & (module >= 0) & (other >= 0))


def _repeats(sequence: Ints) -> bool:
    """Whether it consists of one part several times, so that nothing shows where it begins in a row of them."""
    lengths = (length for length in range(1, sequence.size // 2 + 1) if sequence.size % length == 0)
    return any(np.array_equal(sequence[length:], sequence[:-length]) for length in lengths)


def _most_alike(answers: list[StretchMatch]) -> StretchMatch:
    """What the most similar patterns agree on, where others that may as well be the right ones say nothing else.

    Steps with the same sizes are more alike than others with more kernels in common.
    """
    answer = max(answers, key=lambda one: (one.same_sizes, one.share))
    for other in answers:
        if other.same_sizes == answer.same_sizes and other.share >= _AS_LIKELY * answer.share:
            answer = _without(answer, _disagree(answer.module, other.module))
    return answer


def _without(answer: StretchMatch, unclear: Flags) -> StretchMatch:
    """The answer without the modules of some work."""
    return answer._replace(
        module=np.where(unclear, -1, answer.module), cause=np.where(unclear, _AMBIGUOUS, answer.cause)
    )


class _Comparison:
    """A stretch of work beside a pattern."""

    def __init__(
        self, work: Signatures, pattern: Pattern, found: Agreement, reference: Reference, varies: Flags
    ) -> None:
        self.work, self.pattern, self.found = work, pattern, found
        self.reference, self.varies = reference, varies
        size = work.name.size
        self.module = found.label.astype(np.int64)
        self.place = found.place.copy()
        self.cause = np.where(found.some >= 0, _AMBIGUOUS, _UNMATCHED)
        certain = np.flatnonzero(self.place >= 0)
        self.cause[certain] = pattern.cause[self.place[certain]]
        self.cause[self.module >= 0] = -1
        self.covered = np.zeros(pattern.module.size, dtype=bool)
        self.covered[self.place[certain]] = True
        self.filled = np.zeros(size, dtype=bool)
        self.common = np.setdiff1d(work.name[certain], work.name[work.group == PRODUCT])

    def answer(self, *, whole: bool) -> StretchMatch | None:
        """The modules, if the greater part of both is alike, and one batch explains all sizes."""
        if not (self.place >= 0).any():
            return None
        self._fill()
        if (self.cause == _AMBIGUOUS).mean() > _MOST_AMBIGUOUS:
            return None
        self._drop_odd_sizes()
        self._drop_moved()
        self._drop_lonely()
        rows = np.flatnonzero(self.place >= 0)
        place = self.place[rows]
        work, pattern = self.work.at(rows), self.pattern.work.at(place)
        odd = _unexplained(work, pattern, self.pattern.module[place], self.varies[place])
        if odd is None or not rows.size or not self._mostly_alike() or not self._ends_fit(whole=whole):
            return None
        self._drop(rows[odd], _AMBIGUOUS)
        in_core = rows[place < self.pattern.core]
        core = (int(in_core[0]), int(in_core[-1]) + 1) if in_core.size else (0, 0)
        share = 2 * self.found.matched / (self.work.name.size + self.pattern.module.size)
        module, cause = self.module.astype(np.int32), self.cause.astype(np.int32)
        return StretchMatch(self.pattern, module, cause, core, float(share), same_sizes=False)

    def _ends_fit(self, *, whole: bool) -> bool:
        """Whether the ends are those of the step: stages of a pipeline, and models of other depths, differ there alone.

        An end that is in no list of layers must be the same. What begins or ends at an edge of the recording, and like
        the midst of the step, may be cut from a deeper model.
        """
        marked = np.flatnonzero(self.pattern.module[: self.pattern.core] >= 0)
        ends = np.append(marked[:1], marked[-1:])
        if not whole and ends.size and ((self.found.some[[0, -1]] >= 0) & ~self.found.used[ends]).any():
            return False
        ends = ends[self.reference.place[self.pattern.module[ends]] < 0]
        return not ends.size or bool(self.covered[ends].any())

    def _mostly_alike(self) -> bool:
        """Whether most of both sides has a counterpart, and neither runs much more than the other."""
        rows, places = np.flatnonzero((self.module >= 0) | (self.place >= 0)), np.flatnonzero(self.covered)
        lengths = int(rows[-1] - rows[0]) + 1, int(places[-1] - places[0]) + 1
        shares = rows.size / lengths[0], self.covered[self.pattern.module >= 0].mean()
        return bool(min(shares) >= _LEAST_SHARE and min(lengths) >= (1 - _MOST_LONGER) * max(lengths))

    def _fill(self) -> None:
        """Kernels between certain neighbours that have other names."""
        certain = np.flatnonzero(self.place >= 0)
        places = zip(certain.tolist(), self.place[certain].tolist(), strict=True)
        for (before, first), (after, last) in pairwise(places):
            work, pattern = slice(before + 1, after), slice(first + 1, last)
            if self.found.used[pattern].any() or (after - before == 1 and last - first == 1):
                continue
            wider = self._widened(work, pattern)
            if not self._renamed(*wider) and wider != (work, pattern):
                self.module[wider[0]], self.place[wider[0]], self.cause[wider[0]] = -1, -1, _AMBIGUOUS

    def _widened(self, work: slice, pattern: slice) -> tuple[slice, slice]:
        """A gap with its neighbours of the same classes: among these, names do not show which one is another's."""
        groups = {*self.work.group[work].tolist()} - {UNKNOWN}
        start, stop, size = work.start, work.stop, self.place.size
        first, last = pattern.start, pattern.stop
        while start > 0 and self.place[start - 1] == first - 1 and int(self.work.group[start - 1]) in groups:
            start, first = start - 1, first - 1
        while stop < size and self.place[stop] == last and int(self.work.group[stop]) in groups:
            stop, last = stop + 1, last + 1
        return slice(start, stop), slice(first, last)

    def _renamed(self, work: slice, pattern: slice) -> bool:
        """Gives kernels those in their places, if there are as many of the same classes, none of them known by name."""
        group, of_pattern = self.work.group[work], self.pattern.work.group[pattern]
        if group.size != of_pattern.size or (group == UNKNOWN).any() or (group != of_pattern).any():
            return False
        if np.isin(self.work.name[work], self.common).any():
            return False
        self.module[work], self.cause[work] = self.pattern.module[pattern], self.pattern.cause[pattern]
        self.filled[work] = True
        self.place[work] = np.arange(pattern.start, pattern.stop)
        self.covered[pattern] = True
        return True

    def _drop_odd_sizes(self) -> None:
        """Kernels of which few like them run as here: others ran there, and maybe in place of their neighbours."""
        rows = np.flatnonzero((self.place >= 0) & ~lookup(self.varies, self.place))
        before, size = self.pattern.work.exact[self.place[rows]], self.work.exact[rows]
        alike, group = grouped([before, size]).group, grouped([before]).group
        number, of = counts(alike, rows.size)[alike], counts(group, rows.size)[group]
        most = maxima(group, number, rows.size)[group]
        odd = rows[((number == 1) & (of > 1)) | (_RARE_RATIO * number < most)]
        run = np.cumsum(np.diff(self.work.name, prepend=self.work.name[0]) != 0)
        beside = np.flatnonzero(np.isin(run, run[odd]) & (self.module >= 0))
        self._drop(beside, _AMBIGUOUS)

    def _drop_moved(self) -> None:
        """Kernels between a place where one with their name is missing, and one where one more runs."""
        work, pattern = self.work.name, self.pattern.work.name
        certain = np.flatnonzero(self.place >= 0)
        extra, missing = np.flatnonzero((self.place < 0) & ~self.filled), np.flatnonzero(~self.covered)
        at = np.append(certain, work.size)[np.searchsorted(self.place[certain], missing)]
        # Past the ends, the steps before and after may lack any.
        at = np.concatenate([[0], at, [work.size]])
        name = np.concatenate([[_ANY], pattern[missing], [_ANY]])
        low, high = np.searchsorted(at, extra - _FARTHEST_MOVE), np.searchsorted(at, extra + _FARTHEST_MOVE, "right")
        one, other = members(low, high)
        fits = (name[other] == _ANY) | (name[other] == work[extra[one]])
        one, other = one[fits], other[fits]
        apart = np.abs(extra[one] - at[other])
        nearest = apart == minima(other, apart, at.size)[other]
        moved = np.zeros(work.size, dtype=bool)
        for row, place in sorted({*zip(extra[one[nearest]].tolist(), at[other[nearest]].tolist(), strict=True)}):
            first, last = sorted((row, place))
            moved[first : last + 1] |= work[first : last + 1] == work[row]
        self._drop(np.flatnonzero(moved & (self.module >= 0)), _AMBIGUOUS)

    def _drop_lonely(self) -> None:
        """Pairs both of whose neighbours differ on both sides may be chance."""
        rows = np.flatnonzero((self.place >= 0) | self.filled)
        if not rows.size:
            return
        place = np.where(self.place[rows] >= 0, self.place[rows], -2)
        near_work = np.diff(rows) == 1
        near_pattern = (np.diff(place) == 1) | (place[1:] < 0) | (place[:-1] < 0)
        beside = near_work | near_pattern
        lonely = rows[~(np.append(beside, False) | np.append(False, beside))]
        lonely = lonely[self.module[lonely] >= 0]
        self._drop(lonely, _UNMATCHED)

    def _drop(self, rows: Rows, cause: int) -> None:
        self.module[rows], self.cause[rows], self.place[rows] = -1, cause, -1


# One batch size, or number of tokens, may explain how grids differ. A larger batch makes all grids over rows larger by
# the same factor. A wider model makes grids over elements larger, but not those of norms, in which each row has a block
# of its own; and those of products in the direction of their columns.

#: Grids of fewer blocks may be as they are for any size.
_FEW_BLOCKS = 4
#: How far ratios of equal meaning may differ, by rounding to whole tiles; and that of blocks, beside one block.
_ROUNDING, _EXACT = 1.3, 1.05
#: The share of grids that may be otherwise: some depend on nothing, some on the GPU.
_MOST_ODD = 0.3


def _varying(steps: Sequence[tuple[Signatures, Rows]]) -> list[Flags]:
    """The work of each step whose sizes the data decides, such as that of experts.

    A step with the same names and as large norms has other sizes there, or for the same kernel elsewhere in modules
    that are alike, of which each step tells the numbers.
    """
    alike: dict[tuple[bytes, bytes], list[int]] = {}
    for at, (work, _) in enumerate(steps):
        if norms := work.grid[work.group == NORM].tobytes():
            alike.setdefault((work.name.tobytes(), norms), []).append(at)
    found = [np.zeros(work.name.size, dtype=bool) for work, _ in steps]
    for group in alike.values():
        for at in group[1:]:
            found[group[0]] |= steps[at][0].exact != steps[group[0]][0].exact
    kernels = [mixed(work.code, like) for work, like in steps]
    known = np.unique(np.concatenate([kernel[varies] for kernel, varies in zip(kernels, found, strict=True)]))
    return [np.isin(kernel, known) for kernel in kernels]


def _unexplained(work: Signatures, reference: Signatures, module: Rows, varies: Flags) -> Flags | None:
    """Pairs of work whose grids do not differ by the batch alone; None if so many that the model is another.

    ``module`` is that of the reference's work, and ``varies`` tells whose sizes the data decides. What has the same
    size in the reference has so for another batch, too; most of it must be explained. Modules in which attention runs
    depend on the length of the context as well.
    """
    blocks, before = (np.maximum(side.grid, 0).prod(axis=1) for side in (work, reference))
    products, softmax, attention, norms = (
        module[reference.group == group] for group in (PRODUCT, SOFTMAX, ATTENTION, NORM)
    )
    by_rows = np.isin(reference.group, (NORM, REDUCE)) & np.isin(module, norms)
    attends = np.concatenate([attention, np.intersect1d(products, softmax), [-1]])
    compared = (work.code == reference.code) | ((work.group == NORM) & (reference.group == NORM))
    rows = np.flatnonzero(compared & (np.minimum(blocks, before) > 0) & ~np.isin(module, attends) & ~varies)
    wider = _along_columns(work.at(rows), reference.at(rows))
    factor = _factor(blocks[rows], before[rows], by_rows[rows], wider)
    many = (np.maximum(blocks, before)[rows] >= _FEW_BLOCKS) & (work.code == reference.code)[rows]
    rows, wider = rows[many], wider[many]
    ratio, group = blocks[rows] / before[rows], work.group[rows]
    off = np.log(_EXACT) + 1 / np.minimum(blocks, before)[rows]
    tiled = np.isin(group, (PRODUCT, UNKNOWN))
    odd = np.where(tiled, ~_between(ratio, factor), ~(_near(ratio, factor, off) | _near(ratio, factor**2, off)))
    odd |= wider > 0
    alike = grouped([reference.exact[rows]]).group
    mostly = 2 * counts(alike[odd], rows.size) >= counts(alike, rows.size)
    if rows.size and (odd.mean() > _MOST_ODD or mostly[alike[group != UNKNOWN]].any()):
        return None
    return np.isin(np.arange(blocks.size), rows[odd])


def _factor(blocks: Ints, before: Ints, by_rows: Flags, wider: Ints) -> float:
    """By how much the batch is larger, if anything shows that it is, and not the model."""
    shown = by_rows if by_rows.any() else (blocks != before) & (wider.max(initial=-1) == 0)
    finest = shown & (before == before[shown].max(initial=0))
    return float(np.median((blocks / before)[finest])) if shown.any() else 1.0


def _near(ratio: Floats, factor: float, off: Floats) -> Flags:
    return np.asarray(np.abs(np.log(ratio / factor)) <= off)


def _between(ratio: Floats, factor: float) -> Flags:
    """Products round to large tiles, and attention may grow with the square."""
    least, most = sorted((1.0, factor**2))
    rounding = _EXACT if least == most else _ROUNDING
    return np.asarray((ratio >= least / rounding) & (ratio <= most * rounding))


def _along_columns(work: Signatures, reference: Signatures) -> Ints:
    """For products, 1 if they differ in the direction of their columns, 0 if not; -1 for others or if unknown.

    Where one direction has different sizes and the other has not, rows are the same for all, and columns differ. Where
    both have, as in convolutions, rows are the longer direction. Grids of one direction may hold both.
    """
    differs = work.grid != reference.grid
    wider = np.full(work.code.size, -1)
    for code in np.unique(reference.code[reference.group == PRODUCT]).tolist():
        rows = np.flatnonzero(reference.code == code)
        grid = reference.grid[rows]
        most = grid.max(axis=0)
        varied = np.flatnonzero(grid.min(axis=0) < most)
        columns = differs[rows, varied[most[varied].argmin()]] if varied.size else np.ones(rows.size, dtype=bool)
        if (most > 1).sum() > 1 or not columns.any():
            wider[rows] = columns if varied.size else -1
    return wider
