"""Kernels that run in other places than in the marked run, or in the place of others: told only where that is certain.

A step is a decoder, in the middle of which runs what the test writes: words ``module:kernel``, or
``module:kernel*blocks``. Below it stand the modules that production's kernels get; ``-`` is none.
"""

from pathlib import Path

import pytest

from tests.aligned.runs import ELEMENTWISE, GEMM, NORM, Laboratory, Op, Run, Step, model

KERNELS = {
    "gemm": GEMM["ampere"],
    "small": "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_tn",
    "split": "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half>(cublasLt::Params)",
    "norm": NORM,
    **{name: ELEMENTWISE.format(4, name) for name in ("silu", "mul", "add", "pow", "other")},
}
GATED = "n:norm gate:gemm act:silu up:gemm m:mul down:gemm r:add"
PARTS = "n:norm q:small k:gemm v:gemm a:silu out:gemm r:add"


def ops(words: str) -> list[Op]:
    found = []
    for word in words.split():
        module, _, kernel = word.partition(":")
        name, _, blocks = kernel.partition("*")
        found.append(Op(None if module == "-" else f"top.{module}", KERNELS[name], (int(blocks or 64), 1)))
    return found


def told(folder: Path, marked: str, bare: str) -> str:
    """The modules of what was written, in the third of six steps."""
    laboratory, decoder = Laboratory(folder), model(layers=4)
    half = len(decoder) // 2
    reference = laboratory.reference([Step([*decoder[:half], *ops(marked), *decoder[half:]])] * 3)
    step = [*decoder[:half], *ops(bare), *decoder[half:]]
    dataset = laboratory.dataset(Run([Step(step)] * 6, marked=False), reference)
    rows = sorted(dataset.table("kernels", ["kernel_id", "module"]).to_pylist(), key=lambda row: row["kernel_id"])
    modules = [row["module"] for row in rows[2 * len(step) + half : 3 * len(step) + half - len(decoder)]]
    return " ".join("-" if module is None else module.removeprefix("top.") for module in modules)


@pytest.mark.parametrize(
    ("marked", "bare", "modules"),
    [
        (GATED, "n:norm act:silu gate:gemm m:mul up:gemm down:gemm r:add", "n act - - - - r"),
        (GATED, "gate:gemm n:norm up:gemm act:silu m:mul down:gemm r:add", "- n - act m down r"),
        (PARTS, "n:norm k:gemm q:small v:gemm a:silu out:gemm r:add", "n - - - a out r"),
    ],
)
def test_kernels_that_changed_places_are_not_taken_for_each_other(
    tmp_path: Path, marked: str, bare: str, modules: str
) -> None:
    assert told(tmp_path, marked, bare) == modules


def test_a_kernel_whose_name_others_have_is_no_other_kernel_under_a_new_name(tmp_path: Path) -> None:
    bare = "n:norm gate:gemm -:add up:gemm m:mul down:gemm r:add"
    assert told(tmp_path, GATED, bare) == "n gate - up m down r"


def test_kernels_in_the_place_of_alike_ones_are_known_by_their_sizes(tmp_path: Path) -> None:
    marked = " ".join(f"n{at}:norm a{at}:mul b{at}:gemm" for at in range(9))
    bare = marked.replace("a1:mul", "-:mul*7").replace("a3:mul", "-:mul*7")
    expected = " ".join(f"n{at} {'-' if at in {1, 3} else f'a{at}'} b{at}" for at in range(9))
    assert told(tmp_path, marked, bare) == expected


def test_products_of_other_tuning_are_told_and_their_second_parts_are_theirs(tmp_path: Path) -> None:
    bare = "n:norm gate:small act:silu up:small up:split m:mul down:small down:split r:add"
    assert told(tmp_path, GATED, bare) == "n gate act up up m down down r"


def test_a_product_of_other_tuning_next_to_a_missing_kernel_may_be_a_fusion_of_both(tmp_path: Path) -> None:
    bare = "n:norm gate:gemm act:silu up:gemm m:mul down:small"
    assert told(tmp_path, GATED, bare) == "n gate act up m -"
