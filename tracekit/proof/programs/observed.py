"""What a recorded program knows of itself, by hooks that know nothing of tracekit's markers.

The hooks are put on before tracekit marks the model. When the process ends, its truth is in the folder that the
variable ``TRACEKIT_PROOF_TRUTH`` names; without the variable nothing is written.
"""

from __future__ import annotations

import atexit
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function

#: Names the folder into which processes write their truth.
FOLDER = "TRACEKIT_PROOF_TRUTH"
#: Set to 1, every call is also a range of torch's profiler.
RANGES = "TRACEKIT_PROOF_RANGES"
#: How such a range begins; a path follows.
PREFIX = "truth:"

#: What this process knows, by name; written when it ends.
truth: dict[str, Any] = {}


def device() -> torch.device:
    """Where the programs run."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronize() -> None:
    """Waits until the GPU has done everything."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def warmed() -> None:
    """Multiplies once on a GPU: what libraries copy and fill at their first product is not a module's work."""
    if torch.cuda.is_available():
        x = torch.ones(64, 64, device=device())
        nn.functional.linear(x, x, x[0])
        synchronize()


def told(**facts: object) -> None:
    """Adds to what this process knows, and has it written when the process ends."""
    if not truth:
        atexit.register(_write)
    truth.update(facts)


def _write() -> None:
    if folder := os.environ.get(FOLDER):
        place = Path(folder) / f"{os.getpid()}.json"
        partial = place.with_suffix(".partial")
        partial.write_text(json.dumps({"pid": os.getpid(), **truth}), "utf-8")
        partial.replace(place)


def observed(model: nn.Module) -> nn.Module:
    """Puts hooks on a model that note its calls. Returns the model."""
    hooks = _Hooks(model)
    told(calls=hooks.calls, linears=linears(model))
    for module in model.modules():
        module.register_forward_pre_hook(hooks.before)
        module.register_forward_hook(hooks.after, always_call=True)
    return model


def linears(model: nn.Module) -> dict[str, list[int]]:
    """The two sizes of every Linear's weight by path. No two are alike, so a product tells its module."""
    top = type(model).__name__
    sizes = {
        f"{top}.{name}": sorted(module.weight.shape)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }
    if len({tuple(pair) for pair in sizes.values()}) < len(sizes):
        raise ValueError(f"{top}: several Linears have weights of one shape, so products do not tell their modules")
    return sizes


class _Hooks:
    """Notes every call: path by the calls around it, shapes of its first input and its output."""

    def __init__(self, model: nn.Module) -> None:
        #: One list for each call of the model: the paths of all calls in it, in order, itself first.
        self.calls: list[list[list[Any]]] = []
        self._top = type(model).__name__
        self._open: list[tuple[str, nn.Module, record_function | None]] = []
        self._names: dict[int, dict[int, str]] = {}

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        path = self._path(module)
        if not self._open:
            self.calls.append([])
        self.calls[-1].append([path, _shape(args[0] if args else None)])
        range_ = record_function(f"{PREFIX}{path}") if os.environ.get(RANGES) == "1" else None
        if range_ is not None:
            range_.__enter__()  # type: ignore[no-untyped-call]
        self._open.append((path, module, range_))

    def after(self, _module: nn.Module, _args: tuple[Any, ...], _output: object) -> None:
        _, _, range_ = self._open.pop()
        if range_ is not None:
            range_.__exit__(None, None, None)

    def _path(self, module: nn.Module) -> str:
        """The path of the call around it, then what the module around calls it."""
        if not self._open:
            return self._top
        path, around, _ = self._open[-1]
        if id(around) not in self._names:
            inside = around.named_modules(remove_duplicate=False)
            self._names[id(around)] = {id(part): name for name, part in inside}
        return f"{path}.{self._names[id(around)][id(module)]}"


def _shape(value: object) -> list[int] | None:
    return list(value.shape) if isinstance(value, Tensor) else None
