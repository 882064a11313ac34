"""Counted causes: what could not be attributed or read, why, and what to do about it.

Every loss has a name here. A stage that cannot say something counts it in a :class:`Tally`; nothing is dropped
in silence.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something is not known.

    Attributes:
        name: As it stands in the tables.
        doc: What happened.
        advice: What the user can do, or an empty string.
        loss: Whether something is missing that should be there; else it was left out for what it is.
    """

    name: str
    doc: str
    advice: str = ""
    loss: bool = True


#: Why a kernel has no module.
NO_LAUNCH = Cause(
    "no_launch",
    "The API call that started it is not in the report.",
    "start recording before the work is launched; do not cut the report by time",
)
AMBIGUOUS_LAUNCH = Cause(
    "ambiguous_launch",
    "Several API calls that are not one inside the other claim to have started it.",
    "export the report again with a newer nsys",
)
IMPOSSIBLE_LAUNCH = Cause(
    "impossible_launch",
    "The API call with its correlation id cannot have started it: the call began later, starts no work, or failed.",
    "record again: ids and times of this report contradict each other; with a newer nsys if it happens again",
)
MANAGED_MEMORY = Cause(
    "managed_memory",
    "Pages of managed memory moved because a kernel or the CPU touched them; no API call started that copy.",
    "move the data before it is used (cudaMemPrefetchAsync), or keep it in ordinary GPU memory",
)
OUTSIDE_MODULES = Cause(
    "outside_modules",
    "It was launched, or captured into its CUDA graph, while no marked module was running on that thread.",
    "mark more modules, or accept: optimizer, sampling, data copies and backward work run outside of forward calls",
)
GRAPH_NOT_EXPANDED = Cause(
    "graph_not_expanded",
    "A CUDA graph was traced as a whole; the kernels inside were not recorded.",
    "record again with: nsys profile --cuda-graph-trace=node",
)
GRAPH_UNMAPPED = Cause(
    "graph_unmapped",
    "It was replayed from a CUDA graph, and which module was running when the graph was captured is not known.",
    "start recording before the graphs are captured (before the warm-up; tracekit capture does), with "
    "--cuda-graph-trace=node and markers on, or run eagerly (vLLM: --enforce-eager, SGLang: --disable-cuda-graph)",
)
MODULE_UNREADABLE = Cause(
    "marker_unreadable",
    "It was launched inside a module marker whose module name cannot be read.",
    "see the rows of ranges whose marker is 'unreadable'",
)
MODULE_UNCLEAR = Cause(
    "module_unclear",
    "It was launched in a call whose path stands for several modules, and the markers do not say which one it is.",
    "give every model a prefix of its own where it is marked",
)

LEFT_OPEN = Cause(
    "left_open",
    "A forward raised and its range was left open. Counted is work launched between the last sure sign of such a call "
    "and the first sign that it had ended; of calls, how many were left open.",
    "use hooks that end their ranges when a forward raises: tracekit capture's do, others with "
    "register_forward_hook(..., always_call=True)",
)
ENDED_ELSEWHERE = Cause(
    "ended_elsewhere",
    "A start/end range marks a module or a step but ended on another thread, so that it cannot be told which work it "
    "contains: it is no call and no step.",
    "mark modules with push/pop ranges, or end every range on the thread that began it",
)

#: Why a range's text says less than it seems to.
TOO_LONG = Cause("marker_too_long", "The text starts like a marker but is too long to parse safely.")
TOO_DEEP = Cause("marker_too_deep", "The text starts like a marker but nests too deeply to parse safely.")
BROKEN = Cause("marker_broken", "The text starts like a marker but is neither a Python nor a JSON literal.")
NO_NAME = Cause(
    "marker_without_name",
    "The marker names no module; a keyword argument called Module may have overwritten it.",
    "mark the modules with tracekit.capture.layer_markers, which keeps keyword arguments apart",
)
FIELD_SKIPPED = Cause("marker_field_skipped", "A field of the marker is not of the expected form and was left out.")
FIELD_CUT = Cause(
    "marker_cut",
    "The marker says itself that it left out fields that would have made it too long.",
)
DIMENSION_UNKNOWN = Cause(
    "dimension_unknown",
    "A dimension in the marker is a symbol, not a number; it is null, and so is what follows from it.",
    "mark calls that run, not those that are traced or compiled",
)
ORPHAN_OUTPUTS = Cause(
    "outputs_without_call",
    "The range that hooks write when a call has ended follows no call of its module; recording may have started in the "
    "middle of it.",
)
NESTED_TOO_DEEP = Cause(
    "nested_too_deep",
    "Calls nest too deeply to give each a place of its own; the module of the enclosing call took its time.",
)
SHARED_PLACE = Cause(
    "place_shared",
    "Calls of different modules stand at one place, since their markers' paths are not below the enclosing call; "
    "the module of that place holds the time of all of them.",
    "mark the modules in between, or all of them by hooks of one model",
)
GRAPH_UPDATED = Cause(
    "graph_updated",
    "It was replayed after a call that changes what a graph runs (cudaGraphExecUpdate, "
    "cudaGraphExecKernelNodeSetParams and their like) and leaves no record of the change; it counts for the module of "
    "the first graph capture.",
    "accept if every capture of the graph runs the same modules; else instantiate each capture anew",
)
STEPS_UNCLEAR = Cause(
    "steps_unclear",
    "Steps are not marked, and it is not certain which of the outermost modules begins an iteration: these calls are "
    "in no step.",
    "mark steps (tracekit.capture.step, torch.profiler's schedule, vLLM's --profiler-config), or the model as a whole",
)
#: What was put right while reading.
ENDS_BEFORE_START = Cause(
    "ends_before_start",
    "A row ends before it starts; it was taken as having no duration.",
    "the profiler lost its end time; treat its duration as unknown",
)
LOST_BY_RECORDER = Cause(
    "lost_by_recorder",
    "The embedded recorder opened a range that torch's profiler did not record.",
    "record fewer steps at a time (--steps), or with --engine nsys",
)
API_OVERLAP = Cause(
    "api_calls_overlap",
    "API calls of one thread overlap too deeply; their work is missing from the ranges' GPU projection.",
)
NEVER_ENDED = Cause(
    "never_ended",
    "A range has no end in the report; it was closed at the last time seen on its thread.",
    "stop the program before the recording ends, or accept",
)
TOO_LARGE = Cause(
    "value_too_large",
    "A number is larger than its column can hold (a grid of 2^40 blocks, say); it was taken as unknown.",
    "export the report again; the file may be damaged",
)
ABSURD_TIME = Cause(
    "absurd_time",
    "A row's time lies months or more from those of all other rows; the row was left out.",
    "the report is damaged there; record again if many rows are missing",
)
#: What is in a report and neither is a range nor launches work, so that nothing is lost by leaving it out.
MARK = Cause("mark", "A point in time that NVTX marked; nothing runs inside of it.", loss=False)
RAW_EVENT = Cause(
    "raw_event",
    "The begin or the end of an NVTX range by itself, which nsys keeps beside the range made of both.",
    loss=False,
)
OTHER_EVENT = Cause(
    "other_event",
    "It gives a name to a category, a thread, a stream and the like, or ends a domain.",
    loss=False,
)
NO_CORRELATION_ID = Cause(
    "no_correlation_id",
    "An API call without correlation id; no work can be told to be its own.",
    loss=False,
)
FAILED_CALL = Cause("failed_call", "An API call that returned an error: it started no work.", loss=False)
#: What the profiler says itself that it did not record.
CUDA_EVENTS_LOST = Cause(
    "cuda_events_lost",
    "The profiler says that it may have lost CUDA events: API calls, kernels or copies.",
    "let the program end by itself, or wait for the GPU (torch.cuda.synchronize) before recording stops; record a "
    "shorter window if events were dropped",
)
NVTX_EVENTS_LOST = Cause(
    "nvtx_events_lost",
    "The profiler says that it may have lost NVTX events: ranges of modules and steps.",
    "let the program end by itself, or stop recording while it still runs; update nvtx if it names invalid strings",
)
EVENTS_LOST = Cause(
    "events_lost",
    "The profiler says that it may have lost events and does not say of which kind.",
    "record again, a shorter window and with less tracing switched on",
)
CUDA_NOT_TRACED = Cause(
    "cuda_not_traced",
    "The profiler says that it may not have begun to record CUDA in a process.",
    "accept if these processes run nothing on the GPU (compilers, data loaders); else record each by itself",
)
NVTX_NOT_TRACED = Cause(
    "nvtx_not_traced",
    "The profiler says that it may not have begun to record NVTX in a process.",
    "accept if these processes mark nothing; else record each by itself",
)
#: What processes and reports say of each other.
RANK_CONTRADICTED = Cause(
    "rank_contradicted",
    "A process goes by several ranks. That which MPI says was taken if MPI says just one, else none.",
    "name reports after the rank that recorded them, and ranges after no other rank",
)
MODULES_DIFFER = Cause(
    "modules_differ",
    "What is said of a module differs between its calls, processes or reports, as the sizes of shards do; or it may be "
    "any of several modules of its path. What differs is null in modules, and so are the figures that follow from it.",
    "accept it of shards; else give every model a prefix of its own, and parse reports of different models into "
    "datasets of their own",
)

CAUSES: tuple[Cause, ...] = (
    NO_LAUNCH,
    AMBIGUOUS_LAUNCH,
    IMPOSSIBLE_LAUNCH,
    MANAGED_MEMORY,
    OUTSIDE_MODULES,
    GRAPH_NOT_EXPANDED,
    GRAPH_UNMAPPED,
    MODULE_UNREADABLE,
    MODULE_UNCLEAR,
    LEFT_OPEN,
    ENDED_ELSEWHERE,
    TOO_LONG,
    TOO_DEEP,
    BROKEN,
    NO_NAME,
    FIELD_SKIPPED,
    FIELD_CUT,
    DIMENSION_UNKNOWN,
    ORPHAN_OUTPUTS,
    NESTED_TOO_DEEP,
    SHARED_PLACE,
    GRAPH_UPDATED,
    STEPS_UNCLEAR,
    ENDS_BEFORE_START,
    API_OVERLAP,
    LOST_BY_RECORDER,
    NEVER_ENDED,
    TOO_LARGE,
    RANK_CONTRADICTED,
    MODULES_DIFFER,
    ABSURD_TIME,
    MARK,
    RAW_EVENT,
    OTHER_EVENT,
    NO_CORRELATION_ID,
    FAILED_CALL,
    CUDA_EVENTS_LOST,
    NVTX_EVENTS_LOST,
    EVENTS_LOST,
    CUDA_NOT_TRACED,
    NVTX_NOT_TRACED,
)
BY_NAME: dict[str, Cause] = {cause.name: cause for cause in CAUSES}
ADVICE: dict[str, str] = {cause.name: cause.advice for cause in CAUSES}
#: Subject under which it is counted what a profiler says of a report as a whole.
REPORT = "report"
#: What follows a subject whose rows were lost, or left out for what they are.
LOSSES, LEFT_OUT = ": losses", ": left out"


@dataclass(slots=True)
class Tally:
    """Losses counted while a report is read: ``counts[what, cause] = number``."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, what: str, cause: Cause, count: int = 1) -> None:
        """Counts ``count`` more losses of one cause; none is no entry."""
        if count:
            key = (what, cause.name)
            self.counts[key] = self.counts.get(key, 0) + int(count)
