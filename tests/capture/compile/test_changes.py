"""A compiled model gives eager's results whatever changes between two calls, or says that it does not."""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.capture.compile.changes import CACHES, CHANGES, UNSEEN, Attention, Block, Numbered
from tracekit.capture.compile import CompileConfig, compile_model
from tracekit.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.capture.compile.changes import Change

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
ROUTES = pytest.mark.parametrize("bytecode", [False, True], ids=["guard filter", "bytecode"])
EAGER = CompileConfig(mode="eager")
INDUCTOR = CompileConfig(use_cache=False)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def same(found: Any, expected: Any) -> None:
    """Compares results, and what tensors cannot be compared by."""
    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        assert (found.dtype, found.device, found.shape) == (expected.dtype, expected.device, expected.shape)
        assert found.requires_grad == expected.requires_grad
        if expected.device.type != "meta":
            torch.testing.assert_close(found, expected)
        return
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)


def both_calls(row: Change, model: nn.Module, run: Any) -> list[object]:
    torch.manual_seed(0)
    results = [run(*row.first(model))]
    row.change(model)
    with row.around():
        results.append(run(*row.second(model)))
    return results


def held_to(row: Change, config: CompileConfig, *, bytecode: bool = False) -> None:
    torch.manual_seed(0)
    model = row.model()
    other = copy.deepcopy(model)
    with row.always():
        expected = both_calls(row, other, other)
        results = both_calls(row, model, compile_model(model, config, bytecode=bytecode))
    for result, truth in zip(results, expected, strict=True):
        same(result, truth)


@ROUTES
@pytest.mark.parametrize("row", CHANGES, ids=lambda row: row.name)
def test_what_changes_between_two_calls_counts(row: Change, bytecode: bool) -> None:
    if UNSEEN in (row.result, row.bytecode if bytecode else ""):
        with pytest.raises(CaptureError, match="a guard that compiled code skips does not hold"):
            held_to(row, CompileConfig(mode="eager", debug=True), bytecode=bytecode)
    else:
        held_to(row, EAGER, bytecode=bytecode)


@pytest.mark.parametrize("row", [row for row in CHANGES if row.inductor], ids=lambda row: row.name)
def test_it_counts_for_code_of_inductor_too(row: Change) -> None:
    held_to(row, INDUCTOR)


@pytest.mark.parametrize("config", [EAGER, INDUCTOR], ids=["eager", "inductor"])
@pytest.mark.parametrize("name", CACHES)
def test_decoding_with_a_cache_gives_eager_s_logits(name: str, config: CompileConfig) -> None:
    update, empty = CACHES[name]
    model = Attention(update)
    run = compile_model(model, config)
    with torch.no_grad():
        for _request in range(2):
            caches = [empty(), empty()]
            for step in range(6):
                x = torch.randn(2, 3 if step == 0 else 1, 4)
                expected, caches[0] = model(x, caches[0])
                found, caches[1] = run(x, caches[1])
                torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("error::UserWarning")
def test_sizes_that_must_agree_raise_as_in_eager() -> None:
    model = nn.Bilinear(4, 4, 2)
    run = compile_model(model, INDUCTOR)
    with torch.no_grad():
        for size in (3, 5, 1):
            x = torch.randn(size, 4)
            same(run(x, x.clone()), model(x, x))
        with pytest.raises(RuntimeError, match=r"must match|do not agree|batch"):
            run(torch.randn(5, 4), torch.randn(3, 4))


def test_an_opaque_argument_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    update, empty = CACHES["plain object"]
    run = compile_model(Attention(update), EAGER)
    for _ in range(3):
        run(torch.randn(2, 1, 4), empty())
    texts = [record.message for record in caplog.records if record.name.startswith("tracekit")]
    assert texts == ["Attention: argument cache is or holds a PlainCache, so guards are checked at every call with one"]


@ROUTES
def test_hooks_of_the_root_that_stand_before_the_first_call_run_once_a_call(bytecode: bool) -> None:
    model = nn.Sequential(Block().eval())
    seen: list[nn.Module] = []
    model.register_forward_pre_hook(lambda module, _args: seen.append(module))
    model.register_forward_hook(lambda _module, _args, output: output * 2)
    run = compile_model(model, EAGER, bytecode=bytecode)
    x = torch.randn(3, 4)
    same(run(x), model(x))
    same(run(x), model(x))
    assert [module is model for module in seen] == [True] * 4
    assert "forward" not in vars(model)


@ROUTES
def test_a_forward_on_the_instance_stays_when_hooks_have_run(bytecode: bool) -> None:
    model = nn.Linear(4, 4)
    patch = model.forward = lambda x: x * 7
    hook = model.register_forward_hook(lambda _module, _args, output: output + 1)
    run = compile_model(model, EAGER, bytecode=bytecode)
    assert run(torch.ones(2, 4)).unique().item() == 8
    assert model.forward is patch
    hook.remove()
    assert run(torch.ones(2, 4)).unique().item() == 7


def test_a_hook_that_raises_leaves_the_model_as_it_was() -> None:
    model = nn.Linear(4, 4)

    def failing(*_args: object) -> None:
        raise ValueError("no")

    hook = model.register_forward_hook(failing)
    run = compile_model(model, EAGER)
    with pytest.raises(ValueError, match="no"):
        run(torch.ones(2, 4))
    hook.remove()
    assert "forward" not in vars(model)
    same(run(torch.ones(2, 4)), model(torch.ones(2, 4)))


def test_a_counter_is_left_to_guards_after_a_few_traces(caplog: pytest.LogCaptureFixture) -> None:
    run = compile_model(Numbered(), EAGER)
    assert [run(torch.ones(2))[0].item() for _ in range(12)] == list(range(1, 13))
    assert [record.message for record in caplog.records if record.name == "tracekit.capture"] == [
        "Numbered: changes from call to call, so its guards are checked"
    ]


def test_a_flag_that_makes_the_model_untraceable_leaves_it_to_guards() -> None:
    class Checking(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if self.enabled or x.sum().item() > 0 else x

    model = Checking().eval()
    run = compile_model(model, EAGER)
    for enabled in (True, False, True, False):
        model.enabled = enabled
        for x in (torch.ones(3, 4), -torch.ones(3, 4)):
            same(run(x), model(x))


def test_a_switched_adapter_is_traced_once_for_each_position() -> None:
    class Switched(nn.Linear):
        enabled = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if self.enabled else x

    model = Switched(4, 4)
    graphs: list[object] = []
    run = compile_model(model, EAGER, backend=lambda graph, _inputs: graphs.append(graph) or graph.forward)
    for n in range(6):
        model.enabled = n % 2 == 0
        for size in (3, 1, 7):
            x = torch.randn(size, 4)
            same(run(x), model(x))
    assert len(graphs) == 2


def test_threads_in_different_modes_get_their_own_results() -> None:
    model = Block().eval()
    run = compile_model(model, EAGER)
    wrong: list[object] = []

    def work(number: int) -> None:
        x = torch.full((number + 1, 4), float(number))
        with torch.set_grad_enabled(number % 2 == 0), torch.autocast("cpu", torch.bfloat16, enabled=number > 1):
            for _ in range(20):
                found, expected = run(x), model(x)
                if not torch.equal(found, expected) or found.requires_grad != expected.requires_grad:
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
