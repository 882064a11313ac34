"""Different modules under one path, distinguished by parameters, settings and class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from tracekit.arrays.groups import distinct, grouped, mixed
from tracekit.arrays.intervals import by_level, depths
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
        unclear: Which calls may belong to any of several modules of their path.
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
    """Tells the modules of each path of each process apart, from the outermost calls on that hold just one of them."""
    size = calls.parent.size
    apart = PathCollisions(np.zeros(size + 1, dtype=np.int64), [()], np.zeros(size + 1, dtype=bool))
    tokens = _tokens(calls, len(paths), facts)
    above = _placed_above(calls) if tokens.call.size else calls.parent[:0]
    # Hooks that name the class name each root apart: what differs below is a module that took the place of another.
    named = np.array([fact.class_name is not None for fact in facts])[calls.facts]
    for level in by_level(depths(above)):
        apart.which[level], apart.unclear[level] = apart.which[above[level]], apart.unclear[above[level]]
        rows = level[calls.placed[level]]
        holder = rows[np.searchsorted(rows, tokens.call, side="right") - 1]
        keys, group = distinct(tokens.path * len(apart.numbers) + apart.which[holder])
        kept = mixed(group, tokens.cluster, keys.size)[group] & ~apart.unclear[holder]
        tokens, holder = tokens.those(kept), holder[kept]
        told = np.flatnonzero(~named[tokens.call] | (holder == tokens.call))
        around = np.append(calls.place, -1)[above[rows]]
        siblings = grouped((calls.process[rows], around, apart.which[rows])).group
        asked = np.isin(siblings, siblings[np.searchsorted(rows, holder[told])])
        rows, of_row, parts = rows[asked], *_families(paths, siblings[asked], calls.place[rows[asked]])
        of_token = of_row[np.searchsorted(rows, holder[told])]
        members, own = by_level(of_row), by_level(of_token)
        for number in np.unique(of_token).tolist():
            family, row = rows[members[number]], told[own[number]]
            _number(apart, family, np.searchsorted(family, holder[row]), tokens.those(row), parts[number])
        tokens = tokens.those(holder != tokens.call)
    return PathCollisions(apart.which[:-1], apart.numbers, apart.unclear[:-1])


def _placed_above(calls: Called) -> Rows:
    above = np.append(calls.parent, -1)
    for rows in by_level(calls.depth)[1:]:
        parent = calls.parent[rows]
        above[rows] = np.where(calls.placed[parent], parent, above[parent])
    return above[:-1]


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


def _families(paths: Sequence[str], siblings: Rows, place: Ints) -> tuple[Rows, list[int]]:
    """For each call the number of a path among its siblings, or of the one that this is below, and their parts."""
    keys, key = distinct(siblings * len(paths) + place)
    named = [
        (own, paths[at].split("."))
        for own, at in zip(*(pair.tolist() for pair in np.divmod(keys, len(paths))), strict=True)
    ]
    family, heads = np.zeros(keys.size, dtype=np.int64), list[tuple[int, list[str]]]()
    for at in sorted(range(keys.size), key=named.__getitem__):
        own, parts = named[at]
        if not heads or heads[-1] != (own, parts[: len(heads[-1][1])]):
            heads.append((own, parts))
        family[at] = len(heads) - 1
    return family[key], [len(parts) for _, parts in heads]


def _number(apart: PathCollisions, family: Rows, item: Rows, tokens: _Tokens, parts: int) -> None:
    """Numbers the calls of a family by the modules that they and the calls inside are of."""
    held: dict[int, dict[int, int]] = {}
    together: dict[tuple[int, int], int] = {}  # clusters that one call holds are told apart further inside

    def first_of(path: int, cluster: int) -> int:
        while (path, cluster) in together:
            cluster = together[path, cluster]
        return cluster

    for call, path, cluster in zip(item.tolist(), tokens.path.tolist(), tokens.cluster.tolist(), strict=True):
        pair = {first_of(path, cluster), first_of(path, held.setdefault(call, {}).setdefault(path, cluster))}
        if len(pair) > 1:
            together[path, max(pair)] = min(pair)
    statements = [{path: first_of(path, cluster) for path, cluster in of.items()} for of in held.values()]
    numbers = split_conflicting([*statements, {}], MOST_MODULES)
    if numbers is None or not any(numbers):
        return
    number = np.full(family.size, numbers[-1])
    number[[*held]] = numbers[:-1]
    old = apart.numbers[apart.which[family[0]]]
    for one in range(1, max(numbers) + 1):
        own = (*old, (parts, one))
        if own not in apart.numbers:
            apart.numbers.append(own)
        apart.which[family[number == one]] = apart.numbers.index(own)
    apart.unclear[family[number < 0]] = True


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
    """Whether both can be about one module of one process, which may be cast to another dtype."""
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
    sizes = [set(of_dimension) for of_dimension in zip(*known, strict=True)]
    differ = any(len(of_dimension - {None}) > 1 for of_dimension in sizes)
    return tuple(size.pop() if len(size) == 1 else None for size in sizes), differ


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
    fits = [{row for row, other in enumerate(facts) if other is fact or agree(fact, other)} for fact in facts]
    clear = {row for row, own in enumerate(fits) if all(own <= fits[other] for other in own)}
    numbers: dict[frozenset[int], int] = {}
    return [
        numbers.setdefault(frozenset(own & clear), len(numbers)) if row in clear else -1 for row, own in enumerate(fits)
    ]


def split_conflicting(statements: Sequence[Statement], most: int) -> list[int] | None:
    """A number for each statement, the same for those that do not contradict each other; -1 for those that fit several.

    None if that makes more than ``most`` of them, or if too many differ to compare them.
    """
    texts = [tuple(sorted(statement.items())) for statement in statements]
    distinct = {text: dict(text) for text in texts}
    if len(distinct) > _MOST_STATEMENTS:
        return None

    def agree(left: Statement, right: Statement) -> bool:
        return all(right.get(place, thing) == thing for place, thing in left.items())

    numbers = dict(zip(distinct, clusters(list(distinct.values()), agree, _MOST_STATEMENTS), strict=True))
    return None if max(numbers.values(), default=0) >= most else [numbers[text] for text in texts]
