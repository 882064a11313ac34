"""Does tasks on a Dask cluster that the user has. A worker that is lost has its tasks done again by others.

Tasks and results travel through the cluster, so the workers need the same tracekit, and no folder in common.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from tracekit.engines.base import Outcome, throttled
from tracekit.errors import TracekitError
from tracekit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from distributed import Client

    from tracekit.engines.base import Result, Share, Task
    from tracekit.progress import Progress

#: How the addresses of schedulers begin.
PROTOCOLS = ("tcp://", "tls://", "ws://", "wss://", "ucx://", "ucxx://")
#: The smallest progress that is reported.
_STEP = 0.05
#: How long a scheduler may take to answer.
_PATIENCE_S = 30
#: Tasks at once for each thread of the cluster: while one is done, the next one is on its way.
_AHEAD = 2


class Dask:
    """A Dask cluster, by the address of its scheduler."""

    shares_files = False

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: Client

    def __enter__(self) -> Self:
        try:
            from distributed import Client  # noqa: PLC0415 - an extra
        except ImportError:
            message = "a scheduler needs Dask; install it with pip install 'nsight-tracekit[dask]'"
            raise TracekitError(message) from None
        try:
            self._client = Client(self._address, timeout=_PATIENCE_S, set_as_default=False)
        except (OSError, ValueError):  # a timeout is an OSError
            message = f"{self._address}: no Dask scheduler answers; check that it runs, and its address"
            raise TracekitError(message) from None
        try:
            self._check_versions()
        except BaseException:
            self._client.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Takes back what still runs: its tasks end when they next report their progress."""
        self._client.close()

    def _check_versions(self) -> None:
        versions: dict[str, object] = self._client.run(_version, on_error="return")
        for worker, version in versions.items():
            if version != __version__:
                there = f"has tracekit {version}" if isinstance(version, str) else "cannot load tracekit"
                raise TracekitError(f"{worker}: this worker {there}; install nsight-tracekit {__version__} there")

    def outcomes(self, tasks: Sequence[Task[Result]], progress: Progress) -> Iterator[Outcome[Result]]:
        """Does tasks on the cluster; some more than it has threads are given at once."""
        run = f"tracekit-{os.urandom(8).hex()}"
        at_once = _AHEAD * max(1, sum(self._client.ncores().values()))
        self._client.subscribe_topic(run, partial(_pass_on, tasks, progress))
        suspects = []
        for outcome in self._given(run, list(enumerate(tasks)), at_once):
            if outcome.lost is None:
                yield outcome
            else:
                suspects.append((outcome.number, tasks[outcome.number]))
        # Dask blames every task that a lost worker had. Alone, only one that is to blame is lost again.
        yield from self._given(f"{run}-alone", suspects, 1)
        self._client.unsubscribe_topic(run)

    def _given(self, run: str, tasks: list[tuple[int, Task[Result]]], at_once: int) -> Iterator[Outcome[Result]]:
        from distributed import KilledWorker, as_completed  # noqa: PLC0415 - an extra

        waiting = iter(tasks)
        numbers: dict[str, int] = {}
        ended = as_completed(loop=self._client.loop)

        def give(count: int) -> None:
            for number, task in islice(waiting, count):
                key = f"{run}-{number}"
                numbers[key] = number
                topic = run.removesuffix("-alone")
                ended.add(self._client.submit(_done, task.function, topic, number, key=key, pure=False))

        give(at_once)
        for future in ended:
            number = numbers[future.key]
            if future.cancelled():
                raise TracekitError(f"{self._address}: the scheduler was lost; check it, and try again")
            try:
                yield Outcome(number, future.result())
            except KilledWorker as error:
                workers = error.allowed_failures + 1
                yield Outcome(number, None, f"{workers} workers of the cluster were lost with it")
            future.release()
            give(1)


def _pass_on(tasks: Sequence[Task[Any]], progress: Progress, event: tuple[float, tuple[int, float]]) -> None:
    number, share = event[1]
    progress(tasks[number].name, share)


def _version() -> str:
    return __version__


def scratch_folder() -> str | None:
    """Where a task on a cluster puts temporary files: Dask removes what a lost worker leaves there. Else None."""
    if (distributed := sys.modules.get("distributed")) is None:
        return None
    try:
        folder: str = distributed.get_worker().local_directory
    except ValueError:
        return None
    return folder


def _done(function: Callable[[Share], Result], run: str, number: int) -> Result:
    """Does a task, which ends when it reports its progress and no client waits for it any more."""
    from distributed import get_worker  # noqa: PLC0415 - an extra

    worker = get_worker()
    key = worker.get_current_task()
    progress = throttled(lambda share: worker.log_event(run, (number, share)), _STEP)

    def share(done: float) -> None:
        task = worker.state.tasks.get(key)
        if task is None or task.state == "cancelled":
            from asyncio import CancelledError  # noqa: PLC0415 - takes long to load, and Dask has loaded it

            raise CancelledError
        progress(done)

    return function(share)
