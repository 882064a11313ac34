"""Where markers go, and how one learns that nobody listens."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.test_package import loaded_by
from tracekit.capture import Nvtx, emit, layer_markers, unheard
from tracekit.errors import UsageError

pytestmark = pytest.mark.torch


def test_importing_it_loads_nothing_that_only_readers_or_compiled_models_need() -> None:
    compiled = "assert 'tracekit.capture.compile' not in sys.modules; import tracekit.capture.compile"
    loaded = loaded_by(f"import sys, tracekit.capture; {compiled}")
    assert not {"pandas", "pyarrow", "sqlalchemy", "nvtx", "rich"} & {name.partition(".")[0] for name in loaded}


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


def test_that_no_tool_is_attached_is_said_once(monkeypatch, caplog) -> None:
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    emit.nvtx_emitter().checked = False
    for _ in range(2):
        with layer_markers(model := nn.ReLU()):
            model(torch.zeros(1))
    assert caplog.text.count("no tool that records NVTX is attached") == 1
