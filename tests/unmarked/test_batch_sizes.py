"""Sizes of grids that another batch explains, and those of models of other widths, which get nothing."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unmarked.runs import ELEMENTWISE, GEMM, Laboratory, Op, Run, Step, model, sampled

WIDTHS = (4096, 1024, 2048, 512, 1024)
EQUAL = (1024,) * 5


def perceptron(rows: int, widths: Sequence[int]) -> list[Op]:
    found = []
    for at, width in enumerate(widths):
        found += [
            Op(f"net.{2 * at}", GEMM["ampere"], (-(-width // 128), -(-rows // 64))),
            Op(f"net.{2 * at + 1}", ELEMENTWISE.format(4, "relu"), (-(-rows * width // 512), 1)),
        ]
    return found


def plain_norms(*, tokens: int, hidden: int) -> list[Op]:
    """A decoder whose norms are several elementwise kernels and a reduction."""
    found = []
    for op in model(tokens=tokens, hidden=hidden):
        if "norm" not in op.name:
            found.append(op)
            continue
        found += [
            op._replace(name=ELEMENTWISE.format(4, "pow"), grid=(-(-tokens * hidden // 512), 1)),
            op._replace(name="void at::native::reduce_kernel<512, 1, MeanOps>(R)", grid=(-(-tokens // 4), 1)),
            op._replace(name=ELEMENTWISE.format(4, "rsqrt"), grid=(-(-tokens // 512), 1)),
        ]
    return found


def eager_attention(*, context: int) -> list[Op]:
    """A decoder whose attention is a product, a softmax and a dropout, of sizes that depend on the context."""
    softmax = "void softmax_warp_forward<float, float, 10>(float*, float const*, int)"
    found = []
    for op in model(tokens=64):
        names = [GEMM["ampere"], softmax, ELEMENTWISE.format(4, "dropout")] if "flash" in op.name else []
        found += [op._replace(name=name, grid=(context // 64, 16)) for name in names] or [op]
    return found


def convolutional(batch: int, width: int) -> list[Op]:
    """A network that halves images and doubles channels."""
    ops = []
    for stage in range(4):
        pixels, channels = batch * (56 >> stage) ** 2, width << stage
        for at in range(2):
            grid = (-(-pixels // 128), -(-channels // 64))
            ops += [
                Op(f"net.{stage}.{at}.conv", "sm80_xmma_fprop_implicit_gemm_f16_tilesize128x64_cudnn", grid),
                Op(f"net.{stage}.{at}.act", ELEMENTWISE.format(4, "relu"), (-(-pixels * channels // 512), 1)),
            ]
    return ops


def wider_mlp(ops: Sequence[Op], part: str = ".act") -> list[Op]:
    """The model with an inner width twice as large."""
    return [op._replace(grid=(2 * op.grid[0], op.grid[1])) if part in str(op.module) else op for op in ops]


def taller(ops: Sequence[Op]) -> list[Op]:
    """Products of three times as many rows as everything else has."""
    return [op._replace(grid=(op.grid[0], 3 * op.grid[1])) if op.name == GEMM["ampere"] else op for op in ops]


@pytest.mark.parametrize(
    ("marked", "bare", "explained"),
    [
        (perceptron(32, WIDTHS), perceptron(512, WIDTHS), True),
        (perceptron(32, WIDTHS), perceptron(64, WIDTHS), True),
        (model(tokens=1), model(tokens=8), True),
        (model(tokens=256), model(tokens=512, gpu="hopper", width=16), True),
        (eager_attention(context=1024), eager_attention(context=4096), True),
        (plain_norms(tokens=512, hidden=1024), plain_norms(tokens=2048, hidden=1024), True),
        (perceptron(32, WIDTHS), perceptron(32, [2 * width for width in WIDTHS]), False),
        (perceptron(32, EQUAL), perceptron(32, [2 * width for width in EQUAL]), False),
        (model(tokens=1), model(tokens=1, hidden=2048), False),
        (model(tokens=512), wider_mlp(model(tokens=512)), False),
        (model(tokens=512), wider_mlp(model(tokens=1024), part=".mlp.up"), False),
        (plain_norms(tokens=512, hidden=1024), plain_norms(tokens=512, hidden=2048), False),
        (perceptron(512, WIDTHS), taller(perceptron(1024, WIDTHS)), False),
        (convolutional(16, 64), convolutional(64, 64), True),
        (convolutional(16, 64), convolutional(16, 128), False),
        (convolutional(16, 64), convolutional(8, 96), False),
    ],
)
def test_a_larger_batch_is_explained_and_a_wider_model_gets_nothing_even_if_its_rows_fit_one_tile(
    tmp_path: Path, marked: list[Op], bare: list[Op], explained: bool
) -> None:
    assert bool(Laboratory(tmp_path).alike(sampled(marked), sampled(bare)).told) == explained


def mixture(tokens: int, shares: Sequence[float], hidden: int = 1024) -> list[Op]:
    """A decoder with experts, each of which gets a share of the tokens."""
    experts = []
    for at, rows in enumerate(max(1, int(tokens * share)) for share in shares):
        experts += [
            Op(f"top.experts.{at}.up", GEMM["ampere"], (hidden // 32, -(-rows // 64))),
            Op(f"top.experts.{at}.act", ELEMENTWISE.format(4, "silu"), (-(-rows * hidden // 512), 1)),
            Op(f"top.experts.{at}.down", GEMM["ampere"], (hidden // 128, -(-rows // 64))),
        ]
    return [*model(layers=2, tokens=tokens, hidden=hidden), *experts]


@pytest.mark.parametrize(("tokens", "hidden", "share"), [(512, 1024, 1), (2048, 1024, 1), (512, 2048, 0)])
def test_sizes_that_the_data_decides_show_no_batch(tmp_path: Path, tokens: int, hidden: int, share: int) -> None:
    laboratory, marked = Laboratory(tmp_path), [(0.1, 0.7, 0.2, 1.0), (0.9, 0.3, 0.7, 0.1), (0.3, 0.3, 0.8, 0.6)]
    reference = laboratory.reference([Step(sampled(mixture(512, shares))) for shares in marked])
    bare = [
        Step(sampled(mixture(tokens, shares, hidden))) for shares in [(0.5, 0.1, 0.4, 1.0), (0.2, 0.9, 0.8, 0.1)] * 3
    ]
    score = laboratory.score(Run(bare, marked=False), reference)
    assert (score.share, score.wrong) == (share, 0)


def test_steps_that_repeat_one_part_show_no_beginning_where_the_recording_cuts_them(tmp_path: Path) -> None:
    reference = Laboratory(tmp_path).reference([Step(perceptron(512, EQUAL[:3]))] * 3)
    shallower = Run([Step(perceptron(512, EQUAL[:2]))] * 2, marked=False, late=2)
    assert Laboratory(tmp_path).score(shallower, reference).wrong == 0
