"""A real Dask cluster whose workers are processes of their own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.command import environment

#: Says where it is and lives until its input ends; a task that kills two workers is given up.
CLUSTER = """
import sys
import dask
from distributed import LocalCluster
if __name__ == "__main__":
    dask.config.set({"distributed.scheduler.allowed-failures": 1})
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@contextmanager
def dask_cluster(temporary: Path, **variables: str) -> Iterator[str]:
    """The address of its scheduler; its workers put temporary files there, and have further variables."""
    script = temporary / "cluster.py"
    script.write_text(CLUSTER)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    env = environment(TMPDIR=str(temporary), **variables)
    with subprocess.Popen([sys.executable, script], cwd=temporary, env=env, **pipes) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        yield running.stdout.readline().strip()
        running.stdin.close()
