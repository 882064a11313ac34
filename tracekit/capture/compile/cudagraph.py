"""CUDA graphs behind one small interface: ``capture_graph(fn, args)`` returns a :class:`Replay`."""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch

from tracekit.errors import CaptureError

_LOG = logging.getLogger("tracekit.capture")


class Replay(Protocol):
    """A captured graph."""

    def fits(self, args: Sequence[Any], /) -> bool:
        """Whether a replay is correct for these arguments: a graph reads the addresses that it was captured with."""

    def moved(self, args: Sequence[Any], /) -> list[int]:
        """Indices of the arguments whose address differs from that at the graph capture."""

    def __call__(self, args: Sequence[Any], /) -> Sequence[Any]:
        """Replays the graph. Returns its results."""


class Graphs(Protocol):
    """A way to capture and replay graphs."""

    #: Whether graphs are bound to memory: the next replay overwrites their results, and gradients are lost.
    bound: bool

    def ready(self) -> bool:
        """Whether a graph can be captured or replayed now."""

    def capture_graph(
        self,
        fn: Callable[..., Sequence[Any]],
        args: Sequence[Any],
        /,
        *,
        watched: Sequence[int] = (),
        warmups: int = 0,
        first: bool = True,
    ) -> Replay:
        """Captures a call as a graph. Garbage is collected only before the first of several graph captures."""


def addresses(args: Sequence[Any], indices: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Pairs of index and address, for the tensors among these arguments."""
    return tuple((index, args[index].data_ptr()) for index in indices if isinstance(args[index], torch.Tensor))


_holds: list[object] = []


@contextmanager
def graph_captures_on_hold() -> Iterator[None]:
    """While the block runs, no graph is captured or replayed: pieces run as compiled."""
    _holds.append(None)
    try:
        yield
    finally:
        _holds.pop()


class _Captured:
    def __init__(self, inputs: tuple[tuple[int, int], ...]) -> None:
        self.inputs = inputs

    def moved(self, args: Sequence[Any], /) -> list[int]:
        """Indices of the arguments whose address differs from that at the graph capture."""
        return [index for index, address in self.inputs if args[index].data_ptr() != address]


class StandInReplay(_Captured):
    """What the stand-in remembers of a graph capture: the addresses of watched tensors, and the results."""

    def __init__(
        self, fn: Callable[..., Sequence[Any]], inputs: tuple[tuple[int, int], ...], outputs: Sequence[Any]
    ) -> None:
        super().__init__(inputs)
        self.outputs = outputs
        self.replays = 0
        self._fn = fn
        self._first = True

    def fits(self, _args: Sequence[Any], /) -> bool:
        """Always true, because it runs the piece again."""
        return True

    def __call__(self, args: Sequence[Any], /) -> Sequence[Any]:
        """Runs the piece with these arguments; the first call returns the captured results instead."""
        if self._first:
            self._first = False
            return self.outputs
        self.replays += 1
        return self._fn(*args)


class StandInGraphs:
    """The stand-in for CUDA graphs. It remembers all graph captures."""

    bound = False

    def __init__(self) -> None:
        self.made: list[StandInReplay] = []

    def ready(self) -> bool:
        """Whether graph captures are not on hold."""
        return not _holds

    def capture_graph(
        self,
        fn: Callable[..., Sequence[Any]],
        args: Sequence[Any],
        /,
        *,
        watched: Sequence[int] = (),
        warmups: int = 0,
        first: bool = True,  # noqa: ARG002 - as CUDA's
    ) -> StandInReplay:
        """Runs the call and remembers its addresses and results."""
        with random_numbers_kept():
            for _ in range(warmups):
                fn(*args)
        replay = StandInReplay(fn, addresses(args, watched), fn(*args))
        self.made.append(replay)
        return replay


class CudaReplay(_Captured):
    """A CUDA graph with its results, which are in the memory pool.

    If we kept the results alive, later pieces and other sizes could not reuse their memory. The captured call itself
    must keep them alive, because else the next piece would be captured into the memory that it reads from.
    """

    def __init__(
        self, graph: torch.cuda.CUDAGraph, inputs: tuple[tuple[int, int], ...], outputs: Sequence[Any]
    ) -> None:
        super().__init__(inputs)
        self._replay = graph.replay
        self._held: Sequence[Any] | None = outputs
        self._outputs = tuple(weak_tensor(item) for item in outputs)

    def fits(self, args: Sequence[Any], /) -> bool:
        """Whether all watched arguments have the addresses of the graph capture."""
        return not self.moved(args)

    def __call__(self, _args: Sequence[Any], /) -> Sequence[Any]:
        """Replays the graph: its results have the addresses of the graph capture."""
        self._replay()
        held, self._held = self._held, None
        return self._outputs if held is None else held


class CudaGraphs:
    """CUDA graphs that share one memory pool."""

    bound = True

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._stream: torch.cuda.Stream | None = None

    def ready(self) -> bool:
        """Whether graph captures are not on hold and the caller is not capturing a graph, which includes the pieces."""
        return not _holds and not torch.cuda.is_current_stream_capturing()

    def capture_graph(
        self,
        fn: Callable[..., Sequence[Any]],
        args: Sequence[Any],
        /,
        *,
        watched: Sequence[int] = (),
        warmups: int = 0,
        first: bool = True,
    ) -> CudaReplay:
        """Captures the call on a side stream. Its work does not run before the first replay."""
        inputs = addresses(args, watched)
        graph = torch.cuda.CUDAGraph()
        with self._on_side_stream(first=first):
            with random_numbers_kept():
                for _ in range(warmups):
                    fn(*args)
            outputs = self._graph_captured(graph, fn, args)
        return CudaReplay(graph, inputs, outputs)

    def _graph_captured(
        self, graph: torch.cuda.CUDAGraph, fn: Callable[..., Sequence[Any]], args: Sequence[Any]
    ) -> tuple[Any, ...]:
        torch.cuda.synchronize()
        graph.capture_begin(pool=self._pool)
        try:
            outputs = tuple(fn(*args))
        except BaseException:
            with suppress(RuntimeError):  # the first error is more useful than that the graph capture is invalid
                graph.capture_end()
            raise
        graph.capture_end()
        return outputs

    @contextmanager
    def _on_side_stream(self, *, first: bool) -> Iterator[None]:
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


def weak_tensor(value: Any) -> Any:  # noqa: ANN401 - whatever a piece returns
    """A copy of a CUDA tensor that does not keep its memory alive, where torch can make one; other values unchanged."""
    construct = getattr(torch._C, "_construct_CUDA_Tensor_From_Storage_And_Metadata", None)
    storage_at = getattr(torch._C, "_construct_storage_from_data_pointer", None)
    plain = type(value) is torch.Tensor and value.is_cuda and value.layout is torch.strided
    if construct is None or storage_at is None or not plain:
        return value
    storage = value.untyped_storage()
    metadata = {
        "nbytes": storage.nbytes(),
        "data_ptr": storage.data_ptr(),
        "size": tuple(value.shape),
        "stride": value.stride(),
        "dtype": value.dtype,
        "device": value.device,
        "storage_offset": value.storage_offset(),
    }
    return construct(metadata, storage_at(storage.data_ptr(), value.device, storage.nbytes()))


def graphs_for(graph_capture: str) -> Graphs | None:
    """The graphs that the config's ``graph_capture`` asks for; None for none."""
    if graph_capture == "record":
        return StandInGraphs()
    if graph_capture == "off":
        return None
    if torch.cuda.is_available():
        return CudaGraphs()
    if graph_capture == "cuda":
        raise CaptureError("graph_capture='cuda': this machine has no GPU; expected 'auto' or 'off'")
    _LOG.info("no GPU on this machine: pieces run without CUDA graphs")
    return None


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Restores the state of the random number generators after the block."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        yield
