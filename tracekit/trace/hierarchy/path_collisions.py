"""Different modules under one path, distinguished by parameters, settings and class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from tracekit.arrays.groups import distinct, mixed
from tracekit.arrays.intervals import by_level, subtree_ends
from tracekit.arrays.types import Flags, Ints, Rows
from tracekit.causes import FIELD_SKIPPED
from tracekit.markers.base import ModuleMarker, Param, Shape

T = TypeVar("T")
#: By place, one of several facts about it. Two that differ about one place contradict each other.
Statement = Mapping[int, int]
#: More than these under one path of one process are not modules: something in the markers changes all the time.
MOST_MODULES = 16

#: Which of several modules a path stands for: pairs of how many parts the numbered path has, and the number.
Numbers = tuple[tuple[int, int], ...]


class Called(NamedTuple):
    """Calls in pre-order.

    Attributes:
        parent: Row of the call around it, or -1.
        place: Row of the path it is at; that of the call around it where its own is not known.
        marked_path: Number of the path in its marker; only modules whose markers agree on it are distinguished.
    """

    parent: Rows
    depth: Rows
    process: Ints
    place: Ints
    placed: Flags
    marked_path: Ints
    facts: Ints


class PathCollisions(NamedTuple):
    """Which of the modules of its path each call is of.

    Attributes:
        which: For every call a position in ``numbers``.
        numbers: What distinguishes the modules of one path; the first entry is empty.
        unclear: Which calls may be of any of several modules of their path.
    """

    which: Ints
    numbers: list[Numbers]
    unclear: Flags


class _Tokens(NamedTuple):
    """Calls whose facts prove something.

    Attributes:
        path: A number for its process, its path and the path in its marker together.
        cluster: Number of the facts, the same for facts that agree.
    """

    call: Rows
    path: Ints
    cluster: Ints

    def those(self, rows: Flags | Rows) -> _Tokens:
        return _Tokens(*(column[rows] for column in self))


def path_collisions_of(calls: Called, paths: Sequence[str], facts: Sequence[Facts]) -> PathCollisions:
    """Tells the modules of each path of each process apart."""
    apart = PathCollisions(np.zeros(calls.parent.size, dtype=np.int64), [()], np.zeros(calls.parent.size, dtype=bool))
    tokens = _tokens(calls, len(paths), facts)
    if not tokens.call.size:
        return apart
    level, end = _levels(calls), subtree_ends(calls.parent, calls.depth)
    # Hooks that name the class name each root apart: what differs below is a module that took the place of another.
    named = np.array([fact.class_name is not None for fact in facts])[calls.facts]
    placed = np.flatnonzero(calls.placed)
    for items in by_level(level[placed]):
        if not tokens.call.size:
            break
        rows = placed[items]
        told = tokens.those(~named[tokens.call] | np.isin(tokens.call, rows))
        item = np.searchsorted(rows, told.call, side="right") - 1
        _hand_down(apart, rows, _split_siblings(calls, paths, apart, rows, (told, item)), end)
        # Modules below these calls are distinguished with them, unless one call contains both sides of a contradiction.
        later = ~np.isin(tokens.call, rows) & ~apart.unclear[tokens.call]
        tokens = _contested(tokens.those(later), apart.which)
    return apart


def _tokens(calls: Called, paths: int, facts: Sequence[Facts]) -> _Tokens:
    rows = np.flatnonzero(calls.placed)
    rows = rows[mixed(calls.place[rows], calls.facts[rows], paths)[calls.place[rows]]]
    marked_paths = int(calls.marked_path.max(initial=0)) + 1
    names, name = distinct(calls.place[rows] * marked_paths + calls.marked_path[rows])
    path = calls.process[rows].astype(np.int64) * names.size + name
    keys, key = distinct(path * len(facts) + calls.facts[rows])
    of_path, fact = np.divmod(keys, len(facts))
    cluster = np.full(keys.size, -1, dtype=np.int64)
    bounds = np.flatnonzero(np.diff(of_path, prepend=-1, append=-1))
    for low, high in pairwise(bounds.tolist()):
        if high - low > 1:
            numbers = clusters([facts[row] for row in fact[low:high].tolist()], same)
            if max(numbers) > 0:
                cluster[low:high] = numbers
    contradicted = cluster[key] >= 0
    return _Tokens(rows[contradicted], path[contradicted], cluster[key][contradicted])


def _levels(calls: Called) -> Ints:
    level = np.zeros(calls.parent.size, dtype=np.int64)
    for rows in by_level(calls.depth)[1:]:
        above = calls.parent[rows]
        level[rows] = level[above] + calls.placed[above]
    return level


def _contested(tokens: _Tokens, which: Ints) -> _Tokens:
    if not tokens.call.size:
        return tokens
    keys, group = distinct(tokens.path * (int(which.max()) + 1) + which[tokens.call])
    return tokens.those(mixed(group, tokens.cluster, keys.size)[group])


def _split_siblings(
    calls: Called, paths: Sequence[str], apart: PathCollisions, rows: Rows, inside: tuple[_Tokens, Rows]
) -> tuple[Ints, Ints]:
    """Numbers calls of one level that have the same module above them.

    Returns:
        For each of ``rows`` its number, -1 where it may have several; and how many parts of its path have that number.
    """
    tokens, item = inside
    family, lengths = _families(paths, _siblings(calls, apart.which, rows), calls.place[rows])
    by_family, tokens_by_family = (np.argsort(column, kind="stable") for column in (family, family[item]))
    number, parts = np.zeros((2, rows.size), dtype=np.int64)
    for row in np.unique(family[item]).tolist():
        members = by_family[slice(*np.searchsorted(family[by_family], (row, row + 1)))]
        own = tokens_by_family[slice(*np.searchsorted(family[item][tokens_by_family], (row, row + 1)))]
        numbers = _numbered(np.searchsorted(members, item[own]), tokens.those(own), members.size)
        if numbers is not None:
            number[members], parts[members] = numbers, lengths[row]
    return number, parts


def _siblings(calls: Called, which: Ints, rows: Rows) -> Ints:
    above = np.append(calls.parent, -1)[rows]
    inside = above >= 0
    places, ways = int(calls.place.max()) + 2, int(which.max()) + 1
    place = calls.process[rows].astype(np.int64) * places + np.where(inside, calls.place[above], -1)
    return distinct((place + 1) * ways + np.where(inside, which[above], 0))[1]


def _families(paths: Sequence[str], group: Ints, place: Ints) -> tuple[Ints, list[int]]:
    """Splits the calls of each group into families: a path of the group with all paths of the group below it.

    Returns:
        For each call the row of its family, and for each family how many parts its path has.
    """
    keys, key = distinct(group * len(paths) + place)
    pairs = [(code // len(paths), tuple(paths[code % len(paths)].split("."))) for code in keys.tolist()]
    family = np.zeros(keys.size, dtype=np.int64)
    lengths: list[int] = []
    last: tuple[int, tuple[str, ...]] | None = None
    for row in sorted(range(keys.size), key=pairs.__getitem__):
        number, parts = pairs[row]
        if last is None or (number, parts[: len(last[1])]) != last:
            last = number, parts
            lengths.append(len(parts))
        family[row] = len(lengths) - 1
    return family[key], lengths


def _hand_down(apart: PathCollisions, rows: Rows, numbered: tuple[Ints, Ints], end: Rows) -> None:
    number, parts = numbered
    step = np.zeros(apart.which.size + 1, dtype=np.int64)
    doubt = np.zeros(apart.which.size + 1, dtype=np.int64)
    known = {numbers: row for row, numbers in enumerate(apart.numbers)}
    for item in np.flatnonzero(number).tolist():
        row = int(rows[item])
        if number[item] < 0:
            doubt[row] += 1
            doubt[end[row]] -= 1
            continue
        old = int(apart.which[row])
        numbers = (*apart.numbers[old], (int(parts[item]), int(number[item])))
        new = known.setdefault(numbers, len(known))
        if new == len(apart.numbers):
            apart.numbers.append(numbers)
        step[row] += new - old
        step[end[row]] += old - new
    apart.which[:] += np.cumsum(step[:-1])
    apart.unclear[:] |= np.cumsum(doubt[:-1]) > 0


def _numbered(item: Rows, tokens: _Tokens, items: int) -> Ints | None:
    """The number of the module of each item, -1 where it may have several; None if all have one."""
    paths, path = distinct(tokens.path)
    cluster = _held_together(item, path, tokens.cluster)
    width = int(cluster.max(initial=0)) + 1
    codes = _sorted(item * (paths.size * width) + path * width + cluster)
    item, token = np.divmod(codes, paths.size * width)
    kinds: dict[bytes, int] = {}
    bounds = np.searchsorted(item, np.arange(items + 1)).tolist()
    kind = [kinds.setdefault(token[low:high].tobytes(), len(kinds)) for low, high in pairwise(bounds)]
    statements = [dict(divmod(code, width) for code in np.frombuffer(text, token.dtype).tolist()) for text in kinds]
    numbers = split_conflicting(statements, MOST_MODULES)
    return None if numbers is None or max(numbers) == 0 else np.array(numbers, dtype=np.int64)[kind]


def _held_together(item: Rows, path: Ints, cluster: Ints) -> Ints:
    width, paths = int(cluster.max(initial=0)) + 1, int(path.max(initial=0)) + 1
    codes = _sorted((item * paths + path) * width + cluster)
    item_path, held = np.divmod(codes, width)
    again = np.flatnonzero(item_path[1:] == item_path[:-1])
    if not again.size:
        return cluster
    base = item_path[again] % paths * width
    pairs = np.unique(np.stack((base + held[again], base + held[again + 1])), axis=1)
    first = np.arange(paths * width)
    for left, right in pairs.T.tolist():
        low, high = sorted((int(first[left]), int(first[right])))
        first[first == high] = low
    return np.asarray(first[path * width + cluster] - path * width)


def _sorted(codes: Ints) -> Ints:
    codes = np.sort(codes)
    return np.asarray(codes[np.diff(codes, prepend=-1) != 0])


#: In place of a class or of settings where markers state several.
CONTRADICTED = ""


class Facts(NamedTuple):
    """What markers state about a module.

    Attributes:
        params: Its parameters; empty also where markers do not record them.
        some: Whether it may have further parameters, which could not be read.
    """

    class_name: str | None = None
    params: tuple[Param, ...] = ()
    static_params: str | None = None
    some: bool = False


NOTHING = Facts()


def facts_of(marker: ModuleMarker) -> Facts:
    """The facts that a marker states."""
    some = bool(marker.params) and marker.cause is FIELD_SKIPPED
    return Facts(marker.class_name, marker.params, marker.static_params, some)


def same(left: Facts, right: Facts) -> bool:
    """Whether both can be about one module of one process."""
    if left.class_name != right.class_name and left.class_name and right.class_name:
        return False
    if left.static_params != right.static_params and left.static_params and right.static_params:
        return False
    if left.params == right.params or not left.params or not right.params:
        return True
    left_params, right_params = ({param.name: param for param in facts.params} for facts in (left, right))
    if not (right.some or left_params.keys() <= right_params.keys()):
        return False
    if not (left.some or right_params.keys() <= left_params.keys()):
        return False
    return all(_params_fit(left_params[name], right_params[name]) for name in left_params.keys() & right_params.keys())


def _params_fit(left: Param, right: Param) -> bool:
    if left.dtype is not None and right.dtype is not None and left.dtype != right.dtype:
        return False
    if left.shape is None or right.shape is None or _is_elsewhere(left) or _is_elsewhere(right):
        return True
    return len(left.shape) == len(right.shape) and all(
        size == other or size is None or other is None for size, other in zip(left.shape, right.shape, strict=True)
    )


def _is_elsewhere(param: Param) -> bool:
    """Whether it is empty at the moment, as ZeRO leaves parameters behind, so that its shape proves nothing."""
    return param.shape is not None and 0 in param.shape


def common(statements: Iterable[Facts]) -> tuple[Facts, bool]:
    """What all statements about a module have in common, and whether they contradict each other.

    A fact that no statement contradicts stands. Sizes that differ become None.
    """
    known = list(statements)
    if len(known) == 1:
        return known[0], False
    classes = {facts.class_name for facts in known} - {None}
    settings = {facts.static_params for facts in known} - {None}
    with_params = [facts for facts in known if facts.params]
    params, differ = _common_params(with_params)
    facts = Facts(
        class_name=_only(classes) if classes else None,
        params=params,
        static_params=_only(settings) if settings else None,
        some=any(facts.some for facts in with_params),
    )
    return facts, differ or len(classes - {CONTRADICTED}) > 1 or len(settings - {CONTRADICTED}) > 1


def _only(words: set[str | None]) -> str | None:
    return next(iter(words)) if len(words) == 1 else CONTRADICTED


def _common_params(statements: list[Facts]) -> tuple[tuple[Param, ...], bool]:
    by_name: dict[str, list[Param]] = {}
    for facts in statements:
        for param in facts.params:
            by_name.setdefault(param.name, []).append(param)
    complete = sum(not facts.some for facts in statements)
    params, differ = [], False
    for versions in by_name.values():
        param, unlike = _common_param(versions, lacking=len(versions) < complete)
        params.append(param)
        differ |= unlike
    return tuple(params), differ


def _common_param(versions: list[Param], *, lacking: bool) -> tuple[Param, bool]:
    if len(set(versions)) == 1 and not lacking:
        return versions[0], False
    shapes = {param.shape for param in versions if not _is_elsewhere(param)}
    shape, unlike = _common_shape(shapes or {versions[0].shape})
    dtypes = {param.dtype for param in versions}
    param = Param(versions[0].name, None if lacking else shape, _only(dtypes) or None)
    return param, lacking or unlike or len(dtypes - {None}) > 1


def _common_shape(shapes: set[Shape | None]) -> tuple[Shape | None, bool]:
    """The dimensions that are the same in all shapes, and whether some differ.

    None may stand for sizes that differed before, so it stays None.
    """
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
        return None, len(known) > 1
    common_sizes: list[int | None] = []
    differ = False
    for sizes in zip(*known, strict=True):
        distinct = set(sizes)
        common_sizes.append(next(iter(distinct)) if len(distinct) == 1 else None)
        differ |= len(distinct - {None}) > 1
    return tuple(common_sizes), differ


#: More facts about one path than these are not those of different modules: something in its markers keeps changing.
MOST_DIFFERENT = 16
#: More different statements than these are not compared.
_MOST_STATEMENTS = 256


def clusters(facts: Sequence[T], agree: Callable[[T, T], bool], most: int = MOST_DIFFERENT) -> list[int]:
    """A number for each fact, the same for facts that agree.

    A fact that agrees with two that contradict each other proves nothing, and gets -1. Too many facts all get 0.
    """
    if len(facts) > most:
        return [0] * len(facts)
    fits = _agreeing(facts, agree)
    clear = (1 << len(facts)) - 1
    for row, mask in enumerate(fits):
        if any(mask >> other & 1 and mask & ~fits[other] for other in range(len(facts))):
            clear &= ~(1 << row)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(mask & clear, len(numbers)) if clear >> row & 1 else -1 for row, mask in enumerate(fits)]


def _agreeing(facts: Sequence[T], agree: Callable[[T, T], bool]) -> list[int]:
    fits = [1 << row for row in range(len(facts))]
    for row, fact in enumerate(facts):
        for later in range(row + 1, len(facts)):
            if agree(fact, facts[later]):
                fits[row] |= 1 << later
                fits[later] |= 1 << row
    return fits


def split_conflicting(statements: Sequence[Statement], most: int) -> list[int] | None:
    """A number for each statement, the same for those that do not contradict each other; -1 for those that fit several.

    None if that makes more than ``most`` of them, or if too many differ to compare them.
    """
    texts = [tuple(sorted(statement.items())) for statement in statements]
    distinct = {text: dict(text) for text in texts}
    if len(distinct) > _MOST_STATEMENTS:
        return None
    numbers = dict(zip(distinct, clusters(list(distinct.values()), _compatible, _MOST_STATEMENTS), strict=True))
    return None if max(numbers.values(), default=0) >= most else [numbers[text] for text in texts]


def _compatible(left: Statement, right: Statement) -> bool:
    return all(right.get(place, thing) == thing for place, thing in left.items())
