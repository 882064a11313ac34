"""Where a report is worked on: in this process, in others of this machine, or on a Dask cluster.

To add an engine, write a file with an :class:`~tracekit.engines.base.Engine`, and add that to :func:`opened` and the
file to its contract in ``pyproject.toml``.
"""

from tracekit.engines.base import IN_PROCESS, Engine, InProcess, Outcome, Share, Task
from tracekit.engines.dask import PROTOCOLS, Dask
from tracekit.engines.processes import Processes
from tracekit.errors import UsageError

__all__ = ["Engine", "Outcome", "Share", "Task", "opened"]


def opened(scheduler: str | None = None) -> Engine:
    """The engine to do tasks with, as the block of a ``with``.

    ``scheduler`` is the address of the scheduler of a Dask cluster, such as ``tcp://10.0.0.1:8786``; ``here`` for this
    process; None for processes of this machine.
    """
    if scheduler is None:
        return Processes()
    if scheduler == IN_PROCESS:
        return InProcess()
    if scheduler.startswith(PROTOCOLS):
        return Dask(scheduler)
    address = "the address of a Dask cluster, such as tcp://10.0.0.1:8786"
    raise UsageError(f"a scheduler is {address}, or {IN_PROCESS}, not {scheduler!r}")
