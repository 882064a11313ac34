"""The tree of modules: what is alike shares a line, and nothing is lost or counted twice."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

import tracekit
from tests.command import command
from tests.golden import Parse
from tests.trace_lines import report
from tests.views.printing import printed
from tracekit.aggregates.subtrees import Folding, hierarchy, patterns
from tracekit.answers import modules as modules_by_time, tree as module_tree
from tracekit.dataset.opening import Dataset
from tracekit.dataset.patterns import Pattern
from tracekit.views import tree
from tracekit.views.formatting import nouns

SUMMED = ["calls", "kernels", "self_ns"]
Node = tuple[str, str, list["Node"]]


def lines_of(nodes: list[Node]) -> str:
    """A trace in which every module is called once and runs one operator of its own."""
    written: list[str] = []
    clock = 0

    def call(node: Node, above: str) -> None:
        nonlocal clock
        name, kind, below = node
        path, start = f"{above}.{name}" if above else name, clock
        at = len(written)
        written.append("")
        written.append(f"op 1 {clock + 1} {clock + 3 + len(written) % 5} aten::x")
        clock += 10
        for child in below:
            call(child, path)
        clock += 1
        written[at] = f'range 1 {start} {clock} {{"Module": "{path}", "Class": "{kind}", "Inputs": [[1]]}}'
        clock += 1

    for node in nodes:
        call(node, "")
    return "\n".join(written)


def model(layers: list[list[Node]]) -> list[Node]:
    return [("top", "Top", [(str(at), "Layer", below) for at, below in enumerate(layers)])]


ALIKE: list[Node] = [("attn", "Attention", []), ("mlp", "Mlp", [("up", "Linear", [])])]


def shown(dataset: Dataset) -> list[tuple[str, int, int]]:
    found = module_tree.frame(dataset)
    return list(zip(found.label, found.depth, found.copies, strict=True))


SAME: list[Node] = [("a", "Linear", []), ("b", "Linear", []), ("c", "Linear", [])]
#: What is true of a model, the model, and the labels, depths and copies of its lines.
FOLDED: dict[str, tuple[list[Node], list[tuple[str, int, int]]]] = {
    "numbered layers that are alike share a line with all below": (
        model([ALIKE] * 3),
        [("top", 0, 1), ("0 … 2", 1, 3), ("attn", 2, 1), ("mlp", 2, 1), ("up", 3, 1)],
    ),
    "modules that hold others are folded by the numbers in their names": (
        [("top", "Top", [(f"layer_{at}", "Layer", [("fc1", "Linear", []), ("fc2", "Linear", [])]) for at in range(3)])],
        [("top", 0, 1), ("layer_0 … 2", 1, 3), ("fc1", 2, 1), ("fc2", 2, 1)],
    ),
    "names without numbers are never folded": (
        [("top", "Top", SAME)],
        [("top", 0, 1), ("a", 1, 1), ("b", 1, 1), ("c", 1, 1)],
    ),
    "layers inside of layers are folded too": (
        model([[("experts", "List", [(str(at), "Expert", []) for at in range(3)])]] * 2),
        [("top", 0, 1), ("0 … 1", 1, 2), ("experts", 2, 1), ("0 … 2", 3, 3)],
    ),
}


@pytest.mark.parametrize("claim", FOLDED)
def test_lines_of_a_model(parsed: Parse, claim: str) -> None:
    nodes, lines = FOLDED[claim]
    assert shown(parsed(lines_of(nodes))) == lines


OTHERS: dict[str, list[Node]] = {
    "another class": [("attn", "Other", []), ALIKE[1]],
    "another name": [("attention", "Attention", []), ALIKE[1]],
    "one more": [*ALIKE, ("norm", "Norm", [])],
    "one less": ALIKE[:1],
    "another order": ALIKE[::-1],
    "another class far below": [ALIKE[0], ("mlp", "Mlp", [("up", "Other", [])])],
    "one more far below": [ALIKE[0], ("mlp", "Mlp", [("up", "Linear", [("x", "X", [])])])],
    "nothing": [],
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_layer_that_differs_has_its_own_line_and_parts_those_beside_it(parsed: Parse, other: str) -> None:
    dataset = parsed(lines_of(model([ALIKE, ALIKE, OTHERS[other], ALIKE])))
    layers = [(label, copies) for label, depth, copies in shown(dataset) if depth == 1]
    assert layers == [("0 … 1", 2), ("2", 1), ("3", 1)]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("ABABAB", [("0 … 4", 3), ("1 … 5", 3)]),
        ("AABAABA", [("0 … 6", 5), ("2 … 5", 2)]),
        ("CABAB", [("0", 1), ("1 … 3", 2), ("2 … 4", 2)]),
        ("AAABBB", [("0 … 2", 3), ("3 … 5", 3)]),
        ("ABA", [("0", 1), ("1", 1), ("2", 1)]),
    ],
)
def test_kinds_of_layers_that_alternate_have_a_line_each(
    parsed: Parse, kinds: str, expected: list[tuple[str, int]]
) -> None:
    layers = [(str(at), kind, [("x", "X", [])]) for at, kind in enumerate(kinds)]
    found = shown(parsed(lines_of([("top", "Top", layers)])))
    assert [(label, copies) for label, depth, copies in found if depth == 1] == expected


@pytest.mark.parametrize(
    ("first", "last", "label"),
    [
        ("4", "19", "4 … 19"),
        ("FSDP (blocks.4)", "FSDP (blocks.19)", "FSDP (blocks.4 … 19)"),
        ("h.0.fc0", "h.3.fc3", "h.0.fc0 … h.3.fc3"),
        ("a", "a", "a"),
    ],
)
def test_a_line_of_layers_names_what_they_share_once(first: str, last: str, label: str) -> None:
    assert module_tree.folded(first, last) == label


def text(dataset: Dataset, width: int = 100) -> str:
    return printed(tree.as_text(module_tree.columns(dataset), nouns(dataset), width), width)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (lines_of(model([ALIKE] * 3)), ("0 … 2  3 x Layer", "CPU share")),
        ("range 1 0 9 {'Module': 'top', 'Inputs': [[1]]}\nlaunch 1 1 2 #1\nkernel 1 3 9 #1", ("GPU share",)),
    ],
)
def test_the_tree_in_the_terminal_has_every_line_and_says_what_worked(
    parsed: Parse, lines: str, words: tuple[str, ...]
) -> None:
    said = text(parsed(lines))
    assert all(word in said for word in words)


names = st.sampled_from(["0", "1", "2", "3", "a", "b"])
nodes = st.recursive(
    st.tuples(names, st.sampled_from("XY"), st.just([])),
    lambda below: st.tuples(names, st.sampled_from("XY"), st.lists(below, max_size=4, unique_by=lambda node: node[0])),
    max_leaves=12,
)


@settings(max_examples=40)
@given(st.lists(nodes, min_size=1, max_size=3, unique_by=lambda node: node[0]), st.integers(0, 9))
def test_lines_of_any_model_are_in_pre_order_and_named_by_patterns_and_the_largest_keep_those_above(
    tmp_path_factory: pytest.TempPathFactory, forest: list[Node], count: int
) -> None:
    dataset = tracekit.parse(report(tmp_path_factory.mktemp("tree") / "report.sqlite", lines_of(forest)))
    modules, whole, sums = hierarchy(dataset), module_tree.frame(dataset), modules_by_time.frame(dataset)
    stars = patterns(modules)
    for line in Folding(modules).lines():
        assert len({stars[row] for row in line.rows}) == 1
        for pattern in (line.pattern, stars[line.rows[0]]):
            assert Pattern(pattern).rows(modules.path) == sorted(line.rows)
        part = module_tree.frame(dataset.subtree(line.pattern))
        assert (part.pattern[0], part.modules[0]) == (line.pattern, len(line.rows))
    assert whole[SUMMED].sum().to_dict() == sums[SUMMED].sum().to_dict()
    places = [modules.path.index(path) for path in whole.path]
    assert places == sorted(places)
    assert whole.copies.gt(0).all()
    found = whole.iloc[module_tree.largest(whole, count)]
    assert len(found) == min(count, len(whole))
    assert not whole.drop(found.index).subtree_ns.gt(found.subtree_ns.min()).any()
    for row, parent in enumerate(module_tree.parents_of(whole.depth.to_numpy())):
        assert row not in found.index or parent < 0 or parent in found.index


def test_a_root_that_is_a_number_has_no_star_alone(parsed: Parse) -> None:
    roots: list[Node] = [(str(at), "Net", [("mlp", "Mlp", [])]) for at in range(3)]
    assert patterns(hierarchy(parsed(lines_of(roots)))) == ["0…2", "0…2.mlp"] * 3


def test_numbers_of_classes_that_run_through_the_model_are_folded_and_different_modules_are_not(parsed: Parse) -> None:
    """As with_stack names modules: each class counts for itself, and two norms of a block share their class."""
    blocks: list[Node] = [
        (
            f"Block_{at + 3}",
            "Block",
            [
                (f"Norm_{2 * at}", "Norm", []),
                ("Rotary_0", "Rotary", []),
                (f"Mlp_{at}", "Mlp", [(f"Fused_{at + 7}", "Fused", [])]),
                (f"Norm_{2 * at + 1}", "Norm", []),
            ],
        )
        for at in range(4)
    ]
    modules = hierarchy(parsed(lines_of([("Net_0", "Net", [*blocks, ("Norm_8", "Norm", [])])])))
    assert [*dict.fromkeys(patterns(modules))] == [
        "Net_0",
        "Net_0.Block_*",
        "Net_0.Block_*.Norm_{0…6:2}",
        "Net_0.Block_*.Rotary_0",
        "Net_0.Block_*.Mlp_*",
        "Net_0.Block_*.Mlp_*.Fused_*",
        "Net_0.Block_*.Norm_{1…7:2}",
        "Net_0.Norm_8",
    ]


def test_shares_are_of_all_time_also_of_that_which_nobody_owns(parsed: Parse) -> None:
    dataset = parsed("range 1 0 10 {'Module': 'top', 'Inputs': [[1]]}\nop 1 2 4 x\nop 1 20 26 y")
    assert module_tree.frame(dataset).share.tolist() == [0.25]
    assert Counter(dataset.kernels().cause.dropna()) == {"outside_modules": 1}


def unlike(count: int) -> str:
    calls = [
        f'range 1 {at * 1000} {at * 1000 + 900} {{"Module": "top.m{at}", "Class": "C{at}", "Inputs": [[1]]}}\n'
        f"op 1 {at * 1000 + 1} {at * 1000 + 2 + at} aten::x"
        for at in range(count)
    ]
    around = f'range 1 0 {count * 1000} {{"Module": "top", "Inputs": [[1]]}}'
    return "\n".join([around, *calls])


def test_a_long_tree_is_cut_to_its_largest_lines_and_says_how_many_more_there_are(parsed: Parse) -> None:
    dataset = parsed(unlike(250))
    lines = text(dataset).splitlines()
    shown_ = [line.split()[0] for line in lines if line.lstrip().startswith("m")][1:]
    assert shown_ == [f"m{at}" for at in range(51, 250)]
    assert lines[-1].strip() == "51 more lines: --top 251 or --json shows all"
    least = command("show", "tree", dataset.folder, "--path", "top.m7").out
    assert "more lines" not in least
    assert len(json.loads(command("show", "tree", dataset.folder, "--json").out)) == 251
    every = command("show", "tree", dataset.folder, "--top", 251).out
    assert all(f" m{at} " in every for at in range(250))
    assert "more lines" not in every


SORTED = """
range 1    0 1000 {'Module': 'top', 'Inputs': [[1]]}
range 1   10  200 {'Module': 'top.b', 'Inputs': [[1]]}
op    1   20   30 aten::x
range 1  210  400 {'Module': 'top.c', 'Inputs': [[1]]}
op    1  220  290 aten::x
range 1  410  600 {'Module': 'top.a', 'Inputs': [[1]]}
range 1  420  500 {'Module': 'top.a.x', 'Inputs': [[1]]}
op    1  430  490 aten::x
range 1  610  620 {'Module': 'top.b', 'Inputs': [[1]]}
range 1  700  990 {'Module': 'top.l.0', 'Class': 'L', 'Inputs': [[1]]}
op    1  710  716 aten::x
range 1  991  999 {'Module': 'top.l.1', 'Class': 'L', 'Inputs': [[1]]}
op    1  992  994 aten::x
"""


@pytest.mark.parametrize(
    ("heading", "order"),
    [
        ("subtree", "c a b l"),
        ("CPU share", "c a b l"),
        ("GPU share", "c a b l"),
        ("self", "c b a l"),
        ("calls", "b c a l"),
        ("median", "c a b l"),
        ("module", "a b c l"),
    ],
)
def test_siblings_are_sorted_by_every_heading_that_the_tree_shows(parsed: Parse, heading: str, order: str) -> None:
    said = command("show", "tree", parsed(SORTED).folder, "--sort", heading, "--json")
    rows = json.loads(said.out)
    assert [row["label"] for row in rows if row["depth"] == 1] == order.split()
    below = [row["path"] for row in rows]
    assert below[below.index("top.a") + 1] == "top.a.x"
