"""What a report does not hold: events that nsys reports as lost, processes recorded from the start, kinds of events."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple, Self

import numpy as np
import pyarrow.compute as pc

from tracekit.arrays.intervals import one_axis
from tracekit.causes import CUDA_EVENTS_LOST, CUDA_NOT_TRACED, EVENTS_LOST, NVTX_EVENTS_LOST, NVTX_NOT_TRACED, Cause
from tracekit.markers.base import CAPTURED
from tracekit.markers.collectives import OTHERS_SIZES, collectives_among
from tracekit.nsight import tables as nsight
from tracekit.readers.nsight.gpu_metrics import has_unknown_metrics
from tracekit.readers.source import TableSource, typed
from tracekit.recording.provenance import MissingData
from tracekit.recording.tables import GRAPH, Recording, graph_launch_names
from tracekit.recording.values import SIZE_FIELDS

_LOST = re.compile(
    r"\bnot all\b|\b(lost|dropped|discarded|missing|incomplete|truncated|overwritten|exceeded|overflow\w*)\b"
    r"|\bcrossed maximum\b|\bran out of\b|\bout of order\b|\bwrong event order\b"
    r"|\b(could|were|was) not (be )?(collected|recorded|converted|added|traced)\b",
    re.IGNORECASE,
)
_NOTHING_LOST = re.compile(
    r"\b(0|no) (\w+ ){0,3}(lost|dropped|discarded|missing|incomplete)\b"
    r"|\b(lost|dropped|discarded|missing|incomplete)\s*:\s*0\b",
    re.IGNORECASE,
)
_NOT_BEGUN = re.compile(r"\b(might|may) (have not|not have) been started\b|\bfailed to start\b", re.IGNORECASE)
_NOT_OURS = re.compile(
    r"\b(OS runtime|OpenGL|EGL|Vulkan|DX\d+|D3D\d*|Direct3D|WDDM|OpenXR|sampl\w+|backtraces?|call ?chains?|CPU|"
    r"context switch\w*|schedul\w+|ftrace|ETW|perf|GPU metrics|SoC metrics|NIC|InfiniBand|network|cuDNN|cuBLAS|OpenACC|"
    r"OpenMP|OpenSHMEM|UCX|MPI|symbols?|debuginfod|MMAP|video|syscalls?|Python|diagnostic events)\b",
    re.IGNORECASE,
)
_NVTX = re.compile(r"NVTX|annotation", re.IGNORECASE)
_CUDA = re.compile(r"CUDA|CUPTI|GPU|kernel|memcpy|memset|graph", re.IGNORECASE)

#: What the report then lacks.
_LACKS = {
    CUDA_EVENTS_LOST: "possibly some CUDA events",
    NVTX_EVENTS_LOST: "possibly some NVTX events",
    EVENTS_LOST: "possibly some events",
    CUDA_NOT_TRACED: "possibly all CUDA events",
    NVTX_NOT_TRACED: "possibly all NVTX events",
}
#: A message is quoted if it cannot contain a path, a variable or a control character, and is at most this long.
_QUOTABLE = re.compile(r"[\w ,.:;?!'`()%+-]+")
_LONGEST_QUOTE = 160


class Loss(NamedTuple):
    """A loss that nsys reports, and whether it may concern processes that have data in the report."""

    cause: Cause
    messages: list[str]
    inside: bool


def reported_losses(source: TableSource, processes: Collection[int]) -> list[Loss]:
    """All losses that nsys reports, one for each cause; ``processes`` have data in the report."""
    messages: defaultdict[Cause, list[str]] = defaultdict(list)
    for [text] in typed(source, nsight.DIAGNOSTICS, "text"):
        for cause in causes_of_message(text):
            messages[cause].append(text)
    outside: Counter[Cause] = Counter()
    for text, process in typed(source, nsight.DIAGNOSTICS, "text", "globalPid"):
        # Messages about the machine as a whole name process 0.
        if process >> nsight.THREAD_BITS & nsight.ID_MASK and process & nsight.PROCESS_MASK not in processes:
            outside.update(causes_of_message(text))
    return [Loss(cause, texts, inside=outside[cause] < len(texts)) for cause, texts in messages.items()]


def causes_of_message(text: str) -> tuple[Cause, ...]:
    """The losses that a message reports; none if it is about something else."""
    if _NOT_OURS.search(text):
        return ()
    kinds = [kind for kind, words in enumerate((_CUDA, _NVTX)) if words.search(text)]
    if _NOT_BEGUN.search(text):
        return tuple((CUDA_NOT_TRACED, NVTX_NOT_TRACED)[kind] for kind in kinds)
    if not _LOST.search(text) or _NOTHING_LOST.search(text):
        return ()
    return tuple((CUDA_EVENTS_LOST, NVTX_EVENTS_LOST)[kind] for kind in kinds) or (EVENTS_LOST,)


def lacking(losses: Iterable[Loss]) -> Iterator[MissingData]:
    """What the report lacks because of these losses, with the first message where it can be shown."""
    for loss in losses:
        processes = "its processes" if loss.inside else "processes without any data in it"
        plain = " ".join(loss.messages[0].split())
        if len(plain) > _LONGEST_QUOTE:
            plain = plain.split(". ")[0].removesuffix(".") + "."
        shown = len(plain) <= _LONGEST_QUOTE and _QUOTABLE.fullmatch(plain)
        quote = f' (nsys says: "{plain}")' if shown else ""
        yield MissingData(f"{_LACKS[loss.cause]} of {processes}{quote}", loss.cause.advice)


def recorder_saw_every_graph(figures: dict[str, int], recording: Recording) -> bool:
    """Whether a report of the embedded recorder holds the graph capture of every graph that is replayed in it.

    It counted torch's graph captures before it began, which must be none, and torch's replays, all of them here.
    """
    launched = int(np.isin(recording.launches.name, graph_launch_names(recording.names)).sum())
    return figures.get("graphs_before") == 0 and figures.get("graph_replays") == launched


#: Columns whose absence is worth a line, by table.
_WANTED_COLUMNS = {
    nsight.KERNEL: ("deviceId", "streamId", "shortName", "demangledName", "graphNodeId"),
    nsight.NVTX: ("textId", "domainId"),
    nsight.MEMCPY: ("bytes", "copyKind"),
    nsight.RUNTIME: ("nameId",),
}


class HeldEvents(NamedTuple):
    """How much some processes of a report have, as far as it shows what the report lacks."""

    ranges: int
    work: int
    launches: int
    on_device: int
    whole_graphs: int
    replays_without_work: int
    collectives: int
    other_collectives: int
    sizes_of_collectives: int

    @classmethod
    def of(cls, recording: Recording) -> Self:
        """What a recording holds."""
        of_nccl, others = collectives_among(recording.kernel_names)
        payloads = recording.ranges.payload_json
        sizes = [] if payloads is None else [pc.any(pc.match_substring(payloads, name)).as_py() for name in SIZE_FIELDS]
        return cls(
            ranges=len(recording.ranges),
            work=len(recording.work),
            launches=len(recording.launches),
            on_device=int(recording.on_device.sum()),
            whole_graphs=int((recording.work.kind == GRAPH).sum()),
            replays_without_work=_replays_without_work(recording),
            collectives=of_nccl,
            other_collectives=others,
            sizes_of_collectives=any(sizes),
        )

    @classmethod
    def together(cls, parts: Iterable[Self]) -> Self:
        """What all parts of a report hold."""
        return cls(*map(sum, zip(*parts, strict=True)))


def recorder_figures(source: TableSource) -> dict[str, int]:
    """Figures of what tracekit recorded: calls and markers lost, layers with their fused path switched off."""
    return {name: max(0, value) for name, value in typed(source, nsight.RECORDER, "name", "value")}


def missing_data(source: TableSource, held: HeldEvents) -> Iterator[MissingData]:
    """Everything that the report could hold and does not."""
    figures = recorder_figures(source)
    calls = figures.get("calls")
    if lost := figures.get("calls_lost"):
        yield MissingData(f"{lost:,} of {calls:,} {CAPTURED}", "nsys lost them; record again, or with --engine torch")
    elif calls == 0 and not held.ranges:
        yield MissingData(CAPTURED, "tracekit capture reached no process of the command that called a torch module")
    if not held.ranges and calls is None:
        yield MissingData("NVTX ranges", "record with: nsys profile --trace=cuda,nvtx")
    yield from _missing_work(held, "record with: nsys profile --trace=cuda,nvtx," if calls is None else "record")
    if held.collectives and not held.sizes_of_collectives:
        export = "nsys export --type sqlite --include-blobs true --include-json true"
        record = "record with NVTX and NCCL 2.19 or newer, and export with nsys 2026 or newer"
        yield MissingData("sizes of collectives", f"{record}: {export}")
    if held.other_collectives:
        yield MissingData(*OTHERS_SIZES)
    yield from _missing_columns(source)


def _missing_columns(source: TableSource) -> Iterator[MissingData]:
    if has_unknown_metrics(source):
        yield MissingData("GPU metrics that are known by name", "sample the default set: --gpu-metrics-devices=all")
    for table, columns in _WANTED_COLUMNS.items():
        present = source.tables.get(table.name, frozenset(columns))
        for column in columns:
            if column not in present:
                yield MissingData(f"{table.name}.{column}", "export the report with a newer nsys")


def _missing_work(held: HeldEvents, record: str) -> Iterator[MissingData]:
    if not held.work:
        yield MissingData("GPU work", f"{record} on a machine whose driver permits it")
    elif not held.on_device:
        yield MissingData("GPU work", "CPU operators are shown instead; record on a machine with a GPU")
    elif not held.launches:
        remedy = "without them no kernel can be given a module; export CUPTI_ACTIVITY_KIND_RUNTIME as well"
        yield MissingData("CUDA API calls", remedy)
    if held.whole_graphs:
        yield MissingData("the kernels inside CUDA graphs", "record with: nsys profile --cuda-graph-trace=node")
    elif held.replays_without_work:
        remedy = "record with nsys 2024 or newer, or: nsys profile --cuda-graph-trace=node"
        yield MissingData("the GPU time of CUDA graphs", remedy)


def _replays_without_work(recording: Recording) -> bool:
    launches, work = recording.launches, recording.work
    replays = np.flatnonzero(np.isin(launches.name, graph_launch_names(recording.call_names)))
    if not replays.size:
        return False
    started = np.flatnonzero(work.process >= 0)
    launch_process = recording.threads.process[launches.thread[replays]]
    replay_ids, work_ids = one_axis(
        [launch_process, work.process[started]], [launches.correlation_id[replays], work.correlation_id[started]]
    )
    return not bool(np.isin(replay_ids, work_ids).all())
