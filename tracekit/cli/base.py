"""What a command is, the parser and the options that commands share, and how they report what they do.

Unknown names get a suggestion, and shells complete what is typed. Commands that record check first that torch is there
and that the report has a place.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import os
import re
import shlex
import sys
import threading
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from typing_extensions import override

from tracekit.errors import CaptureError, UsageError, did_you_mean, plain
from tracekit.files import stops_held
from tracekit.progress import no_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.progress import TaskID
    from rich.segment import Segment

    from tracekit.dataset.opening import Dataset
    from tracekit.progress import Progress
    from tracekit.storage.locations import Given, Location
SHELLS = ("bash", "zsh", "fish")
#: Set by argcomplete's shell function when it asks what can follow.
_COMPLETING = "_ARGCOMPLETE"
#: The exit code if something became slower than allowed.
SLOWER = 3
#: Options that describe the device, by the keyword of the analyses that take them.
DEVICE_OPTIONS = {"peaks": "--peak", "dtype": "--dtype"}
#: Characters of a line that goes into a pipe or a file: more than any has.
_UNCUT = 100_000
_SHARE = re.compile(r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})( ?%)?", re.ASCII)
_COUNT = re.compile(r"\d{1,9}", re.ASCII)
#: Suffixes of what nsys itself writes next to a report.
NATIVE = (".nsys-rep", ".qdrep", ".qdstrm")
_ELSEWHERE = "choose another place with -o"


class Command(Protocol):
    """A module that is one command."""

    NAME: str
    #: One line for the list of commands.
    HELP: str

    def arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declares the command's arguments."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Runs the command; returns the exit code."""


class Parser(argparse.ArgumentParser):
    """Reports a wrong call in one line, with the name that was probably meant."""

    @override
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if _COMPLETING not in os.environ:
            self._refuse_unknown_option([*(sys.argv[1:] if args is None else args)])
        return super().parse_known_args(args, namespace)

    def _refuse_unknown_option(self, given: Sequence[str]) -> None:
        """Refuses the first option that does not exist; those behind a command's name are that command's."""
        options = [option for option in self._option_string_actions if option.startswith("--")]
        for arg, following in zip_longest(given, given[1:], fillvalue=""):
            if arg == "--" or (self._subparsers is not None and not arg.startswith("-")):
                return
            name, _, value = arg.partition("=")
            if name.startswith("--") and not any(option.startswith(name) for option in options):
                meant = f"--{value or following}"  # --csv for --format csv
                hint = f"did you mean {meant}?" if meant in options else did_you_mean(name, options)
                self.error(f"there is no option {name}; {hint}")

    @override
    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from tracekit.views.other_tools import meant_command

            choices = [str(choice) for choice in action.choices]
            hint = did_you_mean(str(value), choices) if action.option_strings else meant_command(value, choices)
            raise argparse.ArgumentError(action, f"there is no {value}; {hint}")

    @override
    def error(self, message: str) -> NoReturn:
        see = " See" if message.endswith("?") else "; see"
        print(plain(f"{self.prog}: {message}{see} {self.prog} --help"), file=sys.stderr)
        sys.exit(UsageError.exit_code)


def completed_by(action: argparse.Action, names: Callable[..., Sequence[str]]) -> None:
    """Lets shells complete an argument with names: a function of ``prefix`` and ``parsed_args``, as argcomplete's."""
    action.completer = names  # type: ignore[attr-defined]


def complete(parser: argparse.ArgumentParser) -> None:
    """Prints what can follow and exits, if a shell asks for that."""
    if _COMPLETING in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser, always_complete_options="long")


class PrintCompletion(argparse.Action):
    """Prints the lines that make a shell complete tracekit's arguments."""

    @override
    def __call__(self, parser: argparse.ArgumentParser, _namespace: object, shell: Any, _option: object = None) -> None:
        from argcomplete.shell_integration import shellcode

        print(shellcode(["tracekit"], shell=shell))
        parser.exit()


def console() -> Console:
    """Prints tables and trees to stdout, whatever their texts hold without control characters.

    Lines are as long as the terminal is wide, or as the variable COLUMNS says; those into a pipe or file are not cut.
    When stdout is closed, rich would exit with code 1. That is no error: ``main`` handles the closed pipe.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Terminal(Console):
        @override
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(plain(text, keep="\n"), style, control)

        @override
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    is_cut = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Terminal(highlight=False, soft_wrap=False, width=None if is_cut else _UNCUT)


def print_next(folder: object) -> None:
    """Prints the two commands that most people run next on a new dataset."""
    place = shlex.quote(plain(str(folder)))
    print(f"\nNext: tracekit html {place}  # a page to open in a browser")
    print(f"      tracekit show kernels {place}  # or another question: tracekit show --list")


def print_to_stderr(lines: Iterable[str]) -> None:
    """Prints lines on stderr and flushes stdout, unless the recorded program has closed them.

    By then the recording is safe, and the exit code is that of the program even if the lines cannot be read.
    """
    try:
        for line in lines:
            print(plain(line, keep="\n"), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
    try:
        print(end="", flush=True)
    except (OSError, ValueError):
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - as above


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress]:
    """A bar on stderr while the block runs, from its first stage on, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield no_progress
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    bars = Bars(console=Console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}
    lock = threading.Lock()

    def show(stage: str, share: float) -> None:
        with lock:  # reports parsed side by side call this at once
            bars.start()
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=1.0)
        bars.update(tasks[stage], completed=share)

    try:
        yield show
    finally:
        bars.stop()


def option(parser: argparse._ActionsContainer, usage: str, meaning: str, **more: Any) -> argparse.Action:  # noqa: ANN401 - as argparse
    """Declares an option that takes a value, by how help shows it: ``-o, --out REPORT``."""
    *short, long = usage.split(", ")
    name, _, metavar = long.partition(" ")
    return parser.add_argument(*short, name, metavar=metavar, help=meaning, **more)


def flag(parser: argparse._ActionsContainer, names: str, meaning: str) -> None:
    """Declares an option that takes no value: ``-q, --quiet``."""
    parser.add_argument(*names.split(", "), action="store_true", help=meaning)


def repeatable(parser: argparse._ActionsContainer, usage: str, meaning: str, **more: Any) -> None:  # noqa: ANN401 - as argparse
    """Declares an option whose values become a list."""
    option(parser, usage, f"{meaning}; repeatable", action="append", default=[], **more)


def add_force(parser: argparse.ArgumentParser, existing: str) -> None:
    """Declares ``-f``/``--force``, which allows to replace something, such as ``an existing report``."""
    flag(parser, "-f, --force", f"replace {existing}")


def add_quiet(parser: argparse.ArgumentParser, still_printed: str = "errors") -> None:
    """Declares ``-q``/``--quiet``."""
    flag(parser, "-q, --quiet", f"print only {still_printed}")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declares :data:`DEVICE_OPTIONS`."""
    meaning = (
        "roofline: peak throughput of the device: DTYPE=TFLOP/s (bfloat16=989), memory=GB/s (memory=3350) or the name "
        "of a GPU; repeatable"
    )
    option(parser, "--peak PEAK", meaning, dest="peaks", action="append")
    meaning = "roofline, memory: dtype assumed where markers record none, such as bfloat16"
    option(parser, "--dtype DTYPE", meaning)


def device_options(args: argparse.Namespace) -> dict[str, Any]:
    """Those of :data:`DEVICE_OPTIONS` that are given."""
    return {name: value for name in DEVICE_OPTIONS if (value := getattr(args, name)) is not None}


def add_dataset(parser: argparse.ArgumentParser) -> argparse.Action:
    """Declares the argument that :func:`opened` takes."""
    return parser.add_argument(
        "dataset", metavar="DATASET", help="dataset or its URL, or a report, which is parsed first"
    )


def add_top(parser: argparse.ArgumentParser, meaning: str, most: int | None = None) -> None:
    """Declares ``--top``, and as before ``--limit``."""
    option(parser, "--top N", meaning, type=count, default=most)
    parser.add_argument("--limit", dest="top", type=count, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def add_limits(parser: argparse.ArgumentParser, slower: str) -> None:
    """Declares from when on a module counts, and the slowdown from which on a command fails."""
    meaning = f"exit with code {SLOWER} if {slower}, such as 5%% or 0.05"
    option(parser, "--fail-over SHARE", meaning, type=share, default=math.inf)
    meaning = "leave out modules with less of the time in steps (default: none, and 1%% for --fail-over)"
    option(parser, "--min-share SHARE", meaning, type=share)


def place_of(given: Given, *, quiet: bool = False) -> Location:
    """Where the dataset is that an argument names. A report is parsed first, into the place that ``parse`` takes."""
    from tracekit.arrays.own_process import keep_memory
    from tracekit.loading import dataset_of

    if not Path(str(given)).is_dir():
        keep_memory()  # as parse does
    with progress_bar(quiet=quiet) as progress:
        place, is_new = dataset_of(given, progress)
    if is_new and not quiet:
        print_to_stderr([f"tracekit: parsed {given} into {place}; it is used again while the report is unchanged"])
    return place


def opened(given: Given, *, quiet: bool = False) -> Dataset:
    """The dataset that an argument names; see :func:`place_of`."""
    from tracekit.dataset.opening import Dataset

    return Dataset(place_of(given, quiet=quiet))


def next_to(dataset: Dataset, suffix: str) -> Path:
    """The default place of what is made of a dataset: next to it, under its name; if that is at a URL, here."""
    from tracekit.dataset.opening import SUFFIX

    folder = dataset.folder if isinstance(dataset.folder, Path) else Path(dataset.folder.name)
    if folder.name in {"", ".."}:
        folder = folder.resolve()
    return folder.parent / f"{folder.name.removesuffix(SUFFIX)}{suffix}"


def count(text: str) -> int:
    """A whole number, 0 or more."""
    if not _COUNT.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 or more, got {text!r}")
    return int(text)


def share(text: str) -> float:
    """A share: ``5%``, ``5 %`` or ``0.05``. A bare number of 1 or more could mean either and is refused."""
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a percentage such as 5% or a fraction such as 0.05, got {text!r}")
    number, percent = match.groups()
    if percent:
        return float(number) / 100
    if float(number) >= 1:
        raise argparse.ArgumentTypeError(f"{number} could be {number} % or {number}00 %; write {number}%")
    return float(number)


def unusable(name: str) -> tuple[str, str] | None:
    """Why a package cannot be imported, and what to do; None if it can be."""
    if importlib.util.find_spec(name) is None:
        return "not installed", "pip install torch nvtx"
    try:
        importlib.import_module(name)
    except (ImportError, OSError) as error:
        return f"installed but cannot be imported ({' '.join(str(error).split())})", "reinstall it"
    return None


def require_torch() -> None:
    """Checks that torch can be imported. An exception amid torch's own start in C++ would abort this process."""
    with stops_held():
        problem = unusable("torch")
    if problem:
        raise CaptureError(f"torch is {problem[0]}; {problem[1]}")


def report_place(path: Path, *, force: bool) -> Path:
    """Where a report can be written; its suffix is ``.sqlite``. Checked before anything runs."""
    if path.name in {"", ".."}:
        raise CaptureError(f"{path}: is not a file name; {_ELSEWHERE}")
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CaptureError(f"{path}: is a device, not a file; {_ELSEWHERE}")
    report = path if path.suffix == ".sqlite" else path.with_name(f"{path.name}.sqlite")
    for place in (report, *(report.with_suffix(suffix) for suffix in NATIVE)):
        check_place(place, force=force)
    if not report.parent.is_dir():
        raise CaptureError(f"{report.parent}: is not a folder; create it or {_ELSEWHERE}")
    if not os.access(report.parent, os.W_OK):
        raise CaptureError(f"{report.parent}: is not writable; {_ELSEWHERE}")
    return report


def check_place(place: Path, *, force: bool) -> None:
    """Checks that a file can be written."""
    if place.is_dir():
        raise CaptureError(f"{place}: already exists and is a folder; {_ELSEWHERE}")
    if place.exists() and not force:
        raise CaptureError(f"{place}: already exists; replace it with --force or {_ELSEWHERE}")
