"""Where a dataset differs from what tests saw themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from tests.capture.truth import TRUTH
from tracekit.analyses import roofline
from tracekit.views.wording import records

if TYPE_CHECKING:
    from collections import Counter

    from tests.capture.truth import Truth
    from tracekit.dataset.opening import Dataset

_NODE = "autograd::engine::evaluate_function: "
#: Nodes that accumulate gradients have this number or none: no forward made them.
_NO_NUMBER = 2**63


def calls(dataset: Dataset) -> list[tuple[Any, ...]]:
    """The calls in order, but for those of backward passes."""
    table = dataset.calls()
    table = table[table.phase != "backward"].sort_values("start_ns")
    row = {call_id: at for at, call_id in enumerate(table.call_id)}
    class_name = dataset.modules().set_index("module_id").class_name
    return [
        (
            *(call.module, class_name[call.module_id], call.phase, row.get(call.parent_call_id)),
            *(_shapes(call.inputs), {name: _shapes(shapes) for name, shapes in call.kwargs}, _shapes(call.outputs)),
        )
        for call in table.itertuples()
    ]


def _shapes(column: Any) -> list[list[int]]:
    return [] if column is None or column is pd.NA else [[int(size) for size in shape] for shape in column]


def true_calls(truth: Truth) -> list[tuple[Any, ...]]:
    return [
        (
            *(call.module, call.class_name, "recompute" if call.again else "forward", call.parent),
            *(call.inputs, call.kwargs, call.outputs or []),
        )
        for call in truth.calls
    ]


class Work(NamedTuple):
    """An operator, whose it is, and whose the dataset says it is.

    Attributes:
        name: Its name.
        true: Module and phase by what the tests saw.
        module, phase, cause: What the dataset says.
    """

    name: str
    true: tuple[str | None, str | None]
    module: str | None
    phase: str | None
    cause: str | None


class _Around(NamedTuple):
    """Something that operators run in: a call, or a node of a backward pass."""

    start: int
    end: int
    owner: str | None
    phase: str


def work(dataset: Dataset, truth: Truth) -> list[Work]:
    """The operators of the main thread, but for those that accumulate gradients."""
    columns = ["name", "module", "phase", "cause", "start_ns", "end_ns", "tid"]
    operators = dataset.kernels(columns).sort_values(["start_ns", "end_ns"], ascending=[True, False])
    # Torch's own threads allocate memory for some operators.
    operators = operators[operators.tid == dataset.calls(["tid"]).tid[0]]
    open_: list[_Around] = []
    ahead = _around(dataset, truth)[::-1]
    result = []
    for row in operators.astype(object).itertuples():
        while ahead and ahead[-1].start <= row.start_ns:
            open_.append(ahead.pop())
        open_ = [around for around in open_ if around.end >= row.end_ns]
        if not any(around.phase == "unknown" for around in open_):
            # What was made in a node that ran again is of the module that made that node.
            owner = next((around.owner for around in reversed(open_) if around.owner), None)
            true = owner, open_[-1].phase if open_ else None
            result.append(
                Work(row.name, true, *(None if pd.isna(v) else v for v in (row.module, row.phase, row.cause)))
            )
    return result


def _around(dataset: Dataset, truth: Truth) -> list[_Around]:
    ranges = dataset.ranges(["text", "start_ns", "end_ns"]).sort_values(["start_ns", "end_ns"], ascending=[True, False])
    result = []
    nodes: list[tuple[str, int, int]] = []
    for start, end, text in zip(ranges.start_ns, ranges.end_ns, ranges.text.astype(str), strict=True):
        name, number = text.partition(", ")[0], re.search(r", seq = (\d+), op_id", text)
        if text.startswith(TRUTH):
            call = truth.calls[int(text.removeprefix(TRUTH))]
            result.append(_Around(start, end, call.module, "recompute" if call.again else "forward"))
        elif name.startswith(_NODE):
            nodes.append((name.removeprefix(_NODE), start, end))
        elif nodes and name == nodes[-1][0] and end <= nodes[-1][2]:
            # Only the node's own range has the number of a node that Python made.
            made = int(number[1]) if number else _NO_NUMBER
            phase = "backward" if made < _NO_NUMBER else "unknown"
            result.append(_Around(*nodes.pop()[1:], truth.owner(made), phase))
    return sorted(result, key=lambda around: (around.start, -around.end))


class FlopsOf(NamedTuple):
    """What is said of a module, and what is true."""

    path: str
    flops: int | None
    true: int
    unknown: str | None


def flops(dataset: Dataset, own: Counter[str | None]) -> list[FlopsOf]:
    """FLOPs of each module with all inside it."""
    return [
        FlopsOf(
            row["path"],
            row["inclusive_flops"],
            sum(number for path, number in own.items() if f"{path}.".startswith(f"{row['path']}.")),
            row["unknown"],
        )
        for row in records(roofline.frame(dataset))
    ]
