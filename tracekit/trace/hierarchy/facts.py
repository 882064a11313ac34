"""Facts about a module, as its markers state them, and whether two markers can be about the same module.

A marker that states less (no class, no parameters) contradicts none. Knows no calls and no paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracekit.causes.markers import FIELD_SKIPPED
from tracekit.markers.base import Param

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracekit.markers.base import ModuleMarker, Shape


#: In place of a class or of settings where markers state several.
CONTRADICTED = ""


class Facts(NamedTuple):
    """What markers state about a module.

    Attributes:
        class_name: Its class, or None.
        params: Its parameters; empty also where markers do not tell them.
        static_params: Its settings as JSON, or None.
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
    return all(_fit(left_params[name], right_params[name]) for name in left_params.keys() & right_params.keys())


def _fit(left: Param, right: Param) -> bool:
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
    """What all versions of a parameter have in common, and whether they contradict each other.

    Args:
        versions: The parameter, as each statement has it.
        lacking: Whether some statement that tells all parameters does not have it.
    """
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
