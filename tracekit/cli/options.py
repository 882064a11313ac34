"""Options that several commands share, and the numbers that options take."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tracekit.storage.locations import is_url

#: Options that describe the device, by the keyword of the analyses that take them.
DEVICE_OPTIONS = {"peaks": "--peak", "dtype": "--dtype"}
_SHARE = re.compile(r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})( ?%)?", re.ASCII)
_COUNT = re.compile(r"\d{1,9}", re.ASCII)


def add_force(parser: argparse.ArgumentParser, existing: str) -> None:
    """Declares ``-f``/``--force``, which allows to replace something, such as ``an existing report``."""
    parser.add_argument("-f", "--force", action="store_true", help=f"replace {existing}")


def add_quiet(parser: argparse.ArgumentParser, still_printed: str = "errors") -> None:
    """Declares ``-q``/``--quiet``."""
    parser.add_argument("-q", "--quiet", action="store_true", help=f"print only {still_printed}")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declares :data:`DEVICE_OPTIONS`."""
    parser.add_argument(
        "--peak",
        dest="peaks",
        action="append",
        metavar="PEAK",
        help="roofline: what the device can do at most: DTYPE=TFLOP/s (bfloat16=989), memory=GB/s (memory=3350) or "
        "the name of a GPU; repeatable",
    )
    parser.add_argument(
        "--dtype",
        metavar="DTYPE",
        help="roofline, memory: dtype assumed where markers record none, such as bfloat16",
    )


def dataset_place(text: str) -> Path | str:
    """The folder of a dataset, or its URL."""
    return text if is_url(text) else Path(text)


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
    if float(number) > 1:
        raise argparse.ArgumentTypeError(f"{number} is ambiguous; write {number}%")
    if float(number) == 1:
        raise argparse.ArgumentTypeError(f"{number} is ambiguous; write 1% or 100%")
    return float(number)


def share_of_whole(text: str) -> float:
    """A share of at most 100 %."""
    value = share(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"expected at most 100%, got {text!r}")
    return value
