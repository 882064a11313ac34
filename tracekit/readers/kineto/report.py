"""Chrome traces of torch.profiler, 2020 to today, into a recording.

Fields are looked up by the names that Kineto has given them; categories of other profilers and events that hold no work
are left out. What a trace lacks is reported, never guessed.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tracekit.arrays.codes import positions
from tracekit.causes import ABSURD_TIME, CUT_OFF, OTHER_EVENT, REPORT
from tracekit.errors import ReportError
from tracekit.kineto import columns as kineto
from tracekit.kineto.columns import Columns, Gathering
from tracekit.kineto.packed import EXPECTED
from tracekit.kineto.stream import Metadata, Trace
from tracekit.markers import DIALECTS
from tracekit.markers.base import ModuleMarker
from tracekit.markers.collectives import OTHERS_SIZES, collectives_among, is_process_group
from tracekit.progress import Progress
from tracekit.readers.base import source_of
from tracekit.readers.kineto import NAME, modules, tables
from tracekit.readers.rows import FARTHEST_NS
from tracekit.recording import provenance
from tracekit.recording.provenance import Gpu, LossCounters, MissingData, Rank, Source, executable
from tracekit.recording.tables import Operators, Recording, Threads, graph_launch_names, names_starting

#: Those that work of CUDA graphs is annotated with.
ANNOTATED = "annotated"
_RANGES = (kineto.ANNOTATION, kineto.OPERATOR, kineto.MODULE, ANNOTATED)


def read(path: Path, progress: Progress, *, operators_as_work: bool = False) -> Recording:
    """Reads the trace; see the package's ``read``."""
    counters, trace, size = LossCounters(), Trace(path), max(path.stat().st_size, 1)
    gathering = Gathering(counters)
    for piece in trace.pieces():
        gathering.add(piece)
        progress("reading", piece.position / size)
    events = gathering.tables()
    counters.add(REPORT, CUT_OFF, int(trace.cut_at is not None))
    if not any(events[kind]["start"].size for kind in kineto.KINDS if kind not in kineto.AUXILIARY):
        where = "" if trace.cut_at is None else " before it is cut off"
        raise ReportError(path, f"holds no events of torch.profiler{where}", EXPECTED)
    first_ns = _from_the_first(events, counters)
    operators, annotations = events[kineto.OPERATOR], events[kineto.ANNOTATION]
    if trace.cut_at is not None and not events[kineto.CALL]["start"].size:
        _end_modules_at_the_cut(events)
    threads = _threads(events, list(gathering.threads))
    pids = set(threads.process_pid.tolist())
    operators["made_on"] = tables.forward_threads(operators, events[kineto.FLOW], threads.process)
    numbered = _modules_are_numbered(events, gathering, counters)
    launches = tables.launches_table(events[kineto.CALL], counters)
    device_work = tables.device_work(events, launches, threads, gathering.names, counters)
    with_operators = operators_as_work or not len(device_work)
    as_work = _operators(events, list(gathering.names), threads) if with_operators else Operators.empty()
    work, inside_ns = as_work.with_work(device_work)
    events[ANNOTATED] = tables.annotated_calls(device_work, launches, threads.process, [*gathering.annotations])
    annotations["text"] = tables.annotated_texts(annotations["text"], gathering.texts, gathering.annotations)
    launches, stacks = tables.with_stacks(as_work.with_launches(launches), events[kineto.LINE], [*gathering.lines])
    recording = Recording(
        source=_source_of(path, trace.metadata, first_ns),
        threads=threads,
        ranges=tables.ranges_table([events[kind] for kind in _RANGES], counters),
        launches=launches,
        stacks=stacks,
        stream_calls=tables.stream_calls_table(events[kineto.SYNC], launches, threads, counters),
        work=work,
        inside_ns=inside_ns,
        domains=[],
        texts=list(gathering.texts),
        collectives=list(gathering.collectives),
        annotations=list(gathering.annotations),
        names=list(gathering.names),
        process_names={pid: executable(name) for pid, name in gathering.process_names.items() if pid in pids},
        thread_names=_thread_names_of(gathering, threads),
        devices=_gpus_of(trace.metadata),
        ranks=_ranks_of(trace.metadata, threads),
        allocations=tables.allocations_table(events[kineto.ALLOCATION]),
        counters=counters,
        records_graphs=False,
    )
    known = numbered or gathering.annotations or _has_markers(gathering.texts)
    without = bool(trace.metadata.with_modules) and not known
    missing = _missing_data(recording, trace, gathering.other_devices, numbered=numbered, without_modules=without)
    return replace(recording, missing=tuple(missing))


def _end_modules_at_the_cut(events: dict[str, Columns]) -> None:
    """Ends calls of modules where calls inside them may be missing.

    Kineto writes them by their starts, after the operators, before all that has to do with a device.
    """
    calls = events[kineto.MODULE]
    last = np.append(calls["start"], events[kineto.FORWARD]["start"]).max(initial=0)
    calls["end"] = np.minimum(calls["end"], last)


def _threads(events: dict[str, Columns], ids: list[tuple[int, int]]) -> Threads:
    """The threads that have ranges or launches. Makes events name them by their rows; drops those of other threads."""
    used = np.zeros(len(ids), dtype=bool)
    on_threads = [(kind, columns) for kind, columns in events.items() if "thread" in columns]
    for kind, columns in on_threads:
        used[columns["thread"]] |= kind not in kineto.AUXILIARY
    threads, places = tables.threads_of([one for one, is_used in zip(ids, used.tolist(), strict=True) if is_used])
    row = np.full(used.size, -1, dtype=np.int64)
    row[used] = places
    for kind, columns in on_threads:
        kept = used[columns["thread"]]
        if kind == kineto.ALLOCATION:  # memory is taken back by threads that do nothing else
            pids = np.array([pid for pid, _ in ids], dtype=np.int64)
            columns["process"] = positions(pids[columns["thread"]], threads.process_pid)
            kept = columns["process"] >= 0
        columns |= {name: column[kept] for name, column in columns.items()}
        columns["thread"] = row[columns["thread"]]
    return threads


def _operators(events: dict[str, Columns], names: Sequence[str], threads: Threads) -> Operators:
    """Operators as work, with collectives of process groups on CPUs, which torch annotates."""
    operators, annotations = events[kineto.OPERATOR], events[kineto.ANNOTATION]
    if not operators["start"].size:
        return Operators.empty()
    own = np.array([*map(is_process_group, names), False])[annotations["name"]]
    columns = ("start", "end", "thread", "name")
    start, end, thread, name = (np.append(operators[one], annotations[one][own]) for one in columns)
    return Operators.of(start, end, thread, threads.process[thread], name)


def _modules_are_numbered(events: dict[str, Columns], gathering: Gathering, counters: LossCounters) -> bool:
    """Whether some are known only from ``with_stack``. If hooks marked modules, only their markers count."""
    calls, operators, names = events[kineto.MODULE], events[kineto.OPERATOR], gathering.names
    if _has_markers(gathering.texts):
        counters.add("events", OTHER_EVENT, calls["start"].size)
        calls |= {name: column[:0] for name, column in calls.items()}
    calls["name"] = modules.distinct_names(calls, events[kineto.FORWARD], names)
    calls["name"] = modules.names_with_weights(calls, operators, names, list(gathering.texts))
    calls["text"] = gathering.texts_of_names(modules.names_with_phase(calls, operators, names))
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
            counters.add(kineto.SUBJECTS.get(kind, "ranges"), ABSURD_TIME, int(far.sum()))
            columns |= {name: column[~far] for name, column in columns.items()}
    counted = (columns["start"] for kind, columns in events.items() if kind not in kineto.AUXILIARY)
    first_ns = min(int(start.min()) for start in counted if start.size)
    for columns in events.values():
        columns |= {name: columns[name] - first_ns for name in ("start", "end")}
    return first_ns


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
        started_utc_ns=started if _EARLIEST_UTC_NS <= started < provenance.LATEST_UTC_NS else None,
        trace_id=metadata.trace_id[:_MOST_ID_CHARACTERS] if isinstance(metadata.trace_id, str) else None,
        world_size=max(_distributed(metadata, "world_size"), 0) or None,
    )


def _gpus_of(metadata: Metadata) -> dict[int, Gpu]:
    listed = metadata.device_properties
    gpus = [gpu for gpu in listed[:_MOST_GPUS] if isinstance(gpu, dict)] if isinstance(listed, list) else []
    return {
        number: Gpu(
            name=name if isinstance(name := gpu.get("name"), str) and name else _NAMELESS,
            compute_capability=provenance.compute_capability(gpu.get("computeMajor"), gpu.get("computeMinor")),
            multiprocessors=provenance.figure(gpu.get("numSms")),
            memory_bytes=provenance.figure(gpu.get("totalGlobalMem")),
        )
        for gpu in gpus
        if (number := _integer(gpu.get("id"))) >= 0
    }


def _ranks_of(metadata: Metadata, threads: Threads) -> tuple[Rank, ...]:
    rank = _distributed(metadata, "rank")
    is_one = threads.process_pid.size == 1 and 0 <= rank <= _LARGEST_RANK
    return (Rank(0, int(threads.process_pid[0]), rank, "distributed_info"),) if is_one else ()


def _thread_names_of(gathering: Gathering, threads: Threads) -> dict[int, str]:
    named, ids = gathering.thread_names, zip(threads.pid.tolist(), threads.tid.tolist(), strict=True)
    return {row: named[pair] for row, pair in enumerate(ids) if pair in named}


def _distributed(metadata: Metadata, name: str) -> int:
    info = metadata.distributed
    return _integer(info.get(name)) if isinstance(info, dict) else -1


def _integer(value: object, missing: int = -1) -> int:
    return value if type(value) is int and 0 <= value < provenance.LATEST_UTC_NS else missing


_WITH_GPU_WORK = "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"


def _missing_data(
    recording: Recording, trace: Trace, others: set[str], *, numbered: bool, without_modules: bool
) -> Iterator[MissingData]:
    """What the trace lacks; ``others`` are categories of accelerators whose work is not read."""
    if trace.cut_at is not None:
        yield MissingData(f"its events after byte {trace.cut_at:,}, where it is cut off", CUT_OFF.advice)
    if numbered:
        as_recorded = "modules are named by class and number (Linear_3), as with_stack records them"
        yield MissingData("names of modules", f"{as_recorded}; for paths: tracekit capture")
    if without_modules:
        remedy = "record with with_stack=True, or with tracekit capture"
        yield MissingData("modules", f"what with_modules records, for TorchScript alone, is not read; {remedy}")
    if not len(recording.ranges):
        yield MissingData("ranges", f"{_WITH_GPU_WORK}, with_stack=True")
    yield from _missing_work(recording, others)
    of_nccl, of_others = collectives_among(recording.kernel_names)
    if of_nccl and not recording.collectives:
        yield MissingData("sizes of collectives", "record with a newer torch; CUDA graphs record none")
    if of_others:
        yield MissingData(*OTHERS_SIZES)


def _missing_work(recording: Recording, others: set[str]) -> Iterator[MissingData]:
    if not len(recording.work):
        yield MissingData("GPU work", _WITH_GPU_WORK)
    elif not recording.on_device.any():
        has_gpu = bool(recording.devices)
        remedy = f"{_WITH_GPU_WORK}, unless it ran on the CPU" if has_gpu else "record on a machine with a GPU"
        not_read = f"its accelerator's ({', '.join(sorted(others))}) is not read"
        yield MissingData("GPU work", f"CPU operators are shown instead; {not_read if others else remedy}")
    elif _replays_unknown_graphs(recording):
        options = "SGLang with --enable-profile-cuda-graph, by vLLM with --profiler-config.capture_torch_profiler"
        remedy = "give the trace of the graph capture with it: tracekit parse --graph-captures"
        yield MissingData("graph captures", f"{remedy} (recorded by {options})")
    elif not len(recording.launches):
        yield MissingData("CUDA API calls", "without them no kernel can be given a module; record the CPU as well")


def _replays_unknown_graphs(recording: Recording) -> bool:
    captures = names_starting(recording.names, ("cudaStreamBeginCapture", "hipStreamBeginCapture"))
    annotated = (recording.work.annotation >= 0).any()
    return bool(graph_launch_names(recording.names)) and not captures and not annotated
