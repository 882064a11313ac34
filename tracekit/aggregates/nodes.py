"""What the nodes of a dataset's hierarchy are: modules, plain NVTX ranges or operators; and why."""

from tracekit.arrays.text import listed
from tracekit.dataset.opening import Dataset
from tracekit.markers import base

#: What a node is called if modules and ranges are in one hierarchy.
_NODE = "node"
_TO_SEE_MODULES = "Record with tracekit capture to see modules."
_MARK_MODULES = (
    "record with tracekit capture, or mark the model (tracekit.capture.layer_markers; "
    "vLLM's --enable-layerwise-nvtx-tracing; SGLang's --enable-layerwise-nvtx-marker)"
)
#: What a report without calls was asked for, and what to do about it.
_NONE = {
    base.MODULES: f"no module calls were recorded: read its ranges with tracekit parse --rows auto, or {_MARK_MODULES}",
    base.OPERATORS: "no operators are marked: read it with tracekit parse --rows auto, or record with capture --ops",
}
_ONLY_WORK = (
    "no module calls were recorded, nor ranges or operators: kernels, gaps, copies and launches can be asked for "
    f"(tracekit show kernels). {_TO_SEE_MODULES}"
)
_WHY = {
    (base.RANGES, base.AUTO): "no module markers, so the rows are {ranges}. {remedy}",
    (base.OPERATORS, base.AUTO): "neither module markers nor other {annotations}, so the rows are operators. {remedy}",
    (base.RANGES, base.RANGES): "rows are {ranges}, and modules where they are marked, because of --rows ranges.",
    (base.OPERATORS, base.OPERATORS): "rows are operators because of --rows operators.",
}
#: What the ranges of a report are: those that its program wrote, and with those that its profiler added.
_NVTX = {"annotations": "NVTX ranges", "ranges": "NVTX ranges"}
_OF_FORMAT = {"kineto": {"annotations": "annotations", "ranges": "annotations (record_function) and operators"}}


def hierarchy_keys(dataset: Dataset) -> dict[str, list[str]]:
    """What the hierarchies of the reports with calls are keyed by, each with the names of these reports."""
    by: dict[str, list[str]] = {}
    for entry in dataset.entries:
        if entry["rows"]["calls"]:
            by.setdefault(_keys(entry)[0], []).append(entry.get("name", ""))
    return by


def noun(dataset: Dataset) -> str:
    """What a row of the hierarchy is: ``module``, ``range`` or ``operator``; ``node`` where modules and ranges mix."""
    if hierarchy_keys(dataset).keys() <= {base.MODULES}:
        return base.MODULE
    kinds = set(dataset.whole.table("modules", ["kind"]).column("kind").unique().to_pylist())
    if kinds <= {base.MODULE, base.REGION}:
        return base.MODULE
    if kinds <= {base.RANGE, base.OPERATOR}:
        return base.RANGE if base.RANGE in kinds else base.OPERATOR
    return _NODE


def why(dataset: Dataset) -> list[str]:
    """Where rows of the hierarchy are not modules, sentences that explain what they are and why."""
    entries = [entry for entry in dataset.entries if entry["rows"]["calls"]]
    if {_keys(entry)[0] for entry in entries} <= {base.MODULES}:
        return []
    reports: dict[str, list[str]] = {}
    for entry in entries:
        words = _OF_FORMAT.get(entry["source"]["format"], _NVTX)
        reason = _WHY.get(_keys(entry), f"rows are {_keys(entry)[0]}.").format(**words, remedy=_TO_SEE_MODULES)
        reports.setdefault(reason, []).append(entry.get("name", ""))
    return [_sentence(reason, names, whole=len(names) == len(entries)) for reason, names in reports.items()]


def none(dataset: Dataset) -> str:
    """Why a dataset without calls has none, and what to do about it."""
    entries = dataset.entries
    asked = {_keys(entry)[1] for entry in entries}
    ranges, kernels = (dataset.manifest["rows"][name] for name in ("ranges", "kernels"))
    if kernels and not ranges:
        return _ONLY_WORK
    if all(any(data["what"].endswith(base.CAPTURED) for data in entry["missing"]) for entry in entries):
        return "no module calls were recorded"
    text = _NONE.get(next(iter(asked))) if ranges and len(asked) == 1 else None
    return text or f"no module calls were recorded: {_MARK_MODULES}"


def _keys(entry: dict[str, dict[str, str]]) -> tuple[str, str]:
    return entry["hierarchy"]["by"], entry["hierarchy"]["asked"]


def _sentence(text: str, names: list[str], *, whole: bool) -> str:
    if not whole:
        return f"{listed(names)}: {text}"
    has = {True: "These reports have", False: "This report has"}[len(names) > 1]
    return f"{has} {text}" if text.startswith(("no ", "neither ")) else text[:1].upper() + text[1:]
