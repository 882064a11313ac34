"""``tracekit capture``: runs a model or a command and records it."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tracekit.cli.base import needs_torch, report_place, say
from tracekit.errors import CaptureError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.capture.compiling import Compiling
    from tracekit.errors import TracekitError

NAME = "capture"
HELP = "run a model, a script or a command and record it"
_EXPECTED = "expected TARGET, or -- COMMAND; see tracekit capture --help"
#: Options that mean nothing for a program of which tracekit knows nothing.
_OF_MODELS = ("steps", "warmup", "ops", "backward", "skip", "depth", "compile")
#: Options that mean nothing without ``--compile``.
_OF_COMPILING = ("split", "compile_size", "cudagraph_size", "cache_dir", "no_cache")


class _Done(NamedTuple):
    """What came of it; the report is written, also where the target failed."""

    exit_code: int
    problem: TracekitError | None
    figures: dict[str, int]
    warnings: tuple[str, ...]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.usage = (
        "tracekit capture [options] TARGET [-- ARGUMENT ...]\n"
        "       tracekit capture [options] -- COMMAND [ARGUMENT ...]"
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="REPORT",
        help="where the SQLite report goes (default: the target's name, with .sqlite)",
    )
    parser.add_argument("--force", action="store_true", help="replace a report that is there")
    parser.add_argument(
        "--engine",
        default="auto",
        metavar="auto|nsys|torch",
        help="what records: nsys, or torch's profiler (default: nsys where there is one and a GPU)",
    )
    parser.add_argument(
        "--steps",
        type=_number,
        metavar="N",
        help="iterations to record (default: 5 of a model, all of a program)",
    )
    parser.add_argument(
        "--warmup",
        type=_number,
        metavar="N",
        help="iterations before that (default: 2 of a model, 0 of a program)",
    )
    parser.add_argument("--ops", action="store_true", help="also mark every operator")
    parser.add_argument(
        "--backward",
        action="store_true",
        help="also mark backward passes; runs them if a model is given",
    )
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="PATTERN",
        help="no markers for modules so named (*.rotary_emb)",
    )
    parser.add_argument("--depth", type=_number, metavar="N", help="no markers deeper than this")
    _compile_arguments(parser)
    parser.add_argument(
        "--quiet",
        action="store_true",
        help="print nothing but errors, warnings and what the target prints",
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION, a function that returns (model, inputs) or runs steps "
        "itself; FILE.py, a script; or demo, a small Llama",
    )


def _compile_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("compiling", "run the model as it is served: traced once, in compiled pieces")
    group.add_argument("--compile", action="store_true", help="compile the model before recording")
    group.add_argument("--split", action="append", default=[], metavar="NS::OP", help="split it at this operator")
    sizes: dict[str, Any] = {"action": "append", "type": _number, "default": [], "metavar": "N"}
    group.add_argument("--compile-size", help="code of its own for this size", **sizes)
    group.add_argument("--cudagraph-size", help="capture CUDA graphs at this size (needs a GPU)", **sizes)
    group.add_argument("--cache-dir", metavar="DIR", help="where compiled pieces are kept")
    group.add_argument("--no-cache", action="store_true", help="keep no compiled pieces")


def run(args: argparse.Namespace) -> int:
    """Records, says what was recorded, and returns the target's exit code."""
    trailing: list[str] = args.trailing
    if args.target is None and not trailing:
        raise UsageError(f"there is nothing to record; {_EXPECTED}")
    if args.steps == 0:
        raise UsageError("--steps 0 records nothing; expected 1 or more")
    report = _report(args, trailing)
    done = _command(args, report) if args.target is None else _target(args, report)
    say(f"tracekit: warning: {warning}" for warning in done.warnings)
    if not args.quiet:
        say(_told(done.figures, report))
    if done.problem is not None:
        raise done.problem
    return done.exit_code


def _report(args: argparse.Namespace, trailing: list[str]) -> Path:
    """Where the report goes; looked at before anything runs."""
    if args.out is not None:
        return report_place(args.out, force=args.force)
    named = trailing[0] if args.target is None else args.target
    _, colon, function = named.rpartition(":") if args.target else ("", "", named)
    name = function.rpartition(".")[2] if colon else Path(named).stem
    return report_place(Path(f"{name}.sqlite"), force=args.force)


def _target(args: argparse.Namespace, report: Path) -> _Done:
    needs_torch()
    from tracekit.capture.engines import chosen
    from tracekit.capture.engines.base import Job
    from tracekit.capture.run import Settings

    settings = Settings(
        steps=args.steps,
        warmup=args.warmup,
        ops=args.ops,
        backward=args.backward,
        skip=tuple(args.skip),
        depth=args.depth,
        compiling=_compiling(args),
    )
    # Absolute, because the target may go elsewhere.
    job = Job(args.target, tuple(args.trailing), settings, report.absolute())
    outcome = chosen(args.engine).record(job)
    return _Done(outcome.exit_code, outcome.problem, outcome.figures, outcome.warnings)


def _compiling(args: argparse.Namespace) -> Compiling | None:
    if not args.compile:
        given = [name for name in _OF_COMPILING if _asked(getattr(args, name))]
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')} means nothing without --compile")
        return None
    if args.target.endswith(".py"):
        raise UsageError("--compile needs a function that returns (model, inputs), not a script")
    from tracekit.capture.compiling import Compiling

    return Compiling(
        splitting_ops=tuple(args.split),
        compile_sizes=tuple(args.compile_size),
        cudagraph_sizes=tuple(args.cudagraph_size),
        cache_dir=args.cache_dir,
        use_cache=not args.no_cache,
    )


def _command(args: argparse.Namespace, report: Path) -> _Done:
    """Any program, under nsys; needs no torch here."""
    given = [name for name in (*_OF_MODELS, *_OF_COMPILING) if _asked(getattr(args, name))]
    if given:
        option = given[0].replace("_", "-")
        raise UsageError(f"--{option} is for models and scripts, not for a command after --")
    if args.engine not in {"auto", "nsys", "torch"}:
        raise UsageError(f"there is no engine {args.engine!r}; expected auto or nsys for a command")
    from tracekit.nsight import nsys

    tool = nsys.find()
    if args.engine == "torch" or tool is None:
        why = "" if tool else f", and there is none here: {nsys.INSTALL}"
        raise CaptureError(
            f"a command is recorded by nsys alone{why}; without nsys, name a function or a script: tracekit capture "
            "train.py"
        )
    if shutil.which(args.trailing[0]) is None:
        raise CaptureError(f"{args.trailing[0]}: there is no such program; check its name and the path")
    recorded = tool.record(args.trailing, report)
    return _Done(recorded.exit_code, None, {}, recorded.warnings)


def _told(figures: dict[str, int], report: Path) -> Iterator[str]:
    """What was recorded, what it cost and lost, and what to do next."""
    if "markers" in figures:
        lost = figures["markers_lost"]
        yield f"recorded {figures['markers']:,} markers ({lost:,} lost), {figures['operators']:,} operators"
    if "pieces_seen" in figures:
        yield _compiled(figures)
    if "step_before_ns" in figures:
        before, during = figures["step_before_ns"], figures["step_recorded_ns"]
        yield f"a step took {during / 1e6:.3g} ms while recorded, {before / 1e6:.3g} ms before"
    if report.exists():
        yield f"report: {report}"
        yield f"next: tracekit parse {report}"


def _compiled(figures: dict[str, int]) -> str:
    """What was compiled, and how much of it the cache saved."""
    graphs = f"{figures['graphs_captured']:,} CUDA graphs captured"
    if figures["no_gpu"]:
        graphs = "no CUDA graphs, since there is no GPU here"
    return (
        f"compiled {figures['pieces_seen']:,} pieces in {figures['compile_ns'] / 1e9:.3g} s: "
        f"{figures['cache_misses']:,} by Inductor, {figures['artifacts_loaded']:,} from the cache; {graphs}"
    )


def _asked(option: object) -> bool:
    """Whether it was given; 0 is a number like any other."""
    return option is not None and option is not False and option != []


def _number(text: str) -> int:
    if not (text.isdecimal() and text.isascii()):
        raise argparse.ArgumentTypeError(f"{text!r} is no number; expected 0 or more")
    return int(text)
