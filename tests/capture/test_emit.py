"""Where markers go, and how one learns that nobody listens."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.test_package import loaded_by
from tracekit import capture
from tracekit.capture import Itt, Nvtx, emit, layer_markers, unheard
from tracekit.errors import UsageError

pytestmark = pytest.mark.torch


def test_importing_it_loads_nothing_that_only_readers_need() -> None:
    loaded = {name.partition(".")[0] for name in loaded_by("import tracekit.capture")}
    assert not {"pandas", "pyarrow", "sqlalchemy", "nvtx", "rich"} & loaded


def test_importing_it_does_not_load_the_compiler() -> None:
    more = loaded_by("import tracekit.capture") - loaded_by("import torch")
    assert not {name for name in more if name.startswith("torch._dynamo")}


def test_its_names_exist() -> None:
    assert sorted(capture.__all__, key=str.lower) == sorted(set(capture.__all__), key=str.lower)
    assert all(getattr(capture, name) is not None for name in capture.__all__)


def test_without_the_nvtx_package_the_message_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(UsageError, match=r"pip install nvtx$"):
        Nvtx()
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/tools/libToolsInjection64.so")
    monkeypatch.setattr(emit, "nvtx_emitter", Nvtx)
    assert "pip install" in (unheard() or "")


def test_an_nvtx_package_built_otherwise_is_used_by_its_public_names(monkeypatch) -> None:
    heard: list[str] = []
    other = SimpleNamespace(push_range=heard.append, pop_range=lambda: heard.append("end"), get_domain=lambda _name: 1)
    monkeypatch.setitem(sys.modules, "nvtx", other)
    monkeypatch.setitem(sys.modules, "nvtx._lib", None)
    to = Nvtx()
    to.opener("a")()
    to.close()
    assert heard == ["a", "end"]


def test_an_nvtx_package_that_has_changed_beyond_that_is_named_with_what_to_install(
    monkeypatch,
) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(push=print))
    monkeypatch.setitem(sys.modules, "nvtx._lib", None)
    with pytest.raises(UsageError, match=r"is not supported.*push_range.*pip install 'nvtx>="):
        Nvtx()


def test_an_nvtx_package_that_falls_silent_is_noticed(monkeypatch) -> None:
    class DummyDomain:
        pass

    other = SimpleNamespace(push_range=print, pop_range=print, get_domain=lambda _name: DummyDomain())
    monkeypatch.setitem(sys.modules, "nvtx", other)
    monkeypatch.setitem(sys.modules, "nvtx._lib", None)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/tools/libToolsInjection64.so")
    monkeypatch.setattr(emit, "nvtx_emitter", Nvtx)
    assert "pip install nvtx==0.2.11" in (unheard() or "")


def test_nvtx_takes_any_text_and_drops_what_would_end_it_early(monkeypatch) -> None:
    from nvtx._lib import lib

    pushed: list[str] = []
    push = lib.push_range

    def noting(attributes: Any, domain: Any) -> None:
        pushed.append(attributes.message.string)
        push(attributes, domain)

    monkeypatch.delenv("NVTX_DISABLE", raising=False)
    monkeypatch.setattr(lib, "push_range", noting)
    to = Nvtx()
    for text in ("", "{}", "ü 層", "a\0b", "x" * 100_000):
        to.opener(text)()
        to.close()
    assert pushed == ["", "{}", "ü 層", "ab", "x" * 100_000]


def test_texts_of_ranges_that_ended_are_freed(monkeypatch) -> None:
    """The package's own functions keep each, which a server that sees ever new shapes cannot afford."""
    monkeypatch.delenv("NVTX_DISABLE", raising=False)
    to, text = Nvtx(), "-".join(["never", "seen"])
    before = sys.getrefcount(text)
    to.opener(text)()
    to.close()
    to.start(text)()
    assert sys.getrefcount(text) == before


def test_nvtx_turned_off_by_its_variable_stays_off(monkeypatch) -> None:
    monkeypatch.setenv("NVTX_DISABLE", "1")
    monkeypatch.setitem(sys.modules, "nvtx", None)
    to = Nvtx()
    to.opener("a")()
    to.close()
    assert "NVTX_DISABLE" in (unheard() or "")


def test_that_no_tool_is_attached_is_said_once(monkeypatch, caplog) -> None:
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    emit.nvtx_emitter().checked = False
    for _ in range(2):
        with layer_markers(model := nn.ReLU()):
            model(torch.zeros(1))
    assert caplog.text.count("no tool that records NVTX is attached") == 1


def test_a_tool_that_was_not_loaded_is_noticed(monkeypatch) -> None:
    monkeypatch.delenv("NVTX_DISABLE", raising=False)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/nowhere/libnobody.so")
    assert "libnobody.so" in (unheard() or "")


def test_itt_ranges_are_pushed_and_popped_by_torch(monkeypatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(torch.profiler.itt, "is_available", lambda: True)
    monkeypatch.setattr(torch.profiler.itt, "range_push", heard.append)
    monkeypatch.setattr(torch.profiler.itt, "range_pop", lambda: heard.append("end"))
    with layer_markers(model := nn.Linear(2, 2), emitter=Itt()):
        model(torch.zeros(1, 2))
    call, outputs = heard[0::2]
    assert json.loads(call)["Class"] == "Linear"
    assert json.loads(outputs)["Outputs"] == [[1, 2]]
    assert heard[1::2] == ["end", "end"]


def test_itt_is_refused_where_torch_was_built_without_it(monkeypatch) -> None:
    monkeypatch.setattr(torch.profiler.itt, "is_available", lambda: False)
    with pytest.raises(UsageError, match="no ITT"):
        Itt()
