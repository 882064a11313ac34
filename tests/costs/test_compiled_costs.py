"""Golden tests of what modules inside compiled graphs cost: FLOPs of kernel maps, each once, or the reason why not."""

from typing import Any

import pytest

from tests.answers.test_roofline import LINEAR, RESULT
from tests.attribution.test_compiled import FUSED, kernel_map, launches, run
from tests.golden import Parse, expect
from tracekit.answers import memory as traffic, roofline, shapes as by_shape
from tracekit.dataset.opening import Dataset
from tracekit.views.formatting import records

#: A norm fused with an embedding, then a product that a library launches two kernels for.
MAP = kernel_map(
    "[['triton_poi_fused_norm_0', 1, [[0, 3, 0], [1, 1, 0]]], ['extern_kernels.addmm', 0, [[2, 1, 4096, 'bfloat16']]], "
    "['triton_poi_fused_gelu_1', 1, [[3, 1, 0]]]]",
    "norm embed mlp.up mlp.act",
)
NAMES = "triton_poi_fused_norm_0", "gemm", "splitk_reduce", "triton_poi_fused_gelu_1"


def rows_of(dataset: Dataset) -> dict[str, dict[str, Any]]:
    return {row["path"]: row for row in records(roofline.frame(dataset))}


def twice(told: str, names: tuple[str, ...]) -> str:
    return f"""
        range 1   0 100 {{'Module': 'top'}}
        range 1  10  10 {told}
        range 1  12  90 {run()}
        {launches(*names)}
        range 1 200 300 {{'Module': 'top'}}
        range 1 212 290 {run()}
        {launches(*names, at=220, number=20)}
    """


def test_the_first_kernel_of_a_library_has_the_flops_of_its_call(parsed: Parse) -> None:
    expect(parsed(twice(MAP, NAMES)), "kernel_modules")("""
        kernel_id  module_id  weight  flops  flops_dtype  flops_unknown
        0          1          0.75    0      -            -
        0          2          0.25    0      -            -
        1          4          1.0     4096   bfloat16     -
        2          4          1.0     0      -            -
        3          5          1.0     0      -            -
        4          1          0.75    0      -            -
        4          2          0.25    0      -            -
        5          4          1.0     4096   bfloat16     -
        6          4          1.0     0      -            -
        7          5          1.0     0      -            -
    """)


def test_modules_inside_compiled_graphs_and_the_calls_around_have_their_time_and_their_flops(parsed: Parse) -> None:
    dataset = parsed(twice(MAP, NAMES))
    rows = rows_of(dataset)
    up, top = rows["top.mlp.up"], rows["top"]
    assert (up["self_ns"], up["flops"], up["dtype"], up["source"]) == (40, 8192, "bfloat16", "kernel_map")
    assert up["tflops_per_s"] == pytest.approx(8192 / 40 / 1e3)
    assert (up["runs"], up["bytes"], up["unknown"]) == (None, None, None)
    assert (top["self_ns"], top["flops"], top["subtree_ns"], top["subtree_flops"]) == (0, 0, 80, 8192)
    assert top["runs"] == 2
    assert top["known_share"] == 1
    assert sum(row["self_ns"] for row in rows.values()) == 80
    (row,) = records(by_shape.frame(dataset))
    assert (row["path"], row["flops_per_call"]) == ("top", 4096)
    bytes_of = {row["path"]: row["bytes"] for row in records(traffic.frame(dataset))}
    assert bytes_of["top.mlp.up"] is None


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (MAP.replace(', 4096, "bfloat16"', ""), "records none"),
        (MAP.replace('4096, "bfloat16"', '-1, "sizes"'), "sizes"),
        (MAP.replace('4096, "bfloat16"', '-1, "vllm::attention"'), "vllm::attention may multiply"),
    ],
)
def test_flops_that_a_map_does_not_tell_are_unknown_here_and_above(parsed: Parse, told: str, why: str) -> None:
    rows = rows_of(parsed(twice(told, NAMES)))
    assert rows["top.mlp.up"]["flops"] is None
    assert why in rows["top.mlp.up"]["unknown"]
    assert rows["top"]["subtree_flops"] is None
    assert rows["top"]["unknown"].startswith("top.mlp.up: ")
    assert rows["top.norm"]["flops"] == 0


def test_of_products_that_cannot_be_told_apart_the_flops_count_where_their_time_does(parsed: Parse) -> None:
    told = kernel_map(
        "[['extern_kernels.mm', 0, [[0, 1, 100, 'float32']]], ['extern_kernels.mm', 0, [[1, 1, 200, 'float32']]]]",
        "mlp.up mlp.down",
    )
    rows = rows_of(parsed(twice(told, ("gemm", "reduce", "gemm"))))
    assert (rows["top.mlp"]["self_ns"], rows["top.mlp"]["flops"]) == (60, 600)
    assert "top.mlp.up" not in rows


def captured(told: str) -> str:
    """A run of three kernels that is captured, and replayed once."""
    return f"""
        range  1   0  90 {{'Module': 'top'}}
        range  1   1   1 {told}
        range  1   5  85 {run()}
        launch 1   3   4 #1 cudaStreamBeginCapture_v10000
        launch 1  10  12 #2
        node!4 1  11  11
        launch 1  20  22 #3
        node!5 1  21  21
        launch 1  30  32 #4
        node!6 1  31  31
        launch 1  86  87 #5 cudaStreamEndCapture_v10000
        node!7 1 100 100 4
        node!8 1 101 101 5
        node!9 1 102 102 6
        {replayed(9, 200)}
    """


def replayed(number: int, start: int) -> str:
    ends = [(start + 100 + 20 * at, start + 110 + 20 * at) for at in range(3)]
    kernels = (f"kernel!{7 + at} 1 {begin} {end} #{number} {FUSED[at]}" for at, (begin, end) in enumerate(ends))
    return "\n".join([f"launch 1 {start} {start + 5} #{number} cudaGraphLaunch_v10000", *kernels])


def test_flops_count_in_every_replay_of_a_cuda_graph(parsed: Parse) -> None:
    rows = rows_of(parsed(captured(MAP) + replayed(10, 400)))
    assert (rows["top.mlp.up"]["flops"], rows["top.mlp.up"]["self_ns"]) == (8192, 20)
    assert rows["top"]["subtree_flops"] == 8192


def test_what_a_module_moved_both_in_compiled_graphs_and_outside_is_unknown(parsed: Parse) -> None:
    told = kernel_map("[['extern_kernels.mm', 0, [[0, 1, 4096, 'bfloat16']]]]", "up")
    dataset = parsed(f"""
        {twice(told, ("gemm",))}
        range  1 400 500 {LINEAR}
        launch 1 410 420 #30
        range  1 510 511 {RESULT}
        kernel 1 900 930 #30 gemm
    """)
    for answer in (roofline, traffic):
        (row,) = (row for row in records(answer.frame(dataset)) if row["path"] == "top.up")
        assert (row["runs"], row["self_ns"], row["bytes"], row["gb_per_s"]) == (1, 50, None, None)
