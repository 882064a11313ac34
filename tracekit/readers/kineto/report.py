"""Chrome traces of torch.profiler, 2020 to today, into a recording.

Fields are looked up by the names that Kineto has given them; categories of other profilers and events that hold no work
are left out. What a trace lacks is reported, never guessed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tracekit.arrays.codes import positions
from tracekit.causes import ABSURD_TIME, CUT_OFF, OTHER_EVENT, PROCESS_UNKNOWN, REPORT
from tracekit.errors import ReportError
from tracekit.kineto.columns import (
    ALLOCATION,
    ANNOTATION,
    AUXILIARY,
    CALL,
    DEVICE_WORK,
    FLOW,
    FORWARD,
    KINDS,
    LINE,
    MODULE,
    OPERATOR,
    SUBJECTS,
    SYNC,
    Columns,
    Gathering,
)
from tracekit.kineto.stream import EXPECTED, Metadata, Trace
from tracekit.markers import DIALECTS
from tracekit.markers.base import ModuleMarker
from tracekit.markers.collectives import OTHERS_SIZES, collectives_among, is_process_group
from tracekit.progress import Progress
from tracekit.readers.base import source_of
from tracekit.readers.kineto import NAME
from tracekit.readers.kineto.modules import distinct_names, names_with_phase, names_with_weights, scripted_calls
from tracekit.readers.kineto.tables import (
    allocations_table,
    annotated_calls,
    annotated_texts,
    forward_threads,
    launches_table,
    processes_of,
    ranges_table,
    stream_calls_table,
    threads_of,
    with_stacks,
    work_table,
)
from tracekit.readers.rows import FARTHEST_NS
from tracekit.recording.operators import Operators, no_operators, operators_as_work
from tracekit.recording.provenance import (
    LATEST_UTC_NS,
    Gpu,
    LossCounters,
    MissingData,
    Rank,
    Source,
    compute_capability,
    figure,
)
from tracekit.recording.tables import (
    Launches,
    Recording,
    StreamCalls,
    Threads,
    Work,
    graph_launch_names,
    names_starting,
)

#: Calls of modules that are inferred from operators.
SCRIPTED = "scripted"
#: Those that work of CUDA graphs is annotated with.
ANNOTATED = "annotated"
_RANGES = (ANNOTATION, OPERATOR, MODULE, SCRIPTED, ANNOTATED)


def read(path: Path, progress: Progress, *, operators_as_work: bool = False) -> Recording:
    """Reads the trace; see the package's ``read``."""
    counters, trace, size = LossCounters(), Trace(path), max(path.stat().st_size, 1)
    gathering = Gathering(counters)
    for piece in trace.pieces():
        gathering.add(piece)
        progress("reading", piece.position / size)
    events = gathering.tables()
    counters.add(REPORT, CUT_OFF, int(trace.cut_at is not None))
    if not any(events[kind]["start"].size for kind in KINDS if kind not in AUXILIARY):
        where = "" if trace.cut_at is None else " before it is cut off"
        raise ReportError(path, f"holds no events of torch.profiler{where}", EXPECTED)
    first_ns = _from_the_first(events, counters)
    if trace.cut_at is not None and not events[CALL]["start"].size:
        _end_modules_at_the_cut(events)
    threads = _threads(events, list(gathering.threads))
    events[OPERATOR]["made_on"] = forward_threads(events[OPERATOR], events[FLOW], threads.process)
    numbered = _modules_are_numbered(events, gathering, counters)
    known = numbered or events[SCRIPTED]["start"].size or not trace.metadata.with_modules
    launches = launches_table(events[CALL], counters)
    device_work = _device_work(events, gathering, launches, threads, counters)
    with_operators = operators_as_work or not len(device_work)
    operators = _operators(events, list(gathering.names), threads) if with_operators else no_operators()
    work, inside_ns = operators.with_work(device_work)
    events[ANNOTATED] = annotated_calls(device_work, launches, threads.process, [*gathering.annotations])
    events[ANNOTATION]["text"] = annotated_texts(events[ANNOTATION]["text"], gathering.texts, gathering.annotations)
    launches, stacks = with_stacks(operators.with_launches(launches), events[LINE], list(gathering.lines))
    recording = Recording(
        source=_source_of(path, trace.metadata, first_ns),
        threads=threads,
        ranges=ranges_table([events[kind] for kind in _RANGES], counters),
        launches=launches,
        stacks=stacks,
        stream_calls=_stream_calls(events[SYNC], launches, threads, counters),
        work=work,
        inside_ns=inside_ns,
        domains=[],
        texts=list(gathering.texts),
        collectives=list(gathering.collectives),
        annotations=list(gathering.annotations),
        names=list(gathering.names),
        process_names=_process_names_of(gathering.process_names, threads),
        thread_names=_thread_names_of(gathering.thread_names, threads),
        devices=_gpus_of(trace.metadata),
        ranks=_ranks_of(trace.metadata, threads),
        allocations=allocations_table(events[ALLOCATION]),
        counters=counters,
        records_graphs=False,
    )
    without = not known and not gathering.annotations and not _has_markers(gathering.texts)
    missing = [*_missing_data(recording, gathering.other_devices, numbered=numbered, without_modules=without)]
    if trace.cut_at is not None:
        missing.insert(0, MissingData(f"its events after byte {trace.cut_at:,}, where it is cut off", CUT_OFF.advice))
    return replace(recording, missing=tuple(missing))


def _end_modules_at_the_cut(events: dict[str, Columns]) -> None:
    """Ends calls of modules where calls inside them may be missing.

    Kineto writes them by their starts, after the operators, before all that has to do with a device.
    """
    starts = np.concatenate([events[kind]["start"] for kind in (MODULE, FORWARD)])
    events[MODULE]["end"] = np.minimum(events[MODULE]["end"], starts.max(initial=0))


def _device_work(
    events: dict[str, Columns], gathering: Gathering, launches: Launches, threads: Threads, counters: LossCounters
) -> Work:
    parts = []
    for kind in DEVICE_WORK:
        rows = events[kind]
        process = processes_of(rows["correlation"], launches, threads.process, threads.process_pid.size)
        counters.add("kernels", PROCESS_UNKNOWN, int((process < 0).sum()) if threads.process_pid.size else 0)
        parts.append(work_table(kind, rows, process, gathering.names, counters))
    return Work.concat(parts)


def _stream_calls(rows: Columns, launches: Launches, threads: Threads, counters: LossCounters) -> StreamCalls:
    process = processes_of(rows["correlation"], launches, threads.process, threads.process_pid.size)
    return stream_calls_table(rows, process, counters)


def _threads(events: dict[str, Columns], ids: list[tuple[int, int]]) -> Threads:
    """The threads that have ranges or launches. Makes events name them by their rows; drops those of other threads."""
    used = np.zeros(len(ids), dtype=bool)
    on_threads = [(kind, columns) for kind, columns in events.items() if "thread" in columns]
    for kind, columns in on_threads:
        used[columns["thread"]] |= kind not in AUXILIARY
    threads, places = threads_of([one for one, is_used in zip(ids, used.tolist(), strict=True) if is_used])
    row = np.full(used.size, -1, dtype=np.int64)
    row[used] = places
    for _, columns in on_threads:
        kept = used[columns["thread"]]
        if columns is events[ALLOCATION]:  # memory is taken back by threads that do nothing else
            pids = np.array([pid for pid, _ in ids], dtype=np.int64)
            columns["process"] = positions(pids[columns["thread"]], threads.process_pid)
            kept = columns["process"] >= 0
        columns |= {name: column[kept] for name, column in columns.items()}
        columns["thread"] = row[columns["thread"]]
    return threads


def _operators(events: dict[str, Columns], names: Sequence[str], threads: Threads) -> Operators:
    """Operators as work, with collectives of process groups on CPUs, which torch annotates."""
    if not events[OPERATOR]["start"].size:
        return no_operators()
    annotations = events[ANNOTATION]
    own = np.flatnonzero(np.array([*map(is_process_group, names), False])[annotations["name"]])
    columns = ("start", "end", "thread", "name")
    start, end, thread, name = (np.append(events[OPERATOR][one], annotations[one][own]) for one in columns)
    return operators_as_work(start, end, thread, threads.process[thread], name)


def _modules_are_numbered(events: dict[str, Columns], gathering: Gathering, counters: LossCounters) -> bool:
    """Whether some are known only from ``with_stack``. If hooks marked modules, only their markers count."""
    calls = events[MODULE]
    hierarchies = list(gathering.hierarchies)
    if _has_markers(gathering.texts):
        counters.add("events", OTHER_EVENT, calls["start"].size)
        calls |= {name: column[:0] for name, column in calls.items()}
        hierarchies = [""] * len(hierarchies)
    events[SCRIPTED] = scripted_calls(events[OPERATOR], list(gathering.names), hierarchies, gathering.texts)
    calls["name"] = distinct_names(calls, events[FORWARD], gathering.names)
    calls["name"] = names_with_weights(calls, events[OPERATOR], gathering.names, list(gathering.texts))
    calls["text"] = gathering.texts_of_names(names_with_phase(calls, events[OPERATOR], gathering.names))
    return bool(calls["start"].size)


def _has_markers(texts: Iterable[str]) -> bool:
    dialects = [(re.compile(dialect.candidates), dialect.parse) for dialect in DIALECTS]
    markers = (parse(text) for text in texts for candidates, parse in dialects if candidates.search(text))
    return any(isinstance(marker, ModuleMarker) and not marker.annotated for marker in markers)


def _from_the_first(events: dict[str, Columns], counters: LossCounters) -> int:
    """Makes all times count from the first one, which is returned; drops those too far away from all others."""
    starts = np.concatenate([columns["start"] for columns in events.values()])
    middle = int(np.partition(starts, starts.size // 2)[starts.size // 2])
    for kind, columns in events.items():
        far = (np.abs(columns["start"] - middle) > FARTHEST_NS) | (np.abs(columns["end"] - middle) > FARTHEST_NS)
        if far.any():
            counters.add(SUBJECTS.get(kind, "ranges"), ABSURD_TIME, int(far.sum()))
            columns |= {name: column[~far] for name, column in columns.items()}
    counted = (columns["start"] for kind, columns in events.items() if kind not in AUXILIARY)
    first_ns = min(int(start.min()) for start in counted if start.size)
    for columns in events.values():
        columns["start"] = columns["start"] - first_ns
        columns["end"] = columns["end"] - first_ns
    return first_ns


_DISTRIBUTED = "distributed_info"
#: Times before do not count from 1970: 2001.
_EARLIEST_UTC_NS = 10**18
_MOST_ID_CHARACTERS = 128
_LARGEST_RANK, _MOST_GPUS = 2**31 - 1, 4_096
#: AMD's properties have no names.
_NAMELESS = "GPU without a name"


def _source_of(path: Path, metadata: Metadata, first_ns: int) -> Source:
    version = metadata.schema_version
    started = _integer(metadata.base_time, 0) + first_ns
    return replace(
        source_of(path, NAME),
        exporter="torch.profiler",
        schema_version=str(version)[:32] if isinstance(version, int | str) else None,
        started_utc_ns=started if _EARLIEST_UTC_NS <= started < LATEST_UTC_NS else None,
        trace_id=metadata.trace_id[:_MOST_ID_CHARACTERS] if isinstance(metadata.trace_id, str) else None,
        world_size=_distributed(metadata, "world_size") or None,
    )


def _gpus_of(metadata: Metadata) -> dict[int, Gpu]:
    properties = metadata.device_properties
    known = {}
    for gpu in properties[:_MOST_GPUS] if isinstance(properties, list) else ():
        if isinstance(gpu, dict) and (number := _integer(gpu.get("id"), -1)) >= 0:
            known[number] = _gpu(gpu)
    return known


def _gpu(properties: dict[str, object]) -> Gpu:
    name = properties.get("name")
    return Gpu(
        name=name if isinstance(name, str) and name else _NAMELESS,
        compute_capability=compute_capability(properties.get("computeMajor"), properties.get("computeMinor")),
        multiprocessors=figure(properties.get("numSms")),
        memory_bytes=figure(properties.get("totalGlobalMem")),
    )


def _ranks_of(metadata: Metadata, threads: Threads) -> tuple[Rank, ...]:
    rank = _distributed(metadata, "rank")
    if threads.process_pid.size != 1 or rank is None or rank > _LARGEST_RANK:
        return ()
    return (Rank(0, int(threads.process_pid[0]), rank, _DISTRIBUTED),)


def _process_names_of(named: Mapping[int, str], threads: Threads) -> dict[int, str]:
    seen = set(threads.process_pid.tolist())
    return {pid: name.replace("\\", "/").rsplit("/", 1)[-1] for pid, name in named.items() if pid in seen}


def _thread_names_of(named: Mapping[tuple[int, int], str], threads: Threads) -> dict[int, str]:
    ids = zip(threads.pid.tolist(), threads.tid.tolist(), strict=True)
    return {row: named[pair] for row, pair in enumerate(ids) if pair in named}


def _distributed(metadata: Metadata, name: str) -> int | None:
    info = metadata.distributed
    number = _integer(info.get(name), -1) if isinstance(info, dict) else -1
    return number if number >= 0 else None


def _integer(value: object, missing: int) -> int:
    is_one = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LATEST_UTC_NS
    return value if is_one and isinstance(value, int) else missing


_WITH_GPU_WORK = "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"


def _missing_data(
    recording: Recording, others: set[str], *, numbered: bool, without_modules: bool
) -> Iterator[MissingData]:
    """What the trace lacks; ``others`` are categories of accelerators whose work is not read."""
    if numbered:
        remedy = (
            "modules are named by class and number (Linear_3), as with_stack records them; for paths: tracekit capture"
        )
        yield MissingData("names of modules", remedy)
    if without_modules:
        remedy = (
            "with_modules records those of TorchScript alone; record with with_stack=True, or with tracekit capture"
        )
        yield MissingData("modules", remedy)
    if not len(recording.ranges):
        yield MissingData("ranges", f"{_WITH_GPU_WORK}, with_stack=True")
    if not len(recording.work):
        yield MissingData("GPU work", _WITH_GPU_WORK)
    elif not recording.on_device.any():
        has_gpu = bool(recording.devices)
        remedy = f"{_WITH_GPU_WORK}, unless it ran on the CPU" if has_gpu else "record on a machine with a GPU"
        not_read = f"its accelerator's ({', '.join(sorted(others))}) is not read"
        yield MissingData("GPU work", f"CPU operators are shown instead; {not_read if others else remedy}")
    elif _replays_unknown_graphs(recording) and not (recording.work.annotation >= 0).any():
        yield MissingData(
            "graph captures",
            "give the trace of the graph capture with it: tracekit parse --graph-captures (recorded by SGLang with "
            "--enable-profile-cuda-graph, by vLLM with --profiler-config.capture_torch_profiler)",
        )
    elif not np.count_nonzero(len(recording.launches)):
        yield MissingData("CUDA API calls", "without them no kernel can be given a module; record the CPU as well")
    yield from _missing_sizes(recording)


def _missing_sizes(recording: Recording) -> Iterator[MissingData]:
    of_nccl, others = collectives_among(recording.kernel_names)
    if of_nccl and not recording.collectives:
        yield MissingData("sizes of collectives", "record with a newer torch; CUDA graphs record none")
    if others:
        yield MissingData(*OTHERS_SIZES)


def _replays_unknown_graphs(recording: Recording) -> bool:
    captures = names_starting(recording.names, ("cudaStreamBeginCapture", "hipStreamBeginCapture"))
    return bool(graph_launch_names(recording.names)) and not captures
