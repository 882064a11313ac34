"""Makes ``llama_ranks/rank0.sqlite`` to ``rank3.sqlite``; run it with ``python -m data.make_llama_ranks``.

Three data-parallel training steps on four GPUs, of which the third is slower: forward, backward with an all-reduce for
every layer's gradients that runs beside the layer below, optimizer. The times are simulated, not measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from data.simulated_gpu import AUTOGRAD, MAIN, Kernel, Process
from data.simulated_llama import (
    BFLOAT16_BYTES,
    HIDDEN,
    INTERMEDIATE,
    KEY_VALUE,
    ROOT,
    VOCABULARY,
    Llama,
    Tokens,
    attention,
    elementwise,
    matmul,
)
from tracekit.markers import formatting

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

LAYERS, STEPS = 2, 3
BATCH = Tokens(2, 1_024, 512)
SLOWNESS = (1.0, 1.0, 1.15, 1.0)
_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
_ATTENTION_BACKWARD = "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"
_OPTIMIZER = "multi_tensor_apply_kernel"
#: What each GPU can send in a ring, and how often every byte is sent: once to add, once to share.
_NVLINK_BYTES_PER_NS, _SENT = 200, 2 * 3 / 4
_LAYER_PARAMETERS = HIDDEN * (HIDDEN + 2 * KEY_VALUE) + HIDDEN * HIDDEN + 3 * HIDDEN * INTERMEDIATE
_EMBEDDING_PARAMETERS = VOCABULARY * HIDDEN
_WIDTHS = {
    "qkv_proj": (HIDDEN, HIDDEN + 2 * KEY_VALUE),
    "o_proj": (HIDDEN, HIDDEN),
    "gate_up_proj": (HIDDEN, 2 * INTERMEDIATE),
    "down_proj": (INTERMEDIATE, HIDDEN),
}


def train(llama: Llama, index: int) -> None:
    """One step: forward, backward, optimizer."""
    process = llama.process
    with process.range(formatting.step("train", index, "train", {"BatchSize": BATCH.sequences, "Tokens": BATCH.total})):
        llama.forward(BATCH)
        process.thread = AUTOGRAD
        _backward(llama)
        process.thread = MAIN
        process.wait_for_communication()
        parameters = _EMBEDDING_PARAMETERS + LAYERS * _LAYER_PARAMETERS
        llama.run([elementwise(_OPTIMIZER, 6 * parameters // 4) for _ in range(4)])
        process.synchronize()
    process.clock += 40_000


def _backward(llama: Llama) -> None:
    with _part(llama, "", "LlamaForCausalLM"):
        with _part(llama, "lm_head", "Linear"):
            llama.run(_gradients(HIDDEN, VOCABULARY))
        with _part(llama, "model", "LlamaModel"):
            for layer in reversed(range(LAYERS)):
                _layer(llama, f"model.layers.{layer}")
            with _part(llama, "model.embed_tokens", "Embedding"):
                llama.run([elementwise("embedding_backward_feature_kernel", BATCH.total * HIDDEN)])
            llama.process.all_reduce(_all_reduce(_EMBEDDING_PARAMETERS))


def _layer(llama: Llama, here: str) -> None:
    """The parts of a layer from the last to the first, then the sum of its gradients over all ranks."""
    with _part(llama, here, "LlamaDecoderLayer"):
        with _part(llama, f"{here}.mlp", "LlamaMLP"):
            _linear(llama, f"{here}.mlp.down_proj")
            llama.run([elementwise("silu_backward_kernel", 2 * BATCH.total * INTERMEDIATE)])
            _linear(llama, f"{here}.mlp.gate_up_proj")
        with _part(llama, f"{here}.self_attn", "LlamaAttention"):
            _linear(llama, f"{here}.self_attn.o_proj")
            llama.run([Kernel(_ATTENTION_BACKWARD, 2.5 * attention(BATCH).ns)])
            _linear(llama, f"{here}.self_attn.qkv_proj")
        llama.process.all_reduce(_all_reduce(_LAYER_PARAMETERS))


def _linear(llama: Llama, path: str) -> None:
    with _part(llama, path, "Linear"):
        llama.run(_gradients(*_WIDTHS[path.rpartition(".")[2]]))


def _gradients(inner: int, outer: int) -> list[Kernel]:
    """Of the input, then of the weight."""
    return [matmul(BATCH.total, outer, inner), matmul(outer, BATCH.total, inner)]


def _all_reduce(parameters: int) -> Kernel:
    return Kernel(_ALL_REDUCE, _SENT * BFLOAT16_BYTES * parameters / _NVLINK_BYTES_PER_NS)


def _part(llama: Llama, path: str, class_name: str) -> AbstractContextManager[None]:
    return llama.process.range(formatting.backward(f"{ROOT}.{path}" if path else ROOT, class_name))


def make(folder: Path) -> None:
    """Writes the reports into a folder."""
    llama = Llama(Process(SLOWNESS), layers=LAYERS)
    llama.training = True
    for index in range(STEPS):
        train(llama, index)
    for rank in range(len(SLOWNESS)):
        llama.process.write(folder / "llama_ranks" / f"rank{rank}.sqlite", rank)


if __name__ == "__main__":
    make(Path(__file__).parent)
