"""Makes ``annotated_training.sqlite``; run it with ``python -m data.make_annotated_training``.

A training loop as its author annotated it, with plain NVTX ranges and no markers of modules: two epochs of a small
transformer, with a validation after each. Autograd runs the backward pass on a thread of its own, which has no ranges,
as it does in real recordings. The times are simulated, not measured.
"""

from __future__ import annotations

from pathlib import Path

from data.simulated_gpu import AUTOGRAD, MAIN, Kernel, Process
from data.simulated_llama import Tokens, attention, elementwise, matmul

EPOCHS, BATCHES, LAYERS = 2, 3, 4
BATCH = Tokens(8, 256, 128)
WIDTH, INNER, VOCABULARY = 512, 2_048, 16_384
_BYTES_IN, _PARAMETERS = 8 * BATCH.total, 12 * WIDTH * WIDTH * LAYERS + 2 * WIDTH * VOCABULARY


def train(process: Process) -> None:
    """All epochs."""
    for epoch in range(EPOCHS):
        with process.range(f"Epoch {epoch}"):
            for batch in range(BATCHES):
                _batch(process, epoch * BATCHES + batch)
            with process.range("Validation"):
                _forward(process)
                process.synchronize()


def _batch(process: Process, number: int) -> None:
    with process.range(f"Batch {number}"):
        _trained(process)


def _trained(process: Process) -> None:
    with process.range("Copy to device"):
        process.copy(1, _BYTES_IN)
    _forward(process)
    with process.range("Loss"):
        _run(process, elementwise("softmax_warp_forward", BATCH.total * VOCABULARY), Kernel("nll_loss_forward", 4_000))
    with process.range("Backward"):
        process.thread = AUTOGRAD
        _backward(process)
        process.thread = MAIN
        process.synchronize()
    # Nobody put a range around the clipping of gradients.
    _run(process, elementwise("multi_tensor_l2norm", _PARAMETERS))
    with process.range("Optimizer step"):
        _run(process, *(elementwise("multi_tensor_apply_kernel", _PARAMETERS) for _ in range(3)))


def _forward(process: Process) -> None:
    with process.range("Forward"):
        with process.range("embedding"):
            _run(process, elementwise("indexSelectLargeIndex", BATCH.total * WIDTH))
        for layer in range(LAYERS):
            with process.range(f"layer_{layer}"):
                _layer(process)
        with process.range("head"):
            _run(process, matmul(BATCH.total, WIDTH, VOCABULARY))


def _layer(process: Process) -> None:
    with process.range("attention"):
        _run(process, matmul(BATCH.total, WIDTH, 3 * WIDTH), attention(BATCH))
        _run(process, matmul(BATCH.total, WIDTH, WIDTH))
    with process.range("feed-forward (GELU)"):
        _run(process, matmul(BATCH.total, WIDTH, INNER), elementwise("gelu_kernel", BATCH.total * INNER))
        _run(process, matmul(BATCH.total, INNER, WIDTH))


def _backward(process: Process) -> None:
    """Two products for each of the forward pass, the last layer first."""
    _run(process, *_gradients(WIDTH, VOCABULARY))
    for _ in range(LAYERS):
        _run(process, *_gradients(INNER, WIDTH), elementwise("gelu_backward_kernel", 2 * BATCH.total * INNER))
        _run(process, *_gradients(WIDTH, INNER), *_gradients(WIDTH, WIDTH))
        _run(process, Kernel("flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", 2.5 * attention(BATCH).ns))
        _run(process, *_gradients(WIDTH, 3 * WIDTH))
    _run(process, elementwise("embedding_backward_feature_kernel", BATCH.total * WIDTH))


def _gradients(inner: int, outer: int) -> list[Kernel]:
    """Of the input, then of the weight."""
    return [matmul(BATCH.total, outer, inner), matmul(outer, BATCH.total, inner)]


def _run(process: Process, *kernels: Kernel) -> None:
    for kernel in kernels:
        process.launch(kernel)


def make(folder: Path) -> None:
    """Writes the report into a folder."""
    process = Process()
    process.thread_names[AUTOGRAD] = "pt_autograd_0"
    train(process)
    process.write(folder / "annotated_training.sqlite")


if __name__ == "__main__":
    make(Path(__file__).parent)
