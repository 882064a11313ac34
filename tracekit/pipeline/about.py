"""Fields of the manifest that describe a report."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from tracekit.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.recording.tables import Recording


def about(recording: Recording) -> dict[str, object]:
    """What a recording says about its report."""
    pids = recording.threads.process_pid.tolist()
    return {
        "tracekit": __version__,
        "source": asdict(recording.source),
        "processes": [{"pid": pid, "name": recording.process_names.get(pid)} for pid in sorted(set(pids))],
        "processes_share_ids": len(set(pids)) < len(pids),
        "devices": [{"device": number, **asdict(gpu)} for number, gpu in sorted(recording.devices.items())],
        "ranks": [{"pid": rank.pid, "rank": rank.rank, "source": rank.source} for rank in recording.ranks],
        "lacks": [asdict(lack) for lack in recording.lacks],
        "launches": recording.launches.num_rows,
        "graph_captures": [asdict(source) for source in recording.graph_captures],
    }


def folder_of(report: Path) -> str:
    """The name of the folder that a report is in: reports of equal names are told apart by it."""
    return os.fsencode(report.absolute().parent.name).decode("utf-8", "replace")
