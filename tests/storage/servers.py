"""A server that speaks S3's language over HTTP, in a process of its own, and one that only gives files away."""

import functools
import http.server
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

KEYS = {
    **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "of tests"),
    **dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull),
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def s3_server(log: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=out, stderr=out
        )
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            urllib.request.urlopen(f"{address}/moto-api/", timeout=5).close()
        except OSError:
            return False
        return True

    try:
        wait_until(answers, server)
        yield address
    finally:
        server.kill()
        server.wait()


@contextmanager
def runs_bucket(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket named ``runs`` of such a server, which the environment leads to: its file system."""
    from s3fs import S3FileSystem

    for name, value in {**KEYS, "AWS_ENDPOINT_URL": address}.items():
        monkeypatch.setenv(name, value)
    files = S3FileSystem(endpoint_url=address, use_listings_cache=False)
    files.mkdir("runs")
    yield files
    files.rm("runs", recursive=True)
    S3FileSystem.clear_instance_cache()


@contextmanager
def file_server(folder: Path) -> Iterator[str]:
    handler = functools.partial(_Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass
