"""Golden tests of modules that are known by class and number: where they stand."""

from pathlib import Path

from tests.golden import Golden, Parse, expect
from tests.joined import joined_here
from tests.trace_lines import report


def test_a_module_that_is_also_called_from_outside_belongs_to_the_only_module_that_calls_it(golden: Golden) -> None:
    golden("""
        range  1   0  20 nn.Module: Encoder_0
        range  1   5  10 nn.Module: Linear_0
        range  1  30  90 nn.Module: Net_0
        range  1  40  60 nn.Module: Encoder_0
        range  1  45  50 nn.Module: Linear_0
        range  1 100 110 nn.Module: Linear_0
        => modules
        path                      class_name  alias_of
        Net_0                     Net         -
        Net_0.Encoder_0           Encoder     -
        Net_0.Encoder_0.Linear_0  Linear      -
    """)


def test_a_module_that_several_modules_call_stands_where_it_ran_and_names_its_first_place(golden: Golden) -> None:
    golden("""
        range  1   0 100 nn.Module: Net_0
        range  1  10  20 nn.Module: Linear_0
        range  1  30  50 nn.Module: Block_0
        range  1  35  40 nn.Module: Linear_0
        range  1 200 210 nn.Module: Linear_0
        => modules
        path                    alias_of
        Net_0                   -
        Net_0.Linear_0          -
        Net_0.Block_0           -
        Net_0.Block_0.Linear_0  Net_0.Linear_0
        Linear_0                Net_0.Linear_0
    """)


def test_numbers_are_those_of_one_process(parsed: Parse) -> None:
    dataset = parsed("""
        range 1/1   0 100 nn.Module: Net_0
        range 1/1  10  20 nn.Module: Linear_0
        range 2/1   0 100 nn.Module: Linear_0
    """)
    expect(dataset, "modules")("path  alias_of\nNet_0  -\nNet_0.Linear_0  -\nLinear_0  -")


def test_traces_that_call_modules_in_another_order_share_no_row_but_that_of_the_only_root(tmp_path: Path) -> None:
    """Each trace numbers modules in the order of their first calls; only equal orders are of the same modules."""
    orders = ("Linear_0 ReLU_0 Linear_1", "Linear_0 GELU_0", "Linear_0 ReLU_0 Linear_1", "Linear_0 Linear_1 ReLU_0")
    paths = []
    for at, order in enumerate(orders):
        calls = [f"range 1 {10 * n} {10 * n + 5} nn.Module: {name}" for n, name in enumerate(order.split(), 1)]
        paths.append(report(tmp_path / f"{at}.sqlite", "\n".join(["range 1 0 100 nn.Module: Net_0", *calls])))
    dataset = joined_here(paths, tmp_path / "run")
    rows: dict[str, set[str]] = {}
    for row in dataset.table("calls", ["module", "report"]).to_pylist():
        rows.setdefault(row["module"], set()).add(row["report"])
    below = [sorted(reports) for path, reports in rows.items() if "Linear" in path]
    assert len(rows["Net_0"]) == len(paths)
    assert sorted(map(len, below)) == [1, 1, 1, 2, 2]
    assert {path for path in rows if "Linear" in path} == {f"Net_0.Linear_{number}" for number in range(5)}
