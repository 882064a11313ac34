"""Backward markers: a range around the part of a backward pass that belongs to a call of a module.

Autograd runs nodes, not modules, in an order of its own. While a module runs forward, the node that made each of its
inputs and outputs is told which call was innermost at that point; when it runs backward, on whatever thread, the
ranges of exactly that call and of those around it are opened and the others closed. Nodes in between belong to the
call that is open. Nothing is added to the graph, so that models which change tensors in place keep working.
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
    """A forward call, with those around it."""

    __slots__ = ("chain", "marks", "opener")

    def __init__(self, marks: BackwardMarks, opener: Callable[[], object], around: _Call | None) -> None:
        self.marks = marks
        self.opener = opener
        self.chain: tuple[_Call, ...] = (*(around.chain if around else ()), self)


class BackwardTrack:
    """What the backward marks of one handle share."""

    def __init__(self, switch: Switch, emitter: Emitter) -> None:
        self.switch = switch
        self.emitter = emitter
        self.thread = _Thread()

    def own(self, value: object, call: _Call | None) -> None:
        """Gives the nodes that made some tensors to a call (or to none), unless they have one."""
        try:
            for tensor in all_tensors(value) or ():
                node = tensor.grad_fn
                if node is not None and _OWNED not in (notes := _notes(node)):
                    notes[_OWNED] = True
                    node.register_prehook(partial(self._enter, call.chain if call else ()))
        except Exception:  # noqa: BLE001 - a stranger's arguments must not end the stranger's run
            _LOG.debug("cannot follow a call backward", exc_info=True)

    def settle(self) -> None:
        """Closes all that this thread has open."""
        while self.thread.backward:
            self._close(self.thread.backward.pop())

    def _enter(self, chain: tuple[_Call, ...], _gradients: object) -> None:
        open_ = self.thread.backward
        if not self.switch.on:
            chain = ()
        same = 0
        while same < min(len(open_), len(chain)) and open_[same] is chain[same]:
            same += 1
        while len(open_) > same:
            self._close(open_.pop())
        if chain and not same:
            Variable._execution_engine.queue_callback(self.settle)
        for call in chain[same:]:
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
    """What anybody noted about a node; torch's types call it a function."""
    notes: Any = node.metadata
    found: dict[object, object] = notes
    return found


class BackwardMarks:
    """The hooks that let one module's part of backward passes be marked."""

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
        """Notes who made the inputs: when that runs backward, this call is over."""
        if is_dynamo_compiling():
            return
        forward = self._track.thread.forward
        if not forward and torch._C._current_graph_task_id() < 0:
            self._track.settle()
        around = forward[-1] if forward else None
        if self._track.switch.on:
            self._track.own((args, kwargs), around)
        if self._opener is None:
            text = spelling.backward(self._path, type(unwrapped(module)).__name__)
            self._opener = self._track.emitter.opener(text)
        forward.append(_Call(self, self._opener, around))

    def after(self, _module: nn.Module, _args: object, output: Any) -> None:  # noqa: ANN401 - as the module
        """Notes who made the outputs: when that runs backward, this call's part begins."""
        if is_dynamo_compiling():
            return
        forward = self._track.thread.forward
        at = next((at for at in range(len(forward))[::-1] if forward[at].marks is self), None)
        if at is None:
            return
        call = forward[at]
        del forward[at:]
        if self._track.switch.on:
            self._track.own(output, call)


def _silent() -> BackwardMarks:
    """What a copy of a marked module has in place of marks: nobody could take them off again."""
    return BackwardMarks("", BackwardTrack(Switch(on=False), Nowhere()))
