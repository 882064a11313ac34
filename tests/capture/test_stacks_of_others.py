"""Models of others with ``with_stack``: every path is of one module, which stands below the one that called it."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import ProfilerActivity, profile

import tracekit
from tests.capture.others import OTHERS, RECOMPUTED, loss_of, recompute

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import nn

pytestmark = [
    pytest.mark.torch,
    pytest.mark.models,
    *(pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("FutureWarning", "DeprecationWarning", "UserWarning")),
]


class Call(NamedTuple):
    """A call, as hooks saw it: the module, the number of the call around it, and whether a backward pass made it."""

    module: nn.Module
    parent: int | None
    again: bool


class Hooks:
    """The calls of all modules, also of those that a model makes while it runs."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._open: list[int] = []

    def before(self, module: nn.Module, _args: Any) -> None:
        again = torch._C._current_graph_task_id() >= 0
        self.calls.append(Call(module, self._open[-1] if self._open else None, again))
        self._open.append(len(self.calls) - 1)

    def after(self, *_: Any) -> None:
        self._open.pop()


@contextmanager
def hooked() -> Iterator[Hooks]:
    hooks = Hooks()
    handles = (
        register_module_forward_pre_hook(hooks.before),
        register_module_forward_hook(hooks.after, always_call=True),
    )
    yield hooks
    for handle in handles:
        handle.remove()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads of tiny operators wait for each other
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", OTHERS)
def test_modules_are_those_that_were_called_and_stand_where_they_ran(name: str, tmp_path: Path) -> None:
    model, run, trains, *_ = OTHERS[name]()
    if name in RECOMPUTED:
        recompute(model.train(), reentrant=False)
    with hooked() as hooks, profile(activities=[ProfilerActivity.CPU], with_stack=True, acc_events=True) as recorded:
        output = run()
        if trains:
            loss_of(output).backward()
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    dataset = tracekit.parse(tmp_path / "trace.json", tmp_path / "out")
    called = [row for row in dataset.table("calls").to_pylist() if row["phase"] != "backward"]  # hooks see no other
    calls = sorted(called, key=lambda row: (row["start_ns"], -row["end_ns"]))
    modules = {row["path"]: row for row in dataset.table("modules").to_pylist()}
    number = {row["call_id"]: at for at, row in enumerate(calls)}
    found = [
        (modules[row["module"]]["class_name"], number.get(row["parent_call_id"]), row["phase"] == "recompute")
        for row in calls
    ]
    assert found == [(type(call.module).__name__, call.parent, call.again) for call in hooks.calls]
    of_path: dict[str, nn.Module] = {}
    paths: dict[nn.Module, set[str]] = defaultdict(set)
    for row, call in zip(calls, hooks.calls, strict=True):
        assert of_path.setdefault(row["module"], call.module) is call.module, row["module"]
        paths[call.module].add(row["module"])
        above = row["module"].rpartition(".")[0]
        if call.parent is not None:
            assert of_path[above] is hooks.calls[call.parent].module, row["module"]
    assert of_path.keys() == modules.keys()
    for same in (same for same in paths.values() if len(same) > 1):
        (first,) = (path for path in same if modules[path]["alias_of"] is None)
        assert {modules[path]["alias_of"] for path in same} == {None, first}
