"""CUDA graphs behind one small interface: ``capture(fn, args)`` gives what replays it.

:class:`CudaGraphs` is CUDA's; :class:`StandInGraphs` stands in for it on a machine without a GPU: it runs the piece at
every call, so results are right whatever the inputs are, and remembers what a graph would have depended on.
"""

from __future__ import annotations

import gc
import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tracekit.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_LOG = logging.getLogger("tracekit.capture")


class Replay(Protocol):
    """A captured graph."""

    def fits(self, args: Sequence[Any], /) -> bool:
        """Whether its results are right for these arguments: it reads what lies where the captured ones lay."""

    def moved(self, args: Sequence[Any], /) -> list[int]:
        """Which of these arguments lie elsewhere than the captured ones."""

    def __call__(self, args: Sequence[Any], /) -> Sequence[Any]:
        """Runs it; its results."""


class GraphCapture(Protocol):
    """A way to capture graphs."""

    #: Whether what it captures is bound to memory: the next replay overwrites results, and gradients are lost.
    bound: bool

    def ready(self) -> bool:
        """Whether a graph can be captured or replayed now."""

    def capture(
        self,
        fn: Callable[..., Sequence[Any]],
        args: Sequence[Any],
        /,
        *,
        watched: Sequence[int] = (),
        warmups: int = 0,
        first: bool = True,
    ) -> Replay:
        """Captures a call.

        Args:
            fn: What to capture.
            args: Its arguments; those watched must lie where they lie now when it is replayed.
            watched: Places of the tensors that may come to lie elsewhere.
            warmups: How often to run it before.
            first: Whether it is the first of a sequence of captures: then garbage is collected, once for all.
        """


def addresses(args: Sequence[Any], places: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Places of tensors among the arguments, and where each lies in memory."""
    return tuple((at, args[at].data_ptr()) for at in places if isinstance(args[at], torch.Tensor))


def _elsewhere(args: Sequence[Any], lay: tuple[tuple[int, int], ...]) -> list[int]:
    """Which arguments lie elsewhere."""
    return [at for at, address in lay if args[at].data_ptr() != address]


_held: list[object] = []


@contextmanager
def on_hold() -> Iterator[None]:
    """While the block runs, nothing is captured or replayed: pieces run as they were compiled."""
    _held.append(None)
    try:
        yield
    finally:
        _held.pop()


class StandInReplay:
    """What the stand-in remembers of a capture.

    Attributes:
        inputs: Places of the watched tensors, and their addresses.
        outputs: What the captured call returned.
        replays: How often it was replayed.
    """

    def __init__(
        self,
        fn: Callable[..., Sequence[Any]],
        inputs: tuple[tuple[int, int], ...],
        outputs: Sequence[Any],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.replays = 0
        self._fn = fn
        self._first = True

    def fits(self, _args: Sequence[Any], /) -> bool:
        """Always: it runs the piece."""
        return True

    def moved(self, args: Sequence[Any], /) -> list[int]:
        """Which of these arguments lie elsewhere than the captured ones."""
        return _elsewhere(args, self.inputs)

    def __call__(self, args: Sequence[Any], /) -> Sequence[Any]:
        """Runs it with these arguments, but not again for the call that was captured."""
        if self._first:
            self._first = False
            return self.outputs
        self.replays += 1
        return self._fn(*args)


class StandInGraphs:
    """The stand-in for CUDA graphs.

    Attributes:
        made: All that was captured, in order.
    """

    bound = False

    def __init__(self) -> None:
        self.made: list[StandInReplay] = []

    def ready(self) -> bool:
        """Unless captures are on hold."""
        return not _held

    def capture(
        self,
        fn: Callable[..., Sequence[Any]],
        args: Sequence[Any],
        /,
        *,
        watched: Sequence[int] = (),
        warmups: int = 0,
        first: bool = True,  # noqa: ARG002 - as CUDA's
    ) -> StandInReplay:
        """Runs the call."""
        for _ in range(warmups):
            fn(*args)
        made = StandInReplay(fn, addresses(args, watched), fn(*args))
        self.made.append(made)
        return made


class CudaReplay:
    """A captured CUDA graph with its results, which lie in the pool's memory.

    Holding the results would keep later pieces, and other sizes, from using that memory again. The call that was
    captured must hold them: else the next piece is captured over what it reads.
    """

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        inputs: tuple[tuple[int, int], ...],
        outputs: Sequence[Any],
    ) -> None:
        self._inputs = inputs
        self._replay = graph.replay
        self._held: Sequence[Any] | None = outputs
        self._outputs = tuple(weak(item) for item in outputs)

    def fits(self, args: Sequence[Any], /) -> bool:
        """Whether all lie where the captured ones lay."""
        return not _elsewhere(args, self._inputs)

    def moved(self, args: Sequence[Any], /) -> list[int]:
        """Which of these arguments lie elsewhere than the captured ones."""
        return _elsewhere(args, self._inputs)

    def __call__(self, _args: Sequence[Any], /) -> Sequence[Any]:
        """Replays it: its results lie where they lay at capture."""
        self._replay()
        held, self._held = self._held, None
        return self._outputs if held is None else held


class CudaGraphs:
    """CUDA graphs that share one pool of memory."""

    bound = True

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._stream: torch.cuda.Stream | None = None

    def ready(self) -> bool:
        """Unless captures are on hold, or the caller is capturing: then the pieces become part of that graph."""
        return not _held and not torch.cuda.is_current_stream_capturing()

    def capture(
        self,
        fn: Callable[..., Sequence[Any]],
        args: Sequence[Any],
        /,
        *,
        watched: Sequence[int] = (),
        warmups: int = 0,
        first: bool = True,
    ) -> CudaReplay:
        """Captures the call on a stream of its own; nothing of it has run until it is replayed."""
        lay = addresses(args, watched)
        graph = torch.cuda.CUDAGraph()
        with self._aside(first=first):
            for _ in range(warmups):
                fn(*args)
            outputs = self._captured(graph, fn, args)
        return CudaReplay(graph, lay, outputs)

    def _captured(
        self, graph: torch.cuda.CUDAGraph, fn: Callable[..., Sequence[Any]], args: Sequence[Any]
    ) -> tuple[Any, ...]:
        torch.cuda.synchronize()
        graph.capture_begin(pool=self._pool)
        try:
            outputs = tuple(fn(*args))
        except BaseException:
            with suppress(RuntimeError):  # what failed is of more use than that the capture is void
                graph.capture_end()
            raise
        graph.capture_end()
        return outputs

    @contextmanager
    def _aside(self, *, first: bool) -> Iterator[None]:
        torch.cuda.synchronize()
        if first:
            gc.collect()
            torch.cuda.empty_cache()
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)


def weak(value: Any) -> Any:  # noqa: ANN401 - whatever a piece returns
    """A CUDA tensor that does not keep its memory; the value itself where torch offers no such tensor."""
    construct = getattr(torch._C, "_construct_CUDA_Tensor_From_Storage_And_Metadata", None)
    storage_at = getattr(torch._C, "_construct_storage_from_data_pointer", None)
    plain = type(value) is torch.Tensor and value.is_cuda and value.layout is torch.strided
    if construct is None or storage_at is None or not plain:
        return value
    storage = value.untyped_storage()
    said = {
        "nbytes": storage.nbytes(),
        "data_ptr": storage.data_ptr(),
        "size": tuple(value.shape),
        "stride": value.stride(),
        "dtype": value.dtype,
        "device": value.device,
        "storage_offset": value.storage_offset(),
    }
    return construct(said, storage_at(storage.data_ptr(), value.device, storage.nbytes()))


def graph_capture(wanted: str) -> GraphCapture | None:
    """The way to capture graphs that a config asks for; None for none.

    Raises:
        CaptureError: If CUDA graphs are asked for where there is no GPU.
    """
    if wanted == "record":
        return StandInGraphs()
    if wanted == "off":
        return None
    if torch.cuda.is_available():
        return CudaGraphs()
    if wanted == "cuda":
        raise CaptureError("graph_capture 'cuda': there is no GPU here; expected 'auto' or 'off'")
    _LOG.info("no GPU here: pieces run without CUDA graphs")
    return None
