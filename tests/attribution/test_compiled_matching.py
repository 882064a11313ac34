"""Golden tests of what each launch of a run is: where names, numbers and operators tell it, and where they do not."""

import pytest

from tests.attribution.test_compiled import ID, ONE_KERNEL, OTHER, kernel_map, launches, modules_of, run
from tests.golden import Parse
from tracekit.causes import MAP_INCOMPLETE

X = "triton_poi_fused_x_0"
CUMSUM, OF_USER = "triton_spl_fused_cumsum_0", "scale_rows_0"
MM, BMM, ADDMM, SORT = "extern_kernels.mm", "extern_kernels.bmm", "extern_kernels.addmm", "torch.ops.mine.sort.default"
WAIT, VIEW = "torch.ops._c10d_functional.wait_tensor.default", "torch.ops.aten.view.dtype"


def named(*kernels: str) -> str:
    """A map of kernels, each given as ``name module`` or, if it is not known of which module it is, as ``name``."""
    pairs = [kernel.partition(" ")[::2] for kernel in kernels]
    modules = list(dict.fromkeys(module for _, module in pairs if module))
    rows = [[name, int("." not in name), [[modules.index(module), 1]] if module else []] for name, module in pairs]
    return kernel_map(str(rows), " ".join(modules))


#: Between anchors: one library kernel, two, two again.
LIBRARY = named(f"{MM} a", f"{X} a", f"{BMM} b.qk", f"{ADDMM} b.o", f"{X} b.o", f"{ADDMM} c")
PRODUCTS = named(f"{MM} a.0", f"{BMM} a.1")


@pytest.mark.parametrize(
    ("told", "launched", "modules"),
    [
        # One takes all; of two each takes one if there are two.
        (LIBRARY, f"gemm reduce {X} g g {X} h", "a a a b.qk b.o b.o c"),
        # It is not known which of two launched what: their common ancestor.
        (LIBRARY, f"gemm {X} g g g {X} h", "a a b b b b.o c"),
        # A kernel of the compiler is missing: only what surely fits is known.
        (LIBRARY, f"gemm {X} g g h", "- - - - -"),
        (LIBRARY, "gemm g g h", "- - - -"),
        # In another order, or with a kernel that the map does not have.
        (LIBRARY, f"triton_poi_fused_y_7 gemm {X} g g {X} h", "- - - - - - -"),
        # Nothing stands there.
        (LIBRARY, f"gemm {X} g g {X}", "a a b.qk b.o b.o"),
        # Nobody knows whether a user's operator launches anything; waiting for another rank launches nothing.
        (named(f"{SORT} a.0", f"{MM} a.1"), "sort gemm", "a a"),
        (named(f"{WAIT} a.0", f"{MM} a.1"), "split reduce", "a.1 a.1"),
        (named(f"{MM} a.0", f"{VIEW} a.1", f"{BMM} a.2"), "gemm batched", "a.0 a.2"),
        # Memory set for a kernel of the compiler is not that of the library before it.
        (named(f"{MM} a", f"{CUMSUM} b"), f"gemm fill {CUMSUM}", "a - b"),
        # A kernel of the user is known with the number of generated code and without.
        (named(f"{OF_USER} a", f"{MM} b"), "scale_rows gemm split", "a b b"),
        (named(f"{OF_USER} a", f"{MM} b"), f"{OF_USER} gemm split", "a b b"),
        # Work of several kernels is nobody's if the module of one is unknown.
        (named(MM, f"{BMM} a"), "g g g", "- - -"),
    ],
)
def test_names_and_numbers_tell_which_kernel_a_launch_is(parsed: Parse, told: str, launched: str, modules: str) -> None:
    check(parsed, told, launched, modules)


def check(parsed: Parse, told: str, launched: str, modules: str, more: str = "") -> None:
    dataset = parsed(f"range 1 5 5 {told}\nrange 1 10 90 {run()}\n{more}\n{launches(*launched.split())}")
    assert modules_of(dataset) == [None if name == "-" else name for name in modules.split()]


@pytest.mark.parametrize("inside", ["range 1 15 18 {'Module': 'top.a.0.own'}", f"range 1 15 18 {run(map_id=OTHER)}"])
def test_what_runs_inside_is_one_of_the_kernels(parsed: Parse, inside: str) -> None:
    check(parsed, PRODUCTS, "split reduce", "a a", inside)


def test_launch_whose_kernel_the_report_lost_counts(parsed: Parse) -> None:
    check(parsed, PRODUCTS, "split reduce", "a a", "launch 1 40 41 #9")


def test_operator_that_is_marked_once_and_not_again_tells_nothing_where_it_may_be_missing(parsed: Parse) -> None:
    told = named(f"{MM} a", f"{X} x", f"{MM} b", f"{BMM} c")
    check(parsed, told, f"g {X} g g", "- x - -", "range 1 19 22 aten::mm, op_id = 1")


def test_operator_of_another_name_that_a_function_of_the_compiler_calls(parsed: Parse) -> None:
    told = named("extern_kernels.bias_addmm a.0", f"{SORT} a.1")
    check(parsed, told, "g g g", "a.0 a.0 a.1", "range 1 19 24 aten::addmm, op_id = 1")


def test_outermost_operator_in_a_run_tells_the_kernel(parsed: Parse) -> None:
    operators = """
        range 1 18 24 aten::addmm, op_id = 1
        range 1 19 21 aten::mm, op_id = 2
        range 1 22 23 aten::add, op_id = 3
        range 1 24 26 aten::mm, op_id = 4
    """
    check(parsed, named(f"{ADDMM} a.0", f"{MM} a.1"), "g g g", "a.0 a.0 a.1", operators)


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
