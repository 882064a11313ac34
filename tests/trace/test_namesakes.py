"""Different modules under one path: told apart where their markers contradict each other, else counted."""

from collections import Counter
from pathlib import Path

import pytest

from tests.golden import Golden, Parse, expect, losses
from tests.joined import joined_here
from tests.trace_lines import report
from tracekit.answers import roofline


def linear(thread: str, at: int, size: int, path: str = "top") -> str:
    param = f'{{"weight": {{"shape": [{size}, {size}], "dtype": "float16"}}}}'
    said = f'"Class": "Linear", "TrainableParams": {param}, "Inputs": [[1, {size}]]'
    number = at // 10 + 1
    return f"""
        range  {thread} {at} {at + 50} {{"Module": "{path}", {said}, "Types": ["float16 cuda:0"]}}
        launch {thread} {at + 10} {at + 20} #{number}
        kernel {thread} {at + 60} {at + 60 + size} #{number} gemm{size}
    """


#: Draft and target, hooked with one prefix, in turn; their roots and norms are alike, their heads are not.
INTERLEAVED = "\n".join(
    f"""
    range  1 {at} {at + 90} {{'Module': 'top', 'Inputs': [[4]]}}
    range  1 {at + 10} {at + 20} {{'Module': 'top.norm', 'TrainableParams': {{'weight': [8]}}}}
    launch 1 {at + 11} {at + 12} #{at + 1}
    kernel 1 {at + 500} {at + 500 + size} #{at + 1} norm{size}
    range  1 {at + 30} {at + 80} {{'Module': 'top.head', 'TrainableParams': {{'weight': [{size}, 8]}}}}
    """
    for at, size in ((0, 16), (1000, 32), (2000, 16), (3000, 32))
)


def test_modules_that_are_alike_in_two_models_go_with_their_own_root(parsed: Parse) -> None:
    dataset = parsed(INTERLEAVED)
    expect(dataset, "modules")("""
        module_id  subtree_end_id  parent_id  depth  path        alias_of
        0          3               -          0      top         -
        1          2               0          1      top.norm    -
        2          3               0          1      top.head    -
        3          6               -          0      top~2       top
        4          5               3          1      top~2.norm  top.norm
        5          6               3          1      top~2.head  top.head
    """)
    assert dataset.subtree("top~2").kernels()["name"].tolist() == ["norm32", "norm32"]


def test_a_call_that_may_be_of_either_model_is_of_none_and_counted_and_a_layer_by_itself_is_of_its_own(
    parsed: Parse,
) -> None:
    """As activation checkpointing calls it, on the thread of the backward pass."""
    dataset = parsed(f"""{INTERLEAVED}
        range  1 8000 8090 {{'Module': 'top', 'Inputs': [[4]]}}
        range  1 8010 8020 {{'Module': 'top.norm', 'TrainableParams': {{'weight': [8]}}}}
        run    1 8011 8012 whose
        range  2 8100 8110 {{'Module': 'top.head', 'TrainableParams': {{'weight': [32, 8]}}}}
        run    2 8101 8102 again
        range  2 9000 9010 {{'Module': 'top.norm', 'TrainableParams': {{'weight': [8]}}}}
        run    2 9001 9002 whose, too
    """)
    kernels = dataset.kernels().set_index("name")
    assert kernels.module["again"] == "top~2.head"
    unclear = kernels.loc[["whose", "whose, too"], ["module", "call_id", "cause"]]
    assert (
        unclear.astype(object).where(unclear.notna(), None).to_numpy().tolist() == [[None, None, "module_unclear"]] * 2
    )
    assert dataset.table("calls").num_rows == 13
    assert losses(dataset) == {"module_unclear": 3, "steps_unclear": 5}
    (advice,) = dataset.coverage().query("cause == 'module_unclear'").advice.unique()
    assert advice.startswith("give each model its own prefix when marking it; ")


def test_parts_called_by_themselves_that_fit_two_models_do_not_make_them_one(parsed: Parse) -> None:
    dataset = parsed("""
        range 1   0  90 {'Module': 'top', 'TrainableParams': {'weight': [4]}}
        range 1  10  80 {'Module': 'top.part', 'TrainableParams': {'weight': [8]}}
        range 1 100 190 {'Module': 'top', 'TrainableParams': {'weight': [6]}}
        range 1 200 290 {'Module': 'top.part', 'TrainableParams': {'weight': [16]}}
        range 1 300 390 {'Module': 'top.part', 'TrainableParams': {'weight': [8]}}
        range 1 400 490 {'Module': 'top', 'TrainableParams': {'weight': [4]}}
    """)
    expect(dataset, "calls")("module    start_ns\ntop       0\ntop.part  10")
    assert losses(dataset)["module_unclear"] == 4


def test_two_modules_of_one_path_in_one_call_are_told_apart_below_it(golden: Golden) -> None:
    dataset = golden("""
        range  1   0 400 {'Module': 'top'}
        range  1  10  90 {'Module': 'top.a'}
        range  1  20  80 {'Module': 'top.a.w', 'TrainableParams': {'weight': [8]}}
        range  1 110 190 {'Module': 'top.a'}
        range  1 120 180 {'Module': 'top.a.w', 'TrainableParams': {'weight': [16]}}
        range  1 210 290 {'Module': 'top.a'}
        range  1 220 280 {'Module': 'top.a.w', 'TrainableParams': {'weight': [8]}}
        range  1 310 390 {'Module': 'top.b'}
        => modules
        path       alias_of
        top        -
        top.a      -
        top.a.w    -
        top.a~2    top.a
        top.a~2.w  top.a.w
        top.b      -
    """)
    called = Counter(dataset.table("calls").column("module").to_pylist())
    assert called == Counter(["top", "top.a", "top.a", "top.a.w", "top.a.w", "top.a~2", "top.a~2.w", "top.b"])


def test_a_module_that_took_the_place_of_another_is_apart_where_it_stands(golden: Golden) -> None:
    """Hooks that name the class name each root apart, so the module above is the same."""
    dataset = golden("""
        range  1   0  90 {'Module': 'Net', 'Class': 'Net'}
        range  1  10  40 {'Module': 'Net.body', 'Class': 'Body'}
        range  1  50  80 {'Module': 'Net.head', 'Class': 'Linear', 'TrainableParams': {'weight': [4, 8]}}
        range  1 100 190 {'Module': 'Net', 'Class': 'Net'}
        range  1 110 140 {'Module': 'Net.body', 'Class': 'Body'}
        range  1 150 180 {'Module': 'Net.head', 'Class': 'Sequential'}
        range  1 160 170 {'Module': 'Net.head.0', 'Class': 'Linear', 'TrainableParams': {'weight': [2, 8]}}
        range  1 200 210 {'Module': 'Net.body', 'Class': 'Body'}
        => modules
        path          class_name  alias_of
        Net           Net         -
        Net.body      Body        -
        Net.head      Linear      -
        Net.head~2    Sequential  Net.head
        Net.head~2.0  Linear      Net.head.0
    """)
    assert Counter(dataset.table("calls").column("module").to_pylist())["Net.body"] == 3


def test_a_number_that_tells_modules_apart_is_no_other_module_s_name(golden: Golden) -> None:
    golden("""
        range 1   0  10 {'Module': 'top', 'Class': 'A'}
        range 1  20  30 {'Module': 'top~2', 'Class': 'C'}
        range 1  40  50 {'Module': 'top', 'Class': 'B'}
        => modules
        path   class_name  alias_of
        top    A           -
        top~2  C           -
        top~3  B           top
    """)


@pytest.mark.parametrize(
    "other",
    [
        "{'Module': 'top', 'Inputs': [[9]]}",
        "top in=[[9]]",
        '{"Module": "top", "Class": "Net", "Phase": "backward"}',
        "{'Module': 'top', 'TrainableParams': {'weight': [4, 8]}, 'Inputs': [[9]]}",
        "{'Module': 'top', 'TrainableParams': {'weight': [0]}}",
        "{'Module': 'top', 'TrainableParams': {'weight': ['s0', 8]}}",
        "{'Module': 'top', 'TrainableParams': {'weight': [4, 8], 'bias': 'big'}}",
    ],
)
def test_a_marker_that_says_less_or_other_shapes_is_of_no_other_module(parsed: Parse, other: str) -> None:
    said = '{"Module": "top", "Class": "Net", "TrainableParams": {"weight": [4, 8]}, "Inputs": [[1]]}'
    dataset = parsed(f"range 1 0 10 {said}\nrange 1 20 30 {other}\nrange 1 40 50 {said}")
    (module,) = dataset.table("modules").to_pylist()
    assert (module["path"], module["class_name"], module["alias_of"]) == ("top", "Net", None)
    assert "modules_differ" not in losses(dataset)


def test_what_a_later_marker_says_of_a_module_is_known_of_it(parsed: Parse) -> None:
    dataset = parsed("range 1 0 9 top in=[[8]]\nrange 1 20 30 {'Module': 'top', 'Class': 'Net'}")
    expect(dataset, "modules")("path  class_name\ntop  Net")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("'Class': 'A'", "'Class': 'B'"),
        ("'StaticParams': {'stride': 1}", "'StaticParams': {'stride': 2}"),
        ("'TrainableParams': {'w': [8]}", "'TrainableParams': {'w': [8], 'b': [8]}"),
        ("'TrainableParams': {'w': [8]}", "'TrainableParams': {'w': [8, 1]}"),
    ],
)
def test_class_settings_and_parameters_tell_modules_apart(parsed: Parse, one: str, other: str) -> None:
    dataset = parsed(f"range 1 0 10 {{'Module': 'm', {one}}}\nrange 1 20 30 {{'Module': 'm', {other}}}")
    assert dataset.table("modules").column("path").to_pylist() == ["m", "m~2"]


@pytest.mark.parametrize(
    ("sizes", "known"),
    [
        (["{'shape': [8], 'dtype': 'float32'}", "{'shape': [8], 'dtype': 'bfloat16'}"], [8]),  # cast
        ([f"[2, {at}]" for at in range(10, 1000, 10)], [2, None]),  # a cache that grows with every call
    ],
)
def test_of_a_parameter_that_changes_what_differs_is_null_and_counted(
    parsed: Parse, sizes: list[str], known: list[int | None]
) -> None:
    calls = (
        f"range 1 {10 * at} {10 * at + 5} {{'Module': 'm', 'TrainableParams': {{'w': {size}}}}}"
        for at, size in enumerate(sizes)
    )
    dataset = parsed("\n".join(calls))
    expect(dataset, "modules")(f"path  params\nm  [{{'name': 'w', 'shape': {known}, 'dtype': None}}]")
    assert losses(dataset) == {"modules_differ": 1}


def test_modules_that_end_up_at_one_place_give_it_no_figures_of_one_of_them(parsed: Parse) -> None:
    """Their markers name different modules, which have no paths of their own here."""
    dataset = parsed(f"""
        range 1 0 900 {{'Module': 'runner'}}
        {linear("1", 100, 32, "draft.mlp")}
        {linear("1", 300, 512, "target.mlp")}
    """)
    expect(dataset, "modules")("""
        path        alias_of   params
        runner      -          []
        runner.mlp  draft.mlp  [{'name': 'weight', 'shape': [None, None], 'dtype': 'float16'}]
    """)
    assert losses(dataset) == {"module_unclear": 1, "modules_differ": 1}
    figures = roofline.frame(dataset).set_index("path").loc["runner.mlp"]
    assert figures[["flops", "bytes"]].isna().all()


def test_shards_of_one_module_on_two_ranks_are_one_module_without_the_size_that_differs(parsed: Parse) -> None:
    one, other = (
        f"range {process}/1 {at} {at + 10} {{'Module': 'm', 'TrainableParams': {{'w': [{size}, 64]}}}}"
        for process, at, size in ((1, 0, 30), (2, 20, 34))
    )
    dataset = parsed(f"{one}\n{other}")
    expect(dataset, "modules")("path  params\nm  [{'name': 'w', 'shape': [None, 64], 'dtype': None}]")
    assert losses(dataset) == {"modules_differ": 1}


def test_two_models_of_one_prefix_are_the_same_two_on_every_rank(parsed: Parse) -> None:
    """Whichever of them a rank calls first."""
    called = ("1/1", 0, 32), ("1/1", 1000, 512), ("2/1", 500, 512), ("2/1", 1500, 32), ("3/1", 2500, 512)
    calls = parsed("".join(linear(*call) for call in called)).calls()
    assert calls[calls.module == "top"].start_ns.tolist() == [0, 1500]
    assert calls[calls.module == "top~2"].start_ns.tolist() == [500, 1000, 2500]


def test_two_models_of_one_prefix_are_the_same_two_in_every_report(tmp_path: Path) -> None:
    """In whatever order the reports are given, and whichever a report calls first."""
    small, large = linear("1", 0, 32), linear("1", 0, 512)
    lines = [small + linear("1", 1000, 512), large + linear("1", 1000, 32), large]
    paths = [report(tmp_path / f"rank{at}.sqlite", text) for at, text in enumerate(lines)]
    answers = []
    for number, order in enumerate((paths, paths[::-1])):
        dataset = joined_here(order, tmp_path / f"run{number}")
        work = dataset.table("kernels").to_pylist()
        modules = dataset.table("modules").to_pylist()
        names = {row["path"]: f"gemm{row['params'][0]['shape'][0]}" for row in modules}
        assert [row["name"] for row in work] == [names[row["module"]] for row in work]
        assert [modules[row["module_id"]]["path"] for row in work] == [row["module"] for row in work]
        assert [row["alias_of"] for row in modules] == [None, "top"]
        answers.append(sorted((row["report"], row["name"], row["module"]) for row in work))
        flops = roofline.frame(dataset).set_index("path")["flops"].to_dict()
        assert flops == {path: 2048 * 2 if name == "gemm32" else 524288 * 3 for path, name in names.items()}
    assert answers[0] == answers[1]


def test_a_report_that_does_not_say_which_of_two_models_it_ran_has_a_row_of_its_own(tmp_path: Path) -> None:
    lines = [linear("1", 0, 32) + linear("1", 1000, 512), "range 1 0 10 top in=[[1, 32]]"]
    paths = [report(tmp_path / f"rank{at}.sqlite", text) for at, text in enumerate(lines)]
    dataset = joined_here(paths, tmp_path / "run")
    whose = [row["module"] for row in dataset.table("calls").to_pylist() if row["report"] == "rank1"]
    rows = {row["path"]: row for row in dataset.table("modules").to_pylist()}
    assert len(rows) == 3
    assert (rows[whose[0]]["class_name"], rows[whose[0]]["params"]) == (None, [])
    assert losses(dataset) == {"modules_differ": 1, "steps_unclear": 2}
