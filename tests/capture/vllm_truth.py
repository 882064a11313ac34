"""What really runs in a process of vLLM, written down by hooks of its own: a plugin that knows nothing of tracekit.

It is copied beside an entry point and loaded by vLLM. Each process writes a line of JSON per call of a module, and per
iteration that a scheduler hands out.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


def _write(**values: object) -> None:
    place = Path(os.environ["VLLM_TRUTH"]) / f"{os.getpid()}.jsonl"
    with place.open("a") as file:
        file.write(json.dumps(values) + "\n")


def _of_compiler(module: Any) -> bool:
    return torch.compiler.is_compiling() or isinstance(module, torch.fx.GraphModule)


class _Calls:
    """The calls of modules, by path below the module that was called first.

    A shared module has several names; the one that counts is below the module that calls it.
    """

    def __init__(self) -> None:
        self._names: dict[int, list[str]] = {}
        self._open: list[tuple[int, int, str]] = []
        self._count = 0

    def before(self, module: Any, args: Any) -> None:
        if _of_compiler(module):
            return
        kind = type(module).__name__
        if id(module) not in self._names:
            for name, part in module.named_modules(remove_duplicate=False):
                self._names.setdefault(id(part), []).append(f"{kind}.{name}" if name else kind)
        _, parent, above = self._open[-1] if self._open else (0, -1, "")
        names = self._names[id(module)]
        path = next((name for name in names if name.startswith(f"{above}.")), names[0])
        shapes = [list(item.shape) for item in args if isinstance(item, torch.Tensor)]
        _write(call=self._count, path=path, kind=kind, parent=parent, shapes=shapes)
        self._open.append((id(module), self._count, path))
        self._count += 1

    def after(self, module: Any, _args: Any, _output: Any) -> None:
        if not _of_compiler(module) and self._open and self._open[-1][0] == id(module):
            self._open.pop()


def _watch_scheduler() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    schedule = Scheduler.schedule

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        computed = {name: request.num_computed_tokens for name, request in self.requests.items()}
        scheduled = schedule(self, *args, **kwargs)
        if tokens := scheduled.num_scheduled_tokens:
            # A request is in prefill as long as tokens of its prompt are not computed.
            prompts = {name: self.requests[name].num_prompt_tokens for name in tokens}
            prefills = sum(computed[name] < prompts[name] for name in tokens)
            kind = "prefill" if prefills == len(tokens) else "mixed" if prefills else "decode"
            _write(step=[kind, len(tokens), sum(tokens.values())])
        return scheduled

    Scheduler.schedule = watched  # type: ignore[method-assign]


def register() -> None:
    if "VLLM_TRUTH" not in os.environ:
        return
    calls = _Calls()
    register_module_forward_pre_hook(calls.before)
    register_module_forward_hook(calls.after, always_call=True)
    _watch_scheduler()
