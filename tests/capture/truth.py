"""What a model did, by hooks of the tests' own, autograd's sequence numbers and torch's registry of FLOPs.

It knows nothing of tracekit. Hooks open a range ``truth:<number>`` of torch's profiler around each call.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr
from torch.autograd.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tests.capture.others import tensors_in

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

    ``parent`` is the number of the call around it; there are no outputs if it was interrupted.
    """

    module: str
    class_name: str
    phase: str
    parent: int | None
    inputs: Shapes
    kwargs: dict[str, Shapes]
    depth: int
    numbers: tuple[int, int]
    outputs: Shapes = field(default_factory=list)


class Truth:
    """The calls of a model from now on. Its ranges are around those of the hooks that the model has."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: list[Call] = []
        self.open: list[int] = []
        self._ranges: list[record_function] = []
        self._handles: list[Any] = []
        for name, module in model.named_modules(prefix="top"):
            if not isinstance(module, PASSED_OVER):
                before = partial(self._before, name)
                self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
                self._handles.append(module.register_forward_hook(self._after, always_call=True))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        # A recomputed call stands where it ran the first time, not in the call that runs backward around it.
        phase = "recompute" if torch._C._current_graph_task_id() >= 0 else "forward"
        number, first = len(self.calls), _get_sequence_nr()
        named = {key: shapes for key, value in kwargs.items() if (shapes := shapes_in(value))}
        place = type(module).__name__, phase, self.open[-1] if self.open else None
        self.calls.append(Call(name, *place, shapes_in(args), named, len(self.open), (first, first)))
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


def flops_of(model: nn.Module, run: Callable[[], object]) -> Counter[str | None]:
    truth = Truth(model)
    with Flops(truth) as flops:
        run()
    truth.remove()
    return flops.own


def shapes_in(value: Any) -> Shapes:
    return [list(tensor.shape) for tensor in tensors_in(value)]
