"""Work that nobody marked, aligned with marked runs: what is told is right, and nothing is told that is not certain."""

from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

import tracekit
from tests.trace_lines import report
from tests.unmarked.runs import ELEMENTWISE, GEMM, NORM, Laboratory, Op, Run, Step, model, sampled
from tracekit.causes import LIKE_LIMIT
from tracekit.cli import main
from tracekit.errors import UsageError
from tracekit.unmarked import pattern_matches

SIX = 6
Around = Callable[[Iterable[Op]], list[Op]]
DECODE = "step[DECODE bs=8]"


@pytest.fixture
def laboratory(tmp_path: Path) -> Laboratory:
    return Laboratory(tmp_path)


def bare(ops: list[Op], *, late: int = 0, cut: int = 0) -> Run:
    return Run([Step(ops)] * SIX, marked=False, late=late, cut=cut)


def changed(number: int, op: Op) -> list[Op]:
    """A model in which a kernel runs in place of an addition and others behind it."""
    ops = model()
    at = next(row for row, one in enumerate(ops) if one.module == "top.layers.1" and "add" in one.name)
    return [*ops[:at], op._replace(name=op.name or ops[at].name), *ops[at + number :]]


def several(number: int) -> list[Op]:
    """A model in the middle of which more kernels run."""
    more = [Op(None, ELEMENTWISE.format(4, f"f{at}"), (64, 1)) for at in range(number)]
    return [*model()[:25], *more, *model()[25:]]


def first_kernel_again() -> list[Op]:
    return [*model()[:25], model()[0]._replace(module=None), *model()[25:]]


def twins(teacher: int, student: int) -> list[Op]:
    return [*model(prefix="teacher", tokens=teacher), *model(prefix="student", tokens=student)]


def with_much_else(layers: int, number: int) -> list[Op]:
    alone = [Op(f"top.alone.{at}", ELEMENTWISE.format(4, f"f{at}"), (64, 1)) for at in range(number)]
    return [*alone[:50], *model(layers=layers), *alone[50:]]


def without_a_layer(ops: list[Op]) -> list[Op]:
    return [op for op in ops if not f"{op.module}.".startswith("top.layers.3.")]


def body(layers: int) -> list[Op]:
    return [op for op in model(layers=layers) if op.module != "top.embed"]


FUSED = Op(None, "triton_poi_fused_add_layer_norm_3", (9, 1))
TWINS = (
    *((64, "teacher", 8, 1, 1), (64, "student", 64, 1, 1), (8, "teacher", 8, 0, 0.99)),
    *((64, "teacher", 32, 0, 0.99), (64, "student", 32, 0, 0.99)),
)
DEPTHS = ((1, 2), (2, 4), (6, 12), (12, 6))


@pytest.mark.parametrize(
    ("marked", "production", "least", "most"),
    [
        pytest.param(model(), model(), 1, 1, id="the same"),
        *(
            pytest.param(model(), model(**changes), 0.95, 1, id=f"another batch or GPU: {changes}")
            for changes in ({"tokens": 2_048}, {"tokens": 96}, {"gpu": "hopper", "width": 16})
        ),
        *(pytest.param(body(one), body(other), 0, 0, id=f"{one} and {other} layers") for one, other in DEPTHS),
        pytest.param(model(), changed(1, Op(None, "", (7, 1))), 1, 1, id="another size in place of a kernel"),
        pytest.param(model(), changed(2, FUSED), 0.9, 1, id="a fusion, which is in place of no single kernel"),
        *(
            pytest.param(twins(8, larger), model(prefix=name, tokens=tokens), low, high, id=f"of 8, {larger}: {tokens}")
            for larger, name, tokens, low, high in TWINS
        ),
        *(
            pytest.param(with_much_else(*one), without_a_layer(with_much_else(*one)), 0, 0, id=f"no layer 3 of {one}")
            for one in ((8, 0), (4, 100))
        ),
        pytest.param(model(), first_kernel_again(), 0.9, 1, id="the first kernel again in the midst"),
        pytest.param(model(), several(9), 0.01, 1, id="somewhat less than a seventh more"),
        pytest.param(model(), several(10), 0, 0, id="a seventh more"),
    ],
)
@pytest.mark.parametrize("around", [sampled, list], ids=["sampled", "alone"])
def test_of_other_programs_and_sizes_what_is_told_is_right_and_what_is_uncertain_gets_nothing(
    laboratory: Laboratory, marked: list[Op], production: list[Op], least: float, most: float, around: Around
) -> None:
    score = laboratory.alike(around(marked), around(production))
    assert score.wrong == 0
    assert least <= score.share <= most


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


@pytest.mark.parametrize("around", [sampled, list], ids=["sampled", "alone"])
def test_a_cut_step_of_a_deeper_model_is_no_step_of_the_marked_one(laboratory: Laboratory, around: Around) -> None:
    two, three = (around(model(layers=layers)) for layers in (2, 3))
    cut = len(three) - around(model(layers=3)).index(Op("top.layers.2.n1", NORM, (512, 1))) - 1
    assert laboratory.score(bare(three, cut=cut), laboratory.reference([Step(two)] * 3)).told == 0


def test_a_long_stretch_without_steps_costs_the_steps_after_it_nothing(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern_matches, "_MOST_CELLS", 10_000_000)
    reference = laboratory.reference([Step(sampled(model()), DECODE)] * 3)
    layers = [op._replace(module=None) for op in model(layers=40)[1:-2]]
    run = Run([Step(layers * 10), *[Step(sampled(model(tokens=2_048)))] * SIX], marked=False)
    score = laboratory.score(run, reference)
    assert score.wrong == 0
    assert score.told >= (SIX - 1) * len(model())


def test_work_that_was_not_compared_before_the_search_ended_says_so(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern_matches, "_MOST_CELLS", 1)
    reference = laboratory.reference([Step(sampled(model()), DECODE)] * 3)
    dataset = laboratory.dataset(bare(sampled(model(tokens=96))), reference)
    [detail] = {row["detail"] for row in dataset.manifest["coverage"] if row["cause"] == "like_unmatched"}
    assert detail == LIKE_LIMIT.detail


@pytest.mark.parametrize("graph", [3, -1], ids=["by the numbers of nodes", "by streams"])
def test_replays_of_cuda_graphs_and_work_whose_launches_were_not_recorded_are_known(
    laboratory: Laboratory, graph: int
) -> None:
    run = Run([Step(sampled(model()), graph=graph)] * SIX, marked=False, launches=graph >= 0)
    assert laboratory.score(run, laboratory.reference([Step(sampled(model()))] * 3)).share == 1


def test_a_replay_that_the_recording_cuts_has_the_modules_of_the_other_replays(laboratory: Laboratory) -> None:
    run = Run([Step(sampled(model()), graph=3)] * SIX, marked=False, late=20)
    assert laboratory.score(run, laboratory.reference([Step(sampled(model()))] * 3)).share == 1


def test_steps_that_nobody_marked_are_those_of_the_marked_run(laboratory: Laboratory) -> None:
    reference = laboratory.reference([Step(sampled(model()), DECODE)] * 3)
    dataset = laboratory.dataset(bare(sampled(model())), reference)
    assert [row["kind"] for row in dataset.table("steps").to_pylist()] == ["decode"] * SIX
    kernels = dataset.table("kernels").to_pylist()
    assert {row["method"] for row in kernels if row["module"]} == {"aligned"}
    assert {row["call_id"] for row in kernels} == {None}
    assert {row["cause"] for row in kernels if not row["module"]} == {"outside_modules"}
    assert len({row["step_id"] for row in kernels} - {None}) == SIX


@pytest.mark.parametrize("tokens", [512, 96])
def test_a_step_that_nobody_marked_ends_with_its_last_kernel(laboratory: Laboratory, tokens: int) -> None:
    marked, production = (
        [Step(model(tokens=size), DECODE), Step([Op(None, "memcpy 8")] * 2)] * SIX for size in (512, tokens)
    )
    dataset = laboratory.dataset(Run(production, marked=False), laboratory.reference(marked))
    kernels = dataset.table("kernels").to_pylist()
    assert {row["kind"] for row in kernels if row["step_id"] is None} == {"memcpy"}
    assert {row["kind"] for row in kernels if row["step_id"] is not None} == {"kernel"}


def test_models_that_run_in_other_numbers_are_known_call_by_call(laboratory: Laboratory) -> None:
    draft, target = model(layers=2, prefix="draft", tokens=8), model(layers=6, prefix="target", tokens=8)
    between = [Op(None, "memcpy 8")]
    reference = laboratory.reference([Step([*draft, *between, *draft, *between, *target], DECODE)] * 3)
    steps = [Step(sampled([op for _ in range(times) for op in (*draft, *between)] + target)) for times in (1, 3, 2, 4)]
    score = laboratory.score(Run(steps, marked=False), reference)
    assert score.wrong == 0
    assert score.share > 0.7


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


@pytest.mark.parametrize("text", [None, DECODE])
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
    marked = [Step(step, DECODE)] * 3 + [Step(step[:1], DECODE)]
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
