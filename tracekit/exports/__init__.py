"""Datasets in the formats of other programs: timelines, flame graphs, spreadsheets, databases.

To add a format: write ``exports/<format>.py`` with the three names of :class:`~tracekit.exports.base.Format`, add the
module to ``FORMATS`` and its name to ``cli/export.py``, a row to the table in ``exports/README.md``, and a dataset with
the expected output to ``tests/exports``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.exports import chrome, csv, perfetto, sql, stacks, xlsx

if TYPE_CHECKING:
    from tracekit.exports.base import Format

FORMATS: tuple[Format, ...] = (perfetto, chrome, stacks, csv, xlsx, sql)
