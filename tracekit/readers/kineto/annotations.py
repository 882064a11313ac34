"""Modules that torch wrote on the work of CUDA graphs, as its arguments ``module_fqn``, ``module_type`` and ``name``.

They were marked during the graph capture (``torch.cuda._graph_annotations``) and merged into the trace later. If a
list was marked, its text is written. As ranges, they are calls inside the API call that launched the work: one of each
module, in the order in which their work ran.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from tracekit.arrays.groups import grouped, minima
from tracekit.arrays.types import Ints, Rows
from tracekit.markers.base import ModuleMarker
from tracekit.markers.torch_texts import ANNOTATED_MODULES, annotated_text
from tracekit.recording.tables import Launches, Work


def with_annotated_names(text: Rows, texts: dict[str, int], annotations: Iterable[tuple[int, ...]]) -> Rows:
    """Rows of the texts of ranges, added to ``texts``; those named as annotated modules, or above these, are calls."""
    written, calls = [*texts], dict[str, str]()
    for one in sorted({written[row] for rows in annotations for row in rows}):
        marker = ANNOTATED_MODULES.parse(one)
        path = marker.path if isinstance(marker, ModuleMarker) else ""
        calls[path] = one
        while path := path.rpartition(".")[0]:
            calls.setdefault(path, annotated_text(path, ""))
    row = np.arange(len(written))
    for name in sorted(calls.keys() & texts.keys()):
        row[texts[name]] = texts.setdefault(calls[name], len(texts))
    return row[text]


def annotated_calls(
    work: Work, launches: Launches, process: Rows, annotations: Sequence[tuple[int, ...]]
) -> dict[str, Ints]:
    """Ranges of the calls of annotated modules; none in an API call that is too short to hold all of its own."""
    rows = np.flatnonzero(work.annotation >= 0)
    launch = _launch_of(work, rows, launches, process)
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    size = np.array([*map(len, annotations), 0])[work.annotation[rows]]
    texts = [text for row in work.annotation[rows].tolist() for text in annotations[row]]
    calls = grouped((np.repeat(launch, size), np.array(texts, dtype=np.int64)))
    launch, text = np.repeat(launch, size)[calls.first], np.array(texts, dtype=np.int64)[calls.first]
    order = np.lexsort((minima(calls.group, np.repeat(work.start_ns[rows], size), launch.size), launch))
    launch, text = launch[order], text[order]
    _, first, of, size = np.unique(launch, return_index=True, return_inverse=True, return_counts=True)
    place, number = np.arange(launch.size) - first[of], size[of]
    # One nanosecond is left at both ends, so that no range holds the API call itself.
    start_ns, dur_ns = launches.start_ns[launch] + 1, launches.end_ns[launch] - launches.start_ns[launch] - 2
    start, end = (start_ns + np.floor_divide(dur_ns * at, number, dtype=np.int64) for at in (place, place + 1))
    fits = np.flatnonzero(dur_ns >= number)
    columns: dict[str, Ints] = {"start": start, "end": end, "thread": launches.thread[launch], "text": text}
    return {name: column[fits] for name, column in columns.items()}


def _launch_of(work: Work, rows: Rows, launches: Launches, process: Rows) -> Rows:
    both = grouped(
        (
            np.append(process[launches.thread], work.process[rows]),
            np.append(launches.correlation_id, work.correlation_id[rows]),
        )
    )
    found = both.first[both.group[len(launches) :]]
    return np.where(found < len(launches), found, -1)
