"""Settings that make no sense are refused where they are made, in one line."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tracekit.capture.compile import CompileConfig
from tracekit.errors import UsageError

pytestmark = pytest.mark.torch


def test_it_takes_lists_paths_and_mappings_and_cannot_be_changed() -> None:
    config = CompileConfig(
        splitting_ops=["a::b", "a::b.c", "a::b"],  # type: ignore[arg-type]
        compile_sizes=[4, 1, 4],  # type: ignore[arg-type]
        cudagraph_sizes=range(1, 3),  # type: ignore[arg-type]
        cache_dir="cache",  # type: ignore[arg-type]
        dynamic_dims={"x": 0, "y": [0, 1]},  # type: ignore[dict-item]
    )
    assert config.splitting_ops == ("a::b", "a::b.c")
    assert (config.compile_sizes, config.cudagraph_sizes) == ((1, 4), (1, 2))
    assert config.cache_dir == Path("cache")
    assert config.dynamic_dims == {"x": (0,), "y": (0, 1)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.mode = "eager"  # type: ignore[misc]
    assert hash(config) == hash(dataclasses.replace(config))
    assert dataclasses.replace(config, mode="eager") != config


@pytest.mark.parametrize(
    ("said", "ranges"),
    [
        ((), []),
        ((8, 32), [(1, 8), (9, 32), (33, 8192)]),
        ((8192,), [(1, 8192)]),
        (((9, 32), (1, 8)), [(1, 8), (9, 32)]),
    ],
)
def test_ranges_are_given_by_their_ends_or_as_pairs(said: Any, ranges: list) -> None:
    assert list(CompileConfig(compile_ranges=said).ranges) == ranges


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "fast"}, "mode: 'fast' is unknown; expected one of none, eager, inductor, stock"),
        ({"splitting_ops": "a::b"}, "splitting_ops: expected a sequence of values, not 'a::b'"),
        ({"splitting_ops": ["attention"]}, "splitting_ops: 'attention' is not an operator; expected ns::op[.overload]"),
        ({"compile_sizes": [0]}, "compile_sizes: 0 is not a size; expected integers from 1"),
        ({"cudagraph_sizes": [True]}, "cudagraph_sizes: True is not a size; expected integers from 1"),
        ({"cudagraph_warmups": -1}, "cudagraph_warmups: expected an integer of at least 0, not -1"),
        ({"compile_ranges": [(8, 1)]}, "compile_ranges: (8, 1) is not a range; expected (start, end)"),
        ({"compile_ranges": ["ab"]}, "compile_ranges: 'ab' is not a range; expected (start, end)"),
        ({"compile_ranges": [9000]}, "compile_ranges: 9000 is above max_size 8192"),
        ({"compile_ranges": [8, (9, 16)]}, "compile_ranges: 9-16 and 9-8192 overlap"),
        ({"compile_ranges": [(1, 8), (8, 16)]}, "compile_ranges: 1-8 and 8-16 overlap"),
        ({"inductor_config": ["a"]}, "inductor_config: expected a mapping from names to values, not ['a']"),
        ({"dynamic_dims": {"x": [None]}}, "dynamic_dims['x']: None is not a dimension; expected integers"),
    ],
)
def test_what_makes_no_sense_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        CompileConfig(**settings)
    assert str(raised.value) == message
