"""Collapsed stacks for flame graphs: ``top;model;layers;0;mlp;gemm 1234``, own time in nanoseconds.

Read by flamegraph.pl, inferno, speedscope and others. The format has no escapes: a semicolon in a name becomes a comma,
a line break or other control character becomes U+FFFD. Kernels are placed below the lines of Python that launched them
if these are recorded, otherwise below their modules, those without one below ``[cause]``.
"""

from collections import Counter

from tracekit.aggregates.subtrees import hierarchy
from tracekit.aggregates.weighted_kernels import divided, shared_kernels
from tracekit.dataset.opening import Dataset
from tracekit.exports.base import Target, exported_file
from tracekit.progress import Progress
from tracekit.schema.tables import Kernels

_KEYS = ["stack", "module_id", "cause", "name", "kind"]


def write(dataset: Dataset, target: Target, progress: Progress) -> None:
    """Writes the stacks of Python by text, then those by module in pre-order; kernels without a module come last."""
    with exported_file(dataset, target) as partial:
        totals = _totals(dataset, progress)
        modules = hierarchy(dataset)
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            for (lines, module, cause, name), time_ns in sorted(totals.items(), key=_order):
                above = modules.lineage(module) if module is not None else [f"[{cause}]"]
                frames = above if lines is None else lines.split(";")
                stack = ";".join(_frame(frame) for frame in [*frames, name])
                file.write(f"{stack} {time_ns}\n")


_Stack = tuple[str | None, int | None, str | None, str]


def _totals(dataset: Dataset, progress: Progress) -> Counter[_Stack]:
    totals: Counter[_Stack] = Counter()
    rows, done = max(dataset.manifest["rows"]["kernels"], 1), 0
    shared = shared_kernels(dataset)
    for piece in dataset.pieces("kernels", ["kernel_id", *_KEYS, "dur_ns"]):
        whole = (divided(Kernels(piece), shared).table if len(shared) else piece).unify_dictionaries()
        sums = whole.group_by(_KEYS).aggregate([("dur_ns", "sum")]).select([*_KEYS, "dur_ns_sum"])
        columns = (column.to_pylist() for column in sums.columns)
        for lines, module, cause, name, kind, time_ns in zip(*columns, strict=True):
            owner = (module, cause) if lines is None else (None, None)
            totals[lines, *owner, name or kind] += time_ns
        done += piece.num_rows
        progress("exporting", done / rows)
    return totals


def _order(item: tuple[_Stack, int]) -> tuple[bool, str, bool, int, str, str]:
    (lines, module, cause, name), _ = item
    return lines is None, lines or "", module is None, module or 0, cause or "", name


def _frame(name: str) -> str:
    safe = name.replace(";", ",") or "-"
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in safe)
