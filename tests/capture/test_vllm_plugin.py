"""The plugin for vLLM, on workers that are stand-ins: what is an iteration, and what happens to unknown releases."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.capture.models import tree
from tracekit.capture import MemoryEmitter, layer_markers, vllm_plugin
from tracekit.capture.emit import routed_to
from tracekit.capture.steps import on_step
from tracekit.trace.decoding import decode

pytestmark = pytest.mark.torch

BASE, CONTEXTS = "vllm.v1.worker.worker_base", "vllm.forward_context"


class WorkerBase:
    def __init__(self) -> None:
        self.ready = True


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(BASE)
    module.WorkerBase = type("WorkerBase", (WorkerBase,), {})  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, BASE, module)
    contexts = ModuleType(CONTEXTS)
    contexts.is_forward_context_available = lambda: True  # type: ignore[attr-defined]
    contexts.get_forward_context = lambda: SimpleNamespace(no_compile_layers=_LAYERS)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, CONTEXTS, contexts)
    return module


@pytest.fixture
def listed() -> Iterator[MemoryEmitter]:
    with routed_to(listed := MemoryEmitter()), on_step(lambda: None):
        yield listed


def worker(release: ModuleType) -> Any:
    class Worker(release.WorkerBase):  # type: ignore[name-defined, misc]
        def execute_model(self, scheduled: object) -> str:
            return "output"

        def sample_tokens(self, grammar: object) -> None: ...

    return Worker()


def scheduled(
    tokens: dict[str, int],
    new: str = "",
    outputs: dict[str, int] | None = None,
    drafts: dict[str, list[int]] | None = None,
) -> Any:
    cached = outputs or {}
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
        scheduled_cached_reqs=SimpleNamespace(req_ids=list(cached), num_output_tokens=list(cached.values())),
        scheduled_spec_decode_tokens=drafts or {},
    )


@pytest.mark.parametrize(
    ("work", "kind", "batch_size", "tokens"),
    [
        (scheduled({"a": 5, "b": 1}, new="ab"), "prefill", 2, 6),
        (scheduled({"a": 5}, outputs={"a": 0}), "prefill", 1, 5),
        (scheduled({"a": 5}, outputs={"a": 3}), "prefill", 1, 5),
        (scheduled({"a": 1, "b": 4}, outputs={"a": 1, "b": 2}, drafts={"b": [7, 8, 9]}), "decode", 2, 5),
        (scheduled({"a": 1, "b": 4}, new="b", outputs={"a": 1}), "mixed", 2, 5),
        (SimpleNamespace(), None, None, None),
    ],
)
def test_the_scheduler_tells_what_an_iteration_computes(
    work: Any, kind: str | None, batch_size: int | None, tokens: int | None, release: ModuleType, listed: MemoryEmitter
) -> None:
    vllm_plugin.register()
    vllm_plugin.register()
    assert worker(release).execute_model(work) == "output"
    [step] = decode([event.text for event in listed.events if event.text]).markers
    assert (step.kind, step.batch_size, step.tokens) == (kind, batch_size, tokens)  # type: ignore[union-attr]
    assert not listed.events[-1].text


def test_code_with_kernel_maps_has_a_cache_key_of_its_own(release: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    caching: Any = ModuleType("vllm.compilation.caching")
    caching.aot_compile_hash_factors = lambda *factors: list(factors)
    monkeypatch.setitem(sys.modules, "vllm.compilation", ModuleType("vllm.compilation"))
    monkeypatch.setitem(sys.modules, "vllm.compilation.caching", caching)
    with routed_to(MemoryEmitter()), on_step(lambda: None):
        vllm_plugin.register()
        worker(release)
        worker(release)
    assert caching.aot_compile_hash_factors("config") == ["config"]
    monkeypatch.setattr(vllm_plugin, "cache_tag", lambda: "maps")
    assert caching.aot_compile_hash_factors("config") == ["config", "maps"]
    # A later release may ask for more: its engine must run.
    assert caching.aot_compile_hash_factors("config", "more") == ["config", "more", "maps"]


def test_nothing_happens_to_an_engine_that_is_not_recorded(release: ModuleType) -> None:
    before = dict(vars(release.WorkerBase))
    vllm_plugin.register()
    assert dict(vars(release.WorkerBase)) == before


def test_a_worker_that_executes_otherwise_runs_with_a_warning(
    release: ModuleType, listed: MemoryEmitter, caplog: pytest.LogCaptureFixture
) -> None:
    vllm_plugin.register()
    assert release.WorkerBase().ready
    assert "cannot be marked (AttributeError" in caplog.text
    assert "VLLM_DISABLE_COMPILE_CACHE=1" in caplog.text


_LIBRARY = torch.library.Library("tracekit_layers", "FRAGMENT")
_LAYERS: dict[str, object] = {}


for operator in ("attention", "cache_update", "short_conv"):
    _LIBRARY.define(f"{operator}(Tensor x, str layer_name) -> Tensor")
    _LIBRARY.impl(operator, lambda x, layer_name: _LAYERS[layer_name].compute(x), "CPU")  # type: ignore[attr-defined]
    torch.library.register_fake(f"tracekit_layers::{operator}", lambda x, layer_name: torch.empty_like(x), lib=_LIBRARY)


class Attention(nn.Module):
    """A layer that operators look up by its name rather than call as a module."""

    def compute(self, x: Tensor) -> Tensor:
        return x + 1

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", torch.ops.tracekit_layers.attention(x, "layers.0"))


class Split(nn.Module):
    """A model whose attention runs between compiled pieces, where nothing calls the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.ops.tracekit_layers.cache_update(x, "layers.0")
        return cast("Tensor", torch.ops.tracekit_layers.attention.default(x, layer_name="layers.0"))


@pytest.fixture
def operators() -> Iterator[None]:
    """Operators as they are without marks, afterwards."""
    packets = [getattr(torch.ops.tracekit_layers, name) for name in ("attention", "cache_update", "short_conv")]
    kept = [(own, own._op) for packet in packets for own in (packet, packet.default)]
    yield
    for own, op in kept:
        own._op = op


def loaded(release: ModuleType, layer: nn.Module, operators: list[str]) -> Any:
    """A worker that has loaded a model, whose graph is split at these operators."""
    _LAYERS.update({"layers.0": layer, "other": object()})
    compilation = SimpleNamespace(splitting_ops=operators, use_inductor_graph_partition=False)

    class Worker(release.WorkerBase):  # type: ignore[name-defined, misc]
        vllm_config = SimpleNamespace(compilation_config=compilation)

        def load_model(self) -> str:
            return "loaded"

        def execute_model(self, scheduled: object) -> None: ...

    vllm_plugin.register()
    made = Worker()
    assert made.load_model() == "loaded"
    return made


@pytest.mark.parametrize(
    ("split", "called"),
    [
        ([], 0),
        (["vllm::unknown", "tracekit_layers::short_conv"], 0),
        (["tracekit_layers::attention"], 1),
        (["tracekit_layers::attention.default", "tracekit_layers::cache_update"], 2),
    ],
)
@pytest.mark.usefixtures("operators")
def test_layers_between_compiled_pieces_are_marked_where_the_graph_is_split(
    split: list[str], called: int, release: ModuleType, listed: MemoryEmitter
) -> None:
    model = Split()
    loaded(release, model.attention, split).load_model()
    with layer_markers(model, "top"):
        assert torch.equal(model(torch.ones(2, 3)), torch.full((2, 3), 3.0))
    assert [path.strip() for path in tree(listed)] == ["top"] + ["top.attention"] * called


@pytest.mark.usefixtures("operators")
def test_a_layer_that_is_called_as_a_module_is_marked_once_and_compiling_calls_none(
    release: ModuleType, listed: MemoryEmitter
) -> None:
    model = Split()
    loaded(release, model.attention, ["tracekit_layers::attention"])
    with layer_markers(model.attention, "attention"):
        model.attention(torch.ones(2, 3))
    with layer_markers(model, "top"), FakeTensorMode():
        model(torch.ones(2, 3))
    assert [path.strip() for path in tree(listed)] == ["attention", "top"]
