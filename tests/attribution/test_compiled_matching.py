"""Golden tests of what each launch of a run is: where names, numbers and operators tell it, and where they do not."""

import pytest

from tests.attribution.test_compiled import ID, ONE_KERNEL, X, kernel_map, launches, library, modules_of, run
from tests.golden import Parse
from tracekit.causes import MAP_INCOMPLETE

Y, Z = "triton_poi_fused_y_1", "triton_poi_fused_z_2"
MM, BMM, ADDMM, SORT = "extern_kernels.mm", "extern_kernels.bmm", "extern_kernels.addmm", "torch.ops.mine.sort.default"


def named(*kernels: tuple[str, str]) -> str:
    modules = list(dict.fromkeys(module for _, module in kernels))
    rows = [f"['{name}', {int('.' not in name)}, [[{modules.index(module)}, 1]]]" for name, module in kernels]
    texts = ", ".join(rows)
    return f"range 1 5 5 {kernel_map(f'[{texts}]', ' '.join(modules))}"


def test_operator_that_is_marked_once_and_not_again_tells_nothing_where_it_may_be_missing(parsed: Parse) -> None:
    dataset = parsed(f"""
        {named((MM, "a"), (X, "x"), (MM, "b"), (BMM, "c"))}
        range 1 10 90 {run()}
        range 1 19 22 aten::mm, op_id = 1
        {launches("g", X, "g", "g")}
    """)
    assert modules_of(dataset) == [None, "x", None, None]


def test_name_with_which_another_stretch_begins_may_begin_a_kernel_here(parsed: Parse) -> None:
    dataset = parsed(f"""
        {
        named(
            (MM, "a"), (X, "x"), (BMM, "b"), (Y, "x"), (ADDMM, "c.0"), (MM, "c.1"), (Z, "x"), (MM, "d.0"), (BMM, "d.1")
        )
    }
        range 1 10 90 {run()}
        {launches("gemm", "split", X, "batched", Y, "split", "gemm", "split", Z, "gemm", "split", "batched")}
    """)
    assert modules_of(dataset) == ["a", "a", "x", "b", "x", "c", "c", "c", "x", "d", "d", "d"]


def test_kernels_that_launched_one_each_tell_what_they_launch(parsed: Parse) -> None:
    dataset = parsed(f"""
        {named((MM, "a.0"), (BMM, "a.1"), (X, "x"), (BMM, "b"), (Y, "x"), (MM, "c.0"), (BMM, "c.1"))}
        range 1 10 90 {run()}
        {launches("gemm", "batched", X, "batched", "red", Y, "gemm", "batched", "red")}
    """)
    assert modules_of(dataset) == ["a.0", "a.1", "x", "b", "b", "x", "c.0", "c.1", "c.1"]


def test_operator_of_another_name_that_a_function_of_the_compiler_calls(parsed: Parse) -> None:
    dataset = parsed(f"""
        {library("extern_kernels.bias_addmm", SORT)}
        range 1 10 90 {run()}
        range 1 19 24 aten::addmm, op_id = 1
        {launches("g", "g", "g")}
    """)
    assert modules_of(dataset) == ["a.0", "a.0", "a.1"]


@pytest.mark.parametrize("name", ["scale_rows", "scale_rows_0"])
def test_kernel_of_the_user_is_known_with_the_number_of_generated_code_and_without(parsed: Parse, name: str) -> None:
    dataset = parsed(f"""
        {named(("scale_rows_0", "a"), (MM, "b"))}
        range 1 10 90 {run()}
        {launches(name, "gemm", "split")}
    """)
    assert modules_of(dataset) == ["a", "b", "b"]


def test_work_of_several_kernels_is_nobodys_if_the_modules_of_one_are_unknown(parsed: Parse) -> None:
    kernels = f"[['{MM}', 0, []], ['{BMM}', 0, [[0, 1]]]]"
    dataset = parsed(f"range 1 5 5 {kernel_map(kernels, 'a')}\nrange 1 10 90 {run()}\n{launches('g', 'g', 'g')}")
    assert modules_of(dataset) == [None, None, None]


def test_weights_of_a_module_that_a_map_tells_twice_add_up(parsed: Parse) -> None:
    kernels = f"[['{X}', 1, [[0, 1], [1, 3], [0, 4]]]]"
    dataset = parsed(f"range 1 5 5 {kernel_map(kernels, 'a b')}\nrange 1 10 90 {run()}\n{launches(X)}")
    assert modules_of(dataset) == ["a"]
    assert sorted(dataset.table("kernel_modules").column("weight").to_pylist()) == [0.375, 0.625]


@pytest.mark.parametrize("other", [{"part": "2/2", "root": "other"}, {"part": "2/3"}])
def test_parts_that_contradict_each_other_are_no_map(parsed: Parse, other: dict[str, str]) -> None:
    dataset = parsed(f"""
        range 1 5 5 {kernel_map(ONE_KERNEL, "a", part="1/2")}
        range 1 6 6 {kernel_map(ONE_KERNEL, "a", **other)}
        range 1 9 99 {{'Module': 'top'}}
        range 1 10 90 {run()}
        {launches(X.replace("_x_", "_a_"), X.replace("_x_", "_a_"))}
    """)
    told = {row["what"]: row["detail"] for row in dataset.table("coverage").to_pylist()}
    assert told[f"compiled graph {ID}"] == MAP_INCOMPLETE.detail


def test_launch_whose_kernel_the_report_lost_counts(parsed: Parse) -> None:
    dataset = parsed(f"""
        {library(MM, BMM)}
        range 1 10 90 {run()}
        {launches("split", "reduce")}
        launch 1 40 41 #9
    """)
    assert modules_of(dataset) == ["a", "a"]


def test_outermost_operator_in_a_run_tells_the_kernel(parsed: Parse) -> None:
    dataset = parsed(f"""
        {library(ADDMM, MM)}
        range 1 10 90 {run()}
        range 1 18 24 aten::addmm, op_id = 1
        range 1 19 21 aten::mm, op_id = 2
        range 1 22 23 aten::add, op_id = 3
        range 1 24 26 aten::mm, op_id = 4
        {launches("g", "g", "g")}
    """)
    assert modules_of(dataset) == ["a.0", "a.0", "a.1"]
