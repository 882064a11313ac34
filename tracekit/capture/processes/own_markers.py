"""Serving engines that mark every module themselves (``--enable-layerwise-nvtx-…``): one marker a call is enough.

vLLM and SGLang each have a module of this name with a class that puts their hooks on a model.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_MODULE, _CLASS, _METHOD = "nvtx_pytorch_hooks", "PytHooks", "register_hooks"


def has_own_markers(model: nn.Module) -> bool:
    """Whether an engine has put its own markers on a model."""
    hooks = (hook for module in model.modules() for hook in module._forward_pre_hooks.values())
    classes = (type(getattr(hook, "__self__", None)) for hook in hooks)
    return any(owner.__name__ == _CLASS and owner.__module__.endswith(_MODULE) for owner in classes)


def before_own_markers(action: Callable[[], object]) -> None:
    """Calls the action before an engine puts its own markers on, if one that can has been imported."""
    for name, module in list(sys.modules.items()):
        owner: Any = getattr(module, _CLASS, None) if name.endswith(f".{_MODULE}") else None
        if owner is not None and not hasattr(getattr(owner, _METHOD), "__wrapped__"):
            _call_before(owner, action)


def _call_before(owner: Any, action: Callable[[], object]) -> None:  # noqa: ANN401 - a class of the engine
    original = getattr(owner, _METHOD)

    def register_hooks(*args: object, **kwargs: object) -> object:
        action()
        return original(*args, **kwargs)

    register_hooks.__wrapped__ = original  # type: ignore[attr-defined]
    setattr(owner, _METHOD, register_hooks)
