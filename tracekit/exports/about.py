"""What a timeline says of the run beside its events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tracekit.analyses.nodes import most_telling
from tracekit.exports.sessions import ambiguous_processes, started
from tracekit.version import TIMELINE

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

#: Lists of a report's manifest; each entry of several reports names its report.
_LISTS = ("processes", "devices", "ranks")


def about(dataset: Dataset, moved_by_ns: int) -> bytes:
    """The member ``otherData`` of a timeline.

    Args:
        dataset: The dataset.
        moved_by_ns: How much later everything is drawn.
    """
    manifest = dataset.manifest
    fields: dict[str, object] = {
        "tracekit": manifest.get("tracekit"),
        "timeline": TIMELINE,
        "dataset": dataset.folder.name,
        "by": most_telling(dataset),
        "times_moved_by_ns": moved_by_ns,
        "started_utc_ns": started(dataset),
        "ambiguous_processes": ambiguous_processes(dataset),
    }
    for name in _LISTS:
        parts = [(one, {"report": one["name"]}) for one in manifest.get("reports", ())] or [(manifest, {})]
        fields[name] = [entry | report for part, report in parts for entry in part[name]]
    # Perfetto's JSON has no surrogates, which ASCII would need for some letters.
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
