"""What tests let engines do, in other processes too."""

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.waiting import PATIENCE_S
from tracekit.engines import Engine, Share, Task
from tracekit.errors import DatasetError
from tracekit.progress import no_progress


def doubled(number: int, share: Share) -> int:
    share(0.5)
    share(1.0)
    return 2 * number


def killed_if(victim: int, number: int, share: Share) -> int:
    share(0.1)
    if number == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refused(number: int, share: Share) -> int:
    raise DatasetError(Path("run"), "is odd", f"mend {number}")


def told_forever(share: Share) -> None:
    while True:
        for percent in range(100):
            share(percent / 100)
            time.sleep(0.01)


def at_once(folder: Path, most: int, number: int, share: Share) -> int:
    """How many run at once, waiting until so many did: on a busy machine the next one may start late."""
    mine, reached = folder / f"{number}", folder.with_suffix(".reached")
    mine.touch()
    end = time.monotonic() + PATIENCE_S
    time.sleep(0.2)
    while (count := len(list(folder.iterdir()))) < most and not reached.exists() and time.monotonic() < end:
        time.sleep(0.01)
    if count >= most:
        reached.touch()
    mine.unlink()
    return count


def with_a_program(folder: Path, share: Share) -> None:
    begun = folder / f"begun-{os.getpid()}"
    program = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        begun.write_text(str(program.pid))
        program.wait()
    finally:
        program.kill()
        program.wait()
        begun.unlink()


def results(engine: Engine, tasks: list[Task]) -> dict[int, object]:
    return {outcome.number: outcome.lost or outcome.result for outcome in engine.outcomes(tasks, no_progress)}
