"""Datasets in the formats of other programs: timelines, flame graphs, spreadsheets, databases.

To add a format: write a function of :data:`~tracekit.exports.base.Write`, add it to ``FORMATS`` and its name to
``cli/export.py``, a row to the table in ``exports/README.md``, and a dataset with the expected output to
``tests/exports``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.exports import sheets, sql, stacks, timeline

if TYPE_CHECKING:
    from tracekit.exports.base import Write

FORMATS: dict[str, Write] = {
    "perfetto": timeline.write_perfetto,
    "chrome": timeline.write_chrome,
    "stacks": stacks.write,
    "csv": sheets.write_csv,
    "xlsx": sheets.write_xlsx,
    "sql": sql.write,
}
