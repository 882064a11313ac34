"""Settings of a compiled model: one frozen value, checked when it is created. It does not import torch."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from tracekit.errors import UsageError

#: Nothing compiled; pieces as Dynamo traced them; pieces compiled by Inductor; plain torch.compile.
MODES = ("none", "eager", "inductor", "stock")
#: CUDA graphs if there is a GPU; always; a stand-in for tests; never.
GRAPH_CAPTURES = ("auto", "cuda", "record", "off")


class SizeRange(NamedTuple):
    """The sizes from start to end, inclusive."""

    start: int
    end: int

    @override
    def __str__(self) -> str:
        return str(self.start) if self.start == self.end else f"{self.start}-{self.end}"


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
        _number("max_size", self.max_size, least=1)
        _number("cudagraph_warmups", self.cudagraph_warmups, least=0)
        self._set("splitting_ops", tuple(dict.fromkeys(_items("splitting_ops", self.splitting_ops, _OPERATOR))))
        self._set("compile_ranges", _items("compile_ranges", self.compile_ranges, _RANGE))
        for name in ("compile_sizes", "cudagraph_sizes"):
            self._set(name, tuple(sorted(set(_items(name, getattr(self, name), _SIZE)))))
        for name in ("cache_dir", "debug_dir"):
            folder = getattr(self, name)
            self._set(name, None if folder is None else Path(folder))
        self._set("inductor_config", _mapping("inductor_config", self.inductor_config))
        if self.dynamic_dims is not None:
            dims = _mapping("dynamic_dims", self.dynamic_dims).items()
            items = {name: [item] if isinstance(item, int) else item for name, item in dims}
            named = {name: _items(f"dynamic_dims[{name!r}]", item, _DIMENSION) for name, item in items.items()}
            self._set("dynamic_dims", named)
        self.ranges  # noqa: B018 - checks them

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def ranges(self) -> tuple[SizeRange, ...]:
        """The ranges that get code of their own, in ascending order."""
        ends = {item for item in self.compile_ranges if isinstance(item, int)}
        if max(ends, default=0) > self.max_size:
            raise UsageError(f"compile_ranges: {max(ends)} is above max_size {self.max_size}")
        between = pairwise(sorted({0, *ends, self.max_size}) if ends else ())
        pairs = (SizeRange(*item) for item in self.compile_ranges if not isinstance(item, int))
        ranges = sorted([*pairs, *(SizeRange(start + 1, end) for start, end in between)])
        for before, after in pairwise(ranges):
            if after.start <= before.end:
                raise UsageError(f"compile_ranges: {before} and {after} overlap")
        return tuple(ranges)

    @property
    def code_sizes(self) -> tuple[SizeRange, ...]:
        """The sizes and ranges that get code of their own, in the order in which they count."""
        return (*(SizeRange(size, size) for size in self.compile_sizes), *self.ranges)


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name}: {value!r} is unknown; expected one of {', '.join(choices)}")


def _number(name: str, value: int, *, least: int) -> None:
    if not _is_int(value) or value < least:
        raise UsageError(f"{name}: expected an integer of at least {least}, not {value!r}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:  # noqa: ANN401 - whatever the user passes
    return _is_int(value) and value > 0


def _is_range(value: Any) -> bool:  # noqa: ANN401
    is_pair = isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_size, value))  # noqa: PLR2004
    return value[0] <= value[1] if is_pair else _is_size(value)


#: What an item of a setting must be, and how errors call it.
_Kind = tuple[Callable[[Any], object], str]
_SIZE: _Kind = (_is_size, "a size; expected integers from 1")
_RANGE: _Kind = (_is_range, "a range; expected (start, end)")
_DIMENSION: _Kind = (_is_int, "a dimension; expected integers")
_OPERATOR: _Kind = (
    lambda name: re.fullmatch(r"\w+::\w+(\.\w+)?", str(name)),
    "an operator; expected ns::op[.overload]",
)


def _items(name: str, values: object, kind: _Kind) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UsageError(f"{name}: expected a sequence of values, not {values!r}")
    items, (check, expected) = tuple(values), kind
    if wrong := [item for item in items if not check(item)]:
        raise UsageError(f"{name}: {wrong[0]!r} is not {expected}")
    return items


def _mapping(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{name}: expected a mapping from names to values, not {value!r}")
    return dict(value)
