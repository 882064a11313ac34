"""Workers of a cluster put tables into a bucket themselves, where the dataset will be; the client puts the manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import tracekit
from tests.engines.clusters import dask_cluster
from tests.joined import BY_REPORT, said_of_reports
from tests.pipeline.test_adding import THIRD
from tests.pipeline.test_several_reports import RANKS
from tests.storage.servers import KEYS
from tests.trace_lines import report
from tracekit.pipeline import several, side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from s3fs import S3FileSystem

    from tracekit.dataset.opening import Dataset

pytest.importorskip("s3fs", reason="the extra s3 is not installed")
pytest.importorskip("moto", reason="moto[s3], which the extra test brings, is not installed")
pytest.importorskip("distributed", reason="the extra dask is not installed")

RUN = "s3://runs/run.tracekit"
#: What travels back of each report in any case.
STAYING = {"manifest.json", "modules.parquet", "coverage.parquet"}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The first and the last have the same modules, the other has more."""
    folder = tmp_path_factory.mktemp("reports")
    texts = (*RANKS, THIRD, RANKS[0].replace("gather", "scatter"))
    return [report(folder / f"rank{at}.sqlite", text) for at, text in enumerate(texts)]


@pytest.fixture
def back(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The files of each report that travel back."""
    files: list[set[str]] = []
    write = side_by_side.written

    def written(folder: Path, content: dict[str, bytes]) -> None:
        files.append({*content})
        write(folder, content)

    monkeypatch.setattr(side_by_side, "written", written)
    return files


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster whose workers reach no bucket."""
    nobody = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"}
    with dask_cluster(tmp_path_factory.mktemp("temporary"), **KEYS, **nobody) as scheduler:
        yield scheduler


def check_same(there: Dataset, paths: Sequence[Path], bucket: S3FileSystem, folder: Path) -> None:
    """It has the rows of a dataset that was parsed here, and no file that nobody lists."""
    here = tracekit.parse(paths, folder, scheduler="here")
    for table in ("modules", *BY_REPORT):
        assert there.table(table).equals(here.table(table)), table
    entries = (there.manifest, *there.manifest.get("reports", ()))
    assert len(bucket.find("runs/run.tracekit")) == 1 + sum(len(entry["table_ids"]) for entry in entries)


@pytest.mark.parametrize("chosen", [slice(4), slice(1), slice(0, 4, 3)], ids=["other modules", "one", "same modules"])
def test_only_what_joining_reads_travels_back(
    chosen: slice,
    reports: list[Path],
    scheduler: str,
    bucket: S3FileSystem,
    back: list[set[str]],
    tmp_path: Path,
) -> None:
    given = reports[chosen]
    there = tracekit.parse(given, RUN, scheduler=scheduler)
    assert back == [STAYING] * len(given)
    check_same(there, given, bucket, tmp_path / "here")


def test_reports_are_added_and_replaced_by_workers(
    scheduler: str, bucket: S3FileSystem, back: list[set[str]], tmp_path: Path
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    texts = (RANKS[0], RANKS[0].replace("gather", "scatter"), THIRD)
    given = [report(job / f"rank{at}.sqlite", text) for at, text in enumerate(texts)]
    tracekit.parse(given[:2], RUN, scheduler=scheduler)
    given[1].unlink()
    report(given[1], RANKS[1])
    there = tracekit.parse(given, RUN, scheduler=scheduler, add=True, force=True)
    assert back == [STAYING] * 4
    here = tracekit.parse(given, tmp_path / "here", scheduler="here")
    assert said_of_reports(there) == said_of_reports(here)
    entries = (there.manifest, *there.manifest["reports"])
    assert len(bucket.find("runs/run.tracekit")) == 1 + sum(len(entry["table_ids"]) for entry in entries)


def test_from_workers_that_do_not_reach_the_bucket_all_travels_back(
    reports: list[Path], remote: str, bucket: S3FileSystem, back: list[set[str]], tmp_path: Path
) -> None:
    there = tracekit.parse(reports, RUN, scheduler=remote)
    assert all(files > STAYING for files in back)
    check_same(there, reports, bucket, tmp_path / "here")


@pytest.mark.parametrize("how", ["new", "add"])
def test_nothing_stays_of_a_run_that_is_stopped_before_the_dataset_is_there(
    how: str, reports: list[Path], scheduler: str, bucket: S3FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "add":
        tracekit.parse(reports[:2], RUN, scheduler="here")
    before = bucket.find("runs/run.tracekit")
    parse_parts = several.parse_parts

    def stopped(*args: Any) -> Any:
        parse_parts(*args)
        assert len(bucket.find("runs/run.tracekit")) > len(before), "workers have put tables there"
        raise KeyboardInterrupt

    for module in ("several", "adding"):
        monkeypatch.setattr(f"tracekit.pipeline.{module}.parse_parts", stopped)
    with pytest.raises(KeyboardInterrupt):
        tracekit.parse(reports, RUN, scheduler=scheduler, add=how == "add")
    assert bucket.find("runs/run.tracekit") == before


def test_what_workers_have_put_and_others_removed_is_missed_before_the_dataset_is_replaced(
    reports: list[Path], scheduler: str, bucket: S3FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse_parts = several.parse_parts

    def overtaken(*args: Any) -> Any:
        errors = parse_parts(*args)
        bucket.rm("runs/run.tracekit", recursive=True)
        return errors

    monkeypatch.setattr(several, "parse_parts", overtaken)
    with pytest.raises(tracekit.DatasetError, match=r"lacks \d+ files that workers have put there, such as"):
        tracekit.parse(reports[:1] + reports[3:], RUN, scheduler=scheduler)
    assert bucket.find("runs/run.tracekit") == []
