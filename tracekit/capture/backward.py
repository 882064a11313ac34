"""Backward markers: a range around the part of a backward pass that belongs to a call of a module.

Autograd runs nodes, not modules, in its own order. During a module's forward, we attach the innermost call to the
autograd node that made each input and output. When such a node runs backward, on any thread, we open the ranges of its
call and of the calls around it, and close all others. Nodes in between belong to the call that is open. Nothing is
added to the autograd graph, so models that change tensors in place keep working.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Variable
from torch.compiler import is_dynamo_compiling
from typing_extensions import override

from tracekit.capture.emit import Nowhere, close_down_to
from tracekit.capture.marks import Switch, unwrapped
from tracekit.capture.tensors import all_tensors
from tracekit.markers import spelling

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.autograd.graph import Node

    from tracekit.capture.emit import Emitter

_LOG = logging.getLogger("tracekit.capture")
_OWNED = "tracekit"


class _Thread(threading.local):
    """The forward calls that run on this thread, and the calls whose backward ranges are open on it."""

    def __init__(self) -> None:
        self.forward: list[_Call] = []
        self.backward: list[_Call] = []


class _Call:
    """A forward call. ``chain`` holds the calls around it, outermost first, then the call itself."""

    __slots__ = ("chain", "marks", "opener")

    def __init__(self, marks: BackwardMarks, opener: Callable[[], object], parent: _Call | None) -> None:
        self.marks = marks
        self.opener = opener
        self.chain: tuple[_Call, ...] = (*(parent.chain if parent else ()), self)


class BackwardTrack:
    """The state that the backward marks of one model share."""

    def __init__(self, switch: Switch, emitter: Emitter) -> None:
        self.switch = switch
        self.emitter = emitter
        self.thread = _Thread()

    def own(self, value: object, call: _Call | None) -> None:
        """Assigns the nodes that made some tensors to a call (or to none), unless they are assigned already."""
        try:
            for tensor in all_tensors(value) or ():
                node = tensor.grad_fn
                if node is not None and _OWNED not in (notes := _notes(node)):
                    notes[_OWNED] = True
                    node.register_prehook(partial(self._enter, call.chain if call else ()))
        except Exception:  # noqa: BLE001 - arguments that we cannot search must not end the user's run
            _LOG.debug("cannot mark a call's backward pass", exc_info=True)

    def settle(self) -> None:
        """Closes all backward ranges of this thread."""
        while self.thread.backward:
            self._close(self.thread.backward.pop())

    def _enter(self, chain: tuple[_Call, ...], _gradients: object) -> None:
        open_ = self.thread.backward
        if not self.switch.on:
            chain = ()
        shared = 0
        while shared < min(len(open_), len(chain)) and open_[shared] is chain[shared]:
            shared += 1
        while len(open_) > shared:
            self._close(open_.pop())
        if chain and not shared:
            Variable._execution_engine.queue_callback(self.settle)
        for call in chain[shared:]:
            open_.append(call)
            self.emitter.lane.open.append(call)
            call.opener()

    def _close(self, call: _Call) -> None:
        opened = self.emitter.lane.open
        if call in opened:
            close_down_to(call, opened, self.emitter.close)
            opened.pop()
            self.emitter.close()


def _notes(node: Node) -> dict[object, object]:
    """The metadata dict of a node; torch's type stubs declare it as a method."""
    metadata: Any = node.metadata
    notes: dict[object, object] = metadata
    return notes


class BackwardMarks:
    """The forward hooks that prepare one module's backward ranges."""

    def __init__(self, path: str, track: BackwardTrack) -> None:
        self._path = path
        self._track = track
        self._opener: Callable[[], object] | None = None

    def __deepcopy__(self, _memo: dict[int, object]) -> BackwardMarks:
        return _silent()

    @override
    def __reduce__(self) -> tuple[Callable[[], BackwardMarks], tuple[()]]:
        return _silent, ()

    def before(self, module: nn.Module, args: object, kwargs: object) -> None:
        """Assigns the nodes that made the inputs to the call around: when they run backward, this call is over."""
        if is_dynamo_compiling():
            return
        forward = self._track.thread.forward
        if not forward and torch._C._current_graph_task_id() < 0:
            self._track.settle()
        parent = forward[-1] if forward else None
        if self._track.switch.on:
            self._track.own((args, kwargs), parent)
        if self._opener is None:
            text = spelling.backward(self._path, type(unwrapped(module)).__name__)
            self._opener = self._track.emitter.opener(text)
        forward.append(_Call(self, self._opener, parent))

    def after(self, _module: nn.Module, _args: object, output: Any) -> None:  # noqa: ANN401 - as the module
        """Assigns the nodes that made the outputs to this call: when they run backward, its part begins."""
        if is_dynamo_compiling():
            return
        forward = self._track.thread.forward
        index = next((index for index in range(len(forward))[::-1] if forward[index].marks is self), None)
        if index is None:
            return
        call = forward[index]
        del forward[index:]
        if self._track.switch.on:
            self._track.own(output, call)


def _silent() -> BackwardMarks:
    """Marks that do nothing, for copies of a marked module: nobody could take real ones off again."""
    return BackwardMarks("", BackwardTrack(Switch(on=False), Nowhere()))
