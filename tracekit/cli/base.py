"""What a command is, and how commands speak."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tracekit.errors import CaptureError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from rich.progress import TaskID

    from tracekit.progress import Progress


class Command(Protocol):
    """A module that is one command."""

    NAME: str
    #: One line for the list of commands.
    HELP: str

    def arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declares the command's arguments."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Does it; returns the exit code."""


#: What nsys itself writes goes beside the report.
_NATIVE = (".nsys-rep", ".qdrep", ".qdstrm")
NEEDS_TORCH = "recording a model needs torch: pip install 'tracekit[capture]'"


def needs_torch() -> None:
    """Says what to install where torch is missing.

    Raises:
        CaptureError: If it is, or cannot be imported.
    """
    if importlib.util.find_spec("torch") is None:
        raise CaptureError(NEEDS_TORCH)
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:
        said = " ".join(str(error).split())
        message = f"torch is there and cannot be imported ({said}); install it anew"
        raise CaptureError(message) from None


def report_place(path: Path, *, force: bool) -> Path:
    """Where a report can be written, looked at before anything runs; its suffix is ``.sqlite``.

    Raises:
        CaptureError: If one is there already, or none can be there.
    """
    if path.name in {"", ".."}:
        raise CaptureError(f"{path}: names no file; choose another place for the report: -o")
    report = path if path.suffix == ".sqlite" else path.with_name(f"{path.name}.sqlite")
    try:
        # While it is written its name is longer.
        report.with_name(f".{report.name}.partial-{os.getpid():08}").lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        message = f"{report}: cannot be written ({error.strerror}); choose another place: -o"
        raise CaptureError(message) from None
    for place in (report, *(report.with_suffix(suffix) for suffix in _NATIVE)):
        if place.is_dir() or (place.exists() and not force):
            message = f"{place}: is there already; choose another place with -o, or --force"
            raise CaptureError(message)
    folder = report.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise CaptureError(f"{folder}: no folder to write into; make it, or choose another: -o")
    return report


#: What is said of devices and dtypes: options by the keywords of the analyses that take them.
DEVICE_OPTIONS = {"peaks": "--peak", "dtype": "--dtype"}


def device_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares :data:`DEVICE_OPTIONS`."""
    parser.add_argument(
        "--peak",
        dest="peaks",
        action="append",
        metavar="PEAK",
        help="roofline: what the device can do, bfloat16=989 (TFLOP/s), memory=3350 (GB/s) or the name of a GPU; may "
        "be given several times",
    )
    parser.add_argument(
        "--dtype",
        metavar="DTYPE",
        help="roofline, memory: in which layers multiply whose markers do not say it, such as bfloat16",
    )


def say(lines: Iterable[str]) -> None:
    """Says on stderr what came of a recording, and flushes stdout, as far as the recorded program left them open.

    The recording is safe and the exit code is the program's, whoever does not listen.
    """
    try:
        for line in lines:
            print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
    try:
        print(end="", flush=True)
    except (OSError, ValueError):
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - as above


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress]:
    """A bar on stderr while the block runs, if that is a terminal."""
    from tracekit.progress import silent

    if quiet or not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        lock = threading.Lock()

        def show(stage: str, share: float) -> None:
            with lock:  # reports tell at once how far they are
                if stage not in tasks:
                    tasks[stage] = bars.add_task(stage, total=1.0)
            bars.update(tasks[stage], completed=share)

        yield show
