"""Settings of a compiled model: one frozen value, checked when it is created. It does not import torch."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

from typing_extensions import override

from tracekit.errors import UsageError

#: Nothing compiled; pieces as Dynamo traced them; pieces compiled by Inductor; plain torch.compile.
MODES = ("none", "eager", "inductor", "stock")
#: CUDA graphs if there is a GPU; always; a stand-in for tests; never.
GRAPH_CAPTURES = ("auto", "cuda", "record", "off")

_OPERATOR = re.compile(r"\w+::\w+(\.\w+)?")


class SizeRange(NamedTuple):
    """The sizes from start to end, inclusive."""

    start: int
    end: int

    @override
    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.start <= size <= self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileConfig:
    """Settings of a compiled model. A size is the length of the inputs' dynamic dimension, in tokens or requests.

    Attributes:
        mode: ``inductor`` or ``eager`` pieces, ``stock`` for plain torch.compile, or ``none`` to compile nothing.
        splitting_ops: Operators that run between the compiled pieces, as ``ns::op`` or ``ns::op.overload``. Functions
            that decompose to them (``torch.nn.functional``, methods of tensors) run between the pieces too.
        compile_sizes: Sizes that get code of their own, for exactly these shapes. They take precedence over ranges.
        compile_ranges: Ranges of sizes that get code of their own: either pairs (start, end), inclusive, or only the
            ends, with a last range up to ``max_size``: (8, 32) means 1 to 8, 9 to 32, and 33 to 8192. If empty, one
            compilation serves all sizes.
        max_size: The end of the last range, where ranges are given by their ends.
        cudagraph_sizes: Sizes at which pieces are captured as CUDA graphs.
        cudagraph_warmups: How often a piece runs before its graph capture.
        copy_inputs: Whether to copy inputs into static buffers, so that callers may pass any tensor.
        copy_outputs: Whether to copy the results of CUDA graphs, so that the next call does not overwrite them.
        graph_capture: ``auto`` (CUDA graphs if there is a GPU), ``cuda``, ``record`` (only counts, for tests) or
            ``off``.
        cache_dir: Folder for torch's caches of compiled code; None leaves them where torch has them.
        use_cache: Whether to use that folder.
        inductor_config: Further settings of Inductor, by name.
        dynamic_dims: Dynamic dimensions by name of argument; None means dimension 0 of every tensor argument, and that
            dimensions that are equal at the first call are one size.
        debug: Whether to check at every call what compiled code otherwise takes for granted. Slow.
        debug_dir: Folder for files to read, such as ``computation_graph.py``; None writes none.

    Raises:
        UsageError: If a setting is invalid.
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
        """The ranges that get code of their own, in ascending order."""
        return ranges_of(self)


def ranges_of(config: CompileConfig) -> tuple[SizeRange, ...]:
    """The ranges of a config."""
    items = config.compile_ranges
    ends = [item for item in items if isinstance(item, int)]
    if ends and len(ends) < len(items):
        raise UsageError(f"compile_ranges: {items!r} mixes ends and pairs; expected either ends or pairs (start, end)")
    ranges = _between(_sizes("compile_ranges", ends), config.max_size) if ends else _pairs(items)
    for before, after in pairwise(ranges):
        if after.start <= before.end:
            raise UsageError(f"compile_ranges: {items!r}: {before} and {after} overlap")
    return ranges


def _between(ends: tuple[int, ...], last: int) -> tuple[SizeRange, ...]:
    if ends[-1] > last:
        raise UsageError(f"compile_ranges: {ends[-1]} is above max_size {last}")
    edges = [0, *ends, *([last] if last > ends[-1] else [])]
    return tuple(SizeRange(start + 1, end) for start, end in pairwise(edges))


def _pairs(items: Iterable[object]) -> tuple[SizeRange, ...]:
    pairs = []
    for item in items:
        pair = tuple(item) if isinstance(item, tuple | list) else ()
        if len(pair) != 2 or not all(_is_size(end) for end in pair) or pair[0] > pair[1]:  # noqa: PLR2004
            raise UsageError(f"compile_ranges: {item!r} is not a range; expected (start, end)")
        pairs.append(SizeRange(*pair))
    return tuple(sorted(pairs))


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name}: {value!r} is unknown; expected one of {', '.join(choices)}")


def _number(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name}: expected an integer of at least {least}, not {value!r}")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _items(name: str, values: object) -> list[object]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UsageError(f"{name}: expected a sequence of values, not {values!r}")
    return list(values)


def _sizes(name: str, values: object) -> tuple[int, ...]:
    sizes = _items(name, values)
    if wrong := [size for size in sizes if not _is_size(size)]:
        raise UsageError(f"{name}: {wrong[0]!r} is not a size; expected integers from 1")
    return tuple(sorted(set(cast("list[int]", sizes))))


def _operators(values: object) -> tuple[str, ...]:
    for name in (names := _items("splitting_ops", values)):
        if not isinstance(name, str) or not _OPERATOR.fullmatch(name):
            raise UsageError(f"splitting_ops: {name!r} is not an operator; expected ns::op[.overload]")
    return tuple(dict.fromkeys(cast("list[str]", names)))


def _mapping(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{name}: expected a mapping from names to values, not {value!r}")
    return dict(value)


def _dynamic_dims(value: object) -> dict[str, tuple[int, ...]]:
    dims: dict[str, tuple[int, ...]] = {}
    for name, item in _mapping("dynamic_dims", value).items():
        numbers = [item] if isinstance(item, int) else _items(f"dynamic_dims[{name!r}]", item)
        if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
            raise UsageError(f"dynamic_dims[{name!r}]: {item!r} is not a dimension; expected integers")
        dims[name] = cast("tuple[int, ...]", tuple(numbers))
    return dims
