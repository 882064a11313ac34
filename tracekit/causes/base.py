"""What a cause is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something is not known.

    Attributes:
        name: The name used in tables.
        doc: What happened, in one sentence or two.
        advice: What the user can do about it, without a full stop; empty if there is nothing to do.
        loss: Whether data is missing that should be there; False if it was left out because it is not needed.
    """

    name: str
    doc: str
    advice: str = ""
    loss: bool = True
