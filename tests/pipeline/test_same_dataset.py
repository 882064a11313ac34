"""The same dataset, row by row, wherever its reports are worked on and wherever they and it lie."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tracekit
from tests.command import separately
from tests.engines.clusters import dask_cluster
from tests.joined import BY_REPORT, joined_here, said_of_reports
from tests.pipeline.test_several_reports import CONTRADICTING, RANKS, THIRD
from tests.readers.kineto.traces import PID, event, kernel, launch, trace
from tests.storage.servers import KEYS, runs_bucket, s3_server
from tests.trace_lines import report
from tracekit.dataset.opening import Dataset

pytest.importorskip("s3fs", reason="the extra s3 is not installed")
pytest.importorskip("moto", reason="moto[s3], which the extra test brings, is not installed")
pytest.importorskip("distributed", reason="the extra dask is not installed")

PLAIN = "range 1 0 1000 forward\nrange 1 10 500 attention\nlaunch 1 20 30 #1\nkernel 1 40 140 #1 gemm"
NOTHING = "kernel 1 30 40 #4 relu"
PATTERNS = ("s3://runs/job/*.sqlite", "s3://runs/job/*.json")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("here") / "job"
    folder.mkdir()
    ranks = [report(folder / f"rank{at}.sqlite", text) for at, text in enumerate((*RANKS, THIRD, CONTRADICTING))]
    others = [report(folder / f"{name}.sqlite", text) for name, text in (("none", NOTHING), ("plain", PLAIN))]
    events = (
        event("python_function", "nn.Module: Net_0", 0, 100),
        event("python_function", "nn.Module: Linear_0", 10, 30),
        launch(20, 1),
        kernel(200, 1),
        launch(60, 2),
        kernel(210, 2, "relu"),
    )
    return [*others, *ranks, trace(folder / "torch.json", *events, distributedInfo={"rank": PID})]


@pytest.fixture(scope="module")
def expected(reports: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return joined_here(reports, tmp_path_factory.mktemp("expected") / "run")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as address:
        yield address


@pytest.fixture(scope="module")
def scheduler(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a cluster whose workers reach the store."""
    temporary = tmp_path_factory.mktemp("temporary")
    with dask_cluster(temporary, **KEYS, AWS_ENDPOINT_URL=address) as scheduler:
        yield scheduler
        assert not [*temporary.rglob("tracekit-*")]


@pytest.fixture(autouse=True)
def uploaded(address: str, reports: list[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with runs_bucket(address, monkeypatch) as files:
        for path in reports:
            files.put_file(str(path), f"runs/job/{path.name}")
        yield


def check_same(one: Dataset, expected: Dataset) -> None:
    for table in ("modules", *BY_REPORT):
        assert one.table(table).equals(expected.table(table)), table
    assert said_of_reports(one) == said_of_reports(expected)
    assert one.manifest["table_ids"] == expected.manifest["table_ids"]


@pytest.mark.parametrize(
    ("source", "pool", "target"),
    [("disk", "here", "disk"), ("disk", None, "disk"), ("bucket", None, "disk"), ("disk", "dask", "bucket")],
)
def test_disk_and_bucket_by_a_process_a_pool_or_a_cluster(source, pool, target, scheduler, reports, expected, tmp_path):
    given = reports if source == "disk" else PATTERNS
    folder = tmp_path / "run" if target == "disk" else "s3://runs/run.tracekit"
    check_same(tracekit.parse(given, folder, scheduler=scheduler if pool == "dask" else pool), expected)


def test_the_command_from_bucket_to_bucket_by_a_cluster(scheduler: str, expected: Dataset) -> None:
    run = "s3://runs/run.tracekit"
    parsed = separately("parse", *PATTERNS, "-o", run, "--scheduler", scheduler, "--quiet")
    assert parsed == (0, "", "")
    check_same(tracekit.load(run), expected)
