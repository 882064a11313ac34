"""A question asked of every report by itself."""

from pathlib import Path

import pandas as pd
import pytest

import tracekit
from tests.answers.test_fusions import KERNELS, recorded
from tests.joined import joined_here
from tests.readers.kineto.traces import event, kernel, launch, trace
from tests.simulator import eventful, simulate, write_report
from tests.simulator.ranks import Job, reports, simulated
from tests.sqlite import writing
from tests.trace_lines import report
from tracekit.answers import ANALYSES, Analysis, coverage, kernels, modules, side_by_side, stragglers, tree
from tracekit.dataset.opening import Dataset
from tracekit.errors import UsageError
from tracekit.views import summary
from tracekit.views.formatting import records

#: Only questions that can be asked of one report.
OF_ONE = [analysis for analysis in ANALYSES if not getattr(analysis, "COMPARES_REPORTS", False)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return reports(simulated(Job(seed=1, steps=6)), tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def several(ranks: list[Path]) -> Dataset:
    return joined_here(ranks[::-1], ranks[0].with_name("run.tracekit"))


@pytest.fixture(scope="module")
def alone(ranks: list[Path]) -> dict[str, Dataset]:
    return {path.stem: tracekit.parse(path, path.with_suffix(".tracekit")) for path in ranks[1:3]}


def comparable(frame: pd.DataFrame) -> list[str]:
    kept = frame.drop(columns=["report", "rank", "step_id", "evidence"], errors="ignore")
    return sorted(str(row) for row in records(kept))


@pytest.mark.parametrize("analysis", OF_ONE, ids=lambda analysis: analysis.NAME)
def test_each_report_among_several_answers_as_its_own_dataset_does(
    several: Dataset, alone: dict[str, Dataset], analysis: Analysis
) -> None:
    whole = side_by_side.frame(several, analysis, "report")
    for name, dataset in alone.items():
        assert comparable(whole[whole["report"] == name]) == comparable(analysis.frame(dataset))


def test_rows_about_the_same_thing_follow_one_another_by_rank(several: Dataset) -> None:
    answer = side_by_side.frame(several, tree, "rank")
    assert answer["rank"].tolist()[:8] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert answer["path"].tolist()[:8] == ["net"] * 4 + [answer["path"][4]] * 4


@pytest.mark.parametrize("known", [True, False])
def test_traces_of_the_cycles_of_one_process_are_one_process_and_one_rank(*, tmp_path: Path, known: bool) -> None:
    paths = []
    for at, pid in enumerate((100, 101, 100, 101)):
        rows = [event("python_function", "nn.Module: Net_0", 10, 100), launch(20, 1)]
        ranked = {"distributedInfo": {"rank": pid - 100}} if known else {}
        base = 1_700_000_000_000_000_000 + at // 2 * 10_000_000
        rows = [row | {"pid": pid, "tid": pid} for row in rows] + [kernel(50, 1)]
        paths.append(trace(tmp_path / f"{at}.json", *rows, baseTimeNanoseconds=base, **ranked))
    dataset = joined_here(paths, tmp_path / "run.tracekit")
    answer = side_by_side.frame(dataset, modules, "rank")
    assert answer["rank"].tolist() == ([0, 1] if known else [pd.NA, pd.NA])
    assert answer["calls"].tolist() == [2, 2]
    assert " in 2 processes" in str(summary.as_text(dataset).renderables[0])


def lines_of_rank(rank: int) -> str:
    return f"""
        range    {rank}/1  0   200 rank{rank}
        range    {rank}/1  10  100 ProfilerStep#{rank}
        range    {rank}/1  10  90  {{'Module': 'top'}}
        range    {rank}/1  20  60  {{'Module': 'top.a', 'Inputs': [[{rank}]]}}
        launch   {rank}/1  30  31  #1
        kernel+7 {rank}/1  32  {40 + rank}  #1 gemm
        launch   {rank}/1  50  60  #2 cudaStreamSynchronize stream=7
        launch   {rank}/1  70  71  #3
        memcpy   {rank}/1  72  80  #3 4096
    """


@pytest.fixture(scope="module")
def ranks_alone_and_together(tmp_path_factory: pytest.TempPathFactory) -> list[Dataset]:
    """Reports of ranks 1 and 2, and one of both."""
    folder = tmp_path_factory.mktemp("ranks")
    return [
        tracekit.parse(report(folder / f"{name}.sqlite", "\n".join(map(lines_of_rank, ranks))), scheduler="here")
        for name, ranks in (("one", (1,)), ("other", (2,)), ("both", (1, 2)))
    ]


@pytest.mark.parametrize("analysis", [one for one in OF_ONE if one is not coverage], ids=lambda one: one.NAME)
def test_a_rank_of_a_report_of_several_has_the_rows_of_a_report_of_its_own(
    analysis: Analysis, ranks_alone_and_together: list[Dataset]
) -> None:
    *alone, node = ranks_alone_and_together
    answer = side_by_side.frame(node, analysis, "rank")
    for rank, own in enumerate(alone, 1):
        assert comparable(answer[answer["rank"] == rank]) == comparable(analysis.frame(own))


def test_ranks_of_several_reports_of_several_ranks_follow_one_another(tmp_path: Path) -> None:
    files = [
        report(tmp_path / f"{name}.sqlite", "\n".join(map(lines_of_rank, ranks)))
        for name, ranks in (("a", (3, 4)), ("b", (1, 2)), ("c", (5,)))
    ]
    answer = side_by_side.frame(joined_here(files, tmp_path / "run.tracekit"), kernels, "rank")
    gemms = answer[answer["name"] == "gemm"]
    assert gemms["rank"].tolist() == [1, 2, 3, 4, 5]
    assert gemms["report"].tolist() == ["b", "b", "a", "a", "c"]
    assert gemms["gpu_time_ns"].tolist() == [9, 10, 11, 12, 13]


def test_ranks_that_do_not_work_in_a_module_have_no_rows_there(tmp_path: Path) -> None:
    lines = "\n".join(f"range {rank}/1 0 9 rank{rank}\nrange {rank}/1 1 8 {{'Module': 'top'}}" for rank in (1, 2))
    node = tracekit.parse(report(tmp_path / "node.sqlite", lines), scheduler="here")
    assert side_by_side.frame(node.subtree("top"), kernels, "rank").empty


def test_coverage_is_not_divided_by_ranks_of_one_report(ranks_alone_and_together: list[Dataset]) -> None:
    with pytest.raises(UsageError, match="coverage is not divided by processes"):
        side_by_side.frame(ranks_alone_and_together[-1], coverage, "rank")


def on_host(path: Path, *names: str) -> Path:
    with writing(path) as db:
        db.execute("CREATE TABLE IF NOT EXISTS TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, name TEXT, value TEXT)")
        db.executemany("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, 'Hostname', ?)", [(name,) for name in names])
    return path


def test_reports_of_one_host_are_asked_together_and_those_of_unknown_hosts_last(tmp_path: Path) -> None:
    hosts = [(), ("node2",), ("node1", "node1"), ("node2",), ("node1", "node2")]
    files = [
        on_host(write_report(simulate(eventful(4, actions=20)), tmp_path / f"r{at}.sqlite"), *names)
        for at, names in enumerate(hosts)
    ]
    dataset = joined_here(files, tmp_path / "run.tracekit")
    told = [entry["source"]["host"] for entry in dataset.manifest["reports"]]
    assert told == [None, "node2", "node1", "node2", None]
    for analysis in (coverage, kernels, tree):
        whole = side_by_side.frame(dataset, analysis, "host").astype({"host": object})
        for host, names in {"node1": ["r2"], "node2": ["r1", "r3"], None: ["r0", "r4"]}.items():
            own = whole[whole["host"].isna() if host is None else whole["host"] == host]
            expected = analysis.frame(dataset.of_reports(*names))
            assert comparable(own.drop(columns="host")) == comparable(expected), analysis.NAME
    kernels_of = side_by_side.frame(dataset, kernels, "host")
    assert kernels_of["host"].tolist()[:3] == ["node1", "node2", None]
    one = joined_here(files[1:2], tmp_path / "one.tracekit")
    assert set(side_by_side.frame(one, kernels, "host")["host"]) == {"node2"}


def test_rows_about_the_same_thing_follow_one_another_also_where_only_one_report_has_a_text(tmp_path: Path) -> None:
    work = "launch 1 200 210 #99\nkernel 1 3000 3040 #99 gemm"
    recorded(tmp_path, KERNELS, work)
    paths = [tmp_path / "a.sqlite", report(tmp_path / "b.sqlite", work)]
    answer = side_by_side.frame(joined_here(paths, tmp_path / "run"), kernels, "report")
    same = answer[answer.name == "gemm"]
    assert same.report.tolist() == ["a", "b"]
    assert same.index.tolist() == [same.index[0], same.index[0] + 1]
    assert [*same.module, *same.serves] == [None] * 4


def test_what_compares_reports_is_not_asked_of_one(several: Dataset) -> None:
    with pytest.raises(UsageError, match="compares reports itself"):
        side_by_side.frame(several, stragglers, "report")


def test_many_ranks_are_a_row_for_each_thing_with_the_rank_that_is_furthest_out(tmp_path: Path) -> None:
    files = reports(simulated(Job(seed=1, steps=6, slow={2: 300_000})), tmp_path)
    dataset = joined_here(files, tmp_path / "run.tracekit")
    whole = side_by_side.frame(dataset, tree, "rank")
    answer = side_by_side.summary(whole, "rank", tree.ANSWER)
    assert answer["path"].is_unique
    for row in answer.itertuples():
        values = {one.rank: one.subtree_ns for one in whole[whole["path"] == row.path].itertuples()}
        middle = sorted(values.values())[1:3]
        assert (row.least_ns, row.most_ns) == (min(values.values()), max(values.values()))
        assert row.median_subtree_ns == sum(middle) / 2
        far = {rank: abs(value - sum(middle) / 2) for rank, value in values.items()}
        assert far[row.furthest_rank] == max(far.values())
    # What the slow rank does not wait in collectives, which are all of its work here.
    assert answer["furthest_rank"][0] == 2
    alone = side_by_side.of_rank(dataset, 2)
    assert comparable(tree.frame(alone)) == comparable(whole[whole["rank"] == 2])


def test_stragglers_are_a_row_for_each_rank(tmp_path: Path) -> None:
    files = reports(simulated(Job(seed=1, steps=12, slow={2: 300_000})), tmp_path)
    answer = stragglers.frame(joined_here(files, tmp_path / "run.tracekit"))
    rows = stragglers.by_rank(answer)
    assert rows["waited_ns"].sum() == answer["waited_ns"].sum()
    assert rows["rank"][0] == 2
    own = answer[(answer["rank"] == 2).fillna(False)]
    assert rows["waited_ns"][0] == own["waited_ns"].sum()
    assert rows["first_step"][0] == own["step_index"].min()
    assert rows["path"][0] == own.iloc[0]["path"]
