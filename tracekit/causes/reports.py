"""What was lost, corrected or left out while a report was recorded and read."""

from __future__ import annotations

from tracekit.causes.base import Cause

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
    "record each process into a file of its own (nvprof --profile-child-processes -o report.%p.nvprof), or parse the "
    "trace of each process instead of all in one",
)
TOO_LARGE = Cause(
    "value_too_large",
    "The number is too large for its column (a grid of 2^40 blocks, say); it was replaced by null.",
    "export the report again; the file may be damaged",
)
ABSURD_TIME = Cause(
    "absurd_time",
    "The row's time is no number, or months or more away from all other rows; the row was dropped.",
    "record again if many rows are missing: the report is damaged there",
)
#: Rows of a report that are neither ranges nor launches; nothing is lost by leaving them out.
MARK = Cause("mark", "An NVTX mark: a point in time, so no work runs inside it.", loss=False)
RAW_EVENT = Cause(
    "raw_event", "The begin or end event of an NVTX range, which nsys keeps beside the complete range.", loss=False
)
OTHER_EVENT = Cause(
    "other_event",
    "An event that is neither a range nor an API call nor work: an NVTX event that names a category, thread, stream or "
    "the like, or destroys a domain; a page fault; a Python frame.",
    loss=False,
)
UNKNOWN_EVENT = Cause(
    "unknown_event",
    "An entry of a Chrome trace that is no event, or is of a kind or category that tracekit does not know; it was left "
    "out.",
    "look at the trace in a viewer (ui.perfetto.dev): what is missing here shows there",
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
