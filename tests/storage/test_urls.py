"""Reports and datasets at URLs, over HTTP: a real server of S3's language, and one that only gives files away."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, strategies as st

import tracekit
from tests.command import command, contents, refusal, separately
from tests.engines.clusters import dask_cluster
from tests.joined import BY_REPORT
from tests.pipeline.test_several_reports import RANKS
from tests.storage.servers import KEYS, file_server, runs_bucket, s3_server
from tests.trace_lines import report
from tracekit.dataset import opening
from tracekit.storage.locations import in_order

s3fs = pytest.importorskip("s3fs", reason="the extra s3 is not installed")
pytest.importorskip("moto", reason="moto[s3], which the extra test brings, is not installed")

TABLES = ("modules", *BY_REPORT)
RUN = "s3://runs/run.tracekit"


class Store(NamedTuple):
    """A bucket named ``runs``, and the log of the requests that were made to it."""

    files: s3fs.S3FileSystem
    log: Path

    def names(self, folder: str) -> list[str]:
        return [name.removeprefix(f"{folder}/") for name in self.files.find(folder)]

    def requests(self) -> int:
        return sum("HTTP/1.1" in line for line in self.log.read_text("utf-8").splitlines())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    log = tmp_path_factory.mktemp("s3") / "log"
    with s3_server(log) as address:
        yield address, log


@pytest.fixture
def store(server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    address, log = server
    with runs_bucket(address, monkeypatch) as files:
        yield Store(files, log)


@pytest.fixture
def ranks(tmp_path: Path) -> list[Path]:
    return [report(tmp_path / f"rank{at}.sqlite", lines) for at, lines in enumerate(RANKS)]


@pytest.fixture
def uploaded(store: Store, ranks: list[Path]) -> str:
    for path in ranks:
        store.files.put_file(str(path), f"runs/job/{path.name}")
    return "s3://runs/job/*.sqlite"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert contents(folder) == {}


def check_equal(one: Any, other: Any) -> None:
    for table in TABLES:
        assert one.table(table).equals(other.table(table)), table


def test_a_dataset_in_a_bucket_has_the_rows_of_one_here(store: Store, ranks: list[Path], tmp_path: Path) -> None:
    for number, reports in enumerate((ranks, ranks[0])):
        here = tracekit.parse(reports, tmp_path / f"here{number}")
        there = tracekit.parse(reports, f"s3://runs/{number}.tracekit")
        check_equal(there, here)
        assert str(there.folder) == f"s3://runs/{number}.tracekit"
        mlp, net = there.subtree("net.mlp"), here.subtree("net.mlp")
        assert mlp.table("kernels").equals(net.table("kernels"))
        assert [piece.num_rows for piece in there.pieces("kernels")] == [p.num_rows for p in here.pieces("kernels")]


def test_only_the_columns_that_are_asked_for_are_fetched(store: Store, ranks: list[Path]) -> None:
    tracekit.parse(ranks, RUN)
    before = store.requests()
    tracekit.load(RUN).table("kernels", ["dur_ns"])
    assert store.requests() - before <= 3 + 2 * len(ranks), "manifest, list of files; of each its end and the column"


def test_commands_take_urls(store: Store, uploaded: str) -> None:
    assert f"tracekit show tree {RUN}" in command("parse", uploaded, "-o", RUN).out
    assert "net" in separately("show", "tree", RUN).out


def test_a_cluster_makes_of_reports_in_a_bucket_what_processes_here_make_of_files(server, uploaded, ranks, tmp_path):
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    workers = tmp_path / "workers"
    workers.mkdir()
    with dask_cluster(workers, **KEYS, AWS_ENDPOINT_URL=server[0]) as scheduler:
        parsed = separately("parse", uploaded, "-o", RUN, "--scheduler", scheduler, "--quiet")
        assert not [*workers.rglob("tracekit-*")]
    assert parsed == (0, "", "")
    there, here = tracekit.load(RUN), tracekit.parse(ranks, tmp_path / "here")
    check_equal(there, here)
    assert there.manifest["table_ids"] == here.manifest["table_ids"]


def test_a_dataset_in_a_bucket_is_replaced_only_by_force_and_nothing_of_it_stays(store, ranks) -> None:
    tracekit.parse(ranks, RUN)
    line = refusal(command("parse", ranks[0], "-o", RUN), RUN)
    assert "already exists; replace it with --force" in line
    one = tracekit.parse(ranks[0], RUN, force=True)
    assert len(one.kernels()) == 2
    assert len(store.names("runs/run.tracekit")) == 1 + len(TABLES)


@pytest.mark.parametrize("lost_at", [0, 5, 19])
def test_a_connection_that_is_lost_leaves_no_half_of_a_dataset(lost_at, store, ranks, monkeypatch) -> None:
    tracekit.parse(ranks, RUN)
    put_file, waiting = s3fs.S3FileSystem._put_file, iter(range(lost_at))

    async def put_until_lost(*given: Any, **asked: Any) -> None:
        if next(waiting, None) is None:
            raise ConnectionResetError("Connection reset by peer")
        await put_file(*given, **asked)

    monkeypatch.setattr(s3fs.S3FileSystem, "_put_file", put_until_lost)
    s3fs.S3FileSystem.clear_instance_cache()  # each instance has methods of its own
    with pytest.raises(tracekit.DatasetError, match="cannot be reached"):
        tracekit.parse(ranks, RUN, force=True)
    assert store.names("runs/run.tracekit") == []
    monkeypatch.setattr(s3fs.S3FileSystem, "_put_file", put_file)
    s3fs.S3FileSystem.clear_instance_cache()
    assert tracekit.parse(ranks, RUN).reports == ["rank0", "rank1"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://runs/none.sqlite", "does not exist; check the path"),
        ("s3://nobody/none.sqlite", "its bucket does not exist; check the name of the bucket"),
        ("s3://runs/none*.sqlite", "matches nothing; check the pattern"),
        ("s3://runs/broken.sqlite", "is a text file"),
        ("http://127.0.0.1:1/none.sqlite", "cannot be reached"),
        ("s3://nobody/run", "its bucket does not exist"),
        ("s3://runs/job", "already exists and is not a dataset"),
    ],
)
def test_what_cannot_be_read_or_written_is_one_line(url, problem, store, uploaded, ranks, tmp_path) -> None:
    store.files.pipe_file("runs/broken.sqlite", b"no report")
    reads = ".sqlite" in url
    assert problem in refusal(
        command("parse", url if reads else ranks[0], "-o", tmp_path / "run" if reads else url), url
    )


def test_missing_credentials_and_nobody_who_answers_are_one_line_each(store, ranks, monkeypatch) -> None:
    url = "s3://runs/run"
    gone = separately("show", "tree", url, AWS_ENDPOINT_URL="http://127.0.0.1:1", AWS_MAX_ATTEMPTS="1")
    assert "cannot be reached" in refusal(gone, url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert "no valid credentials were found" in refusal(separately("show", "tree", url), url)


def test_nothing_is_written_by_http_and_a_report_at_a_url_needs_a_place(ranks: list[Path], tmp_path: Path) -> None:
    with file_server(tmp_path) as address, pytest.raises(tracekit.UsageError, match="nothing can be written by http"):
        tracekit.parse(ranks[1], f"{address}/run")
    with pytest.raises(tracekit.UsageError, match="name it with -o"):
        tracekit.parse("s3://runs/rank0.sqlite")


def test_a_url_that_nothing_knows_and_a_missing_extra_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(tracekit.UsageError, match="fsspec does not know nothing://"):
        tracekit.load("nothing://b/x")
    monkeypatch.setitem(sys.modules, "upath", None)
    for url, extra in (("s3://b/x", "s3"), ("https://h/x", "http")):
        with pytest.raises(tracekit.UsageError, match=f"needs the extra {extra}; install it with: pip install"):
            tracekit.load(url)


def test_file_urls_and_quoted_patterns_are_of_this_machine(ranks: list[Path], tmp_path: Path) -> None:
    at_url = tracekit.parse(ranks[0].as_uri(), (tmp_path / "one").as_uri())
    assert at_url.folder == tmp_path / "one"
    both = tracekit.parse(str(tmp_path / "rank?.sqlite"), tmp_path / "two")
    assert both.reports == ["rank0", "rank1"]


def test_reports_and_datasets_are_read_over_http(ranks: list[Path], tmp_path: Path) -> None:
    here = tracekit.parse(ranks[0], tmp_path / "here")
    with file_server(tmp_path) as address:
        there = tracekit.parse(f"{address}/rank0.sqlite?signature=1", tmp_path / "there")
        check_equal(there, here)
        assert there.manifest["source"] == here.manifest["source"]
        check_equal(tracekit.load(f"{address}/here"), here)


class AtUrl:
    """A place that bears several requests at once."""

    class fs:  # noqa: N801 - as the places of universal_pathlib call it
        async_impl = True


@given(items=st.lists(st.integers(-3, 50), max_size=60), taken=st.integers(0, 60))
@example(items=[*range(60)], taken=60)  # more than are asked for at once
def test_answers_come_in_order_and_the_first_error_is_that_of_one_after_the_other(items: list[int], taken: int) -> None:
    def asked(item: int) -> int:
        if item < 0:
            raise ValueError(item)
        return item * item

    def outcome(answers: Iterator[int]) -> tuple[list[int], str]:
        given: list[int] = []
        try:
            given.extend(answer for _, answer in zip(range(taken), answers, strict=False))
        except ValueError as error:
            return given, str(error)
        return given, ""

    assert outcome(in_order(asked, items, AtUrl())) == outcome(map(asked, items))  # type: ignore[arg-type]


def test_files_of_many_reports_are_opened_and_read_side_by_side(store, tmp_path, monkeypatch) -> None:
    paths = [report(tmp_path / f"rank{at}.sqlite", RANKS[at % 2]) for at in range(6)]
    expected = tracekit.parse(paths, tmp_path / "here").table("kernels")
    there = tracekit.parse(paths, RUN)
    open_one, at_a_time = opening.opened, threading.Barrier(5)
    places: list[Any] = []

    def opened(place: Any) -> Any:
        places.append(place)
        if len(places) > 1:
            at_a_time.wait(60)
        return open_one(place)

    monkeypatch.setattr(opening, "opened", opened)
    assert there.table("kernels").equals(expected)
