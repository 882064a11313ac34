"""Golden tests of fused kernels in answers: which modules they serve, what they cross, and how sure that is."""

from pathlib import Path

import pandas as pd
import pytest

import tracekit
from tests.trace_lines import report
from tracekit.aggregates.weighted_kernels import INFERRING, certainty_of_work
from tracekit.answers import coverage, fusions, kernels, module_kernels, modules, phases, processes, steps
from tracekit.attribution import METHOD_NAMES
from tracekit.dataset.opening import Dataset

ID = "0123456789abcdef"
#: Of three layers the second and third begin in the kernel that ends the one before.
MODULES = [
    "embed",
    *(f"layers.{layer}{part}" for layer in range(3) for part in ("", ".norm", ".up", ".act")),
    "head",
    "top",
    "",
]


def kernel(name: str, *served: tuple[str, int]) -> list[object]:
    return [name, int(name.startswith("triton")), [[MODULES.index(path), weight] for path, weight in served]]


KERNELS = [
    kernel("triton_red_embed_norm_0", ("embed", 1), ("layers.0.norm", 3)),
    kernel("triton_poi_up_act_1", ("layers.0.up", 1), ("layers.0.act", 1)),
    kernel("triton_red_add_norm_2", ("layers.0", 1), ("layers.1.norm", 3)),
    kernel("triton_poi_up_act_1", ("layers.1.up", 1), ("layers.1.act", 1)),
    kernel("triton_red_add_norm_2", ("layers.1", 1), ("layers.2.norm", 3)),
    kernel("triton_poi_act_add_3", ("layers.2", 2), ("layers.2.up", 1), ("layers.2.act", 1)),
    kernel("triton_poi_head_4", ("head", 1)),
]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return recorded(tmp_path, KERNELS)


def recorded(folder: Path, kernels: list[list[object]], *others: str) -> Dataset:
    told = {"KernelMap": ID, "Part": 1, "Parts": 1, "Root": "top", "Modules": MODULES, "Kernels": kernels}
    lines = [*others, f"range 1 0 1 {told!s}", f"range 1 2 100 {{'CompiledGraph': '{ID}', 'Pass': 'inference'}}"]
    for number, (name, *_) in enumerate(kernels, 1):
        at = 5 * number
        runs = 1000 + 100 * number
        lines += [f"launch 1 {at} {at + 2} #{number}", f"kernel 1 {runs} {runs + 40} #{number} {name}"]
    return tracekit.parse(report(folder / "a.sqlite", "\n".join(lines)))


def test_fusions_say_what_crossed_which_borders(dataset: Dataset) -> None:
    rows = fusions.frame(dataset)
    told = rows[["within", "fused", "crosses", "kernels", "gpu_time_ns", "sets"]].to_numpy().tolist()
    assert told == [
        ["top.layers.*", "up 50.0 %, act 50.0 %", "siblings", 2, 80, 2],
        ["top.layers", "*.norm 75.0 %, * 25.0 %", "layers", 2, 80, 2],
        ["top", "layers.0.norm 75.0 %, embed 25.0 %", "siblings", 1, 40, 1],
        ["top.layers.2", "(itself) 50.0 %, up 25.0 %, act 25.0 %", "siblings", 1, 40, 1],
    ]
    assert rows.share.tolist() == pytest.approx([80 / 280, 80 / 280, 40 / 280, 40 / 280])
    assert rows.example[1] == ["top.layers.0", "top.layers.1.norm"]


@pytest.mark.parametrize(
    ("served", "crosses"),
    [
        (("embed", "layers.0.norm", "layers.1.norm"), "layers"),
        (("layers.1.up", "layers.1.act", "head"), "siblings"),
        (("", "layers.2.act"), "inside"),
        (("layers.0", "layers.1", "layers.1.norm"), "layers"),
    ],
)
def test_border_between_layers_counts_before_others(tmp_path: Path, served: tuple[str, ...], crosses: str) -> None:
    made = recorded(tmp_path, [kernel("triton_poi_0", *((path, 1) for path in served))])
    assert fusions.frame(made).crosses.tolist() == [crosses]


def test_a_module_with_the_name_of_the_one_around_it_is_not_taken_for_that(tmp_path: Path) -> None:
    made = recorded(tmp_path, [kernel("triton_poi_0", ("", 1), ("top", 2), ("head", 3))])
    assert fusions.frame(made).fused.tolist() == ["head 50.0 %, top 32.5 %, (itself) 17.5 %"]


def test_fusions_of_a_subtree_have_its_time_alone(dataset: Dataset) -> None:
    rows = fusions.frame(dataset.subtree("top.layers.1"))
    assert sorted(rows[["name", "gpu_time_ns", "kernels"]].to_numpy().tolist()) == [
        ["triton_poi_up_act_1", 40, 1],
        ["triton_red_add_norm_2", 40, 2],
    ]


@pytest.mark.parametrize("path", ["top.layers.1", "top.layers.1.act", "top.embed", "top.head"])
def test_all_questions_about_modules_count_their_portions_of_fused_kernels(path: str, tmp_path: Path) -> None:
    part = recorded(tmp_path, KERNELS, "range 1 1 100 step 1").subtree(path)
    own_ns, pairs = modules.frame(part).self_ns.sum(), module_kernels.frame(part)
    assert own_ns == pairs.gpu_time_ns.sum() > 0
    by_name = kernels.frame(part)
    assert set(by_name.name) == set(pairs.name)
    for answer in (by_name, steps.frame(part), phases.frame(part), processes.frame(part)):
        assert answer.gpu_time_ns.sum() == own_ns
    assert by_name.kernels.sum() == steps.frame(part).kernels.sum() == processes.frame(part).kernels.sum()
    assert (by_name.modules > 0).all()
    assert by_name.share.sum() == pytest.approx(1)


def test_fused_kernels_name_whom_they_serve(dataset: Dataset) -> None:
    by_name = kernels.frame(dataset).set_index("name").serves
    assert by_name["triton_red_add_norm_2"] == "top.layers.*.norm 75.0 %, top.layers.* 25.0 %"
    assert pd.isna(by_name["triton_poi_head_4"])
    pairs = module_kernels.frame(dataset)
    assert pairs.serves[pairs.name == "triton_red_add_norm_2"].unique().tolist() == [by_name["triton_red_add_norm_2"]]


def test_work_of_several_modules_is_weighted(dataset: Dataset) -> None:
    assert certainty_of_work(dataset) == {"exact": 40, "weighted": 240, "inferred": 0}
    rows = coverage.frame(dataset)
    told = rows[rows.what == "certainty"][["cause", "count", "time_ns"]].to_numpy().tolist()
    assert told == [["exact", 1, 40], ["weighted", 6, 240]]


@pytest.mark.parametrize(("served", "certainty"), [(["head"], []), (["embed", "head"], ["weighted"])])
def test_certainty_is_told_only_where_not_all_is_exact(served: list[str], certainty: list[str], tmp_path: Path) -> None:
    rows = coverage.frame(recorded(tmp_path, [kernel("triton_poi_0", *((path, 1) for path in served))]))
    assert rows.cause[rows.what == "certainty"].tolist() == certainty


def test_methods_that_infer_are_methods() -> None:
    assert set(INFERRING) < set(METHOD_NAMES)
