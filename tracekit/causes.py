"""Counted causes: what could not be attributed or read, why, and what to do about it.

Every loss has a name here. A stage that has to leave something out counts it in a
:class:`~tracekit.recording.tally.Tally`, so nothing is dropped silently.
"""

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


#: Why a kernel has no module.
NO_LAUNCH = Cause(
    "no_launch",
    "The report does not contain the API call that launched it.",
    "start recording before the work is launched; do not filter the report by time",
)
AMBIGUOUS_LAUNCH = Cause(
    "ambiguous_launch",
    "Several API calls have its correlation id, and none of them encloses the others.",
    "export the report again with a newer nsys",
)
IMPOSSIBLE_LAUNCH = Cause(
    "impossible_launch",
    "The API call with its correlation id cannot have launched it: it began later, launches no work, or failed.",
    "record again, because ids and times in this report contradict each other; if it happens again, use a newer nsys",
)
MANAGED_MEMORY = Cause(
    "managed_memory",
    "Managed memory was migrated because a kernel or the CPU touched it; no API call launched the copy.",
    "prefetch the data (cudaMemPrefetchAsync), or keep it in ordinary GPU memory",
)
OUTSIDE_MODULES = Cause(
    "outside_modules",
    "No marked module was running on that thread when it was launched, or during the graph capture of its node.",
    "mark more modules, or accept it: sampling, losses and copies run outside forward calls; so do backward passes and "
    "optimizers, which tracekit capture --backward tells apart",
)
OUTSIDE_RANGES = Cause(
    "outside_ranges",
    "The hierarchy is of NVTX ranges or operators, and none was open on that thread when it was launched.",
    "annotate more of the program (torch.cuda.nvtx.range, nvtx.annotate), or accept it",
)
COMPILATION = Cause(
    "compilation",
    "It ran while Dynamo, AOTAutograd or Inductor compiled, so it is not the model's own work.",
    "record after the first calls of each input shape: more --warmup, or --warmup and --steps for a program that runs "
    "its own steps",
)
BACKWARD = Cause("backward", "A backward pass outside marked modules launched it.", "record with --backward")
OPTIMIZER = Cause("optimizer", "An optimizer launched it, for no module alone.", "accept it")
DATA_LOADING = Cause("data_loading", "A DataLoader launched it.", "accept it, or let its workers do it (num_workers)")
GRAPH_NOT_EXPANDED = Cause(
    "graph_not_expanded",
    "The CUDA graph was traced as a whole, so the kernels inside it were not recorded, and it is not certain that the "
    "report holds the graph capture which made it.",
    "record again with: nsys profile --cuda-graph-trace=node",
)
GRAPH_NOT_IN_ONE_CALL = Cause(
    "graph_not_in_one_call",
    "The CUDA graph was traced as a whole, and its graph capture launched work in several outermost calls, or also "
    "outside of all calls, so no call holds all of it.",
    "record again with: nsys profile --cuda-graph-trace=node",
)
GRAPH_UNMAPPED = Cause(
    "graph_unmapped",
    "It was replayed from a CUDA graph, and the module that was running during the graph capture is not known.",
    "start recording before graph capture (before the warm-up, as tracekit capture does), with "
    "--cuda-graph-trace=node and markers on, or run eagerly (vLLM: --enforce-eager, SGLang: --disable-cuda-graph)",
)
MODULE_UNREADABLE = Cause(
    "marker_unreadable",
    "It was launched inside a module marker whose module name cannot be read.",
    "see the rows of ranges whose marker is 'unreadable'",
)
MODULE_UNCLEAR = Cause(
    "module_unclear",
    "It was launched in a call whose path belongs to several modules, and the markers do not tell which one it is.",
    "give each model a prefix of its own when marking it",
)

RECOMPUTED = Cause(
    "recomputed",
    "A backward pass ran it again (activation checkpointing) for a function, in none of the modules that it calls.",
    "checkpoint modules instead of functions: checkpoint(layer, x) runs the layer's markers again, too",
)
LEFT_OPEN = Cause(
    "left_open",
    "A forward raised and its range was never closed. Kernels: work launched after the last event that surely belongs "
    "to such a call and before the first that shows it had ended. Calls: how many were left open.",
    "use hooks that close their ranges when a forward raises: those of tracekit capture do, others need "
    "register_forward_hook(..., always_call=True)",
)
ENDED_ELSEWHERE = Cause(
    "ended_elsewhere",
    "A start/end range marks a module or a step but ended on another thread. The work inside it cannot be determined, "
    "so it is neither a call nor a step.",
    "mark modules with push/pop ranges, or end each range on the thread that began it",
)

#: Why a range's text tells less than it seems to.
TOO_LONG = Cause("marker_too_long", "The text starts like a marker but is too long to parse safely.")
TOO_DEEP = Cause("marker_too_deep", "The text starts like a marker but is nested too deeply to parse safely.")
BROKEN = Cause("marker_broken", "The text starts like a marker but is neither a Python nor a JSON literal.")
NO_NAME = Cause(
    "marker_without_name",
    "The marker names no module; a keyword argument called Module may have overwritten the name.",
    "mark the modules with tracekit.capture.layer_markers, which keeps keyword arguments separate",
)
FIELD_SKIPPED = Cause("marker_field_skipped", "A field of the marker has an unexpected form and was ignored.")
FIELD_CUT = Cause("marker_cut", "The marker omits fields that would have made it too long, and says so.")
DIMENSION_UNKNOWN = Cause(
    "dimension_unknown",
    "A dimension in the marker is a symbol, not a number; the dimension and everything computed from it are null.",
    "mark modules while the model runs, not while it is traced or compiled",
)
ORPHAN_OUTPUTS = Cause(
    "outputs_without_call",
    "The range that hooks write after a call, with its outputs, follows no call of its module; recording may have "
    "started during the call.",
)
NESTED_TOO_DEEP = Cause(
    "nested_too_deep",
    "Calls are nested too deeply to each get a module of their own; their time counts for the module that encloses "
    "them.",
)
SHARED_PLACE = Cause(
    "place_shared",
    "Calls of different modules have the same path, because the paths in their markers are not below the enclosing "
    "call; the module of that path holds the time of all of them.",
    "mark the modules in between, or mark the whole model with one set of hooks",
)
GRAPH_UPDATED = Cause(
    "graph_updated",
    "It was replayed after a call that changes what a CUDA graph runs (cudaGraphExecUpdate, "
    "cudaGraphExecKernelNodeSetParams and the like). The report does not record the change, so the work counts for "
    "the module of the first graph capture.",
    "accept it if every graph capture runs the same modules; otherwise instantiate each captured graph anew",
)
STEPS_UNCLEAR = Cause(
    "steps_unclear",
    "Steps are not marked, and it is not certain which outermost module begins an iteration; these calls are in no "
    "step.",
    "mark the steps (tracekit.capture.step, torch.profiler's schedule, vLLM's --profiler-config), or mark the model as "
    "a whole",
)
#: What was corrected while reading.
ENDS_BEFORE_START = Cause(
    "ends_before_start",
    "The row ends before it starts; its duration was set to 0.",
    "treat the duration as unknown: the profiler lost the end time",
)
LOST_BY_RECORDER = Cause(
    "lost_by_recorder",
    "The embedded recorder opened a range that torch.profiler did not record.",
    "record fewer steps at a time (--steps), or use --engine nsys",
)
FUSED_PATH_OFF = Cause(
    "fused_path_off",
    "Markers inside a layer switched off the fused path that torch would have taken (nn.TransformerEncoderLayer in "
    "eval), so other operators ran than without markers.",
    "record again with --keep-fused, which marks such a layer as one call",
)
API_OVERLAP = Cause(
    "api_calls_overlap",
    "API calls on one thread overlap too deeply; their work is missing from the GPU projection of ranges.",
)
NEVER_ENDED = Cause(
    "never_ended",
    "The range has no end in the report; it was closed at the last time seen on its thread.",
    "let the program finish before recording ends, or accept it",
)
NEVER_BEGAN = Cause(
    "never_began",
    "The end of an NVTX range whose start is not in the report; the range was left out.",
    "start recording before the range starts, or accept it",
)
TIME_UNKNOWN = Cause(
    "time_unknown",
    "The profiler did not record when it started (its time is 0); the row was dropped.",
    "let the program wait for the GPU (torch.cuda.synchronize) and end by itself before recording stops",
)
PROCESS_UNKNOWN = Cause(
    "process_unknown",
    "The report holds several processes and does not record which of them this device work belongs to, so its launch "
    "is not known.",
    "record each process into a file of its own: nvprof --profile-child-processes -o report.%p.nvprof",
)
TOO_LARGE = Cause(
    "value_too_large",
    "The number is too large for its column (a grid of 2^40 blocks, say); it was replaced by null.",
    "export the report again; the file may be damaged",
)
ABSURD_TIME = Cause(
    "absurd_time",
    "The row's time is months or more away from all other rows; the row was dropped.",
    "record again if many rows are missing: the report is damaged there",
)
#: Rows of a report that are neither ranges nor launches; nothing is lost by leaving them out.
MARK = Cause("mark", "An NVTX mark: a point in time, so no work runs inside it.", loss=False)
RAW_EVENT = Cause(
    "raw_event", "The begin or end event of an NVTX range, which nsys keeps beside the complete range.", loss=False
)
OTHER_EVENT = Cause(
    "other_event", "An NVTX event that names a category, thread, stream or the like, or destroys a domain.", loss=False
)
DUPLICATE_ROW = Cause(
    "duplicate_row",
    "A row that repeats another one in everything, as merging a file twice leaves them; it was read once.",
    loss=False,
)
NO_CORRELATION_ID = Cause(
    "no_correlation_id", "An API call without a correlation id; no work can be linked to it.", loss=False
)
FAILED_CALL = Cause("failed_call", "An API call that returned an error and so launched no work.", loss=False)
#: What the profiler itself reports as not recorded.
CUDA_EVENTS_LOST = Cause(
    "cuda_events_lost",
    "The profiler reports that it may have lost CUDA events: API calls, kernels or copies.",
    "let the program end by itself, or wait for the GPU (torch.cuda.synchronize) before recording stops; record a "
    "shorter window if events were dropped",
)
NVTX_EVENTS_LOST = Cause(
    "nvtx_events_lost",
    "The profiler reports that it may have lost NVTX events: ranges of modules and steps.",
    "let the program end by itself, or stop recording while it still runs; update nvtx if the message names invalid "
    "strings",
)
EVENTS_LOST = Cause(
    "events_lost",
    "The profiler reports that it may have lost events, without naming their kind.",
    "record a shorter window with fewer kinds of tracing",
)
CUDA_NOT_TRACED = Cause(
    "cuda_not_traced",
    "The profiler reports that CUDA tracing may not have started in a process.",
    "accept it if these processes use no GPU (compilers, data loaders); otherwise record each process separately",
)
NVTX_NOT_TRACED = Cause(
    "nvtx_not_traced",
    "The profiler reports that NVTX tracing may not have started in a process.",
    "accept it if these processes mark nothing; otherwise record each process separately",
)
#: Where processes or reports contradict each other.
RANK_CONTRADICTED = Cause(
    "rank_contradicted",
    "A process has several ranks. The rank that MPI reports was used if there is exactly one, otherwise none.",
    "name each report after the rank that recorded it, and no range after another rank",
)
MODULES_DIFFER = Cause(
    "modules_differ",
    "The markers of a module differ between calls, processes or reports (as sizes of shards do), or several modules "
    "have its path. Values that differ are null in modules, and so are figures computed from them.",
    "accept it for shards; otherwise give each model a prefix of its own, and parse reports of different models into "
    "separate datasets",
)

#: All of the above, in their order.
CAUSES: tuple[Cause, ...] = tuple(value for value in tuple(vars().values()) if isinstance(value, Cause))
BY_NAME: dict[str, Cause] = {cause.name: cause for cause in CAUSES}
ADVICE: dict[str, str] = {cause.name: cause.advice for cause in CAUSES}
#: The subject of losses that the profiler reports for the report as a whole.
REPORT = "report"
#: Suffixes of subjects: rows that were lost, and rows that are not needed and were left out.
LOSSES, LEFT_OUT = ": losses", ": left out"
