"""Runs checks for ``tracekit doctor --prove``, and for programs that have more of them: options, progress, answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.cli.base import say
from tracekit.cli.recording import require_torch
from tracekit.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tracekit.proof import Summary
    from tracekit.proof.base import Check


def add_only(parser: argparse.ArgumentParser) -> None:
    """Declares ``--only``."""
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="CHECK",
        help="prove only this, such as eager; repeatable (default: everything)",
    )


def proved(
    place: Path,
    checks: Sequence[Check],
    args: argparse.Namespace,
    finished: Callable[[Path, Summary], object] | None = None,
) -> int:
    """Runs checks into a folder, as the options ``--only``, ``--force`` and ``--json`` say. Returns the exit code.

    Raises:
        UsageError: If there is no check of a name.
    """
    wanted = _chosen(checks, args.only)
    require_torch()
    from tracekit.proof import Watchers, page, prove, summary

    watchers = Watchers(lambda line: say([line]))
    found = prove(place, wanted, watchers if finished is None else Watchers(watchers.told, finished), force=args.force)
    if args.json:
        print(found.as_json())
    else:
        counts = ", ".join(f"{number} {verdict}" for verdict, number in found.counts.items())
        print(f"{counts} in {found.seconds:.0f} s: {place / page.FILE}, {place / summary.FILE}")
    return found.exit_code


def _chosen(checks: Sequence[Check], names: Sequence[str]) -> list[Check]:
    there = [check.NAME for check in checks]
    if unknown := [name for name in names if name not in there]:
        raise UsageError(f"--only {unknown[0]}: there is no such check; expected one of {', '.join(there)}")
    return [check for check in checks if not names or check.NAME in names]
