"""The plugin for vLLM, on workers that are stand-ins: what is an iteration, and what happens to unknown releases."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.capture.models import tree
from tracekit.capture import Listed, vllm_plugin
from tracekit.capture.emit import routed_to
from tracekit.capture.steps import on_step
from tracekit.trace.decoding import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracekit.markers.base import Marker

pytestmark = pytest.mark.torch

BASE = "vllm.v1.worker.worker_base"


class WorkerBase:
    def __init__(self) -> None:
        self.ready = True


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A release of vLLM, of which only the base class of workers is there."""
    module = ModuleType(BASE)
    module.WorkerBase = type("WorkerBase", (WorkerBase,), {})  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, BASE, module)
    return module


@pytest.fixture
def listed() -> Iterator[Listed]:
    """The markers of a recording that runs."""
    with routed_to(listed := Listed()), on_step(lambda: None):
        yield listed


def worker(release: ModuleType, output: object = None, fails: type[BaseException] | None = None) -> Any:
    class Worker(release.WorkerBase):  # type: ignore[name-defined, misc]
        def execute_model(self, scheduled: object) -> object:
            if fails:
                raise fails
            return output

        def sample_tokens(self, grammar: object) -> str:
            return f"sampled {grammar}"

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


def steps(listed: Listed) -> list[Marker]:
    return decode([event.text for event in listed.events if event.text]).markers


def test_an_iteration_lasts_from_executing_the_model_to_having_sampled(release: ModuleType, listed: Listed) -> None:
    vllm_plugin.register()
    vllm_plugin.register()
    marked = worker(release)
    for _ in range(2):
        assert marked.execute_model(scheduled({"a": 5}, new="a")) is None
        assert listed.events[-1].text
        assert marked.sample_tokens("freely") == "sampled freely"
        assert not listed.events[-1].text
    assert tree(listed) == ["iteration", "iteration"]


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
    work: Any, kind: str | None, batch_size: int | None, tokens: int | None, release: ModuleType, listed: Listed
) -> None:
    vllm_plugin.register()
    assert worker(release, output="output").execute_model(work) == "output"
    [step] = steps(listed)
    assert (step.kind, step.batch_size, step.tokens) == (kind, batch_size, tokens)  # type: ignore[union-attr]
    assert not listed.events[-1].text


def test_an_iteration_without_requests_is_no_step(release: ModuleType, listed: Listed) -> None:
    vllm_plugin.register()
    worker(release).execute_model(scheduled({}))
    assert not listed.events


def test_an_iteration_that_raises_is_closed(release: ModuleType, listed: Listed) -> None:
    vllm_plugin.register()
    with pytest.raises(MemoryError):
        worker(release, fails=MemoryError).execute_model(scheduled({"a": 5}, new="a"))
    assert not listed.events[-1].text


def test_nothing_happens_to_an_engine_that_is_not_recorded(release: ModuleType) -> None:
    before = dict(vars(release.WorkerBase))
    vllm_plugin.register()
    assert dict(vars(release.WorkerBase)) == before


def test_an_unknown_release_runs_with_a_warning(
    release: ModuleType, listed: Listed, caplog: pytest.LogCaptureFixture
) -> None:
    del release.WorkerBase
    vllm_plugin.register()
    assert "iterations of this release of vLLM cannot be marked (ImportError" in caplog.text


def test_a_worker_that_executes_otherwise_runs_with_a_warning(
    release: ModuleType, listed: Listed, caplog: pytest.LogCaptureFixture
) -> None:
    vllm_plugin.register()
    assert release.WorkerBase().ready
    assert "cannot be marked (AttributeError" in caplog.text
