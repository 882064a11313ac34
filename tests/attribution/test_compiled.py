"""Golden tests of compiled graphs: kernel maps, runs, and the rows that their work must give."""

import pytest

from tests.golden import Parse, expect
from tracekit.causes import MAP_DIFFERS, MAP_INCOMPLETE, MAP_REWRITTEN, RUN_CUT, Cause
from tracekit.dataset.opening import Dataset
from tracekit.markers.kernel_maps import unmapped_graph

ID, OTHER = "0123456789abcdef", "fedcba9876543210"


def kernel_map(kernels: str, modules: str, *, map_id: str = ID, root: str = "top", part: str = "1/1") -> str:
    number, parts = part.split("/")
    names = modules.split(" ")
    return (
        f'{{"KernelMap": "{map_id}", "Part": {number}, "Parts": {parts}, "Root": "{root}", '
        f'"Modules": {[name.strip("-") for name in names]}, "Kernels": {kernels}}}'
    ).replace("'", '"')


def run(graph_pass: str = "inference", *, map_id: str = ID, root: str | None = None) -> str:
    more = f', "Root": "{root}"' if root else ""
    return f'{{"CompiledGraph": "{map_id}", "Pass": "{graph_pass}"{more}}}'


#: A norm fused with what stands before it, a linear, an activation fused with its neighbours.
MAP = kernel_map(
    "[['triton_poi_fused_norm_0', 1, [[0, 3], [1, 1]]], ['extern_kernels.addmm', 0, [[2, 1]]], "
    "['triton_poi_fused_gelu_1', 1, [[2, 2], [3, 2]]]]",
    "layers.0.norm embed layers.0.mlp.up layers.0.mlp.act",
)


def launches(*names: str, at: int = 20, number: int = 1, thread: str = "1") -> str:
    lines = []
    for offset, name in enumerate(names):
        start, each = at + 2 * offset, number + offset
        lines += [
            f"launch {thread} {start} {start + 1} #{each}",
            f"kernel {thread} {900_000 + 10 * each} {900_010 + 10 * each} #{each} {name}",
        ]
    return "\n".join(lines)


OF_MAP = """
    name                     module               method    call_id  phase
    triton_poi_fused_norm_0  top.layers.0.norm    compiled  0        forward
    triton_poi_fused_gelu_1  top.layers.0.mlp     compiled  0        forward
    gemm                     top.layers.0.mlp.up  compiled  0        forward
"""
FUSED = ("triton_poi_fused_norm_0", "gemm", "triton_poi_fused_gelu_1")
ONE_KERNEL = "[['triton_poi_fused_a_0', 1, [[0, 1]]]]"


def one_run(told: str, *names: str, graph_pass: str = "inference", around: str = "{'Module': 'top'}") -> str:
    return f"""
        range 1  0 100 {around}
        range 1 10  10 {told}
        range 1 12  90 {run(graph_pass)}
        {launches(*names)}
    """


def test_what_a_backward_graph_only_computes_anew_is_recomputation(parsed: Parse) -> None:
    again = kernel_map(
        "[['extern_kernels.addmm', 0, [[0, 1]], 'recompute'], ['triton_poi_fused_0', 1, [[0, 1]]]]", "up"
    )
    dataset = parsed(one_run(again, "gemm", "triton_poi_fused_0", graph_pass="backward"))
    expect(dataset, "kernels")("""
        name                module  method    phase
        gemm                top.up  compiled  recompute
        triton_poi_fused_0  top.up  compiled  backward
    """)


def test_fused_kernel_serves_its_modules_by_weight_and_belongs_to_the_heaviest(parsed: Parse) -> None:
    dataset = parsed(one_run(MAP, *FUSED))
    expect(dataset, "modules")("""
        module_id  path                 kind    parent_id
        0          top                  module  -
        1          top.layers           module  0
        2          top.layers.0         module  1
        3          top.layers.0.norm    module  2
        4          top.layers.0.mlp     module  2
        5          top.layers.0.mlp.up  module  4
        6          top.layers.0.mlp.act  module  4
        7          top.embed            module  0
    """)
    expect(dataset, "kernels")(OF_MAP)
    expect(dataset, "kernel_modules")("""
        kernel_id  module_id  weight
        0          3          0.75
        0          7          0.25
        1          5          1.0
        2          5          0.5
        2          6          0.5
    """)
    expect(dataset, "calls")("""
        module  gpu_time_ns  gpu_self_time_ns  kernel_count
        top     30           30                3
    """)


@pytest.mark.parametrize("call", ["top", "top.layers.0", "top.layers.0.mlp.up"])
def test_whole_paths_of_a_map_are_places_of_the_model_whatever_call_is_around_the_run(parsed: Parse, call: str) -> None:
    kernels = "[['triton_poi_fused_norm_0', 1, [[0, 1]]], ['triton_poi_fused_gelu_1', 1, [[1, 1]]]]"
    outer = "range 1 0 100 {'Module': 'top'}" if call != "top" else ""
    dataset = parsed(f"""
        {outer}
        range 1  1  99 {{'Module': '{call}'}}
        range 1 10  10 {kernel_map(kernels, "top.layers.0.mlp.up top.layers.12.norm", root="")}
        range 1 12  90 {run()}
        {launches("triton_poi_fused_norm_0", "triton_poi_fused_gelu_1")}
    """)
    assert dataset.kernels().module.tolist() == ["top.layers.0.mlp.up", "top.layers.12.norm"]


def test_maps_alone_make_a_hierarchy_of_modules_where_nothing_else_is_marked(parsed: Parse) -> None:
    dataset = parsed(one_run(MAP, *FUSED, graph_pass="forward", around="something of the user's"))
    expect(dataset, "kernels")(OF_MAP.replace("compiled  0", "compiled  -"))
    assert dataset.table("calls").num_rows == 0


def test_map_in_parts_told_by_another_process_holds_for_all(parsed: Parse) -> None:
    dataset = parsed(f"""
        range 7/1 5   5 {kernel_map("[['triton_poi_fused_b_1', 1, [[0, 1]]]]", "b", part="2/2")}
        range 7/1 6   6 {kernel_map(ONE_KERNEL, "a", part="1/2")}
        range 7/1 7   8 {run()}
        range 8/1 12 90 {run()}
        {launches("triton_poi_fused_a_0", "triton_poi_fused_b_1", thread="8/1")}
    """)
    expect(dataset, "kernels")("""
        name                  pid  module
        triton_poi_fused_a_0  8    top.a
        triton_poi_fused_b_1  8    top.b
    """)


@pytest.mark.parametrize(
    ("maps", "end", "cause"),
    [
        ([], 90, MAP_INCOMPLETE),
        ([kernel_map(ONE_KERNEL, "a", part="2/2")], 90, MAP_INCOMPLETE),
        ([kernel_map(ONE_KERNEL, "a"), kernel_map(ONE_KERNEL, "b")], 90, MAP_INCOMPLETE),
        ([kernel_map(ONE_KERNEL.replace("_a_", "_c_"), "a")], 90, MAP_DIFFERS),
        ([kernel_map("[]", "a")], 90, MAP_DIFFERS),
        ([kernel_map(ONE_KERNEL.replace("[0, 1]", ""), "a")], 90, MAP_REWRITTEN),
        ([kernel_map(ONE_KERNEL, "a")], "-", RUN_CUT),
    ],
)
def test_what_no_map_tells_is_nobodys_and_coverage_says_of_which_graph_and_why(
    parsed: Parse, maps: list[str], end: object, cause: Cause
) -> None:
    told = "\n".join(f"range 1 5 5 {each}" for each in maps)
    dataset = parsed(f"""
        {told}
        range 1 10 100 {{'Module': 'top'}}
        range 1 12 {end} {run()}
        {launches("triton_poi_fused_a_0")}
    """)
    expect(dataset, "kernels")("""
        module  call_id  method  cause
        -       -        -       compiled_unmatched
    """)
    assert coverage_of(dataset, "compiled graph") == [(f"compiled graph {ID}", cause.detail, 1, 10)]


def coverage_of(dataset: Dataset, what: str) -> list[tuple[str, str, int, int]]:
    rows = dataset.table("coverage", ["what", "detail", "count", "time_ns"]).to_pylist()
    return [tuple(row.values()) for row in rows if row["what"].startswith(what)]


def modules_of(dataset: Dataset) -> list[str | None]:
    rows = sorted(dataset.table("kernels", ["kernel_id", "module"]).to_pylist(), key=lambda row: row["kernel_id"])
    return [row["module"] and row["module"].removeprefix("top.") for row in rows]


def test_operators_of_a_cpu_run_are_matched_by_their_names(parsed: Parse) -> None:
    named = kernel_map(
        "[['cpp_fused_norm_0', 1, [[0, 1]]], ['extern_kernels.addmm', 0, [[1, 1]]], ['extern_kernels.mm', 0, [[2, 1]]],"
        " ['torch.ops.mkldnn._linear_pointwise.default', 0, [[3, 1]]], ['cpp_fused_norm_0', 1, [[4, 1]]]]",
        "a b c d e",
    )
    dataset = parsed(f"""
        range 1 5 5 {named}
        range 1 10 90 {run()}
        op 1 20 30 graph_0_cpp_fused_norm_0
        op 1 31 40 aten::addmm
        op 1 32 35 aten::copy_
        op 1 41 45 aten::mm
        op 1 46 50 mkldnn::_linear_pointwise
        op 1 51 60 graph_0_cpp_fused_norm_0
    """)
    expect(dataset, "kernels")("""
        name                      module  dur_ns
        graph_0_cpp_fused_norm_0  top.a   10
        aten::addmm               top.b   6
        aten::copy_               top.b   3
        aten::mm                  top.c   4
        mkldnn::_linear_pointwise  top.d  4
        graph_0_cpp_fused_norm_0  top.e   9
    """)


def test_what_compiles_inside_a_run_is_compilation(parsed: Parse) -> None:
    dataset = parsed(f"""
        {one_run(kernel_map(ONE_KERNEL, "a"), "triton_poi_fused_a_0")}
        range 1  14  30 CachingAutotuner.benchmark_all_configs
        {launches("triton_poi_fused_a_0", at=40, number=2)}
    """)
    assert dataset.table("kernels").num_rows == 2


def test_ranges_as_nodes_hold_modules_of_maps_below_them_and_no_range_of_a_run(parsed: Parse) -> None:
    dataset = parsed(
        f"""
        {one_run(kernel_map(ONE_KERNEL, "a"), "triton_poi_fused_a_0", around="serve")}
        range 1 91  99 {run(map_id=OTHER)}
        {launches("unknown", at=95, number=2)}
    """,
        rows="ranges",
    )
    expect(dataset, "kernels")("""
        name                  module       method
        unknown               serve        range
        triton_poi_fused_a_0  serve.top.a  compiled
    """)


def test_graphs_of_others_are_regions_on_the_threads_of_both_passes(parsed: Parse) -> None:
    dataset = parsed(f"""
        range  1  10  60 Torch-Compiled Region: 0/0
        range  1  12  50 ## Call CompiledFxGraph fkyo5v2ux3 ##
        {launches("triton_poi_fused_a_0")}
        range  1  70  90 Torch-Compiled Region: 1/0
        range  1  72  88 ## Call CompiledFxGraph fother ##
        {launches("triton_poi_fused_a_0", at=75, number=2)}
        range  2 102 140 ## Call CompiledFxGraph fback ##
        {launches("triton_poi_fused_b_0", at=105, number=3, thread="2")}
    """)
    expect(dataset, "modules")("""
        kind    path
        region  Torch-Compiled Region: 0/0
        region  Torch-Compiled Region: 0/0.## Call CompiledFxGraph * ##
        region  Torch-Compiled Region: 1/0
        region  Torch-Compiled Region: 1/0.## Call CompiledFxGraph * ##
        region  ## Call CompiledFxGraph * ##
    """)
    assert dataset.table("kernels", ["module_id"]).column("module_id").to_pylist() == [1, 3, 4]
    (row,) = [row for row in dataset.table("coverage").to_pylist() if row["cause"] == "no_kernel_map"]
    assert (row["count"], row["time_ns"], row["share"]) == (3, 30, 1.0)
    assert "tracekit capture" in row["advice"]


def test_run_without_a_map_stays_with_the_module_around_it_and_coverage_says_why(parsed: Parse) -> None:
    dataset = parsed(f"""
        range 1 0 100 {{'Module': 'top'}}
        range 1 15 60 {unmapped_graph("branches", "forward")}
        range 1 10 60 Torch-Compiled Region: 0/0
        range 1 12 50 graph_3_inductor_wrapper_call
        {launches("triton_poi_fused_a_0")}
        {launches("sample", at=70, number=2)}
    """)
    expect(dataset, "kernels")("""
        name                  module  method
        triton_poi_fused_a_0  top     range
        sample                top     range
    """)
    why = "branches or loops (torch.cond, while_loop) decide which kernels run"
    assert coverage_of(dataset, "compiled code") == [("compiled code", why, 1, 10)]


@pytest.mark.parametrize("by", ["auto", "ranges"])
@pytest.mark.parametrize("plain", ["range 1 0 100 serve", ""])
def test_run_whose_map_lacks_parts_is_that_of_the_range_around_it_and_coverage_says_why(
    parsed: Parse, by: str, plain: str
) -> None:
    dataset = parsed(
        f"""
        {plain}
        range 1 5 5 {kernel_map(ONE_KERNEL, "a", part="2/2")}
        range 1 12 90 {run()}
        {launches("triton_poi_fused_a_0")}
    """,
        rows=by,
    )
    assert dataset.table("kernels", ["module"]).column("module").to_pylist() == ["serve" if plain else None]
    assert coverage_of(dataset, "compiled code") == [("compiled code", MAP_INCOMPLETE.detail, 1, 10)]
