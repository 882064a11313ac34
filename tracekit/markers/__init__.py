"""The language of markers: what capture writes and :mod:`tracekit.trace.decoding` reads.

To add a dialect: write ``markers/<dialect>.py`` with the two names of :class:`~tracekit.markers.base.Dialect`, add
the module to ``DIALECTS`` (the first that understands a text wins), and some of its texts with their markers to
``tests/markers/test_dialects.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.markers import compact, compiled, layer_dict, pieces, pyprof, steps

if TYPE_CHECKING:
    from tracekit.markers.base import Dialect

DIALECTS: tuple[Dialect, ...] = (compiled, layer_dict, pyprof, compact, steps, pieces)
