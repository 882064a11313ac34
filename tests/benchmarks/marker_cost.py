"""What markers cost: ours, markers whose text is made anew for every call, and empty hooks, in one run.

``python -m tests.benchmarks.marker_cost`` prints microseconds of the thread's CPU time for a call of a module, above
the bare model's, for small blocks, for layers of a language model, which take keywords, a tuple and a cache, and for
small blocks under a default device. No tool is attached. The second form does what the layer-wise hooks of vLLM and
SGLang do: a dict as text, before and after.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import nvtx
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tests.benchmarks.measuring import benchmark, in_turn
from tracekit.capture import layer_markers

Attach = Callable[[nn.Module], Callable[[], None]]
Around = Callable[[], AbstractContextManager[object]]
_LAYERS = 30


class _Block(nn.Module):
    """A residual block of four modules."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.up = nn.Linear(4, 4)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.act(self.up(self.norm(x)))


class _Cache:
    """What keys and values would be kept in."""


class _Attention(nn.Module):
    def forward(self, *, hidden_states, position_embeddings, attention_mask, past_key_values, cache_position):
        return hidden_states, None


class _Layer(nn.Module):
    """Calls its parts with what a layer of a language model passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = _Attention()
        self.feed = nn.Identity()

    def forward(self, hidden_states: torch.Tensor, **kwargs: object) -> torch.Tensor:
        hidden_states, _ = self.attention(hidden_states=hidden_states, **kwargs)
        return self.feed(hidden_states)


class _Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer() for _ in range(_LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(1)
        rotation, cache = (x, x), _Cache()
        for layer in self.layers:
            x = layer(x, attention_mask=x, position_embeddings=rotation, past_key_values=cache, cache_position=place)
        return x


def _blocks() -> nn.Module:
    return nn.Sequential(*(_Block() for _ in range(_LAYERS)))


#: Models, and what is around their calls.
CALLS: dict[str, tuple[Callable[[], nn.Module], Around]] = {
    "small blocks": (_blocks, nullcontext),
    "language model": (_Language, nullcontext),
    "default device": (_blocks, lambda: torch.device("cpu")),
}


def _hooked(model: nn.Module, before: Callable, after: Callable) -> Callable[[], None]:
    handles: list[RemovableHandle] = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after))
    return lambda: [handle.remove() for handle in handles] and None


def _empty(model: nn.Module) -> Callable[[], None]:
    def hook(*_args: object) -> None:
        pass

    return _hooked(model, hook, hook)


def _text_per_call(model: nn.Module) -> Callable[[], None]:
    """Describes the module anew whenever it is called, twice, as a Python dict."""
    names = {module: name for name, module in model.named_modules(prefix="top")}

    def push(module, inputs=None, kwargs=None, outputs=None) -> None:
        said: dict[str, object] = {"Module": names[module]}
        params = {name: list(item.size()) for name, item in module.named_parameters(recurse=False)}
        shapes = {"Inputs": _shapes(inputs), "Outputs": _shapes(outputs)}
        said |= {"TrainableParams": params} if params else {}
        said |= {key: item for key, item in shapes.items() if item}
        said |= {key: found for key, item in (kwargs or {}).items() if (found := _shapes(item))}
        if settings := _settings(module):
            said["StaticParams"] = settings
        nvtx.push_range(str(said))

    def before(module, args, kwargs) -> None:
        push(module, args, kwargs)

    def after(module, args, output) -> None:
        nvtx.pop_range()
        push(module, outputs=output)
        nvtx.pop_range()

    return _hooked(model, before, after)


def _shapes(value: object) -> list[list[int]]:
    if isinstance(value, torch.Tensor):
        return [list(value.size())]
    if isinstance(value, (list, tuple)):
        return [shape for item in value for shape in _shapes(item)]
    return []


def _settings(module: nn.Module) -> dict[str, object]:
    for types, names in (
        ((nn.Conv1d, nn.Conv2d, nn.Conv3d), ("in_channels", "out_channels", "kernel_size")),
        ((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), ("in_channels",)),
        ((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), ("kernel_size", "stride")),
        ((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), ("kernel_size", "stride")),
        ((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), ("output_size",)),
        ((nn.Linear,), ("in_features", "out_features")),
        ((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), ("num_features", "eps")),
        ((nn.ReLU,), ("inplace",)),
        ((nn.Dropout,), ("p", "inplace")),
        ((nn.Embedding,), ("num_embeddings", "embedding_dim")),
    ):
        if isinstance(module, types):
            return {name: getattr(module, name) for name in names}
    return {}


FORMS: dict[str, Attach] = {
    "bare": lambda _model: lambda: None,
    "empty hooks": _empty,
    "ours": lambda model: layer_markers(model).remove,
    "ours, off": lambda model: layer_markers(model, enabled=False).remove,
    "text per call": _text_per_call,
}


@torch.inference_mode()
def microseconds(around: Around, model: nn.Module, form: Attach, repeats: int) -> float:
    x = torch.randn(1, 4)
    remove = form(model)
    with around():
        model(x)
        began = time.thread_time_ns()
        for _ in range(repeats):
            model(x)
        took = time.thread_time_ns() - began
    remove()
    return took / repeats / 1e3


@torch.inference_mode()
def module_calls(model: nn.Module) -> int:
    """How many modules one call of a model calls."""
    ran = []
    remove = _hooked(model, lambda *_: None, lambda *_: ran.append(1))
    model(torch.randn(1, 4))
    remove()
    return len(ran)


def measure(args: argparse.Namespace, _folder: Path) -> None:
    torch.set_num_threads(1)
    for kind, (make, around) in CALLS.items():
        model = make()
        number = module_calls(model)
        forms = {name: partial(microseconds, around, model, form, args.repeats) for name, form in FORMS.items()}
        best = {name: min(times) / number for name, times in in_turn(args.rounds, forms).items()}
        for name, took in best.items():
            cost, text = (one - best["bare"] for one in (took, best["text per call"]))
            print(f"{kind:15} {name:15} {cost:6.2f} us a module call, {cost / text:.2f} of the text")


if __name__ == "__main__":
    benchmark(__doc__, measure, rounds=20, repeats=20)
