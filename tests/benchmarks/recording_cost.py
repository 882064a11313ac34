"""What recording a small language model costs with torch's engine, against torch.profiler alone and with bare ranges.

``python -m tests.benchmarks.recording_cost`` prints CPU time of the measured steps, in pairs with the plain model in
one run. Bare ranges have a name and nothing else, and the shortest code around every call of a module opens them: one
or two of them a call (ours has a second one for the result) show what no marker can be cheaper than.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch._C._profiler import _RecordFunctionFast
from transformers import LlamaConfig, LlamaForCausalLM

from tests.benchmarks.measuring import benchmark, in_turn, ratio
from tracekit.capture import layer_markers
from tracekit.capture.emit import routed_to
from tracekit.capture.recorder import Recorder

_STEPS = 4
_TORCH = sys.modules[nn.Module.__module__]


def _one(self, *args, **kwargs):
    with _range(_names[self]):  # noqa: F821 - among the names of torch's module
        return self._call_impl(*args, **kwargs)


def _two(self, *args, **kwargs):
    with _range(_names[self]):  # noqa: F821
        output = self._call_impl(*args, **kwargs)
    with _range(_names[self]):  # noqa: F821
        pass
    return output


@contextmanager
def _profiler(model: nn.Module, call: Callable | None = None) -> Iterator[None]:
    """torch.profiler as ours, with bare ranges around the calls of modules."""
    names = {module: f"tracekit:{number}" for number, module in enumerate(model.modules())}
    vars(_TORCH).update(_range=_RecordFunctionFast, _names=names)
    code, recorder = nn.Module._wrapped_call_impl.__code__, Recorder(gpu=lambda: False)
    recorder.open()
    nn.Module._wrapped_call_impl.__code__ = code if call is None else call.__code__
    try:
        yield
    finally:
        nn.Module._wrapped_call_impl.__code__ = code
        recorder.close()


@contextmanager
def _ours(model: nn.Module) -> Iterator[None]:
    recorder = Recorder(gpu=lambda: False)
    with routed_to(recorder.emitter), layer_markers(model):
        recorder.open()
        yield
        recorder.close()


FORMS: dict[str, Callable[[nn.Module], AbstractContextManager[object]]] = {
    "plain": nullcontext,
    "torch.profiler": _profiler,
    "one bare range": lambda model: _profiler(model, _one),
    "two bare ranges": lambda model: _profiler(model, _two),
    "ours": _ours,
}


@torch.inference_mode()
def nanoseconds(model: nn.Module, x: torch.Tensor, form: Callable[[nn.Module], AbstractContextManager[object]]) -> int:
    with form(model):
        model(x)
        model(x)
        began = time.thread_time_ns()
        for _ in range(_STEPS):
            model(x)
        return time.thread_time_ns() - began


def measure(args: argparse.Namespace, _folder: Path) -> None:
    torch.set_num_threads(1)
    hidden = args.hidden
    sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "vocab_size": 256, "num_hidden_layers": 12}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=4)).eval()
    x = torch.randint(0, 256, (1, 16))
    took = in_turn(args.rounds, {name: partial(nanoseconds, model, x, form) for name, form in FORMS.items()})
    for name, times in took.items():
        least, plain = min(times), took["plain"]
        of_plain = f"{least / min(plain):.2f} of plain, {ratio(times, plain):.2f} in pairs"
        print(f"{name:16} {least / _STEPS / 1e6:6.2f} ms, {of_plain}")


if __name__ == "__main__":
    benchmark(__doc__, measure, rounds=20, hidden=64)
