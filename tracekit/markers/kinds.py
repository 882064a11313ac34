"""What nodes of a hierarchy can be, and what a hierarchy can be keyed by."""

from __future__ import annotations

#: A module, a plain NVTX range, an operator, and a compiled region of which nothing more is known.
MODULE, RANGE, OPERATOR, REGION = KINDS = ("module", "range", "operator", "region")

#: What a hierarchy can be keyed by; ``auto`` takes the first of the others that a report has.
AUTO, MODULES, RANGES, OPERATORS = HIERARCHIES = ("auto", "modules", "ranges", "operators")
