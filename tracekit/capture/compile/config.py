"""What is to be compiled, and how: one frozen value, checked where it is made. It knows no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

from typing_extensions import override

from tracekit.errors import UsageError

#: Nothing compiled; pieces as Dynamo traced them; pieces compiled by Inductor; torch.compile as it is.
MODES = ("none", "eager", "inductor", "stock")
#: CUDA graphs where there is a GPU; always; the stand-in for tests; never.
GRAPH_CAPTURES = ("auto", "cuda", "record", "off")

_OPERATOR = re.compile(r"\w+::\w+(\.\w+)?")


class SizeRange(NamedTuple):
    """Sizes from start to end, both included."""

    start: int
    end: int

    @override
    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.start <= size <= self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileConfig:
    """Settings of a compiled model. A size is what the dynamic dimensions of the inputs measure (tokens, requests).

    Attributes:
        mode: ``inductor`` or ``eager`` pieces, ``stock`` torch.compile, or ``none``.
        splitting_ops: Operators that run between the compiled pieces, as ``ns::op`` or ``ns::op.overload``.
        compile_sizes: Sizes with a compilation of their own, for exactly these shapes. They go before ranges.
        compile_ranges: Ranges with a compilation of their own: pairs (start, end), both included, or the numbers at
            which one range ends, the last range ending at ``max_size``: (8, 32) is 1 to 8, 9 to 32, 33 to 8192. Without
            any, one compilation serves all sizes.
        max_size: End of the last of the ranges that are given by their ends.
        cudagraph_sizes: Sizes at which pieces are captured as CUDA graphs.
        cudagraph_warmups: How often a piece runs before it is captured.
        copy_inputs: Whether inputs are copied into buffers that stay, so that callers may pass any tensor.
        copy_outputs: Whether results of captured graphs are copied, so that the next call does not overwrite them.
        graph_capture: ``auto`` (CUDA graphs where there is a GPU), ``cuda``, ``record`` (counts, for tests), ``off``.
        cache_dir: Folder for what has been compiled; None keeps nothing on disk.
        use_cache: Whether the folder is used at all.
        inductor_config: More settings of Inductor, by name.
        dynamic_dims: Argument → its dynamic dimensions (one or several); None: dimension 0 of every tensor argument.
        debug: Whether to check, at every call, what is otherwise relied on; slow.
        debug_dir: Folder for what a person may want to read, such as ``computation_graph.py``; None: the cache's.

    Raises:
        UsageError: If a setting makes no sense.
    """

    mode: str = "inductor"
    splitting_ops: tuple[str, ...] = ()
    compile_sizes: tuple[int, ...] = ()
    compile_ranges: tuple[int | tuple[int, int], ...] = ()
    max_size: int = 8192
    cudagraph_sizes: tuple[int, ...] = ()
    cudagraph_warmups: int = 1
    copy_inputs: bool = False
    copy_outputs: bool = True
    graph_capture: str = "auto"
    cache_dir: Path | None = None
    use_cache: bool = True
    inductor_config: Mapping[str, object] = field(default_factory=dict, hash=False)
    dynamic_dims: Mapping[str, tuple[int, ...]] | None = field(default=None, hash=False)
    debug: bool = False
    debug_dir: Path | None = None

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, MODES)
        _one_of("graph_capture", self.graph_capture, GRAPH_CAPTURES)
        self._set("splitting_ops", _operators(self.splitting_ops))
        self._set("compile_sizes", _sizes("compile_sizes", self.compile_sizes))
        self._set("cudagraph_sizes", _sizes("cudagraph_sizes", self.cudagraph_sizes))
        _number("max_size", self.max_size, least=1)
        _number("cudagraph_warmups", self.cudagraph_warmups, least=0)
        self._set("compile_ranges", tuple(_items("compile_ranges", self.compile_ranges)))
        ranges_of(self)
        for name in ("cache_dir", "debug_dir"):
            folder = getattr(self, name)
            self._set(name, None if folder is None else Path(folder))
        self._set("inductor_config", _mapping("inductor_config", self.inductor_config))
        if self.dynamic_dims is not None:
            self._set("dynamic_dims", _dynamic_dims(self.dynamic_dims))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def ranges(self) -> tuple[SizeRange, ...]:
        """The ranges that have a compilation of their own, in rising order."""
        return ranges_of(self)


def ranges_of(config: CompileConfig) -> tuple[SizeRange, ...]:
    """The ranges of a config.

    Raises:
        UsageError: If they are no ranges, or overlap.
    """
    said = config.compile_ranges
    ends = [item for item in said if isinstance(item, int)]
    if ends and len(ends) < len(said):
        raise UsageError(f"compile_ranges {said!r}: give either the ends of ranges or pairs")
    ranges = _between(_sizes("compile_ranges", ends), config.max_size) if ends else _pairs(said)
    for before, after in pairwise(ranges):
        if after.start <= before.end:
            raise UsageError(f"compile_ranges {said!r}: {before} and {after} overlap")
    return ranges


def _between(ends: tuple[int, ...], last: int) -> tuple[SizeRange, ...]:
    if ends[-1] > last:
        raise UsageError(f"compile_ranges ends at {ends[-1]}, after max_size {last}")
    edges = [0, *ends, *([last] if last > ends[-1] else [])]
    return tuple(SizeRange(start + 1, end) for start, end in pairwise(edges))


def _pairs(said: Iterable[object]) -> tuple[SizeRange, ...]:
    pairs = []
    for item in said:
        pair = tuple(item) if isinstance(item, tuple | list) else ()
        if len(pair) != 2 or not all(_is_size(end) for end in pair) or pair[0] > pair[1]:  # noqa: PLR2004
            raise UsageError(f"compile_ranges: {item!r} is no range; expected (start, end)")
        pairs.append(SizeRange(*pair))
    return tuple(sorted(pairs))


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name}: {value!r} is unknown; expected one of {', '.join(known)}")


def _number(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}: expected a number of at least {least}, not {value!r}")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _items(name: str, values: object) -> list[object]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UsageError(f"{name}: expected several values, not {values!r}")
    return list(values)


def _sizes(name: str, values: object) -> tuple[int, ...]:
    sizes = _items(name, values)
    if wrong := [size for size in sizes if not _is_size(size)]:
        raise UsageError(f"{name}: {wrong[0]!r} is no size; expected numbers from 1")
    return tuple(sorted(set(cast("list[int]", sizes))))


def _operators(values: object) -> tuple[str, ...]:
    for name in (names := _items("splitting_ops", values)):
        if not isinstance(name, str) or not _OPERATOR.fullmatch(name):
            raise UsageError(f"splitting_ops: {name!r} is no operator; expected ns::op[.overload]")
    return tuple(dict.fromkeys(cast("list[str]", names)))


def _mapping(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{name}: expected names with their values, not {value!r}")
    return dict(value)


def _dynamic_dims(value: object) -> dict[str, tuple[int, ...]]:
    dims: dict[str, tuple[int, ...]] = {}
    for name, item in _mapping("dynamic_dims", value).items():
        numbers = [item] if isinstance(item, int) else _items(f"dynamic_dims[{name!r}]", item)
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
            raise UsageError(f"dynamic_dims[{name!r}]: {item!r} is no dimension; expected numbers")
        dims[name] = cast("tuple[int, ...]", tuple(numbers))
    return dims
