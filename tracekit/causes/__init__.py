"""Causes: what could not be attributed or read, why, and what to do about it.

Every loss has a name here. A stage that has to leave something out counts it in a ``LossCounters``, so nothing is
dropped silently. A cause is what users act on; its forms describe in more detail what happened.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something is not known.

    Attributes:
        name: The name used in tables.
        doc: What happened, in one sentence or two.
        advice: What the user can do about it, without a full stop.
        loss: Whether data is missing that should be there; False if it was left out because it is not needed.
        detail: What happened in particular, if a cause has several forms; empty otherwise.
    """

    name: str
    doc: str
    advice: str = ""
    loss: bool = True
    detail: str = ""

    def form(self, detail: str, advice: str | None = None) -> "Cause":
        """One of the forms of this cause, whose advice may be another."""
        return replace(self, detail=detail, advice=self.advice if advice is None else advice)


# Why a kernel has no module.
NO_LAUNCH = Cause(
    "no_launch",
    "The API call that launched it is not known.",
    "start recording before the work is launched; do not filter the report by time",
)
AMBIGUOUS_LAUNCH = NO_LAUNCH.form(
    "several API calls have its correlation id, and none encloses the others",
    "record again; a report of Nsight Systems can be exported again with a newer nsys",
)
IMPOSSIBLE_LAUNCH = NO_LAUNCH.form(
    "the API call with its correlation id began later, launches no work, or failed",
    "record again, because ids and times contradict each other; if it happens again, use a newer profiler",
)
PROCESS_UNKNOWN = NO_LAUNCH.form(
    "the report holds several processes and does not record which of them it belongs to",
    "record each process into its own file (nvprof --profile-child-processes -o report.%p.nvprof), or parse the trace "
    "of each process separately",
)
MANAGED_MEMORY = Cause(
    "managed_memory",
    "Managed memory was migrated because a kernel or the CPU touched it; no API call launched the copy.",
    "prefetch the data (cudaMemPrefetchAsync), or keep it in ordinary GPU memory",
)
OUTSIDE_MODULES = Cause(
    "outside_modules",
    "No marked module was running on that thread when it was launched, or during the graph capture of its node.",
    "expected for losses, sampling and copies; otherwise mark more modules. Training? Record with --backward.",
)
OUTSIDE_RANGES = Cause(
    "outside_ranges",
    "The hierarchy is of NVTX ranges or operators, and none was open on that thread when it was launched.",
    "annotate more of the program (torch.cuda.nvtx.range, nvtx.annotate; under torch.profiler, record_function)",
)
COMPILATION = Cause(
    "compilation",
    "It ran while Dynamo, AOTAutograd or Inductor compiled, so it is not the model's own work.",
    "record after the first calls of each input shape: more --warmup, or --warmup and --steps for a program that runs "
    "its own steps",
)
BACKWARD = Cause(
    "backward", "A backward pass outside marked modules launched it.", "record with tracekit capture --backward"
)
AMBIGUOUS_SEQ = BACKWARD.form(
    "operators of several threads may have given the autograd node its sequence number",
    "record with tracekit capture --backward, or with torch.profiler; start recording before the forward pass",
)
OPTIMIZER = Cause("optimizer", "An optimizer launched it, for no single module.")
DATA_LOADING = Cause("data_loading", "A DataLoader launched it.", "let its workers do it (num_workers)")
RECOMPUTED = Cause(
    "recomputed",
    "A backward pass ran it again (activation checkpointing) for a function, in none of the modules that it calls.",
    "checkpoint modules instead of functions: checkpoint(layer, x) runs the layer's markers again, too",
)
GRAPH_NOT_EXPANDED = Cause(
    "graph_not_expanded",
    "The CUDA graph was traced as a whole, so the kernels inside it were not recorded, and no single call is known to "
    "hold all of it.",
    "record again with: nsys profile --cuda-graph-trace=node",
)
GRAPH_NOT_IN_ONE_CALL = GRAPH_NOT_EXPANDED.form("its graph capture launched work in several outermost calls")
GRAPH_UNMAPPED = Cause(
    "graph_unmapped",
    "It was replayed from a CUDA graph outside of module calls, and the module that was running during the graph "
    "capture is not known.",
    "start recording before graph capture (before the warm-up, as tracekit capture does), with markers on and, under "
    "nsys, --cuda-graph-trace=node; for a Chrome trace, add the trace of the graph capture (tracekit parse "
    "--graph-captures); or run eagerly (vLLM: --enforce-eager, SGLang: --disable-cuda-graph)",
)
GRAPH_UNMATCHED = GRAPH_UNMAPPED.form(
    "graph captures of its process were recorded, but none or several agree with what was replayed",
    "give the traces of all graph captures of the run (tracekit parse --graph-captures), and mark the steps of the "
    "report (torch.profiler.record_function)",
)
GRAPH_UPDATED = Cause(
    "graph_updated",
    "It was replayed after a call that changes what a CUDA graph runs (cudaGraphExecUpdate, "
    "cudaGraphExecKernelNodeSetParams and the like). The report does not record the change, so the work counts for "
    "the module of the first graph capture.",
    "nothing to do if every graph capture runs the same modules; otherwise instantiate each captured graph again",
)

# Why a marked run shows no module of it.
LIKE_UNMATCHED = Cause(
    "like_unmatched",
    "The marked run (parse --like) has no counterpart of it.",
    "expected for samplers and copies; otherwise mark a run of the same model, code and kinds of steps",
    detail="its step is like one of the marked run, which has no such kernel there",
)
LIKE_NO_STEP = LIKE_UNMATCHED.form(
    "no step of the marked run is like the one that it ran in",
    "mark a run of the same model, code and kinds of steps (prefill and decode, training and evaluation)",
)
LIKE_LIMIT = LIKE_UNMATCHED.form(
    "the search for a step that is like its own was ended, since it took too long", "record fewer steps, or mark them"
)
LIKE_UNRECORDED = LIKE_UNMATCHED.form("the module of its counterpart was not recorded", "mark all modules of the model")
LIKE_AMBIGUOUS = Cause(
    "like_ambiguous",
    "Several kernels of the marked run (parse --like) may be its counterpart, of different modules.",
    "mark a run with the same batch sizes and on the same GPU, in which nothing is added or left out",
    detail="several places of the step match equally well",
)
LIKE_CONTRADICTED = LIKE_AMBIGUOUS.form(
    "marked runs, or replays of one CUDA graph, contradict each other", "give the run that is most like this one alone"
)
LIKE_DATA_DEPENDENT = LIKE_AMBIGUOUS.form(
    "the data decides which of several equal modules run, such as experts",
    "expected; record this run with markers to tell them apart",
)

# Why the modules of compiled code are not known.
COMPILED_UNMATCHED = Cause(
    "compiled_unmatched",
    "A run of a compiled graph launched it, and the kernel map of that graph does not give its module.",
    "see the rows of compiled graphs in coverage for the reason of each graph",
)
MAP_INCOMPLETE = COMPILED_UNMATCHED.form(
    "parts of the kernel map are missing or contradict each other",
    "record for longer than a second: a map is written again before a run once a second has passed",
)
MAP_DIFFERS = COMPILED_UNMATCHED.form(
    "the kernels that ran are not those of the kernel map, or in another order",
    "record again; if it happens again, clear the caches of torch.compile (TORCHINDUCTOR_CACHE_DIR) and report it",
)
MAP_REWRITTEN = COMPILED_UNMATCHED.form("the compiler rewrote what the kernel was made from", "")
RUN_CUT = COMPILED_UNMATCHED.form("the end of the run is not recorded", "let the program finish before recording ends")
NO_KERNEL_MAP = Cause(
    "no_kernel_map",
    "It was launched inside code that torch.compile made, and the report has no kernel map of it; it counts for the "
    "module, or the range, around that code.",
    "record with tracekit capture, which writes kernel maps, and compile while it records; or run without "
    "torch.compile",
)
#: Forms by the reason that a marker names.
_WITHOUT_MAP = {
    "branches": NO_KERNEL_MAP.form(
        "branches or loops (torch.cond, while_loop) decide which kernels run", "run without torch.compile"
    ),
    "other_modules": NO_KERNEL_MAP.form(
        "loaded from a cache that knows other modules for its code",
        "record once more with an empty cache (TORCHINDUCTOR_CACHE_DIR)",
    ),
    "several_modules": NO_KERNEL_MAP.form(
        "several modules share the code",
        "mark the model before it runs, as tracekit capture does; for backward passes, with --backward",
    ),
    "unseen": NO_KERNEL_MAP.form(
        "compiled in another process or by another compiler",
        "compile in the process that runs the graph (unset TORCHINDUCTOR_FX_COMPILE_MODE)",
    ),
    "failed": NO_KERNEL_MAP.form(
        "making the kernel map failed", "report it, with what the logger tracekit.capture writes at level DEBUG"
    ),
}

# What markers and ranges do not record.
MODULE_UNREADABLE = Cause(
    "marker_unreadable",
    "The text starts like a module marker, but its module name or some of its fields cannot be read.",
    "mark the modules with tracekit.capture.layer_markers",
)
TOO_LONG = MODULE_UNREADABLE.form("too long to parse safely")
TOO_DEEP = MODULE_UNREADABLE.form("nested too deeply to parse safely")
BROKEN = MODULE_UNREADABLE.form("neither a Python nor a JSON literal")
NO_NAME = MODULE_UNREADABLE.form(
    "names no module",
    "mark the modules with tracekit.capture.layer_markers, which keeps a keyword argument called Module separate",
)
FIELD_SKIPPED = Cause(
    "marker_incomplete",
    "The module is known, but a field of its marker is not; everything computed from it is null.",
    detail="a field has an unexpected form",
)
FIELD_CUT = FIELD_SKIPPED.form("fields were left out because they are too long")
DIMENSION_UNKNOWN = FIELD_SKIPPED.form(
    "a dimension is a symbol, not a number", "mark modules while the model runs, not while it is traced or compiled"
)
MODULE_UNCLEAR = Cause(
    "module_unclear",
    "The path of the call belongs to several modules, and the markers do not show which one it is.",
    "give each model its own prefix when marking it; with_stack records less: record with tracekit capture",
)
SHARED_PLACE = MODULE_UNCLEAR.form(
    "paths of markers are not below the enclosing call; the module of that path holds the time of all",
    "mark the modules in between, or mark the whole model with one set of hooks",
)
NESTED_TOO_DEEP = MODULE_UNCLEAR.form("calls nest too deeply; their time counts for the enclosing module", "")
LEFT_OPEN = Cause(
    "left_open",
    "A forward raised and its range was never closed. Kernels: work launched in the outermost call around it. Calls: "
    "how many calls and steps may have ended at another time than recorded; those inside another one are left out.",
    "use hooks that close their ranges when a forward raises: those of tracekit capture do, others need "
    "register_forward_hook(..., always_call=True)",
)
ENDED_ELSEWHERE = Cause(
    "not_nested",
    "A start/end range of a module, a step or a node does not nest: it is no call if it ended on another thread, and "
    "ends early if it overlaps another in part.",
    "mark with push/pop ranges, which nest",
    detail="ended on another thread",
)
RANGES_OVERLAP = ENDED_ELSEWHERE.form("overlaps another range in part")
STEPS_UNCLEAR = Cause(
    "steps_unclear",
    "It is not certain which ranges or calls are the iterations, so some calls are in no step.",
    "mark the steps (tracekit.capture.step, torch.profiler's schedule, vLLM's --profiler-config), or mark the model as "
    "a whole",
)
STEP_AROUND_STEPS = STEPS_UNCLEAR.form(
    "a marked step contains several marked steps, which are the iterations",
    "to use the outer steps as iterations, do not mark the steps inside them",
)

# What was lost, corrected or left out while a report was recorded and read.
NEVER_ENDED = Cause(
    "range_cut",
    "The start or end of a range is not in the report: it ends at the last time seen on its thread, or is left out.",
    "start recording before the model runs, and let the program finish before recording ends",
    detail="no end",
)
NEVER_BEGAN = NEVER_ENDED.form("no start")
ORPHAN_OUTPUTS = NEVER_ENDED.form("outputs of a call without the call")
ENDS_BEFORE_START = Cause(
    "row_damaged",
    "A row cannot be right: it was dropped, or the value that cannot be was replaced.",
    "export or record again if there are many",
    detail="ends before it starts; its duration was set to 0",
)
TIME_UNKNOWN = ENDS_BEFORE_START.form(
    "no start time", "let the program wait for the GPU (torch.cuda.synchronize) and finish before recording stops"
)
ABSURD_TIME = ENDS_BEFORE_START.form("time is no number, or months away from all other rows")
API_OVERLAP = ENDS_BEFORE_START.form("API calls on one thread overlap; their work is missing from projected ranges")
UNKNOWN_EVENT = ENDS_BEFORE_START.form(
    "event of an unknown kind or category",
    "look at the trace in a viewer (ui.perfetto.dev): what is missing here shows there",
)
EVENTS_LOST = Cause(
    "events_lost",
    "The profiler reports that it may not have recorded all events.",
    "record a shorter window with fewer kinds of tracing",
)
CUDA_EVENTS_LOST = EVENTS_LOST.form(
    "CUDA events",
    "let the program finish, or wait for the GPU (torch.cuda.synchronize) before recording stops; record a "
    "shorter window if events were dropped",
)
NVTX_EVENTS_LOST = EVENTS_LOST.form(
    "NVTX events",
    "let the program finish, or stop recording while it still runs; update nvtx if the message names invalid strings",
)
CUDA_NOT_TRACED = EVENTS_LOST.form(
    "no CUDA events of a process",
    "nothing to do if it uses no GPU (compilers, data loaders); otherwise record each process separately",
)
NVTX_NOT_TRACED = EVENTS_LOST.form(
    "no NVTX events of a process", "nothing to do if it marks nothing; otherwise record each process separately"
)
LOST_BY_RECORDER = EVENTS_LOST.form(
    "ranges that the embedded recorder opened", "record fewer steps at a time (--steps), or use --engine nsys"
)
CUT_OFF = EVENTS_LOST.form(
    "the trace is cut off", "let the program finish while it writes the trace, or copy the file again"
)
FUSED_PATH_OFF = Cause(
    "fused_path_off",
    "Markers inside a layer switched off the fused path that torch would have taken (nn.TransformerEncoderLayer in "
    "eval), so other operators ran than without markers.",
    "record again: markers do not do that any more",
)
RANK_CONTRADICTED = Cause(
    "rank_contradicted",
    "A process has several ranks. The rank that MPI reports was used if there is exactly one, otherwise none.",
    "name each report after the rank that recorded it, and no range after another rank",
)
MODULES_DIFFER = Cause(
    "modules_differ",
    "The markers of a module differ between calls, processes or reports (as sizes of shards do), or several modules "
    "have its path. Values that differ are null in modules, and so are figures computed from them.",
    "nothing to do for shards; otherwise give each model its own prefix, and parse reports of different models into "
    "separate datasets",
)
MARK = Cause(
    "not_needed", "The row is neither a range nor a launch nor work; it was left out.", loss=False, detail="NVTX mark"
)
RAW_EVENT = MARK.form("begin or end event of a complete range")
OTHER_EVENT = MARK.form("other event")
NO_CORRELATION_ID = MARK.form("API call without a correlation id")
FAILED_CALL = MARK.form("API call that failed")

#: All causes and their forms, in their order.
CAUSES: tuple[Cause, ...] = tuple(
    value for names in (globals(), _WITHOUT_MAP) for value in [*names.values()] if isinstance(value, Cause)
)
#: Their names, and the position of each cause's name among them.
NAMES: tuple[str, ...] = tuple(dict.fromkeys(cause.name for cause in CAUSES))
NAME_OF_CAUSE: tuple[int, ...] = tuple(NAMES.index(cause.name) for cause in CAUSES)
#: The subject of losses that the profiler reports for the report as a whole.
REPORT = "report"
#: Suffixes of subjects: rows that were lost, and rows that are not needed and were left out.
LOSSES, LEFT_OUT = ": losses", ": left out"
#: Subject of operators that a CPU ran to compile a model: no work of the model.
OF_COMPILERS = f"operators{LEFT_OUT}"


def cause_without_map(reason: object) -> Cause | None:
    """Why a compiled graph that was run with kernel maps on has none, by the reason that a marker names."""
    return _WITHOUT_MAP.get(reason) if isinstance(reason, str) else None
