"""Which of Dynamo's guards stay: those on the model's own state that cost next to nothing.

They notice flags, counters, modes, functions and modules that changed since the trace, attributes that came or went,
and models that were converted. Guards on arguments are left out, because the form of a call replaces them, and so are
guards on sizes and globals. Guards on tensors are expensive: with gradients all of the model's stay, without them a
sample does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Sequence

    Filter = Callable[[Sequence[Any]], list[bool]]

_TENSOR = "TENSOR_MATCH"
_STATE = {
    *("CONSTANT_MATCH", "EQUALS_MATCH", "ID_MATCH", "NONE_MATCH"),
    *("DICT_KEYS_MATCH", "DICT_CONTAINS", "DICT_NOT_CONTAINS", "SEQUENCE_LENGTH"),
    *("HASATTR", "NOT_PRESENT_IN_GENERIC_DICT"),  # flags of a class that an instance may set, and a patched forward
    *("FUNCTION_MATCH", "CLOSURE_MATCH", "BUILTIN_MATCH"),
}
#: How many of a model's tensors are checked at every call without gradients.
_SAMPLE = 4


def state_guards(code: types.CodeType) -> Filter:
    """The filter of guards for a function whose first argument, or closure, is the model."""
    roots = {*code.co_varnames[:1], *code.co_freevars}

    def keep(guards: Sequence[Any]) -> list[bool]:
        own = [_root(guard) in roots for guard in guards]
        tensors = [i for i, guard in enumerate(guards) if own[i] and guard.guard_type == _TENSOR]
        step = 1 if torch.is_grad_enabled() else max(1, -(-len(tensors) // _SAMPLE))
        sample = set(tensors[::step])
        return [i in sample or (own[i] and guard.guard_type in _STATE) for i, guard in enumerate(guards)]

    return keep


def _root(guard: Any) -> str | None:  # noqa: ANN401 - Dynamo's entries have no public type
    """The local variable through which forward reaches what a guard is about."""
    source = guard.orig_guard.originating_source
    while hasattr(source, "base"):
        source = source.base
    return getattr(source, "local_name", None)
