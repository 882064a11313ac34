"""A store of S3's language with a bucket, and a cluster whose workers reach it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.clusters import dask_cluster
from tests.storage.servers import KEYS, runs_bucket, s3_server


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as address:
        yield address


@pytest.fixture(scope="module")
def scheduler(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    temporary = tmp_path_factory.mktemp("temporary")
    with dask_cluster(temporary, **KEYS, AWS_ENDPOINT_URL=address) as scheduler:
        yield scheduler
        assert not [*temporary.rglob("tracekit-*")]


@pytest.fixture
def bucket(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with runs_bucket(address, monkeypatch) as files:
        yield files
