"""Work that nobody marked, aligned with marked runs: what is told is right, and nothing is told that is not certain."""

from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

import tracekit
from tests.trace_lines import report
from tests.unmarked.runs import ELEMENTWISE, GEMM, Laboratory, Op, Run, Step, model, sampled
from tracekit.causes import LIKE_LIMIT
from tracekit.cli import main
from tracekit.errors import UsageError
from tracekit.unmarked import pattern_matches

SIX = 6


@pytest.fixture
def laboratory(tmp_path: Path) -> Laboratory:
    return Laboratory(tmp_path)


def bare(ops: list[Op], *, late: int = 0, cut: int = 0) -> Run:
    return Run([Step(ops)] * SIX, marked=False, late=late, cut=cut)


@pytest.mark.parametrize("text", [None, "step[DECODE bs=8]"])
def test_the_same_program_without_markers_has_the_same_modules(laboratory: Laboratory, text: str | None) -> None:
    reference = laboratory.reference([Step(sampled(model()), text)] * 3)
    score = laboratory.score(bare(sampled(model())), reference)
    assert (score.share, score.wrong) == (1, 0)


@pytest.mark.parametrize("changes", [{"tokens": 2_048}, {"tokens": 96}, {"gpu": "hopper", "width": 16}])
def test_other_batches_and_gpus_are_explained(laboratory: Laboratory, changes: dict[str, object]) -> None:
    score = laboratory.alike(sampled(model()), sampled(model(**changes)))  # type: ignore[arg-type]
    assert score.wrong == 0
    assert score.share > 0.95


@pytest.mark.parametrize(
    "changes", [{"hidden": 2_048}, {"hidden": 2_048, "tokens": 256}, {"layers": 3}, {"layers": 5}, {"layers": 8}]
)
def test_models_of_other_widths_and_depths_get_nothing(laboratory: Laboratory, changes: dict[str, int]) -> None:
    reference = laboratory.reference([Step(sampled(model()), "step[DECODE bs=8]")] * 3)
    dataset = laboratory.dataset(bare(sampled(model(**changes))), reference)  # type: ignore[arg-type]
    assert {row["module"] for row in dataset.table("kernels").to_pylist()} == {None}
    assert dataset.manifest["like"][0]["kernels"] == 0


@pytest.mark.parametrize(("batch", "width", "told"), [(64, 64, True), (16, 128, False), (8, 96, False)])
def test_more_images_are_explained_and_more_channels_are_not(
    laboratory: Laboratory, batch: int, width: int, told: bool
) -> None:
    reference = laboratory.reference([Step(sampled(convolutional(16, 64)))] * 3)
    assert (laboratory.score(bare(sampled(convolutional(batch, width))), reference).told > 0) == told


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


@pytest.mark.parametrize("seed", range(3))
def test_kernels_that_are_added_and_left_out_make_nothing_wrong(laboratory: Laboratory, seed: int) -> None:
    rng = Random(seed)
    reference = laboratory.reference([Step(sampled(model(layers=8)))] * 2)
    steps = []
    for _ in range(SIX):
        ops: list[Op] = []
        for op in sampled(model(layers=8)):
            chance = rng.random()
            ops += [op] if chance > 0.01 else []
            name = ELEMENTWISE.format(4, rng.choice(("CUDAFunctor_add", "other")))
            ops += [Op(None, name, (7, 1))] if chance > 0.99 else []
        steps.append(Step(ops))
    score = laboratory.score(Run(steps, marked=False), reference)
    assert score.wrong == 0
    assert score.share > 0.8


def test_steps_cut_at_the_edges_get_nothing_and_the_others_all(laboratory: Laboratory) -> None:
    reference = laboratory.reference([Step(sampled(model()))] * 3)
    score = laboratory.score(bare(sampled(model()), late=20, cut=20), reference)
    assert score.wrong == 0
    assert score.share > 4 / SIX


def after_a_long_stretch() -> Run:
    layers = [op._replace(module=None) for op in model(layers=40)[1:-2]]
    return Run([Step(layers * 10), *[Step(sampled(model(tokens=2_048)))] * SIX], marked=False)


def test_a_long_stretch_without_steps_costs_the_steps_after_it_nothing(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern_matches, "_MOST_CELLS", 10_000_000)
    reference = laboratory.reference([Step(sampled(model()), "step[DECODE bs=8]")] * 3)
    score = laboratory.score(after_a_long_stretch(), reference)
    assert score.wrong == 0
    assert score.told >= (SIX - 1) * len(model())


def test_work_that_was_not_compared_before_the_search_ended_says_so(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern_matches, "_MOST_CELLS", 1)
    reference = laboratory.reference([Step(sampled(model()), "step[DECODE bs=8]")] * 3)
    dataset = laboratory.dataset(bare(sampled(model(tokens=96))), reference)
    [detail] = {row["detail"] for row in dataset.manifest["coverage"] if row["cause"] == "like_unmatched"}
    assert detail == LIKE_LIMIT.detail


def test_replays_of_cuda_graphs_are_known_by_the_numbers_of_their_nodes(laboratory: Laboratory) -> None:
    reference = laboratory.reference([Step(sampled(model()))] * 3)
    run = Run([Step(sampled(model()), graph=3, how="nodes")] * SIX, marked=False)
    assert laboratory.score(run, reference).share == 1


def test_steps_that_nobody_marked_are_those_of_the_marked_run(laboratory: Laboratory) -> None:
    reference = laboratory.reference([Step(sampled(model()), "step[DECODE bs=8]")] * 3)
    dataset = laboratory.dataset(bare(sampled(model())), reference)
    assert [row["kind"] for row in dataset.table("steps").to_pylist()] == ["decode"] * SIX
    kernels = dataset.table("kernels").to_pylist()
    assert {row["method"] for row in kernels if row["module"]} == {"aligned"}
    assert {row["call_id"] for row in kernels} == {None}
    assert {row["cause"] for row in kernels if not row["module"]} == {"outside_modules"}
    assert len({row["step_id"] for row in kernels} - {None}) == SIX


@pytest.mark.parametrize(("text", "told"), [("step[DECODE bs=8]", SIX), (None, SIX - 1)])
def test_whole_graphs_get_the_module_that_is_called_and_holds_all_they_replace(
    laboratory: Laboratory, text: str | None, told: int
) -> None:
    reference = laboratory.reference([Step(sampled(model()), text)] * 3)
    run = Run([Step(sampled(model()), graph=3, how="whole")] * SIX, marked=False)
    assert laboratory.score(run, reference) == (SIX, told, 0)


def test_a_whole_graph_of_all_layers_is_of_the_model_as_their_list_is_not_called(laboratory: Laboratory) -> None:
    layers = sampled(op for op in model() if "layers" in str(op.module))
    run = Run([Step(layers, graph=3, how="whole")] * SIX, marked=False)
    assert laboratory.score(run, laboratory.reference([Step(layers, "step[DECODE bs=8]")] * 3)) == (SIX, SIX, 0)


def test_work_whose_launches_were_not_recorded_is_known_stream_by_stream(laboratory: Laboratory) -> None:
    reference = laboratory.reference([Step(sampled(model()))] * 3)
    run = Run([Step(sampled(model()))] * SIX, marked=False, launches=False)
    assert laboratory.score(run, reference).share == 1


@pytest.mark.parametrize(("layers", "more"), [(1, 2), (2, 4), (6, 12), (12, 6)])
@pytest.mark.parametrize("around", [sampled, list])
def test_steps_of_another_depth_are_neither_several_steps_nor_a_part_of_one(
    laboratory: Laboratory, layers: int, more: int, around: Callable[[Iterable[Op]], list[Op]]
) -> None:
    bodies = [[op for op in model(layers=depth) if op.module != "top.embed"] for depth in (layers, more)]
    reference, other = (around(body) for body in bodies)
    assert laboratory.alike(reference, other).told == 0


def test_a_kernel_of_another_size_that_ran_in_place_of_one_is_not_taken_for_it(laboratory: Laboratory) -> None:
    ops = model()
    at = next(row for row, op in enumerate(ops) if op.module == "top.layers.1" and "add" in op.name)
    changed = [*ops[:at], Op(None, ops[at].name, (7, 1)), *ops[at + 1 :]]
    score = laboratory.alike(sampled(ops), sampled(changed))
    assert (score.known - score.told, score.wrong) == (0, 0)


def test_a_fused_kernel_gets_the_smallest_module_that_holds_its_parts(laboratory: Laboratory) -> None:
    ops = model()
    at = next(row for row, op in enumerate(ops) if op.module == "top.layers.1" and "add" in op.name)
    fused = [*ops[:at], Op("top.layers.1", "triton_poi_fused_add_layer_norm_3", (9, 1)), *ops[at + 2 :]]
    score = laboratory.alike(sampled(ops), sampled(fused))
    assert (score.share, score.wrong) == (1, 0)


def test_a_fused_kernel_of_another_class_than_its_parts_is_none_of_theirs(laboratory: Laboratory) -> None:
    ops = model()
    at = next(row for row, op in enumerate(ops) if op.module == "top.layers.1.attn.qkv")
    other = [*ops[:at], Op(None, "fused_softmax_kernel", (9, 1)), *ops[at + 3 :]]
    score = laboratory.alike(sampled(ops), sampled(other))
    assert score.wrong == 0
    assert score.share > 0.9


def test_models_that_run_in_other_numbers_are_known_call_by_call(laboratory: Laboratory) -> None:
    draft, target = model(layers=2, prefix="draft", tokens=8), model(layers=6, prefix="target", tokens=8)
    between = [Op(None, "memcpy 8")]
    reference = laboratory.reference([Step([*draft, *between, *draft, *between, *target], "step[DECODE bs=8]")] * 3)
    steps = [Step(sampled([op for _ in range(times) for op in (*draft, *between)] + target)) for times in (1, 3, 2, 4)]
    score = laboratory.score(Run(steps, marked=False), reference)
    assert score.wrong == 0
    assert score.share > 0.7


def test_a_model_beside_its_twin_in_the_marked_run_is_not_taken_for_both(laboratory: Laboratory) -> None:
    teacher, student = model(prefix="teacher"), model(prefix="student")
    reference = laboratory.reference([Step(sampled([*teacher, *student]), "step[DECODE bs=8]")] * 3)
    assert laboratory.score(bare(sampled(student)), reference).wrong == 0


@pytest.mark.parametrize(
    ("teacher", "student", "production", "told"),
    [
        (8, 64, ("teacher", 8), True),
        (8, 64, ("student", 64), True),
        (8, 64, ("teacher", 32), False),
        (8, 64, ("student", 32), False),
        (8, 8, ("teacher", 8), False),
    ],
)
def test_models_that_are_alike_are_told_apart_by_the_sizes_of_the_marked_run_alone(
    laboratory: Laboratory, teacher: int, student: int, production: tuple[str, int], told: bool
) -> None:
    marked = [*model(prefix="teacher", tokens=teacher), *model(prefix="student", tokens=student)]
    name, tokens = production
    score = laboratory.alike(sampled(marked), sampled(model(prefix=name, tokens=tokens)))
    assert (score.told == score.known, score.wrong) == (told, 0)


@pytest.mark.parametrize(("layers", "number"), [(8, 0), (4, 100)])
def test_a_layer_that_is_missing_makes_all_unknown_even_if_much_else_is_alike(
    laboratory: Laboratory, layers: int, number: int
) -> None:
    alone = [Op(f"top.alone.{at}", ELEMENTWISE.format(4, f"f{at}"), (64, 1)) for at in range(number)]
    ops = [*alone[:50], *model(layers=layers), *alone[50:]]
    without = [op for op in ops if not f"{op.module}.".startswith("top.layers.3.")]
    assert laboratory.alike(sampled(ops), sampled(without)).told == 0


@pytest.mark.parametrize(("number", "known"), [(9, True), (10, False)])
def test_a_step_in_which_a_seventh_more_runs_is_that_of_another_model(
    laboratory: Laboratory, number: int, known: bool
) -> None:
    more = [Op(None, ELEMENTWISE.format(4, f"f{at}"), (64, 1)) for at in range(number)]
    ops = model()
    score = laboratory.alike(ops, [*ops[:25], *more, *ops[25:]])
    assert (score.told > 0) == known


def test_a_step_that_the_end_of_the_marked_recording_cuts_serves_nothing_but_its_equal(laboratory: Laboratory) -> None:
    ops = model(layers=8)
    half = len(ops) // 2
    reference = laboratory.reference([Step(ops[:half])])
    assert laboratory.score(Run([Step(ops[half:-1])], marked=False), reference).told == 0
    assert laboratory.score(Run([Step(ops[:half])], marked=False), reference).share == 1


def test_marked_runs_that_contradict_each_other_show_nothing(laboratory: Laboratory) -> None:
    one, other = (laboratory.reference([Step(sampled(model(prefix=name)))] * 3) for name in ("one", "other"))
    dataset = laboratory.dataset(bare(sampled(model(prefix="one"))), one, other)
    assert {row["module"] for row in dataset.table("kernels").to_pylist()} == {None}
    assert "like_ambiguous" in {row["cause"] for row in dataset.table("kernels").to_pylist()}


def layers_of(*names: str) -> list[Op]:
    """A step of a model in which some modules run, each alike."""
    inside = [Op(f"top.{name}", ELEMENTWISE.format(4, "silu"), (64, 1)) for name in names]
    return sampled([*model(layers=1), *inside, Op("top.last", ELEMENTWISE.format(4, "mul"), (64, 1))])


@pytest.mark.parametrize("experts", ["experts.", "experts.expert_"])
@pytest.mark.parametrize("steps", [(("0", "3"), ("1", "3")), (("0",), ("2",)), (("1", "2"), ("2", "3"), ("1", "2"))])
def test_modules_among_which_the_data_chooses_are_told_in_no_other_run(
    laboratory: Laboratory, experts: str, steps: tuple[tuple[str, ...], ...]
) -> None:
    marked, bare_steps = (
        [layers_of(*(experts + name for name in step)) for step in order] for order in (steps, steps[::-1])
    )
    reference = laboratory.reference([Step(step) for step in marked])
    score = laboratory.score(Run([Step(step) for step in bare_steps] * 3, marked=False), reference)
    assert score.wrong == 0
    assert 0 < score.known - score.told == 3 * sum(map(len, steps))


@pytest.mark.parametrize(
    "modules",
    [
        ("a.0", "a.1", "b.0"),
        ("m.0.blocks.0", "m.1.blocks.0", "m.1.blocks.1"),
        ("m.0.conv1", "m.0.conv3", "m.1.conv1", "m.1.conv2"),
    ],
)
def test_series_of_other_lengths_in_other_modules_are_no_choice_of_the_data(
    laboratory: Laboratory, modules: tuple[str, ...]
) -> None:
    step = Step(layers_of(*modules))
    assert laboratory.score(Run([step] * 3, marked=False), laboratory.reference([step] * 2)).share == 1


def without_root(*widths: int) -> list[Op]:
    """A program that calls single layers and no module around them."""
    ops = []
    for at, width in enumerate(widths):
        ops += [
            Op(f"Linear_{at}", GEMM["ampere"], (width // 128, 8)),
            Op(f"Linear_{at}", ELEMENTWISE.format(4, "CUDAFunctor_add"), (width, 1)),
            Op(None, ELEMENTWISE.format(4, "relu"), (width, 1)),
        ]
    return ops


@pytest.mark.parametrize("text", [None, "step[DECODE bs=8]"])
@pytest.mark.parametrize("widths", [(256, 1024, 256, 512), (1024, 256), (512, 256, 1024)])
def test_single_layers_are_not_taken_for_those_of_another_program(
    laboratory: Laboratory, text: str | None, widths: tuple[int, ...]
) -> None:
    reference = laboratory.reference([Step(without_root(256, 1024, 256), text)] * 3)
    assert laboratory.score(bare(without_root(*widths)), reference).wrong == 0


def test_short_steps_of_one_model_are_known_also_if_the_recording_cuts_the_last(laboratory: Laboratory) -> None:
    step = [
        Op("net.a", GEMM["ampere"], (8, 8)),
        *(Op("loss", ELEMENTWISE.format(4, f"f{at}"), (8, 1)) for at in range(4)),
    ]
    marked = [Step(step, "step[DECODE bs=8]")] * 3 + [Step(step[:1], "step[DECODE bs=8]")]
    assert laboratory.score(bare(sampled(step)), laboratory.reference(marked)).told > 0


SEND = Op(None, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)")


def stage(first: int, end: int, *, of: int) -> list[Op]:
    """What one of several processes runs of a model whose layers are divided among them."""
    ops = model(layers=of)
    starts = {
        f"layers.{at}": row for row, op in enumerate(ops) for at in range(of) if op.module == f"top.layers.{at}.n1"
    }
    low, high = starts[f"layers.{first}"] if first else 0, starts[f"layers.{end}"] if end < of else len(ops)
    return [*([SEND] if first else []), *ops[low:high], *([SEND] if end < of else [])]


@pytest.mark.parametrize(
    ("marked", "bare_stages", "told"),
    [
        ([(0, 4)], [(4, 8)], False),
        ([(4, 8)], [(0, 4)], False),
        ([(2, 4)], [(4, 6)], False),
        ([(2, 4), (4, 6)], [(4, 6)], False),
        ([(0, 4), (4, 8)], [(0, 4), (4, 8)], True),
    ],
)
def test_stages_of_a_pipeline_are_not_taken_for_each_other(
    laboratory: Laboratory, marked: list[tuple[int, int]], bare_stages: list[tuple[int, int]], told: bool
) -> None:
    references = [laboratory.reference([Step(stage(*layers, of=8))] * 3) for layers in marked]
    for layers in bare_stages:
        score = laboratory.score(bare(stage(*layers, of=8)), *references)
        assert score.wrong == 0
        assert (score.told == score.known) == told


def test_what_was_aligned_serves_no_other_run(laboratory: Laboratory) -> None:
    reference = laboratory.reference([Step(sampled(model()))] * 3)
    first = laboratory.dataset(bare(sampled(model())), reference)
    assert laboratory.score(bare(sampled(model())), Path(str(first.folder))).told == 0


def test_of_several_reports_each_says_like_which_marked_run_it_is(laboratory: Laboratory) -> None:
    reference = laboratory.reference([Step(sampled(model()))] * 3)
    path = bare(sampled(model())).written(laboratory.folder / "rank0.sqlite")
    other = bare(sampled(model(tokens=64))).written(laboratory.folder / "rank1.sqlite")
    out = laboratory.folder / "all.tracekit"
    dataset = tracekit.parse([path, other], out, like=[reference])
    digest = sha256((reference / "manifest.json").read_bytes()).hexdigest()
    assert [entry["like"][0]["sha256"] for entry in dataset.manifest["reports"]] == [digest] * 2


def test_rows_of_marked_runs_are_modules(laboratory: Laboratory, tmp_path: Path) -> None:
    reference = laboratory.reference([Step(model())] * 2)
    with pytest.raises(UsageError, match="leave out one of the two"):
        tracekit.parse(tmp_path / "any.sqlite", like=[reference], rows="ranges")
    ranges = tracekit.parse(report(tmp_path / "r.sqlite", "range 1 0 9 step"), rows="ranges")
    with pytest.raises(UsageError, match="no dataset of a marked run"):
        tracekit.parse(tmp_path / "any.sqlite", like=[Path(str(ranges.folder))])


def test_the_command_says_that_nothing_could_be_aligned(
    laboratory: Laboratory, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = laboratory.reference([Step(model())] * 3)
    path = bare(model(layers=7)).written(laboratory.folder / "other.sqlite")
    assert main(["parse", str(path), "--like", str(reference.with_suffix(".sqlite"))]) == 0
    assert "nothing could be aligned with marked0.tracekit" in " ".join(capsys.readouterr().out.split())
