"""CUDA graphs behind one small interface: ``capture_graph(fn, args)`` returns the function that replays the call."""

import gc
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch

from tracekit.capture.emit import among
from tracekit.errors import CaptureError

_LOG = logging.getLogger("tracekit.capture")
Call = Callable[..., Any]
_holds: list[None] = []


def graph_captures_on_hold() -> AbstractContextManager[None]:
    """While the block runs, no graph is captured or replayed: pieces run as compiled."""
    return among(_holds, None)


class StandInGraphs:
    """The stand-in for CUDA graphs: a replay runs the piece again, with the arguments that it gets."""

    #: Whether graphs are bound to memory: a replay reads the addresses of its graph capture, the next one overwrites
    #: its results, and gradients are lost.
    bound = False

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held while a call uses this memory

    def ready(self) -> bool:
        """Whether a graph can be captured or replayed now."""
        return not _holds

    def capture_graph(self, fn: Call, args: Sequence[Any], /, *, warmups: int = 0) -> Call:
        """Captures a call, after some runs. Returns the function that replays it; the first replay has its results."""
        _warm_up(fn, args, warmups)
        captured = [fn(*args)]
        return lambda *args: captured.pop() if captured else fn(*args)


class CudaGraphs:
    """CUDA graphs that share one memory pool."""

    bound = True

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._stream: torch.cuda.Stream | None = None

    def ready(self) -> bool:
        """Whether graph captures are not on hold and the caller is not capturing a graph, which includes the pieces."""
        return not _holds and not torch.cuda.is_current_stream_capturing()

    def capture_graph(self, fn: Call, args: Sequence[Any], /, *, warmups: int = 0) -> Call:
        """Captures the call on a side stream. Its work does not run before the first replay.

        If we kept the results alive, later pieces and other sizes could not reuse their memory. The first replay itself
        must keep them alive, because else the next piece would be captured into the memory that it reads from.
        """
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        if self._stream is None:
            gc.collect()
            torch.cuda.empty_cache()
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            _warm_up(fn, args, warmups)
            torch.cuda.synchronize()
            graph.capture_begin(pool=self._pool)
            try:
                captured = [tuple(fn(*args))]
            except BaseException:
                with suppress(RuntimeError):  # the first error is more useful than that the graph capture is invalid
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        outputs = tuple(weak_tensor(item) for item in captured[0])

        def replay(*_args: object) -> Sequence[Any]:
            graph.replay()
            return captured.pop() if captured else outputs

        return replay


Graphs = StandInGraphs | CudaGraphs


def weak_tensor(value: Any) -> Any:  # noqa: ANN401 - whatever a piece returns
    """A copy of a plain CUDA tensor that does not keep its memory alive; other values unchanged."""
    if type(value) is not torch.Tensor or not value.is_cuda or value.layout is not torch.strided:
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
    memory = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), value.device, storage.nbytes())
    return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(metadata, memory)


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


def _warm_up(fn: Call, args: Sequence[Any], runs: int) -> None:
    with random_numbers_kept():
        for _ in range(runs):
            fn(*args)
