"""What a model did, by hooks of the tests' own, autograd's sequence numbers and torch's registry of FLOPs.

It knows nothing of tracekit, but for the last part, which compares a dataset with it. Hooks open a range
``truth:<number>`` of torch's profiler around each call.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import pandas as pd
import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr
from torch.autograd.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tests.capture.others import tensors_in
from tracekit.answers import roofline
from tracekit.dataset.opening import Dataset
from tracekit.views.formatting import records

#: What is not marked.
PASSED_OVER = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
TRUTH = "truth:"
#: Torch counts fused attention on a CPU from 2.14 on.
NOT_COUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward,
}
Shapes = list[list[int]]


@dataclass
class Call:
    """One call of a module, as hooks saw it: ``numbers`` are the sequence numbers of the nodes that were made in it.

    Outputs are None if it was interrupted. ``parent`` is the number of the call around it.
    """

    module: str
    class_name: str
    parent: int | None
    depth: int
    again: bool
    inputs: Shapes
    kwargs: dict[str, Shapes]
    outputs: Shapes | None
    numbers: tuple[int, int]


class Truth:
    """The calls of a model. Put it on in two parts, so that its ranges are around those of other hooks."""

    def __init__(self, model: nn.Module, top: str = "top") -> None:
        self.calls: list[Call] = []
        self.open: list[int] = []
        self._ranges: list[record_function] = []
        self._modules = {n: m for n, m in model.named_modules(prefix=top) if not isinstance(m, PASSED_OVER)}
        self._handles: list[Any] = []

    def put_on(self) -> Self:
        self.put_on_before()
        self.put_on_after()
        return self

    def put_on_before(self) -> None:
        for name, module in self._modules.items():
            before = partial(self._before, name)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))

    def put_on_after(self) -> None:
        for module in self._modules.values():
            self._handles.append(module.register_forward_hook(self._after, always_call=True))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        # A recomputed call stands where it ran the first time, not in the call that runs backward around it.
        again = torch._C._current_graph_task_id() >= 0
        number, first = len(self.calls), _get_sequence_nr()
        named = {key: shapes for key, value in kwargs.items() if (shapes := shapes_in(value))}
        place = type(module).__name__, self.open[-1] if self.open else None, len(self.open), again
        self.calls.append(Call(name, *place, shapes_in(args), named, None, (first, first)))
        self.open.append(number)
        self._ranges.append(record_function(f"{TRUTH}{number}"))
        self._ranges[-1].__enter__()

    def _after(self, module: nn.Module, _args: Any, output: Any) -> None:
        self._ranges.pop().__exit__(None, None, None)
        call = self.calls[self.open.pop()]
        call.outputs = shapes_in(output)
        call.numbers = call.numbers[0], _get_sequence_nr()

    def owner(self, number: int) -> str | None:
        around = [call for call in self.calls if call.numbers[0] <= number < call.numbers[1]]
        return max(around, key=lambda call: call.depth).module if around else None


class Flops(TorchDispatchMode):
    """FLOPs of a step by module: of a backward operator, the module that made the node that runs."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self._truth = truth
        #: By name of the module, and None for what is outside of all.
        self.own: Counter[str | None] = Counter()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._overloadpacket is torch.ops.aten._grouped_mm:  # torch counts none
            self.own[self._module()] += 2 * args[0].shape[-2] * args[0].shape[-1] * args[1].shape[-1]
        elif func._overloadpacket in flop_registry and func._overloadpacket not in NOT_COUNTED:
            flops = flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=result)
            self.own[self._module()] += flops
        return result

    def _module(self) -> str | None:
        truth = self._truth
        if truth.open:
            return truth.calls[truth.open[-1]].module
        node = torch._C._current_autograd_node()
        return truth.owner(node._sequence_nr()) if node is not None else None


def flops_of(model: nn.Module, run: Callable[[], object], top: str = "top") -> Counter[str | None]:
    truth = Truth(model, top).put_on()
    with Flops(truth) as flops:
        run()
    truth.remove()
    return flops.own


def shapes_in(value: Any) -> Shapes:
    return [list(tensor.shape) for tensor in tensors_in(value)]


@contextmanager
def true_calls(model: nn.Module, others: Callable[[], AbstractContextManager[object]]) -> Iterator[Truth]:
    truth = Truth(model)
    truth.put_on_before()
    with others():
        truth.put_on_after()
        yield truth
    truth.remove()


_NODE = "autograd::engine::evaluate_function: "
#: Nodes that accumulate gradients have this number or none: no forward made them.
_NO_NUMBER = 2**63


def recorded_calls(dataset: Dataset) -> list[tuple[Any, ...]]:
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


def seen_calls(truth: Truth) -> list[tuple[Any, ...]]:
    return [
        (
            *(call.module, call.class_name, "recompute" if call.again else "forward", call.parent),
            *(call.inputs, call.kwargs, call.outputs or []),
        )
        for call in truth.calls
    ]


class Work(NamedTuple):
    """An operator, its module and phase by what the tests saw, and what the dataset says."""

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
            said = [None if pd.isna(value) else value for value in (row.module, row.phase, row.cause)]
            result.append(Work(row.name, true, *said))
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
    return [
        FlopsOf(
            *(row["path"], row["subtree_flops"]),
            sum(number for other, number in own.items() if f"{other}.".startswith(f"{row['path']}.")),
            row["unknown"],
        )
        for row in records(roofline.frame(dataset))
    ]
