"""Finds NVIDIA's ``nsys`` and records with it: profile, import, export."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
_LOG = "nsys.log"
#: How long an interrupted program may take to end, and nsys to write.
_PATIENCE_S = 120
_Start = Callable[[], subprocess.Popen[Any]]
_NO_REASON = "nothing"
#: Lines of nsys that explain nothing.
_CHATTER = re.compile(
    r"^\s*(https?:|Please refer|Generat|Unable to retrieve the importer|Process|Collect|Capture range|Export|/|\["
    r"|WARNING: CPU|[{}]*$)"
)
#: NVIDIA's programs nest an error in others and in where it was thrown; this is its message, up to its line's end.
_MESSAGE = re.compile(r"\btag_message\*?\] = (.+?)(?:\\n|\"?\n|$)")


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
        with temp_dir(hidden_prefix(report), report.parent) as place:
            wanted = {**_WANTED, **(_WINDOWED if windowed else {})}
            any_text = _ANY_TEXT if windowed else {}
            recorded = self._profile(command, place, wanted, {**(environment or os.environ), **any_text})
            made = self._native(place, recorded)
            native = made.replace(report.with_suffix(made.suffix))
            problem = self._export(place, native, report)
        return replace(recorded, warnings=(problem,) if problem else ())

    def _profile(
        self, command: Sequence[str], place: Path, wanted: Mapping[str, str], environment: Mapping[str, str]
    ) -> Recorded:
        chosen = [f"{name}={value}" for name, value in wanted.items() if name in self.options]
        nsys = [str(self.path), "profile", "--trace=cuda,nvtx", *chosen, "-o", str(place / "run")]
        with (place / _LOG).open("wb") as log, _own_output(command) as (program, descriptors):
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

    def _native(self, place: Path, recorded: Recorded) -> Path:
        if not _newest(place, *_REPORTS) and (raw := _newest(place, _RAW)):
            importer = self.importer
            made = raw.with_suffix(_REPORTS[0])
            self._run(place, importer, "-i", raw, "-o", made, libraries=importer.parent)
        if native := _newest(place, *_REPORTS) or _newest(place, _RAW):
            return native
        code = recorded.exit_code
        left = f"the program exited with code {code}; " if code else ""
        printed = _last_reason(place)
        refusal = self.refusal if printed == _NO_REASON else None
        message = f"{NOTHING}: {refusal or f'{left}{self.path} printed: {printed}'}"
        raise CaptureError(message, code or 1)

    def _export(self, place: Path, native: Path, report: Path) -> str | None:
        """Exports nsys's own report, which is safe by now, as SQLite; returns the problem and its remedy, if any."""
        if native.suffix == _RAW:
            problem = f"cannot be converted to a report; {self.importer} printed: {_last_reason(place)}"
            remedy = "convert it on a machine with a full Nsight Systems installation: QdstrmImporter -i"
        else:
            made = place / "export.sqlite"
            command = ("export", "-q", "true", "--type", "sqlite", "-o", made, native)
            code = self._run(place, self.path, *command)
            problem = f"{self.path} cannot export it and printed: {_last_reason(place)}"
            remedy = f"export it with another nsys: nsys export --type sqlite -o {report}"
            if made.exists():
                made.replace(report)
                return f"{report}: may be incomplete: {problem}" if code else None
        report.unlink(missing_ok=True)  # one of an earlier run would be mistaken for this run's
        return f"{native}: was recorded, but {problem}; {remedy} {native}"

    def _ask(self, *arguments: str) -> str:
        try:
            asked = subprocess.run([self.path, *arguments], capture_output=True, check=False, timeout=_PATIENCE_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CaptureError(f"{self.path}: cannot be run ({error}); {INSTALL}") from None
        return (asked.stdout + asked.stderr).decode("utf-8", "replace")

    def _run(self, place: Path, *command: str | Path, libraries: Path | None = None) -> int:
        """Runs one of NVIDIA's programs; returns the exit code. The log holds only its output."""
        environment = os.environ | ({"LD_LIBRARY_PATH": str(libraries)} if libraries else {})
        with (place / _LOG).open("wb") as log:
            try:
                return subprocess.run(command, stdout=log, stderr=log, check=False, env=environment).returncode
            except OSError as error:
                log.write(f"\n{command[0]} cannot be run ({error.strerror})\n".encode())
                return 1


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


def _last_reason(place: Path) -> str:
    """Why a command failed, by the log: the last error's message, or the last line that may explain it."""
    log = (place / _LOG).read_text("utf-8", "replace")
    reasons = _MESSAGE.findall(log) or [line for line in log.splitlines() if not _CHATTER.match(line)]
    return reasons[-1].strip().rstrip(":")[:300] if reasons else _NO_REASON
