"""Makes the reports of one decode run in four ways; run it with ``python -m data.make_llama_modes``.

Ten steps of eight sequences each: ``llama_eager.sqlite``, ``llama_compiled.sqlite`` (in pieces, split at attention, as
``tracekit capture --compile`` records them), ``llama_graphs.sqlite`` (the eager model captured once as a CUDA graph,
then replayed) and ``llama_graphs_changed.sqlite``: the same after a change that fuses SiLU with its product, and by
which two layers' ``down_proj`` gets a slower kernel. The times are simulated, not measured.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from data.simulated_gpu import Kernel, Process
from data.simulated_llama import (
    HIDDEN,
    INTERMEDIATE,
    KEY_VALUE,
    VOCABULARY,
    Llama,
    Tokens,
    attention,
    eager_down,
    elementwise,
    matmul,
)
from tracekit.markers import formatting

STEPS, SEQUENCES, CONTEXT = 10, 8, 1_024
#: Without a pass through eager PyTorch, a compiled launch costs the host little beside the call itself.
_PIECE_NS = 9_000
_SLOW_LAYERS = (2, 3)
_SLOWER = 1.7


def eager(llama: Llama) -> None:
    """Every module is called at every step."""
    for index in range(STEPS):
        tokens = Tokens(SEQUENCES, 1, CONTEXT + index)
        llama.step(index, tokens, partial(llama.forward, tokens))


def compiled(llama: Llama) -> None:
    """The model is called, and inside of it pieces: no marker of a module runs within compiled code."""
    for index in range(STEPS):
        tokens = Tokens(SEQUENCES, 1, CONTEXT + index)
        llama.step(index, tokens, partial(_pieces, llama, tokens))


def graphs(llama: Llama) -> None:
    """One capture with the markers of every module, then one launch for every step."""
    with llama.process.capture() as graph:
        llama.forward(Tokens(SEQUENCES, 1, CONTEXT))
    llama.process.clock += 1_000_000
    for index in range(STEPS):
        llama.step(index, Tokens(SEQUENCES, 1, CONTEXT), lambda: llama.process.replay(graph))


def changed(llama: Llama) -> None:
    """The model after the change, by graphs."""
    llama.fused_act, llama.down = True, _slow_down
    graphs(llama)


def _slow_down(layer: int, rows: int) -> Kernel:
    """A product whose rows are no longer aligned to 16 bytes gets a kernel that loads two elements at a time."""
    fast = eager_down(layer, rows)
    if layer not in _SLOW_LAYERS:
        return fast
    return Kernel("cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align2", _SLOWER * fast.ns)


def _pieces(llama: Llama, tokens: Tokens) -> None:
    """Pieces and, between them, attention."""
    with llama.call("", "LlamaForCausalLM", tokens.shape(1)[:2], tokens.shape(VOCABULARY)):
        for layer in range(llama.layers + 1):
            before = [] if layer == 0 else _after_attention(tokens)
            behind = [matmul(tokens.total, HIDDEN, VOCABULARY)] if layer == llama.layers else _before_attention(tokens)
            _piece(llama, 2 * layer, [*before, *behind], code="general")
            if layer < llama.layers:
                _piece(llama, 2 * layer + 1, [attention(tokens)], code=None)


def _piece(llama: Llama, number: int, kernels: list[Kernel], *, code: str | None) -> None:
    way = "compiled" if code else "eager"
    text = formatting.piece(f"submod_{number}", 0, way, size=SEQUENCES, code=code)
    with llama.process.range(text):
        llama.process.clock += _PIECE_NS
        for kernel in kernels:
            llama.process.launch(kernel)


def _before_attention(tokens: Tokens) -> list[Kernel]:
    return [
        elementwise("triton_red_fused_rms_norm_0", tokens.total * HIDDEN),
        matmul(tokens.total, HIDDEN, HIDDEN + 2 * KEY_VALUE),
        elementwise("triton_poi_fused_rotary_1", tokens.total * (HIDDEN + KEY_VALUE)),
    ]


def _after_attention(tokens: Tokens) -> list[Kernel]:
    return [
        matmul(tokens.total, HIDDEN, HIDDEN),
        elementwise("triton_red_fused_add_rms_norm_2", tokens.total * HIDDEN),
        matmul(tokens.total, HIDDEN, 2 * INTERMEDIATE),
        elementwise("triton_poi_fused_mul_silu_3", tokens.total * INTERMEDIATE),
        eager_down(0, tokens.total),
        elementwise("triton_red_fused_add_rms_norm_2", tokens.total * HIDDEN),
    ]


WAYS = {"llama_eager": eager, "llama_compiled": compiled, "llama_graphs": graphs, "llama_graphs_changed": changed}


def make(folder: Path) -> None:
    """Writes the reports into a folder."""
    for name, way in WAYS.items():
        llama = Llama(Process())
        way(llama)
        llama.process.write(folder / f"{name}.sqlite")


if __name__ == "__main__":
    make(Path(__file__).parent)
