"""Kernels that run in other places than in the marked run, or in the place of others: told only where that is certain.

A step is a decoder, in the middle of which runs what the test writes: words ``module:kernel``, or
``module:kernel*blocks``. Below it stand the modules that production's kernels get; ``-`` is none.
"""

from pathlib import Path

import pytest

from tests.unmarked.runs import ELEMENTWISE, FLASH, GEMM, NORM, Laboratory, Op, Run, Step, model

KERNELS = {
    "gemm": GEMM["ampere"],
    "small": "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_tn",
    "split": "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half>(cublasLt::Params)",
    "norm": NORM,
    "softmax": "void softmax_warp_forward<float, float, 10>(float*, float const*, int)",
    "flash": FLASH["ampere"],
    "fused": "triton_poi_fused_add_mul_0",
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


def told(folder: Path, marked: str, bare: str, layers: int = 4) -> str:
    """The modules of what was written, in the third of six steps."""
    laboratory, decoder = Laboratory(folder), model(layers=layers)
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


@pytest.mark.parametrize(
    ("layers", "layer", "other", "of_it"),
    [
        (9, "n:norm a:mul b:gemm", "n:norm -:mul*7 b:gemm", "n - b"),
        (6, "n:norm a:mul b:gemm", "n:norm -:mul*7 b:gemm", "n - b"),
        (9, "n:norm a:small b:gemm", "n:norm -:small*60 b:gemm", "n - -"),
    ],
)
def test_kernels_in_the_place_of_alike_ones_are_known_by_their_sizes(
    tmp_path: Path, layers: int, layer: str, other: str, of_it: str
) -> None:
    bare = " ".join(other if at in {1, 3} else layer for at in range(layers))
    expected = " ".join(of_it if at in {1, 3} else "n a b" for at in range(layers))
    assert told(tmp_path, " ".join([layer] * layers), bare) == expected


def test_of_two_fused_kernels_of_which_one_is_missing_the_other_is_no_fusion_of_both(tmp_path: Path) -> None:
    assert told(tmp_path, "p:norm u:fused v:fused w:gemm", "p:norm u:fused w:gemm") == "p - w"


def test_attention_in_one_kernel_is_that_in_several(tmp_path: Path) -> None:
    marked = "n:norm a:gemm a:softmax a:gemm r:add"
    assert told(tmp_path, marked, "n:norm a:flash r:add") == "n a r"


@pytest.mark.parametrize(("layers", "modules"), [(1, "- n - b"), (4, "a n - b")])
def test_what_runs_more_near_an_end_of_the_step_may_be_what_moved_from_beyond_it(
    tmp_path: Path, layers: int, modules: str
) -> None:
    assert told(tmp_path, "a:add n:norm b:gemm", "a:add n:norm -:add b:gemm", layers) == modules


def test_products_of_other_tuning_are_told_and_their_second_parts_are_theirs(tmp_path: Path) -> None:
    bare = "n:norm gate:small act:silu up:small up:split m:mul down:small down:split r:add"
    assert told(tmp_path, GATED, bare) == "n gate act up up m down down r"


def test_a_second_part_after_two_products_may_be_that_of_either(tmp_path: Path) -> None:
    bare = "n:norm q:small k:gemm k:split v:gemm a:silu out:gemm r:add"
    assert told(tmp_path, PARTS, bare) == "n q k - v a out r"


def test_a_product_of_other_tuning_next_to_a_missing_kernel_may_be_a_fusion_of_both(tmp_path: Path) -> None:
    bare = "n:norm gate:gemm act:silu up:gemm m:mul down:small"
    assert told(tmp_path, GATED, bare) == "n gate act up m -"
