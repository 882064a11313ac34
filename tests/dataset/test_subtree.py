"""One module's part of a dataset: what it holds, and that little else is read."""

import re

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tracekit
from tests.benchmarks.serving_report import with_waits, write_report
from tests.command import LINES
from tracekit.dataset.opening import Dataset
from tracekit.tables import TABLES

SPECS = {table.SPEC.name: table.SPEC for table in TABLES}
WITH_MODULES = [name for name, spec in SPECS.items() if "module_id" in spec.schema().names]
LAYER = "LlamaForCausalLM.model.layers.3"
PARTS = ["LlamaForCausalLM", f"{LAYER}.mlp", "LlamaForCausalLM.model.layers.*.mlp", "LlamaForCausalLM.*.*.1*"]
#: Paths of which one begins like another without being above it, and a step without its module.
ALIKE = """
range  1    0  100 ProfilerStep#1
range  1   10   40 {'Module': 'net.layers.1'}
launch 1   20   30 #1
kernel 1   50   60 #1
range  1  200  300 ProfilerStep#2
range  1  210  240 {'Module': 'net.layers.10'}
launch 1  220  230 #2
kernel 1  250  260 #2
range  1  250  280 {'Module': 'net.layers.1.mlp'}
launch 1  255  265 #3
kernel 1  270  290 #3
range  1  400  500 ProfilerStep#3
launch 1  410  420 #4
kernel 1  430  440 #4
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("served")
    return tracekit.parse(with_waits(write_report(folder / "report.sqlite", kernels=150_000)))


def below(dataset: Dataset, path: str) -> pa.Array:
    named = re.compile(re.escape(path).replace(r"\*", "[^.]*") + r"(\..*)?")
    modules = dataset.table("modules", ["module_id", "path"]).to_pylist()
    return pa.array([m["module_id"] for m in modules if named.fullmatch(m["path"])], pa.int32())


def plain(table: pa.Table) -> pa.Table:
    flat = [column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column for column in table.columns]
    return pa.table(flat, names=table.column_names).combine_chunks()


@pytest.mark.parametrize("path", PARTS)
@pytest.mark.parametrize("name", WITH_MODULES)
def test_a_subtree_is_what_filtering_by_paths_gives(name: str, path: str, served: Dataset) -> None:
    columns = [name for name in SPECS[name].schema().names if name not in ("kwargs", "params")]
    whole = served.table(name, columns)
    expected = whole.filter(pc.is_in(whole.column("module_id"), value_set=below(served, path)))
    assert 0 < expected.num_rows <= whole.num_rows
    part = served.subtree(path)
    assert plain(part.table(name, columns)).equals(plain(expected))
    assert plain(pa.concat_tables(part.pieces(name, columns))).equals(plain(expected))


@pytest.mark.parametrize(
    ("path", "kernels", "steps"),
    [
        ("net", [0, 1, 2], "12"),
        ("net.layers.1", [0, 2], "12"),
        ("net.layers.10", [1], "2"),
        ("net.layers.1.mlp", [2], "2"),
    ],
)
def test_a_subtree_does_not_take_its_namesakes(path: str, kernels: list[int], steps: str, parsed) -> None:
    dataset = parsed(ALIKE)
    part = dataset.subtree(path)
    assert sorted(part.table("kernels", ["kernel_id"]).column(0).to_pylist()) == kernels
    assert part.table("kernel_modules", ["kernel_id"]).column(0).to_pylist() == kernels
    assert part.table("steps", ["name"]).column(0).to_pylist() == [f"ProfilerStep#{at}" for at in steps]
    assert dataset.table("steps").num_rows == 3


@pytest.mark.parametrize("name", ["kernels", "calls"])
def test_a_subtree_reads_only_the_row_groups_that_can_hold_it(name, served, monkeypatch) -> None:
    read: list[int] = []
    original = pq.ParquetFile.read_row_groups

    def counting(file: pq.ParquetFile, groups: list[int], *args: object, **named: object) -> pa.Table:
        read.extend(groups)
        return original(file, groups, *args, **named)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counting)
    there = pq.read_metadata(served.folder / f"{name}.parquet").num_row_groups
    part = served.subtree(LAYER)
    read.clear()
    assert part.table(name, ["module"]).num_rows
    assert there > 1
    assert 1 <= len(read) < there


def test_a_subtree_knows_no_coverage_and_no_module_that_is_not_there(parsed) -> None:
    small = parsed(LINES)
    with pytest.raises(tracekit.UsageError, match="coverage is not divided by modules; ask the whole dataset for it"):
        small.subtree("top").coverage()
    for path, remedy in {
        "top.b": r"did you mean top.a\?",
        "to": r"did you mean top\?",
        "": "tracekit show modules lists the paths",
        "elsewhere": "tracekit show modules lists the paths",
    }.items():
        with pytest.raises(tracekit.DatasetError, match=f"has no module {path}; {remedy}$"):
            small.subtree(path)


def test_a_module_without_work_has_empty_tables(parsed) -> None:
    part = parsed("range 1 0 9 {'Module': 'a'}\nlaunch 1 20 21 #1\nkernel 1 30 31 #1").subtree("a")
    assert part.table("kernels").num_rows == part.table("kernel_modules").num_rows == 0
    assert len(part.calls()) == len(part.modules()) == 1
