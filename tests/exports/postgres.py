"""A PostgreSQL server of our own, in a temporary folder, which listens on a socket in there alone."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

#: Debian keeps the server's programs out of the path.
_FOLDERS = (*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), None)
#: The server refuses to run as root.
_NOBODY = 65534


def program(name: str) -> str | None:
    found = (shutil.which(name, path=None if at is None else str(at)) for at in _FOLDERS)
    return next((one for one in found if one), None)


def available() -> bool:
    return all(map(program, ("initdb", "pg_ctl"))) and find_spec("psycopg") is not None


@contextmanager
def server() -> Iterator[str]:
    with TemporaryDirectory(prefix="pg", dir="/tmp") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
        data = folder / "data"
        run("initdb", "-D", data, "-U", "tracekit", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-c listen_addresses='' -c fsync=off -k {folder}"
        run("pg_ctl", "start", "-w", "-D", data, "-l", folder / "log", "-o", options)
        try:
            yield f"postgresql+psycopg://tracekit@/postgres?host={folder}"
        finally:
            run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", data)


def run(name: str, *args: object) -> None:
    as_whom = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(
        [str(program(name)), *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        check=False,
        **as_whom,
    )
    assert done.returncode == 0, done.stderr
