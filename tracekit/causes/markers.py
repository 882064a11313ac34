"""What markers do not tell, or tell twice: texts, calls, places, steps."""

from __future__ import annotations

from tracekit.causes.base import Cause

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
STEP_AROUND_STEPS = Cause(
    "step_around_steps",
    "The range marks a step and lies around several marked steps. These are the iterations, and what runs between them "
    "is in no step.",
    "if it is the iteration that you mean, do not mark the steps inside it",
)
RANGES_OVERLAP = Cause(
    "ranges_overlap",
    "A start/end range overlaps another in part, so as a node it ends where that one begins, or with the range or call "
    "that it began in. Ranges: how many end earlier. Kernels: launched after such an end, in no other range.",
    "mark what shall be a node with push/pop ranges, which nest",
)
