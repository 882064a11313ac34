"""The table of what may change between two calls of a compiled model, and what comes of it.

Each row is a model, a call, a change and another call. The README of ``tracekit/capture/compile`` shows the table,
``test_changes.py`` holds ``compile_model`` to it.
"""

from __future__ import annotations

import contextlib
import enum
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager  # noqa: TC003 - dataclass fields
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from tests.references import markdown_table

#: What comes of a change, as the README says it.
RIGHT, GUARDED, UNSEEN = "right", "right, by guards", "not seen; `debug=True` refuses"

Inputs = tuple[Any, ...]
Call = Callable[[nn.Module], Inputs]


def no_change(_model: nn.Module) -> None:
    """The model stays as it is."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One row: what changes between two calls.

    Attributes:
        group: Which line of the README's table it belongs to.
        what: What changes, in words.
        model: Makes the model.
        first: The arguments of the first call.
        second: Those of the second.
        change: What happens to the model in between.
        around: What is open around the second call.
        always: What is open around both calls.
        result: What comes of it.
        bytecode: What comes of it on the bytecode route.
        inductor: Whether it is worth compiling.
    """

    group: str
    what: str
    model: Callable[[], nn.Module]
    first: Call
    second: Call
    change: Callable[[nn.Module], object] = no_change
    around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    always: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    result: str = RIGHT
    bytecode: str = ""
    inductor: bool = False

    @property
    def name(self) -> str:
        return f"{self.group}: {self.what}"


class Calling(nn.Module):
    """A model whose forward is a function of it and the arguments."""

    def __init__(self, function: Callable[..., object], **attributes: object) -> None:
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args: object) -> object:
        return self.function(self, *args)


class Block(nn.Module):
    """A layer with everything that may change: parameters, a buffer, a flag, a counter, a mode."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.adapter = nn.Linear(4, 4)
        self.drop = nn.Dropout(1.0)
        self.register_buffer("shift", torch.ones(4))
        self.enabled, self.n = True, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        y = self.up(x)
        if self.enabled:
            y = y + self.adapter(x)
        return self.drop(y) + self.shift


class Numbered(nn.Module):
    """Counts its calls in Python and uses the count."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return x * self.n


class Root(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.block = Block()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.block(self.embed(ids).to(self.block.up.weight.dtype)).to(self.embed.weight.dtype)
        for layer in self.layers:
            x = layer(x)
        return x


class Halved(nn.Linear):
    """A layer that has the parameters of another and computes something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) / 2


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Attention(nn.Module):
    """One decoding step: appends keys and values to whatever holds them."""

    def __init__(self, update: Callable[..., tuple[torch.Tensor, torch.Tensor, object]]) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.update = update

    def forward(self, x: torch.Tensor, cache: Any) -> tuple[torch.Tensor, object]:
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v, cache = self.update(cache, k, v)
        return (q @ k.transpose(1, 2)).softmax(-1) @ v, cache


class PlainCache:
    """A KV cache as a plain object."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def update(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[:] = [torch.cat([*self.keys, k], 1)]
        self.values[:] = [torch.cat([*self.values, v], 1)]
        return self.keys[0], self.values[0]


@dataclass
class DataCache:
    """A KV cache as a dataclass."""

    k: torch.Tensor = field(default_factory=lambda: torch.zeros(2, 0, 4))
    v: torch.Tensor = field(default_factory=lambda: torch.zeros(2, 0, 4))

    def update(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.k, self.v = torch.cat([self.k, k], 1), torch.cat([self.v, v], 1)
        return self.k, self.v


class SlottedCache:
    """A KV cache that is allocated once and written to in place."""

    __slots__ = ("k", "length", "v")

    def __init__(self) -> None:
        self.k, self.v, self.length = torch.zeros(2, 16, 4), torch.zeros(2, 16, 4), 0

    def update(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        end = self.length + k.shape[1]
        self.k[:, self.length : end] = k
        self.v[:, self.length : end] = v
        self.length = end
        return self.k[:, :end], self.v[:, :end]


def by_method(cache: Any, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, object]:
    return *cache.update(k, v), cache


def by_tuple(cache: Any, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, object]:
    cache = (torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1))
    return *cache, cache


#: KV caches by name: how attention uses one, and an empty one.
CACHES: dict[str, tuple[Callable[..., Any], Callable[[], object]]] = {
    "plain object": (by_method, PlainCache),
    "dataclass": (by_method, DataCache),
    "object with slots": (by_method, SlottedCache),
    "tuple": (by_tuple, lambda: (torch.zeros(2, 0, 4), torch.zeros(2, 0, 4))),
    "namespace": (by_method, lambda: _in_namespace(PlainCache())),
}


def _in_namespace(cache: PlainCache) -> SimpleNamespace:
    return SimpleNamespace(update=cache.update)


class Color(enum.Enum):
    RED = 2.0
    BLUE = 3.0


@dataclass(frozen=True)
class Options:
    scale: float
    names: tuple[str, ...] = ()


@dataclass
class Counted:
    n: int = 1


class Switched(nn.Linear):
    """A layer whose flag is the class's until an instance sets it, as an adapter of peft."""

    enabled = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if self.enabled else x * hasattr(self, "scale")


class Plain:
    def __init__(self, scale: float) -> None:
        self.scale = scale


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def given(*values: object) -> Call:
    """The same arguments for every model."""
    return lambda _model: values


def made(make: Callable[[], object]) -> Call:
    """New arguments for every call."""

    def values(_model: nn.Module) -> Inputs:
        result = make()
        return result if isinstance(result, tuple) else (result,)

    return values


def argument(what: str, function: Callable[..., object], first: Call, second: Call, **options: Any) -> Change:
    return Change(group="arguments", what=what, model=partial(Calling, function), first=first, second=second, **options)


def on_block(group: str, what: str, change: Callable[[Any], object], **options: Any) -> Change:
    ids = given(torch.tensor([1, 5, 2]))
    return Change(group=group, what=what, model=lambda: Root().eval(), first=ids, second=ids, change=change, **options)


def on_switched(what: str, change: Callable[[Any], object], **options: Any) -> Change:
    model = lambda: nn.Sequential(Calling(lambda _m, x: x), Switched(4, 4))  # noqa: E731
    options |= {"first": given(X), "second": given(X), "change": change, "bytecode": UNSEEN}
    return Change(group="attributes", what=what, model=model, **options)


def around(group: str, what: str, context: Callable[[], AbstractContextManager[object]], **options: Any) -> Change:
    x = given(torch.ones(3, 4))
    return Change(group=group, what=what, model=lambda: nn.Linear(4, 4), first=x, second=x, around=context, **options)


X, Y = torch.arange(12.0).view(3, 4), torch.ones(3, 4)
WIDE = torch.arange(24.0).view(3, 8)


def _same(x: torch.Tensor) -> Inputs:
    return x.clone(), x.clone()


def _twice() -> Inputs:
    x = X.clone()
    return x, x


def _overlapping() -> Inputs:
    x = torch.arange(6.0)
    return x[1:], x[:-1]


def _apart() -> Inputs:
    return torch.arange(1.0, 6.0), torch.arange(5.0)


def _added_in_place(_m: object, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2 + y


def _two_lists() -> Inputs:
    return X, [X], [X]


def _list_twice() -> Inputs:
    items = [X]
    return X, items, items


def _counters(*, same: bool) -> Inputs:
    counted = Counted()
    return X, counted, counted if same else Counted()


def _appended(_m: object, x: torch.Tensor, a: list[torch.Tensor], b: list[torch.Tensor]) -> torch.Tensor:
    a.append(x)
    return sum(b, torch.zeros(())) * len(b)


def _counted(_m: object, x: torch.Tensor, a: Counted, b: Counted) -> torch.Tensor:
    a.n += 1
    return x * b.n


def _frozen(model: Any) -> None:
    model.block.up.requires_grad_(False)


ARGUMENTS = [
    argument("one tensor twice", lambda _m, x, y: x + y, made(_twice), made(lambda: (X, 10 * X)), inductor=True),
    argument("two tensors, then one twice", lambda _m, x, y: x + y, made(lambda: (X, 10 * X)), made(_twice)),
    argument("memory that overlaps", _added_in_place, made(_apart), made(_overlapping), inductor=True),
    argument("memory that no longer overlaps", _added_in_place, made(_overlapping), made(_apart), inductor=True),
    argument("one tensor twice in a list", lambda _m, t: t[0] - 2 * t[1], given([X, X]), given([X, Y])),
    argument("one container twice", _appended, made(_two_lists), made(_list_twice), inductor=True),
    argument("one container twice", _appended, made(_list_twice), made(_two_lists)),
    argument(
        "one container twice", _counted, made(partial(_counters, same=False)), made(partial(_counters, same=True))
    ),
    argument(
        "what a `defaultdict` fills in",
        lambda _m, x, d: x * d["scale"],
        made(lambda: (X, defaultdict(lambda: 2))),
        made(lambda: (X, defaultdict(lambda: 3))),
    ),
    Change(
        group="arguments",
        what="a tensor of the model",
        model=lambda: Root().eval().block,
        first=lambda model: (model.shift,),
        second=given(torch.full((4,), 7.0)),
    ),
    argument("device", lambda _m, x: x * 2, given(X), given(X.to("meta")), inductor=True),
    argument("dtype", lambda _m, x: x * 2, given(X), given(X.half()), inductor=True),
    argument("rank 0 and 1", lambda _m, x: x.sum() * (x.dim() + 1), given(torch.ones(3)), given(torch.tensor(1.0))),
    argument("rank", lambda _m, x: x * x.dim(), given(X), given(X[None])),
    argument("strides", lambda _m, x: x * 2 + x.stride(0), given(WIDE[:, :4]), given(X.t().contiguous().t())),
    argument("strides", lambda _m, x: x.t() * 2, given(X.t()), given(WIDE[:, ::2]), inductor=True),
    argument("requires_grad", lambda _m, x: x * 2, given(X), made(lambda: X.clone().requires_grad_())),
    argument("a size that broadcasts", lambda _m, x, y: x + y, given(X, Y), given(X, Y[:1]), inductor=True),
    argument("a size that no longer broadcasts", lambda _m, x, y: x + y, given(X, Y[:1]), given(X, Y)),
    argument("lazy conjugation", lambda _m, x: x.imag * 2, given(X * 1j), given((X * 1j).conj()), inductor=True),
    argument("values of numbers and text", lambda _m, x, n, _t: x * n, given(X, 2, "a"), given(X, 3.0, "b")),
    argument("members of enums", lambda _m, x, c: x * c.value, given(X, Color.RED), given(X, Color.BLUE)),
    argument("slices and ranges", lambda _m, x, s: x[:, s], given(X, slice(0, 2)), given(X, slice(1, 4))),
    argument("slices and ranges", lambda _m, x, r: x * len(r), given(X, range(3)), given(X, range(4))),
    argument("functions", lambda _m, x, f: f(x), given(X, double), given(X, triple)),
    argument("functions", lambda _m, x, f: f(x), given(X, lambda x: x + 1), given(X, lambda x: x - 1)),
    argument(
        "functions", lambda _m, x, f: f(x), given(X, partial(torch.mul, other=2)), given(X, partial(torch.mul, other=5))
    ),
    argument("functions", lambda _m, x, f: f(x), given(X, torch.sin), given(X, torch.cos)),
    argument("classes", lambda _m, x, c: x * 2 if c is int else x * 3, given(X, int), given(X, float)),
    argument("dataclasses", lambda _m, x, o: x * o.scale, given(X, Options(2.0)), given(X, Options(3.0))),
    argument("sets", lambda _m, x, s: x * len(s), given(X, {1, 2}), given(X, {1, 2, 3})),
    argument("plain objects", lambda _m, x, o: x * o.scale, given(X, Plain(2.0)), given(X, Plain(3.0)), result=GUARDED),
    argument(
        "modules as arguments",
        lambda _m, x, layer: layer(x),
        given(X, nn.Hardtanh(0, 1)),
        given(X, nn.Hardtanh(0, 2)),
        result=GUARDED,
    ),
    argument("containers and how many", lambda _m, x: sum(x), given([X, X]), given((X, Y, X))),
    argument(
        "keys and their order", lambda _m, d: next(iter(d.values())), given({"a": X, "b": Y}), given({"b": Y, "a": X})
    ),
]

MODEL = [
    on_block("parameters", "values (`p.data = …`, `copy_`)", lambda m: m.block.up.weight.data.mul_(3)),
    on_block(
        "parameters",
        "values (`p.data = …`, `copy_`)",
        lambda m: setattr(m.block.up.weight, "data", torch.ones(4, 4)),
        inductor=True,
    ),
    on_block("parameters", "replaced", lambda m: setattr(m.block.up, "weight", nn.Parameter(torch.ones(4, 4)))),
    on_block(
        "parameters",
        "`load_state_dict(assign=True)`",
        lambda m: m.load_state_dict({k: torch.ones_like(v) for k, v in m.state_dict().items()}, assign=True),
    ),
    on_block("parameters", "converted (`half`, `to`)", lambda m: m.half(), bytecode=UNSEEN),
    on_block("parameters", "converted (`half`, `to`)", lambda m: m.block.double(), bytecode=UNSEEN, inductor=True),
    on_block("parameters", "moved to another device", lambda m: m.to("meta"), bytecode=UNSEEN),
    on_block("parameters", "frozen or not", _frozen, bytecode=UNSEEN, inductor=True),
    Change(
        group="parameters",
        what="of one layer among many converted, without gradients",
        model=lambda: nn.Sequential(*(Scale() for _ in range(20))),
        first=given(X),
        second=given(X),
        change=lambda m: m[7].double(),
        always=torch.no_grad,
        result=UNSEEN,
    ),
    on_block("buffers", "written in place", lambda m: m.block.shift.add_(2)),
    on_block("buffers", "replaced", lambda m: setattr(m.block, "shift", torch.full((4,), 5.0))),
    on_block("attributes", "a flag of a module", lambda m: setattr(m.block, "enabled", False), bytecode=UNSEEN),
    on_switched("a flag of its class", lambda m: setattr(m[1], "enabled", False), inductor=True),
    on_switched("a function", lambda m: setattr(m[0], "function", lambda _m, x: -x)),
    Change(
        group="attributes",
        what="a counter that forward increases",
        model=Numbered,
        first=given(X),
        second=given(X),
        bytecode=UNSEEN,
    ),
    on_block("modes", "`train()` of the model", lambda m: m.train()),
    on_block("modes", "`train()` of a submodule", lambda m: m.block.drop.train(), bytecode=UNSEEN),
    on_block("forward", "patched on the instance", lambda m: setattr(m, "forward", lambda ids: m.embed(ids) * 7)),
    on_block(
        "forward",
        "of a submodule patched",
        lambda m: setattr(m.block.up, "forward", lambda x: x * 7),
        bytecode=UNSEEN,
    ),
    on_block(
        "modules", "replaced by one of another class", lambda m: setattr(m.block, "up", Halved(4, 4)), result=UNSEEN
    ),
    on_block("modules", "added to a list", lambda m: m.layers.append(nn.Linear(4, 4)), bytecode=UNSEEN),
    around("modes of torch", "`no_grad`", torch.no_grad),
    around("modes of torch", "`inference_mode`", torch.inference_mode),
    around("modes of torch", "autocast", lambda: torch.autocast("cpu", torch.bfloat16), inductor=True),
    around("modes of torch", "default device", lambda: torch.device("cpu")),
]
CHANGES = [*ARGUMENTS, *MODEL]


def table() -> str:
    """The rows as the README shows them: grouped, with what comes of them on both routes."""
    groups: dict[tuple[str, str, str], dict[str, None]] = {}
    for row in CHANGES:
        groups.setdefault((row.group, row.result, row.bytecode or row.result), {})[row.what] = None
    rows = ([group, ", ".join(whats), result, bytecode] for (group, result, bytecode), whats in groups.items())
    return markdown_table(["Changed", "How", "Result", "`bytecode=True`"], rows)
