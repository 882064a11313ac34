"""A store of S3's language with a bucket, and a cluster whose workers reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engines.clusters import dask_cluster
from tests.storage.servers import KEYS, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from s3fs import S3FileSystem


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as address:
        yield address


@pytest.fixture(scope="module")
def scheduler(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster; its workers leave nothing behind."""
    temporary = tmp_path_factory.mktemp("temporary")
    with dask_cluster(temporary, **KEYS, AWS_ENDPOINT_URL=address) as scheduler:
        yield scheduler
        assert not [*temporary.rglob("tracekit-*")]


@pytest.fixture
def bucket(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3FileSystem]:
    from s3fs import S3FileSystem

    for name, value in {**KEYS, "AWS_ENDPOINT_URL": address}.items():
        monkeypatch.setenv(name, value)
    files = S3FileSystem(endpoint_url=address, use_listings_cache=False)
    files.mkdir("runs")
    yield files
    files.rm("runs", recursive=True)
    S3FileSystem.clear_instance_cache()
