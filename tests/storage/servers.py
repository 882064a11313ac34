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

from tests.waiting import wait_until

KEYS = {
    "AWS_ACCESS_KEY_ID": "of tests",
    "AWS_SECRET_ACCESS_KEY": "of tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
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
    try:
        _wait_for(f"{address}/moto-api/", server)
        yield address
    finally:
        server.kill()
        server.wait()


def _wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            return False
        return True

    wait_until(answers, server)


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
