"""Datasets in the formats of other programs: timelines, flame graphs, spreadsheets, databases."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.exports.base import Write

#: What writes each format, and how the name of its default place ends.
FORMATS = {
    "perfetto": ("timeline.write_perfetto", ".perfetto.json.gz"),
    "chrome": ("timeline.write_chrome", ".chrome.json"),
    "stacks": ("stacks.write", ".stacks.txt"),
    "csv": ("sheets.write_csv", ".csv"),
    "xlsx": ("sheets.write_xlsx", ".xlsx"),
    "sql": ("sql.write", ".db"),
}


def writer(name: str) -> Write:
    """What writes a format; only what this one needs is loaded, since SQLAlchemy takes a quarter of a second."""
    module, function = FORMATS[name][0].split(".")
    write: Write = getattr(import_module(f"{__name__}.{module}"), function)
    return write
