"""What markers say a module is, and whether two of them can speak of the same one.

A marker that says less (no class, no parameters) contradicts none. Knows no calls and no paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.causes import FIELD_SKIPPED
from tracekit.markers.base import Param

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.markers.base import ModuleMarker, Shape


#: In place of a class or of settings of which several are told.
CONTRADICTED = ""


class Facts(NamedTuple):
    """What is said of a module.

    Attributes:
        class_name: Its class, None if it is not told.
        params: Its parameters; none may also mean that nothing is said of them.
        static_params: Its settings as JSON, or None.
        some: Whether it may have further parameters, which could not be read.
    """

    class_name: str | None = None
    params: tuple[Param, ...] = ()
    static_params: str | None = None
    some: bool = False


NOTHING = Facts()


def facts_of(marker: ModuleMarker) -> Facts:
    """What a marker says of its module."""
    some = bool(marker.params) and marker.cause is FIELD_SKIPPED
    return Facts(marker.class_name, marker.params, marker.static_params, some)


def same(one: Facts, other: Facts) -> bool:
    """Whether both can be said of one module of one process."""
    if one.class_name != other.class_name and one.class_name and other.class_name:
        return False
    if one.static_params != other.static_params and one.static_params and other.static_params:
        return False
    if one.params == other.params or not one.params or not other.params:
        return True
    ours, theirs = ({param.name: param for param in facts.params} for facts in (one, other))
    if not (other.some or ours.keys() <= theirs.keys()):
        return False
    if not (one.some or theirs.keys() <= ours.keys()):
        return False
    return all(_fit(ours[name], theirs[name]) for name in ours.keys() & theirs.keys())


def _fit(one: Param, other: Param) -> bool:
    if one.dtype is not None and other.dtype is not None and one.dtype != other.dtype:
        return False
    if one.shape is None or other.shape is None or _is_elsewhere(one) or _is_elsewhere(other):
        return True
    return len(one.shape) == len(other.shape) and all(
        its == theirs or its is None or theirs is None for its, theirs in zip(one.shape, other.shape, strict=True)
    )


def _is_elsewhere(param: Param) -> bool:
    """Whether it holds nothing at the moment, so that its shape says nothing: ZeRO leaves such behind."""
    return param.shape is not None and 0 in param.shape


def common(said: Iterable[Facts]) -> tuple[Facts, bool]:
    """What all that is said of a module has in common, and whether it contradicts itself.

    What nobody contradicts stands. Where sizes differ they are None.
    """
    known = list(said)
    if len(known) == 1:
        return known[0], False
    classes = {facts.class_name for facts in known} - {None}
    settings = {facts.static_params for facts in known} - {None}
    telling = [facts for facts in known if facts.params]
    params, differ = _common_params(telling)
    found = Facts(
        class_name=_only(classes) if classes else None,
        params=params,
        static_params=_only(settings) if settings else None,
        some=any(facts.some for facts in telling),
    )
    return found, differ or len(classes - {CONTRADICTED}) > 1 or len(settings - {CONTRADICTED}) > 1


def _only(words: set[str | None]) -> str | None:
    return next(iter(words)) if len(words) == 1 else CONTRADICTED


def _common_params(telling: list[Facts]) -> tuple[tuple[Param, ...], bool]:
    by_name: dict[str, list[Param]] = {}
    for facts in telling:
        for param in facts.params:
            by_name.setdefault(param.name, []).append(param)
    complete = sum(not facts.some for facts in telling)
    found, differ = [], False
    for name, its in by_name.items():
        if len(set(its)) == 1 and len(its) >= complete:
            found.append(its[0])
            continue
        lacking = len(its) < complete
        shapes = {param.shape for param in its if not _is_elsewhere(param)}
        shape, unlike = _common_shape(shapes or {its[0].shape})
        dtypes = {param.dtype for param in its}
        found.append(Param(name, None if lacking else shape, _only(dtypes) or None))
        differ |= lacking or unlike or len(dtypes - {None}) > 1
    return tuple(found), differ


def _common_shape(shapes: set[Shape | None]) -> tuple[Shape | None, bool]:
    """The dimensions that are the same in all, and whether some are not.

    What is None may have been told in two ways before, so that it stays None.
    """
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
        return None, len(known) > 1
    found: list[int | None] = []
    differ = False
    for sizes in zip(*known, strict=True):
        distinct = set(sizes)
        found.append(next(iter(distinct)) if len(distinct) == 1 else None)
        differ |= len(distinct - {None}) > 1
    return tuple(found), differ
