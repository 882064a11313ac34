"""Finds NVIDIA's ``nsys``, records with it, and exports reports in its own format, as fast as that nsys can."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tracekit.errors import CaptureError
from tracekit.files import hidden_prefix, stops_held
from tracekit.storage.local_copies import temp_dir

#: Environment variable with the path of the ``nsys`` to use; it comes before all other places.
VARIABLE = "TRACEKIT_NSYS"
#: Text of the range that a program opens around the part of it that is to be recorded.
WINDOW = "tracekit.capture"
#: How the error begins where nsys left nothing.
NOTHING = "nothing was recorded"
INSTALL = f"install NVIDIA Nsight Systems, or set {VARIABLE} to the path of its nsys"

_PLACES = (
    "opt/nvidia/nsight-systems/*/bin/nsys",
    "opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "usr/local/cuda*/bin/nsys",
    "usr/lib/nsight-systems/bin/nsys",
)
#: Options passed to each nsys whose ``profile`` has them; they differ between versions.
_WANTED = {
    "--cuda-graph-trace": "node",  # a graph traced as a whole hides the kernels inside
    "--trace-fork-before-exec": "true",  # workers that are forked
    "--sample": "none",
    "--cpuctxsw": "none",
}
_WINDOWED = {"--capture-range": "nvtx", "--nvtx-capture": WINDOW, "--capture-range-end": "stop"}
#: By default nsys compares registered texts only (User Guide, ``--nvtx-capture``).
_ANY_TEXT = {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
#: Files that nsys leaves: a report, or raw data if it finds no importer.
NATIVE = ".nsys-rep"
_REPORTS = (NATIVE, ".qdrep")
_RAW = ".qdstrm"
#: How reports begin, and how they end; raw data, which has to be imported before it is exported, begins otherwise.
REPORT_MAGIC = b"NVIDIA Teg"
REPORT_END = b"U3w[END]"
RAW_MAGIC = REPORT_END + b"NVIDIA Nsight Systems Stream"
#: Types of export that tracekit reads, fastest first: folders of tables, then SQLite, which every nsys writes.
#: Measured for 400,000 ranges, CPU seconds of the export: 0.32, 0.44, 0.58.
TYPES = ("arrowdir", "parquetdir", "sqlite")
_EXPORT = "export"
_NO_REASON = "nothing"
#: How long an interrupted program may take to end, and nsys to write.
_PATIENCE_S = 120
_Start = Callable[[], subprocess.Popen[Any]]
_PERCENT = re.compile(rb"(\d{1,3})%")
#: What is kept of an output to find a reason in.
_TAIL_BYTES = 16_384
#: Lines of nsys that explain nothing.
_CHATTER = re.compile(
    r"^\s*(https?:|Please refer|Generat|Unable to retrieve the importer|Process|Collect|Capture range|Export|/|\["
    r"|Saved report|WARNING: CPU|[{}]*$)"
)
_CHATTER_OF_EXPORT = re.compile(r"^\s*(Processing|Saved report|/|\[|$)")
_NOT_RUN = re.compile(r"^.+ cannot be run \(.+\)$", re.MULTILINE)
#: NVIDIA's programs nest an error in others and in where it was thrown; this is its message, up to its line's end.
_MESSAGES = (_NOT_RUN, re.compile(r"\btag_message\*?\] = (.+?)(?:\\n|\"?\n|$)"))
_MESSAGES_OF_EXPORT = (
    _NOT_RUN,
    re.compile(r"Exportation error: (?!.*Throw in function)(.+)"),
    re.compile(r"Type: ErrorText\s+Value: \"(?!.*Throw in function)(.+)\""),
    re.compile(r"std::exception::what: (.+)"),
)
_LONGEST_REASON = 300


class ExportFailed(Exception):  # noqa: N818
    """nsys could not export a report; the message is nsys's reason."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The outcome of running a program under nsys: whether it was stopped from outside, and what went wrong later."""

    exit_code: int
    stopped: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Nsys:
    """One installed nsys."""

    path: Path

    @cached_property
    def version(self) -> str:
        """Such as ``2023.4.4``."""
        match = re.search(r"\d{4}\.\d+(\.\d+)?", self._ask("--version"))
        return match.group() if match else "of unknown version"

    @cached_property
    def options(self) -> frozenset[str]:
        """The options of its ``profile``."""
        return frozenset(re.findall(r"--[a-z][a-z-]+", self._ask("profile", "--help")))

    @property
    def refusal(self) -> str | None:
        """Why this is another program than nsys; None if it is nsys."""
        return None if self.options else f"{self.path} is not NVIDIA's nsys; correct {VARIABLE}, or unset it"

    @cached_property
    def export_types(self) -> frozenset[str]:
        """Words of the help of its ``export``, the types that it offers among them."""
        return frozenset(re.findall(r"\w+", self._ask("export", "--help")))

    @property
    def export_type(self) -> str | None:
        """The fastest type of export that it offers; None if it is no nsys."""
        return next((type_ for type_ in TYPES if type_ in self.export_types), None)

    @property
    def importer(self) -> Path:
        """The program that converts raw data to a report; Debian's nsys does not find its own."""
        near = [path.parents[1] for path in (self.path, self.path.resolve())]
        importers = [path for root in near for path in root.glob("host-linux-*/QdstrmImporter")]
        return importers[0] if importers else Path("QdstrmImporter")

    def record(
        self,
        command: Sequence[str],
        report: Path,
        *,
        windowed: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Recorded:
        """Runs a command under nsys and exports the recording, even if it was interrupted.

        Args:
            command: The program and its arguments.
            report: Where the SQLite export goes; nsys's own report goes next to it, and stays if it cannot be exported.
            windowed: Whether the program opens the range ``WINDOW`` around what is to be recorded.
            environment: The program's environment; None means this process's.
        """
        with temp_dir(hidden_prefix(report), report.parent.absolute()) as place:
            wanted = {**_WANTED, **(_WINDOWED if windowed else {})}
            any_text = _ANY_TEXT if windowed else {}
            recorded = self._profile(command, place, wanted, {**(environment or os.environ), **any_text})
            made, printed = self._native(place, recorded)
            native = made.replace(report.with_suffix(made.suffix))
            problem = self._to_sqlite(place, native, report, printed)
        return replace(recorded, warnings=(problem,) if problem else ())

    def _profile(
        self, command: Sequence[str], place: Path, wanted: Mapping[str, str], environment: Mapping[str, str]
    ) -> Recorded:
        chosen = [f"{name}={value}" for name, value in wanted.items() if name in self.options]
        nsys = [str(self.path), "profile", "--trace=cuda,nvtx", *chosen, "-o", str(place / "run")]
        with (place / "nsys.log").open("wb") as log, _own_output(command) as (program, descriptors):
            start = partial(
                subprocess.Popen,
                [*nsys, *program],
                stdout=log,
                stderr=log,
                pass_fds=descriptors,
                env=environment,
                start_new_session=True,  # so that an interrupt reaches it once: from here
            )
            return run(start)

    def _native(self, place: Path, recorded: Recorded) -> tuple[Path, str]:
        """What nsys left, a report if that is possible, and what it or its importer printed last."""
        output = (place / "nsys.log").read_text("utf-8", "replace")
        if not _newest(place, *_REPORTS) and (raw := _newest(place, _RAW)):
            _, output = self._imported(raw, raw.with_suffix(_REPORTS[0]), place)
        printed = _reason(output, _MESSAGES)
        if native := _newest(place, *_REPORTS) or _newest(place, _RAW):
            return native, printed or _NO_REASON
        code = recorded.exit_code
        left = f"the program exited with code {code}; " if code else ""
        refusal = None if printed else self.refusal
        message = f"{NOTHING}: {refusal or f'{left}{self.path} printed: {printed or _NO_REASON}'}"
        raise CaptureError(message, code or 1)

    def _to_sqlite(self, place: Path, native: Path, report: Path, printed: str) -> str | None:
        """Exports nsys's own report, which is safe by now, as SQLite; returns the problem and its remedy, if any."""
        if native.suffix == _RAW:
            problem = f"cannot be converted to a report; {self.importer} printed: {printed}"
            remedy = "convert it on a machine with a full Nsight Systems installation: QdstrmImporter -i"
        else:
            made = place / "export.sqlite"
            exporting = (self.path, "export", "-q", "true", "--type", "sqlite", "-o", made, native.absolute())
            code, output = _run(place, *exporting)
            problem = f"{self.path} cannot export it and printed: {_reason(output, _MESSAGES) or _NO_REASON}"
            remedy = f"export it with another nsys: nsys export --type sqlite -o {report}"
            if made.exists():
                made.replace(report)
                return f"{report}: may be incomplete: {problem}" if code else None
        report.unlink(missing_ok=True)  # one of an earlier run would be mistaken for this run's
        return f"{native}: was recorded, but {problem}; {remedy} {native}"

    def export(self, report: Path, place: Path, progress: Callable[[float], object]) -> None:
        """Exports a report into an empty folder, where ``exported`` finds it. Nothing is written elsewhere.

        Raises:
            ExportFailed: If nsys cannot do it.
            OSError: If the raw data cannot be copied.
        """
        if (type_ := self.export_type) is None:
            raise ExportFailed("it offers no export")
        native = report.absolute()
        if raw := is_raw(report):
            native, copy = place / "run.nsys-rep", place / "run.qdstrm"
            shutil.copyfile(report, copy)
            _check(*self._imported(copy, native, place, progress))
            copy.unlink()
        target = place / (f"{_EXPORT}.sqlite" if type_ == "sqlite" else _EXPORT)
        _check(*_run(place, self.path, "export", "--type", type_, "-o", target, native, progress=progress))
        if not target.exists():
            raise ExportFailed("it wrote nothing")
        if raw:
            native.unlink()

    def _imported(
        self, raw: Path, report: Path, place: Path, progress: Callable[[float], object] = bool
    ) -> tuple[int, str]:
        importer = self.importer
        return _run(place, importer, "-i", raw, "-o", report, progress=progress, libraries=importer.parent)

    def _ask(self, *arguments: str) -> str:
        try:
            asked = subprocess.run([self.path, *arguments], capture_output=True, check=False, timeout=_PATIENCE_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CaptureError(f"{self.path}: cannot be run ({error}); {INSTALL}") from None
        return (asked.stdout + asked.stderr).decode("utf-8", "replace")


def find() -> Nsys | None:
    """The nsys of this machine, the first of: ``TRACEKIT_NSYS``, one on the path, the newest that is installed."""
    if named := os.environ.get(VARIABLE):
        if (path := shutil.which(named)) is None:
            raise CaptureError(f"{named}: is not an executable program; correct the variable {VARIABLE}, or unset it")
        return Nsys(Path(path).absolute())
    if path := shutil.which("nsys"):
        return Nsys(Path(path).absolute())
    installed = [path for place in _PLACES for path in Path("/").glob(place)]
    return Nsys(max(installed)) if installed else None


@contextmanager
def _own_output(command: Sequence[str]) -> Iterator[tuple[list[str], tuple[int, int]]]:
    """The command, with tracekit's own stdout and stderr, while nsys's output goes to a log.

    nsys passes open descriptors on to the program. If a version does not, /proc has the same files.
    """
    out, err = os.dup(1), os.dup(2)
    files = f"/proc/{os.getpid()}/fd"
    try:
        handed = f"{{ true >&{out}; }} 2>/dev/null"
        own = f'exec "$@" >&{out} 2>&{err} {out}>&- {err}>&-'
        opened = f'exec "$@" >>{files}/1 2>>{files}/2'
        # A POSIX shell supports descriptors of one digit only.
        script = f"if {handed}; then {own}; else {opened}; fi" if max(out, err) <= 9 else opened  # noqa: PLR2004
        yield ["sh", "-c", script, "sh", *command], (out, err)
    finally:
        os.close(out)
        os.close(err)


def run(start: _Start, stopping: Callable[[], object] = bool, killing: signal.Signals = signal.SIGINT) -> Recorded:
    """Runs nsys or another program to its end. If tracekit is interrupted, so is the program, which writes what it has.

    If tracekit is killed, the program gets ``killing``: nsys is known to write after Ctrl-C.
    """
    running: subprocess.Popen[Any] | None = None
    try:
        with stops_held():
            running = start()
        return Recorded(running.wait(), stopped=False)
    except (KeyboardInterrupt, SystemExit) as stop:
        if running is None:
            raise
        code = stop.code if isinstance(stop, SystemExit) else None
        for sent in (signal.SIGINT if code is None else killing, signal.SIGTERM, signal.SIGKILL):
            try:
                stopping()
                stopping = bool
                os.killpg(running.pid, sent)
                running.wait(_PATIENCE_S)
                break
            except (KeyboardInterrupt, SystemExit, subprocess.TimeoutExpired, ProcessLookupError):
                continue
        return Recorded(code if isinstance(code, int) else 128 + signal.SIGINT, stopped=True)


def _newest(place: Path, *suffixes: str) -> Path | None:
    reports = [path for path in place.glob("run*") if path.suffix in suffixes]
    return max(reports, key=lambda path: (len(path.name), path.name)) if reports else None


def is_raw(report: Path) -> bool:
    """Whether it is raw data, which has to be imported before it is exported."""
    with report.open("rb") as file:
        return file.read(len(RAW_MAGIC)) == RAW_MAGIC


def exported(place: Path) -> Path:
    """What an export left in its folder: a SQLite file, or a folder with a file for each table."""
    file = place / f"{_EXPORT}.sqlite"
    return file if file.exists() else place / _EXPORT


def _run(
    place: Path, *command: str | Path, progress: Callable[[float], object] = bool, libraries: Path | None = None
) -> tuple[int, str]:
    """Runs one of NVIDIA's programs; returns its exit code and the end of its output."""
    environment = os.environ | ({"LD_LIBRARY_PATH": str(libraries)} if libraries else {})
    running: subprocess.Popen[bytes] | None = None
    try:
        with stops_held():
            try:
                running = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=place,
                    env=environment,
                    start_new_session=True,  # so that all of it can be stopped
                )
            except OSError as error:
                return 1, f"{command[0]} cannot be run ({error.strerror})"
        output = _output(running, progress)
        return running.wait(), output
    finally:
        if running is not None and running.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def _output(running: subprocess.Popen[bytes], progress: Callable[[float], object]) -> str:
    tail = b""
    with running.stdout or nullcontext() as stream:
        while stream and (chunk := os.read(stream.fileno(), _TAIL_BYTES)):
            tail = (tail + chunk)[-_TAIL_BYTES:]
            if shares := _PERCENT.findall(chunk):
                progress(min(100, int(shares[-1])) / 100)
    return tail.decode("utf-8", "replace")


def _check(code: int, output: str) -> None:
    if code:
        reason = _reason(output, _MESSAGES_OF_EXPORT, _CHATTER_OF_EXPORT).removesuffix(".")
        raise ExportFailed(reason or f"exit code {code}")


def _reason(output: str, messages: Sequence[re.Pattern[str]], chatter: re.Pattern[str] = _CHATTER) -> str:
    """Why a program failed: the last message of the first kind that was printed, or the last line that may explain."""
    explained = [match for message in messages for match in message.findall(output)[-1:]]
    lines = [line for line in re.split(r"[\r\n]", output) if not chatter.match(line)]
    return "".join((explained or lines[-1:])[:1]).strip().rstrip(":")[:_LONGEST_REASON]
