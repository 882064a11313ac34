"""Kernel maps that are wrong or meant to hurt cost no wrong module."""

import pytest

from tests.attribution.test_compiled import launches, run
from tests.golden import Parse
from tracekit.markers.base import MappedKernel
from tracekit.markers.kernel_maps import kernel_map

X = "triton_poi_fused_x_0"


@pytest.mark.parametrize(
    "kernels",
    [
        [MappedKernel(X, True, ((".".join("a" * 60), 1),))],
        [MappedKernel(X, True, (("a", 2**31), ("b", 2**31), ("", 1)))],
        [MappedKernel(X, True, tuple((f"m{number}", 1) for number in range(400)))],
        [MappedKernel("extern_kernels.mm", False, ((f"layers.{number}", 1),)) for number in range(3000)],
        [],
    ],
)
def test_of_an_odd_map_weights_sum_to_one(parsed: Parse, kernels: list[MappedKernel]) -> None:
    map_id, texts = kernel_map("top", kernels)
    told = "\n".join(f"range 1 {at} {at} {text}" for at, text in enumerate(texts))
    dataset = parsed(f"""
        {told}
        range 1 1000 1090 {run(map_id=map_id)}
        {launches(X, "gemm", "gemm", at=1010)}
    """)
    sums = dataset.kernel_modules().groupby("kernel_id").weight.sum()
    assert sums.tolist() == pytest.approx([1.0] * len(sums))
    assert len(sums) == dataset.kernels().module.notna().sum()


@pytest.mark.parametrize(
    "content",
    [
        f'"Modules": ["a"], "Kernels": [["{X}", 1, [[7, 1]]]]',
        f'"Modules": ["a"], "Kernels": [["{X}", 1, [[-1, 1]]]]',
        '"Modules": ["a"], "Kernels": [["{}", 1, [[0, {}]]]]'.format(X, "9" * 4000),
        '"Modules": ["a"], "Kernels": [{}]'.format(", ".join([f'["{X}", 1, [[0, 1]]]'] * 40_000)),
        '"Modules": ["{}"], "Kernels": [["{}", 1, [[0, 1]]]]'.format("a" * 1_000_000, X),
        '"Modules": ["a"], "Kernels": %s' % ("[" * 3000 + "]" * 3000),
    ],
    ids=["index", "negative index", "weight", "megabyte", "path", "depth"],
)
def test_broken_map_is_counted_and_its_run_is_nobodys(parsed: Parse, content: str) -> None:
    map_id = "0123456789abcdef"
    dataset = parsed(f"""
        range 1 5 5 {{"KernelMap": "{map_id}", "Part": 1, "Parts": 1, "Root": "top", {content}}}
        range 1 999 1091 {{'Module': 'top'}}
        range 1 1000 1090 {run(map_id=map_id)}
        {launches(X, at=1010)}
    """)
    causes = {row["cause"]: row["count"] for row in dataset.table("coverage").to_pylist()}
    assert causes["marker_unreadable"] == 1
    assert causes["compiled_unmatched"] == 1
