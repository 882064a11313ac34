"""Two parses that put a dataset at one URL at the same moment: the first one's stays, the second is told so."""

from __future__ import annotations

import errno
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import tracekit
from tests.command import Outcome, command, environment, refusal
from tests.joined import said_of_reports
from tests.pipeline.test_several_reports import RANKS
from tests.storage.servers import KEYS, s3_server
from tests.trace_lines import report
from tracekit.dataset import publishing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

s3fs = pytest.importorskip("s3fs", reason="the extra s3 is not installed")
pytest.importorskip("moto", reason="moto[s3], which the extra test brings, is not installed")

RUN = "s3://runs/run.tracekit"
#: Says when it is about to put the manifest, after all that it looks at, and waits until it is told to.
WAITING = """
import sys
from tracekit.cli import main
from tracekit.dataset import publishing
put = publishing.put_if_unchanged
def waiting(*args):
    print("ready", flush=True)
    sys.stdin.readline()
    put(*args)
publishing.put_if_unchanged = waiting
sys.exit(main(["parse", *sys.argv[1:], "--quiet"]))
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as address:
        yield address


@pytest.fixture
def bucket(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3fs.S3FileSystem]:
    """One named ``runs``."""
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": address}.items():
        monkeypatch.setenv(name, value)
    files = s3fs.S3FileSystem(endpoint_url=address, use_listings_cache=False)
    files.mkdir("runs")
    yield files
    files.rm("runs", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def reports(tmp_path: Path) -> list[Path]:
    """Three, each with other modules or work."""
    texts = (*RANKS, RANKS[0].replace("gather", "scatter"))
    return [report(tmp_path / f"rank{at}.sqlite", text) for at, text in enumerate(texts)]


class Waiting:
    """A parse that has put all its files at the URL, and now waits before it puts the manifest."""

    def __init__(self, *args: object) -> None:
        pipe = subprocess.PIPE
        program = [sys.executable, "-c", WAITING, *map(str, args)]
        self._process = subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment())

    def is_ready(self) -> bool:
        assert self._process.stdout is not None
        return self._process.stdout.readline() == "ready\n"

    def ended(self) -> Outcome:
        out, err = self._process.communicate("go on\n", timeout=120)
        return Outcome(self._process.returncode, out, err)

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def waiting(*commands: tuple[object, ...]) -> Iterator[list[Waiting]]:
    """Parses that are all about to put their manifests."""
    parses = [Waiting(*args) for args in commands]
    try:
        assert [parse.is_ready() for parse in parses] == [True] * len(parses)
        yield parses
    finally:
        for parse in parses:
            parse.stop()


def check_only_listed(bucket: s3fs.S3FileSystem, run: str = RUN) -> None:
    """Every file that the manifest lists is there and can be read, and no other."""
    there = tracekit.load(run)
    listed = [entry["table_ids"] for entry in (there.manifest, *there.manifest.get("reports", ()))]
    assert len(bucket.find(run.partition("://")[2])) == 1 + sum(map(len, listed))
    assert {table: there.table(table).num_rows for table in there.manifest["rows"]} == there.manifest["rows"]


@pytest.mark.parametrize("winner", [0, 1])
@pytest.mark.parametrize("how", ["new", "--force", "--add", "--add to none"])
def test_the_first_dataset_stays_and_the_second_parse_says_so(
    how: str, winner: int, bucket: s3fs.S3FileSystem, reports: list[Path], tmp_path: Path
) -> None:
    *given, third = reports
    if how in {"--force", "--add"}:
        tracekit.parse(third, RUN)
    options = [word for word in (how.partition(" ")[0],) if word.startswith("--")]
    with waiting(*((one, "-o", RUN, *options) for one in given)) as parses:
        assert parses[winner].ended() == (0, "", "")
        first = tracekit.load(RUN)
        line = refusal(parses[1 - winner].ended(), RUN)  # type: ignore[arg-type]
    assert "was replaced or added to by another parse meanwhile; nothing was changed; run the command again" in line
    assert tracekit.load(RUN).manifest == first.manifest
    check_only_listed(bucket)
    if how.startswith("--add"):
        assert command("parse", given[1 - winner], "-o", RUN, "--add", "--quiet") == (0, "", "")
        there = [*([third] if how == "--add" else []), given[winner], given[1 - winner]]
        assert said_of_reports(tracekit.load(RUN)) == said_of_reports(tracekit.parse(there, tmp_path / "at once"))
        check_only_listed(bucket)


def test_two_parses_of_the_same_reports_both_succeed(bucket: s3fs.S3FileSystem, reports: list[Path]) -> None:
    with waiting((reports[0], "-o", RUN), (reports[0], "-o", RUN)) as parses:
        assert [parse.ended() for parse in parses] == [(0, "", "")] * 2
    check_only_listed(bucket)


def test_an_answer_that_is_lost_on_its_way_does_not_make_a_parse_its_own_rival(
    bucket: s3fs.S3FileSystem, reports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    put = publishing.put_if_unchanged

    def twice(*args: Any) -> None:
        put(*args)
        put(*args)

    monkeypatch.setattr(publishing, "put_if_unchanged", twice)
    tracekit.parse(reports[0], RUN)
    tracekit.parse(reports[1], RUN, add=True)
    check_only_listed(bucket)


def test_files_that_a_parse_of_the_same_rows_removes_as_it_fails_are_put_there_again(
    bucket: s3fs.S3FileSystem, reports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    put = publishing.put_if_unchanged

    def meanwhile(*args: Any) -> None:
        bucket.rm("runs/run.tracekit/kernels.parquet", recursive=True)
        put(*args)

    monkeypatch.setattr(publishing, "put_if_unchanged", meanwhile)
    tracekit.parse(reports[:2], RUN)
    check_only_listed(bucket)


def test_a_parse_that_has_just_ended_leaves_alone_what_the_next_one_is_putting_there(
    bucket: s3fs.S3FileSystem, reports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracekit.parse(reports[0], RUN)
    put = publishing.put_if_unchanged
    following: list[Waiting] = []

    def followed(*args: Any) -> None:
        put(*args)
        following.append(Waiting(reports[2], "-o", RUN, "--add"))
        assert following[0].is_ready()

    monkeypatch.setattr(publishing, "put_if_unchanged", followed)
    tracekit.parse(reports[1], RUN, force=True)
    assert following[0].ended() == (0, "", "")
    assert tracekit.load(RUN).reports == ["rank1", "rank2"]
    check_only_listed(bucket)


def test_a_store_that_knows_no_conditions_is_written_all_the_same(
    bucket: s3fs.S3FileSystem, reports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe_file = s3fs.S3FileSystem.pipe_file

    def refusing(self: Any, path: str, value: bytes, **kwargs: Any) -> Any:
        if kwargs:
            raise OSError(errno.ENOSYS, "A header you provided implies functionality that is not implemented")
        return pipe_file(self, path, value)

    monkeypatch.setattr(s3fs.S3FileSystem, "pipe_file", refusing)
    tracekit.parse(reports[0], RUN)
    tracekit.parse(reports[1], RUN, add=True)
    check_only_listed(bucket)


def test_without_conditions_a_parse_looks_again_right_before_it_puts_the_manifest(
    reports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = "memory://runs/run.tracekit"
    put_all = publishing.put_all

    def overtaken(*args: Any) -> None:
        monkeypatch.setattr(publishing, "put_all", put_all)
        put_all(*args)
        tracekit.parse(reports[0], run)

    monkeypatch.setattr(publishing, "put_all", overtaken)
    with pytest.raises(tracekit.DatasetError, match="by another parse meanwhile; nothing was changed"):
        tracekit.parse(reports[1], run)
    check_only_listed(tracekit.load(run).folder.fs, run)  # type: ignore[union-attr]
