"""From reports to a dataset. Start reading at ``parsing``; ``one`` shows every stage in its order.

``one`` takes one report through the stages; ``several`` takes many, which an engine works on: ``work``.
"""

from __future__ import annotations

from tracekit.pipeline.parsing import parse

__all__ = ["parse"]
