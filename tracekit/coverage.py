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
    """

    name: str
    doc: str
    advice: str = ""


#: Why a kernel has no module.
NO_LAUNCH = Cause(
    "no_launch",
    "The API call that started it is not in the report, or it was not started by a call (memory migrations).",
    "start recording before the work is launched; do not cut the report by time",
)
AMBIGUOUS_LAUNCH = Cause(
    "ambiguous_launch",
    "Several API calls that are not one inside the other claim to have started it.",
    "export the report again with a newer nsys",
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

#: Why a range's text says less than it seems to.
TOO_LONG = Cause(
    "marker_too_long", "The text starts like a marker but is too long to parse safely."
)
TOO_DEEP = Cause(
    "marker_too_deep", "The text starts like a marker but nests too deeply to parse safely."
)
BROKEN = Cause(
    "marker_broken", "The text starts like a marker but is neither a Python nor a JSON literal."
)
NO_NAME = Cause(
    "marker_without_name",
    "The marker names no module; a keyword argument called Module may have overwritten it.",
    "mark the modules with tracekit.capture.layer_markers, which keeps keyword arguments apart",
)
FIELD_SKIPPED = Cause(
    "marker_field_skipped", "A field of the marker is not of the expected form and was left out."
)
FIELD_CUT = Cause(
    "marker_cut",
    "The marker says itself that it left out fields that would have made it too long.",
)
ORPHAN_OUTPUTS = Cause(
    "outputs_without_call",
    "An Outputs marker follows no call of its module; recording may have started in the middle of it.",
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
    "It was replayed after cudaGraphExecUpdate, which leaves no record of what was replaced by what; it counts for the "
    "module of the first capture.",
    "accept if every capture of the graph runs the same modules; else instantiate each capture anew",
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
#: What processes and reports say of each other.
RANK_CONTRADICTED = Cause(
    "rank_contradicted",
    "A process goes by several ranks. That which MPI says was taken if MPI says just one, else none.",
    "name reports after the rank that recorded them, and ranges after no other rank",
)
MODULES_DIFFER = Cause(
    "modules_differ",
    "A module's class, parameters or settings differ from what an earlier report says of the same path, which was kept.",
    "parse reports of different models into datasets of their own",
)

CAUSES: tuple[Cause, ...] = (
    NO_LAUNCH, AMBIGUOUS_LAUNCH, OUTSIDE_MODULES, GRAPH_NOT_EXPANDED, GRAPH_UNMAPPED, MODULE_UNREADABLE, TOO_LONG,
    TOO_DEEP, BROKEN, NO_NAME, FIELD_SKIPPED, FIELD_CUT, ORPHAN_OUTPUTS, NESTED_TOO_DEEP, SHARED_PLACE,
    GRAPH_UPDATED, ENDS_BEFORE_START, API_OVERLAP, LOST_BY_RECORDER, NEVER_ENDED, TOO_LARGE, RANK_CONTRADICTED, MODULES_DIFFER,
)  # fmt: skip
ADVICE: dict[str, str] = {cause.name: cause.advice for cause in CAUSES}


@dataclass(slots=True)
class Tally:
    """Losses counted while a report is read: ``counts[what, cause] = number``."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, what: str, cause: Cause, count: int = 1) -> None:
        """Counts ``count`` more losses of one cause; none is no entry."""
        if count:
            key = (what, cause.name)
            self.counts[key] = self.counts.get(key, 0) + int(count)
