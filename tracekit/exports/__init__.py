"""Datasets in the formats of other programs: timelines, flame graphs, spreadsheets, databases."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.exports.base import Write

FORMATS = {
    "perfetto": "timeline.write_perfetto",
    "chrome": "timeline.write_chrome",
    "stacks": "stacks.write",
    "csv": "sheets.write_csv",
    "xlsx": "sheets.write_xlsx",
    "sql": "sql.write",
}


def writer(name: str) -> Write:
    """What writes a format; only what this one needs is loaded, since SQLAlchemy takes a quarter of a second."""
    module, function = FORMATS[name].split(".")
    write: Write = getattr(import_module(f"{__name__}.{module}"), function)
    return write
