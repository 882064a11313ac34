"""Ranks wait in collectives for another one that comes later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tracekit.analyses import stragglers
from tracekit.analyses.findings.base import Candidate
from tracekit.analyses.findings.rows import StepRows
from tracekit.analyses.whatif.changes import Changing

NAME = "straggler"
#: A rank that the others wait for in more of the time is a steady straggler.
_STEADY = 0.6
_STEADILY = (
    "In {share:.0%} of the time in which ranks wait, they wait for {rank}. "
    "Compare it with another one (tracekit show budget --by rank): its share of the work, its clocks, its host."
)
_MOVING = (
    "Ranks wait for each other, and it is not always the same one that is last. "
    "Divide the work of a step evenly: batches of equal numbers of tokens, and no rank with work of its own."
)


def candidates(steps: StepRows) -> Iterator[Candidate]:
    """All waiting for other ranks at once; the module is the one in which most of it is."""
    rows = np.flatnonzero(steps.model.changing().tasks.meeting >= 0)
    if not rows.size:
        return
    answer = stragglers.frame(steps.dataset)
    answer = answer[answer["waited_ns"] > 0]
    if answer.empty:
        return
    waited = answer.groupby(answer.apply(_who, axis=1))["waited_ns"].sum()
    rank, share = str(waited.idxmax()), float(waited.max() / waited.sum())
    advice = _STEADILY.format(rank=rank, share=share) if rank and share > _STEADY else _MOVING
    names = dict(zip(steps.modules.path, steps.patterns, strict=False))
    evidence = steps.evidence("kernels", steps.work.kernel[rows], "stragglers")
    most = steps.per_step(int(answer["waited_ns"].sum()))
    yield Candidate(names.get(answer["path"].iloc[0]), most, _like_fastest, evidence, advice, fastest=True)


def _like_fastest(changing: Changing) -> None:
    changing.tasks = replace(changing.tasks, meeting=np.full(changing.tasks.meeting.size, -1))


def _who(row: Any) -> str:  # noqa: ANN401 - a row of pandas
    """The rank that was last, or its process and device where ranks are not known; empty if it is not certain."""
    if row["pid"] is None:
        return ""
    return f"process {row['pid']} on device {row['device']}" if row["rank"] is None else f"rank {row['rank']}"
