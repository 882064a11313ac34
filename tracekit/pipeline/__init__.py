"""From reports to a dataset. Start reading at ``parsing``; ``one`` shows every stage in its order.

``one`` takes a report through the stages, ``several`` many, each in a process of its own (``processes``, ``worker``).
"""

from __future__ import annotations

from tracekit.pipeline.parsing import parse

__all__ = ["parse"]
