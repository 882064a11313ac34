"""``tracekit capture``: runs a model or a command and records it."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.base import (
    NATIVE,
    add_force,
    add_quiet,
    check_place,
    count,
    flag,
    option,
    print_to_stderr,
    progress_bar,
    repeatable,
    report_place,
    require_torch,
)
from tracekit.errors import CaptureError, ReportError, UsageError
from tracekit.files import hidden_prefix, reason_of, stops_held
from tracekit.storage.local_copies import temp_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.capture.compile_config import CompileConfig
    from tracekit.capture.program import Settings
    from tracekit.capture.run import Outcome
    from tracekit.progress import Progress

NAME = "capture"
HELP = "record a model, a script or any command"
_USAGE = """\
tracekit capture [options] TARGET [-- ARGUMENT ...]
       tracekit capture [options] -- COMMAND [ARGUMENT ...]"""
#: All that a recording may leave.
_SUFFIXES = (".sqlite", *NATIVE, ".json.gz")
#: Options that nsys does not have for a command.
_WINDOW_OPTIONS = ("steps", "warmup", "ops")
#: Options that mean nothing without ``--compile``.
_COMPILE_OPTIONS = ("split", "compile_size", "cudagraph_size", "dynamic_dims", "cache_dir", "no_cache")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.usage = _USAGE
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="what to record: FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION, a function that returns (model, inputs) or "
        "runs steps itself; FILE.py, a script; or demo, a small Llama",
    )
    _add_report_and_steps(parser)
    _add_markers(parser)
    _add_compilation(parser)


def _add_report_and_steps(parser: argparse.ArgumentParser) -> None:
    option(parser, "-o, --out REPORT", "SQLite report to write (default: named after the target)", type=Path)
    add_force(parser, "an existing report")
    meaning = (
        "record with nsys or with torch's profiler (default: nsys if it is installed and there is a GPU). torch's "
        "records all processes of a COMMAND, but only one of a TARGET"
    )
    option(parser, "--engine auto|nsys|torch", meaning, default="auto")
    meaning = (
        "also write torch's own Chrome trace, REPORT with the suffix .json.gz, in which every operator and kernel has "
        'its modules as "Module Hierarchy", as PyTorch writes it for TorchScript; needs --engine torch'
    )
    flag(parser, "--hierarchy", meaning)
    add_quiet(parser, "errors, warnings and what the target prints")
    group = parser.add_argument_group("steps")
    meaning = "steps to record (default: 5 of a model; all of a script, or of a function that runs steps itself)"
    option(group, "--steps N", meaning, type=count)
    meaning = "steps to run before recording (default: 2 of a model, otherwise 0)"
    option(group, "--warmup N", meaning, type=count)


def _add_markers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("markers", "Modules are always marked.")
    flag(group, "--ops", "mark operators too")
    group.add_argument(
        "--backward",
        action=argparse.BooleanOptionalAction,
        help="mark backward passes, and run one in each step of a model (default: mark those that the program runs)",
    )
    repeatable(group, "--skip PATTERN", "do not mark modules whose path matches, such as '*.rotary_emb'")
    option(group, "--depth N", "do not mark modules below this depth", type=count)
    flag(group, "--keep-fused", argparse.SUPPRESS)  # always so, since #28


def _add_compilation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("compilation", "Compile the model in pieces, as serving engines do.")
    flag(group, "--compile", "compile the model before recording")
    repeatable(group, "--split NS::OP", "split the model at this operator")
    repeatable(group, "--compile-size N", "compile code for only this size", type=count)
    repeatable(group, "--cudagraph-size N", "use CUDA graphs at this size (needs a GPU)", type=count)
    meaning = (
        "only these dimensions of the model's arguments are dynamic, such as input_ids:0 (default: dimension 0 of "
        "every tensor; those that are equal at the first call are one size)"
    )
    repeatable(group, "--dynamic-dims ARGUMENT:DIM[,DIM]", meaning, type=_dynamic_dims)
    option(group, "--cache-dir DIR", "folder for compiled pieces (default: the user's cache)")
    flag(group, "--no-cache", "do not cache compiled pieces")


def _dynamic_dims(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, dims = text.partition(":")
    try:
        return name, tuple(map(int, dims.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected ARGUMENT:DIM, such as input_ids:0") from None


def run(args: argparse.Namespace) -> int:
    """Records, prints what was recorded, and returns the target's exit code."""
    trailing: list[str] = args.trailing
    if args.target is None and not trailing:
        raise UsageError("nothing to record; expected TARGET or -- COMMAND; see tracekit capture --help")
    if args.steps == 0:
        raise UsageError("--steps 0 records nothing; expected 1 or more")
    if args.hierarchy and args.engine == "nsys":
        raise UsageError("--hierarchy needs --engine torch, because nsys writes no Chrome trace")
    report = _report(args, trailing)
    if args.hierarchy:
        args.engine = "torch" if args.engine == "auto" else args.engine
        check_place(report.with_suffix(".json.gz"), force=args.force)
    with ExitStack() as recording_stack, ExitStack() as bar:
        recording = recording_stack.enter_context(_growing(report))
        trace = recording.partial.with_suffix(".json.gz") if args.hierarchy else None
        progress = bar.enter_context(progress_bar(quiet=args.quiet))

        def finish(recorded: Outcome) -> None:
            failed = _with_hierarchies(trace, progress)
            bar.close()
            recording.take_place()
            recording_stack.close()
            _print(recorded, recording, failed, report, trace, quiet=args.quiet)

        if args.target is None:
            recorded = _record_command(args, (recording.partial, trace), progress)
        else:
            recorded = _record_target(args, (recording.partial, trace), progress, finish)
        finish(recorded)
    if recorded.problem is not None:
        raise recorded.problem
    return recorded.exit_code


def _print(
    recorded: Outcome, recording: _Growing, failed: list[str], report: Path, trace: Path | None, *, quiet: bool
) -> None:
    warnings = [*recorded.warnings]
    if recorded.problem is None and recorded.figures.get("modules_marked") == 0:
        reasons = _unmarked(recorded.figures) or "the program called none"
        warnings.append(f"no module ran marked, so the report has no hierarchy of modules: {reasons}")
    warnings += failed
    if recording.report != report:
        warnings.append(f"{report}: another recording took this place; this one is {recording.report}")
    print_to_stderr(f"tracekit: warning: {warning}" for warning in recording.renamed(warnings))
    if not quiet:
        print_to_stderr(_summary(recorded.figures, recording.report, trace))


@contextmanager
def _growing(report: Path) -> Iterator[_Growing]:
    """A hidden folder next to a report, in which its recording grows; what is complete takes its place at the end."""
    with temp_dir(hidden_prefix(report), report.absolute().parent) as folder:
        recording = _Growing(report, folder)
        try:
            yield recording
        except BaseException as error:
            recording.take_place()
            if isinstance(error, CaptureError):
                error.args = tuple(recording.renamed(error.args))
            raise


class _Growing:
    """A recording, and the places that its files will take."""

    def __init__(self, report: Path, folder: Path) -> None:
        #: Where the report belongs, as the user named it; another place if another recording has taken it meanwhile.
        self.report = report
        #: Where it is written. Absolute, because the target may change the working directory.
        self.partial = folder / report.name
        self._place = report.absolute()
        self._before = {suffix: _identity(self._place.with_suffix(suffix)) for suffix in _SUFFIXES}

    @stops_held()
    def take_place(self) -> None:
        """Moves what was recorded to its place, or to a free one next to it; what is there already stays."""
        stem, number = self._place.stem, 1
        made = [suffix for suffix in _SUFFIXES if self.partial.with_suffix(suffix).is_file()]
        for suffix in made:
            while not self._taken(suffix):
                number += 1
                self._place = self._place.with_stem(f"{stem}.{number}")
                self._before.clear()
        if made and _SUFFIXES[0] not in made and self._before.get(_SUFFIXES[0]):
            self._place.unlink(missing_ok=True)  # one of an earlier run would be mistaken for this run's
        self.report = self.report.with_name(self._place.name)

    def renamed(self, texts: Iterable[object]) -> Iterable[str]:
        """Texts that name the files where they are now."""
        before, now = (f"{path.with_suffix('')}." for path in (self.partial, self._place))
        return (str(text).replace(before, now) for text in texts)

    def _taken(self, suffix: str) -> bool:
        file, place = self.partial.with_suffix(suffix), self._place.with_suffix(suffix)
        before = self._before.get(suffix)
        if before is None:
            try:
                place.hardlink_to(file)
            except FileExistsError:  # also a link to nothing
                return False
            except OSError:  # the file system has no links
                pass
            else:
                file.unlink()
                return True
        if _identity(place) != before:
            return False
        file.replace(place)
        return True


def _identity(place: Path) -> tuple[int, int, int] | None:
    if not place.exists():
        return None
    about = place.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns


def _with_hierarchies(trace: Path | None, progress: Progress) -> list[str]:
    """Writes the hierarchies of modules into a Chrome trace. Returns why they are not there, if so."""
    if trace is None or not trace.exists():
        return []
    from tracekit.pipeline.module_hierarchies import write_module_hierarchies

    try:
        write_module_hierarchies(trace, progress)
    except (ReportError, OSError) as error:
        problem = error.problem if isinstance(error, ReportError) else reason_of(error)
        return [f"{trace}: has no module hierarchies ({problem})"]
    return []


def _report(args: argparse.Namespace, trailing: list[str]) -> Path:
    if args.out is not None:
        return report_place(args.out, force=args.force)
    target = trailing[0] if args.target is None else args.target
    _, colon, function = target.rpartition(":") if args.target else ("", "", target)
    name = function.rpartition(".")[2] if colon else Path(target).stem
    return report_place(Path(f"{name}.sqlite"), force=args.force)


def _record_target(
    args: argparse.Namespace, places: tuple[Path, Path | None], progress: Progress, ended: Callable[[Outcome], object]
) -> Outcome:
    require_torch()
    if Path(args.target).is_file() and not args.target.endswith(".py"):
        command = shlex.quote(args.target if os.sep in args.target else f"./{args.target}")
        raise UsageError(f"{args.target}: is not Python; a command follows --: tracekit capture -- {command}")
    from tracekit.capture.engines import chosen
    from tracekit.capture.run import Job

    job = Job(args.target, tuple(args.trailing), _settings(args), *places, progress, ended)
    return chosen(args.engine).record(job)


def _settings(args: argparse.Namespace) -> Settings:
    from tracekit.capture.program import Settings

    return Settings(
        steps=args.steps,
        warmup=args.warmup,
        ops=args.ops,
        backward=args.backward,
        skip=tuple(args.skip),
        depth=args.depth,
        compiling=_compiling(args),
    )


def _compiling(args: argparse.Namespace) -> CompileConfig | None:
    if not args.compile:
        if given := _given(args, _COMPILE_OPTIONS):
            raise UsageError(f"{given} needs --compile")
        return None
    if args.target.endswith(".py"):
        raise UsageError("--compile needs a function that returns (model, inputs), not a script")
    from tracekit.capture.compile_config import CompileConfig

    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return CompileConfig(
        splitting_ops=tuple(args.split),
        compile_sizes=tuple(args.compile_size),
        cudagraph_sizes=tuple(args.cudagraph_size),
        dynamic_dims=dict(args.dynamic_dims) or None,
        cache_dir=args.cache_dir or caches / "tracekit" / "compile",
        use_cache=not args.no_cache,
    )


def _given(args: argparse.Namespace, names: tuple[str, ...]) -> str | None:
    values = ((name, getattr(args, name)) for name in names)
    given = (name for name, value in values if value is not None and value is not False and value != [])
    return next((f"--{name.replace('_', '-')}" for name in given), None)


def _record_command(args: argparse.Namespace, places: tuple[Path, Path | None], progress: Progress) -> Outcome:
    if given := _given(args, ("compile", *_COMPILE_OPTIONS)):
        raise UsageError(f"{given} is for a function that returns (model, inputs), not for a command after --")
    require_torch()
    from tracekit.capture.engines import chosen

    engine = chosen(args.engine).NAME
    _check_program(args.trailing[0])
    if engine == "nsys" and (given := _given(args, _WINDOW_OPTIONS)):
        raise UsageError(f"{given} of a command needs --engine torch, because nsys records its processes as a whole")
    from tracekit.capture.processes import command

    report, trace = places
    if engine == "nsys":
        return command.record_with_nsys(args.trailing, _settings(args), report)
    return command.record(args.trailing, _settings(args), report, trace, progress)


def _check_program(program: str) -> None:
    if Path(program).is_file() and not os.access(program, os.X_OK):
        file = shlex.quote(program)
        raise CaptureError(f"{program}: is not executable; run chmod +x {file}, or tracekit capture -- bash {file}")
    if shutil.which(program) is None:
        raise CaptureError(f"{program}: no such program; check its name and PATH")


def _summary(figures: dict[str, int], report: Path, trace: Path | None) -> Iterator[str]:
    if "markers" in figures:
        lost = f" ({figures['markers_lost']:,} lost)" if figures["markers_lost"] else ""
        where = f" in {figures['processes']:,} processes" if figures.get("processes", 0) > 1 else ""
        yield f"recorded {figures['markers']:,} markers{lost}, {figures['operators']:,} operators{where}"
    if figures.get("calls"):
        yield _arrived(figures)
    if figures.get("modules_marked"):
        yield f"modules: {_modules(figures)}"
    if "pieces_seen" in figures:
        yield _compilation(figures)
    if "step_recorded_ns" in figures:
        during = f"a step took {figures['step_recorded_ns'] / 1e6:.3g} ms while recorded (median)"
        before = figures.get("step_before_ns")  # of one or two steps there is none: they are no measure
        compared = f", {before / 1e6:.3g} ms before" if before else "; --warmup 4 also times steps before it"
        yield f"{during}{compared}"
    if report.exists():
        yield f"report: {report}"
        if trace is not None and (kept := report.with_suffix(".json.gz")).exists():
            yield f"Chrome trace: {kept}"
        yield f"next: tracekit parse {shlex.quote(str(report))}"


def _arrived(figures: dict[str, int]) -> str:
    """How many of the marked calls and modules nsys recorded."""
    counts = []
    for name, noun in (("calls", "call"), ("called_modules", "module")):
        number, lost = figures[name], figures[f"{name}_lost"]
        counts.append(f"{f'{number - lost:,} of ' if lost else ''}{number:,} {noun}{'s' * (number != 1)}")
    where = f" in {figures['processes']:,} processes" if figures["processes"] > 1 else ""
    return f"recorded {' of '.join(counts)}{where}"


def _modules(figures: dict[str, int]) -> str:
    text = f"{figures['modules_marked']:,} called"
    if containers := figures.get("modules_containers"):
        text += f", {containers:,} container{'s' * (containers > 1)}"
    if figures.get("processes", 0) > 1:
        text += ", counted in each process"
    unmarked = _unmarked(figures)
    return f"{text}; not marked: {unmarked}" if unmarked else text


def _unmarked(figures: dict[str, int]) -> str:
    from tracekit.capture.layers import UNMARKED

    counts = {words: figures.get(f"modules_{cause}", 0) for cause, words in UNMARKED.items()}
    return ", ".join(f"{number:,} {words}" for words, number in counts.items() if number)


def _compilation(figures: dict[str, int]) -> str:
    graphs = f"{figures['graphs_captured']:,} CUDA graphs captured"
    if figures["no_gpu"]:
        graphs = "no CUDA graphs, because there is no GPU"
    return (
        f"compiled {figures['pieces_seen']:,} pieces in {figures['compile_ns'] / 1e9:.3g} s: "
        f"{figures['cache_misses']:,} by Inductor, {figures['artifacts_loaded']:,} from the cache; {graphs}"
    )
