"""Patterns of paths: which modules they name, and that whatever is printed can be pasted."""

import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import tracekit
from tests.command import command
from tests.trace_lines import report
from tracekit.comparison import difference, trend
from tracekit.dataset.patterns import Pattern, literals, numbers_as_text

PATHS = [
    *("top", "top.head", "top.mlp", "top.layers", "a[2]", "a2", "step[*]", "step[17]", "mlp"),
    *(f"top.layers.{at}{below}" for at in range(12) for below in ("", ".mlp", ".up_proj", ".norm_3")),
]


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("top.layers.3", r"top\.layers\.3"),
        ("top.layers.*", r"top\.layers\.\d+"),
        ("top.layers.*.*_proj", r"top\.layers\.\d+\.up_proj"),
        ("*.mlp", r"top\.(layers\.\d+\.)?mlp"),
        ("*", r".*"),
        ("*.3", r"top\.layers\.3"),
        ("top.layers.2…4", r"top\.layers\.[234]"),
        ("top.layers.{0…10:5}.mlp", r"top\.layers\.(0|5|10)\.mlp"),
        ("top.layers.{1,3…4}", r"top\.layers\.[134]"),
        ("top.layers.*.norm_1…9", r"top\.layers\.\d+\.norm_3"),
        ("a[2]", r"a\[2\]"),
        ("a[1-3]", r"a2"),
        ("step[*", r"step\[.*"),
        ("layers.*", r"(?!)"),
        ("*.top", r"(?!)"),
        ("", r"(?!)"),
        ("top.layers.1…{", r"(?!)"),
    ],
)
def test_a_pattern_names_modules_part_by_part(pattern: str, named: str) -> None:
    found = [PATHS[row] for row in Pattern(pattern).rows(PATHS)]
    assert found == [path for path in PATHS if re.fullmatch(named, path)]
    below = [path for path, inside in zip(PATHS, Pattern(pattern).inside(PATHS), strict=True) if inside]
    assert below == [path for path in PATHS if any(f"{path}.".startswith(f"{top}.") for top in found)]


@given(st.sets(st.integers(0, 60), min_size=1))
def test_numbers_are_written_so_that_they_name_these_and_no_others(numbers: set[int]) -> None:
    paths = [f"top.layer_{at}.x" for at in range(70)]
    pattern = f"top.layer_{numbers_as_text(numbers)}.x"
    assert set(Pattern(pattern).rows(paths)) == numbers
    assert len(numbers) == 1 or literals(pattern) == ["top.layer_", ".x"]


LAYERS = "".join(
    f"""
    range  1 {at}000 {at}900 {{'Module': 'top', 'Inputs': [[1]]}}
    range  1 {at}100 {at}400 {{'Module': 'top.layers.0', 'Class': 'Layer', 'Inputs': [[1]]}}
    range  1 {at}200 {at}300 {{'Module': 'top.layers.0.mlp', 'Class': 'Mlp', 'Inputs': [[1]]}}
    launch 1 {at}210 {at}220 #{at}1
    kernel 1 {at}220 {at}230 #{at}1
    range  1 {at}500 {at}800 {{'Module': 'top.layers.1', 'Class': 'Layer', 'Inputs': [[1]]}}
    range  1 {at}600 {at}700 {{'Module': 'top.layers.1.mlp', 'Class': 'Mlp', 'Inputs': [[1]]}}
    launch 1 {at}610 {at}620 #{at}2
    kernel 1 {at}620 {at}650 #{at}2
    run    1 {at}810 {at}820
    """
    for at in range(1, 4)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("patterns")
    return tracekit.parse(report(place / "report.sqlite", LAYERS), place / "out").folder


def test_a_tree_of_a_pattern_is_of_the_modules_it_names_and_what_is_below(folder: Path) -> None:
    dataset = tracekit.load(folder)
    tree = dataset.ask("tree", path="top.layers.*")
    assert tree[["label", "depth", "copies", "subtree_ns", "share"]].to_numpy().tolist() == [
        ["0 … 1", 0, 2, 120, 1.0],
        ["mlp", 1, 1, 120, 1.0],
    ]
    assert tree.pattern.tolist() == ["top.layers.0…1", "top.layers.0…1.mlp"]
    both = dataset.ask("tree", path="*.mlp")
    assert both[["label", "copies", "modules", "share"]].to_numpy().tolist() == [["mlp", 2, 2, 1.0]]
    with pytest.raises(tracekit.DatasetError, match=r"has no module top\.layer\.\*; did you mean top\.layers"):
        dataset.subtree("top.layer.*")


def test_every_command_with_a_path_takes_a_pattern(folder: Path, tmp_path: Path) -> None:
    pattern = "top.layers.*.mlp"
    for question in ("tree", "modules", "kernels", "launches"):
        assert "mlp" in command("show", question, folder, "--path", pattern, "--json").out
    both = difference.compare(tracekit.load(folder), tracekit.load(folder))
    compared = difference.part_of(both, pattern, 0.0).rows
    paths = ["top.layers.0.mlp", "top.layers.1.mlp"]
    assert sorted({path for what, path in zip(compared.what, compared.path, strict=True) if what == "module"}) == paths
    found = trend.part_of(trend.trend([folder, folder]), pattern, 0.0)
    assert sorted({module.path for module in found.modules}) == paths
    for name, *others in (("diff", folder), ("trend", folder)):
        assert command(name, folder, *others, "--path", pattern).code == 0
        missing = command(name, folder, *others, "--path", "top.*.*.*.*")
        assert (missing.code, "has a module top.*.*.*.*" in missing.err) == (2, True)
    for before in ((), (folder,)):
        page = tmp_path / "page.html"
        assert command("html", *before, folder, "--path", pattern, "-o", page, "--force").code == 0
        assert f'out: {pattern}","tracekit"' in page.read_text()
