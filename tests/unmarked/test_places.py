"""Kernels that run in other places than in the marked run, or in the place of others: told only where that is certain.

A step is a decoder, in the middle of which runs what the test writes: words ``module:kernel``, or
``module:kernel*blocks``. Below it stand the modules that production's kernels get; ``-`` is none.
"""

from pathlib import Path

import pytest

from tests.unmarked.runs import ELEMENTWISE, FLASH, GEMM, NORM, Laboratory, Op, Run, Step, model, modules_of

KERNELS = {
    "gemm": GEMM["ampere"],
    "small": "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_tn",
    "split": "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half>(cublasLt::Params)",
    "norm": NORM,
    "softmax": "void softmax_warp_forward<float, float, 10>(float*, float const*, int)",
    "flash": FLASH["ampere"],
    **{name: f"{name}_kernel(float*)" for name in ("mine", "yours")},
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
    modules = modules_of(dataset)[2 * len(step) + half : 3 * len(step) + half - len(decoder)]
    return " ".join("-" if module is None else module.removeprefix("top.") for module in modules)


@pytest.mark.parametrize(
    ("marked", "bare", "modules"),
    [
        # Kernels that changed places are not taken for each other.
        (GATED, "n:norm act:silu gate:gemm m:mul up:gemm down:gemm r:add", "n act - - - - r"),
        (GATED, "gate:gemm n:norm up:gemm act:silu m:mul down:gemm r:add", "- n - act m down r"),
        (PARTS, "n:norm k:gemm q:small v:gemm a:silu out:gemm r:add", "n - - - a out r"),
        # A kernel whose name others have is no other kernel under a new name.
        (GATED, "n:norm gate:gemm -:add up:gemm m:mul down:gemm r:add", "n gate - up m down r"),
        # One of another class, or of none, is in the place of no other.
        ("n:norm a:silu b:gemm", "n:norm -:softmax b:gemm", "n - b"),
        ("n:norm a:mine b:gemm", "n:norm -:yours b:gemm", "n - b"),
        # Of two fused kernels of which one is missing, the other is no fusion of both.
        ("p:norm u:fused v:fused w:gemm", "p:norm u:fused w:gemm", "p - w"),
        # A kernel that may be either of two is no reason to doubt the one before it.
        ("n:norm s:silu a:add a:add b:gemm", "n:norm s:silu a:add b:gemm", "n s - b"),
        # One kernel in place of several is none of them.
        ("n:norm a:gemm a:softmax a:gemm r:add", "n:norm a:flash r:add", "n - r"),
        # Products of other tuning are told, and their second parts are theirs; after two products it may be of either.
        (GATED, "n:norm gate:small act:silu up:small up:split m:mul down:small down:split r:add",
         "n gate act up up m down down r"),
        (PARTS, "n:norm q:small k:gemm k:split v:gemm a:silu out:gemm r:add", "n q k - v a out r"),
        # Which of several products is new, names do not show.
        (GATED, "n:norm gate:gemm act:silu -:small up:gemm m:mul down:gemm r:add", "n gate act - - m down r"),
        # A product of other tuning next to a missing kernel may be a fusion of both.
        (GATED, "n:norm gate:gemm act:silu up:gemm m:mul down:small", "n gate act up m -"),
    ],
)  # fmt: skip
def test_kernels_get_a_module_where_their_places_tell_it_for_certain(
    tmp_path: Path, marked: str, bare: str, modules: str
) -> None:
    assert told(tmp_path, marked, bare) == modules


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


@pytest.mark.parametrize(("layers", "modules"), [(1, "- n - b"), (4, "a n - b")])
def test_what_runs_more_near_an_end_of_the_step_may_be_what_moved_from_beyond_it(
    tmp_path: Path, layers: int, modules: str
) -> None:
    assert told(tmp_path, "a:add n:norm b:gemm", "a:add n:norm -:add b:gemm", layers) == modules
