"""A Llama as wide as Llama 3.2 1B, cut to four layers, and what its modules would ask of an A100.

How long a kernel takes follows from what it computes and moves (:func:`matmul`, :func:`elementwise`,
:func:`attention`), with a noise of about 1 %. Ranges are those of ``tracekit capture``.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from data.simulated_gpu import COMPUTE, Kernel
from tracekit.markers import formatting
from tracekit.markers.base import Param

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from data.simulated_gpu import Process

HIDDEN, KEY_VALUE, INTERMEDIATE, VOCABULARY = 2_048, 512, 8_192, 32_000
ROOT = "LlamaForCausalLM"
BFLOAT16_BYTES = 2
#: What an A100 of 80 GB reaches in practice: of its 2,039 GB/s, and of its 312 TFLOP/s in bfloat16.
BYTES_PER_NS, FLOPS_PER_NS = 1_500, 220_000
#: What even the smallest kernel takes.
LEAST_NS = 2_100
#: Host time of a module's marker and Python code, and of an operator before its launch.
_MODULE_NS, _OPERATOR_NS = 5_000, 4_500
_GEMM = "ampere_bf16_s16816gemm_bf16_{}_ldg8_f2f_stages_{}_tn"
#: Rows of a tile, and the kernel that has it.
_TILES = ((64, "64x64_sliced1x2", "64x6"), (128, "128x128", "64x4"), (1 << 30, "256x128", "32x3"))

#: Dimensions of a tensor.
Shape = tuple[int, ...]


class Tokens(NamedTuple):
    """What a step computes: sequences, new tokens of each, and tokens that each attends to."""

    sequences: int
    new: int
    context: int

    @property
    def total(self) -> int:
        """All new tokens."""
        return self.sequences * self.new

    def shape(self, width: int) -> Shape:
        """Dimensions of activations."""
        return (self.sequences, self.new, width)


def matmul(rows: int, inner: int, columns: int) -> Kernel:
    """A matrix product: reads both factors once, and computes whole tiles."""
    tile, name, stages = next(tile for tile in _TILES if rows <= tile[0])
    height = min(tile, 256)
    computed = -(-rows // height) * height
    moved = BFLOAT16_BYTES * (rows * inner + inner * columns + rows * columns)
    flops = 2 * computed * inner * columns
    ns = LEAST_NS + max(moved / BYTES_PER_NS, flops / FLOPS_PER_NS)
    return Kernel(_GEMM.format(name, stages), ns)


def elementwise(name: str, elements: int, functor: str = "") -> Kernel:
    """A kernel that reads and writes every element."""
    full = f"void at::native::{name}<4, {functor}<c10::BFloat16>, std::array<char*, 3ul> >(int)"
    ns = LEAST_NS + 2 * BFLOAT16_BYTES * elements / BYTES_PER_NS
    return Kernel(name, ns, full if functor else None)


def attention(tokens: Tokens) -> Kernel:
    """Flash attention: prefill is bound by its products, decode by reading the keys and values of its context."""
    moved = tokens.sequences * tokens.context * 2 * KEY_VALUE * BFLOAT16_BYTES
    flops = 2 * tokens.total * tokens.context * HIDDEN
    name = "flash_fwd_kernel" if tokens.new > 1 else "flash_fwd_splitkv_kernel"
    return Kernel(name, 1.5 * LEAST_NS + max(moved / BYTES_PER_NS, flops / (0.6 * FLOPS_PER_NS)))


def eager_act(elements: int) -> list[Kernel]:
    """SiLU as an operator of its own."""
    return [elementwise("vectorized_elementwise_kernel", elements, "at::native::silu_kernel")]


def eager_down(_layer: int, rows: int) -> Kernel:
    """The product of ``down_proj``."""
    return matmul(rows, INTERMEDIATE, HIDDEN)


class Llama:
    """The model, run by a process."""

    def __init__(self, process: Process, layers: int = 4) -> None:
        self.process = process
        self.layers = layers
        self.down: Callable[[int, int], Kernel] = eager_down
        self.fused_act = self.training = False

    def step(self, index: int, tokens: Tokens, body: Callable[[], None]) -> None:
        """One iteration: tokens go in, ``body`` computes, the next tokens come out."""
        kind = "prefill" if tokens.new > 1 else "decode"
        said = {"BatchSize": tokens.sequences, "Tokens": tokens.total}
        with self.process.range(formatting.step(kind, index, kind, said)):
            self.process.copy(1, 8 * tokens.total)
            body()
            self.run([Kernel("reduce_kernel", 3 * LEAST_NS + 40 * tokens.sequences)])
            self.process.copy(2, 8 * tokens.sequences)
        self.process.clock += 15_000

    def forward(self, tokens: Tokens) -> None:
        """One eager forward pass."""
        with self.call("", "LlamaForCausalLM", tokens.shape(1)[:2], tokens.shape(VOCABULARY)):
            with self.call("model", "LlamaModel", tokens.shape(1)[:2], tokens.shape(HIDDEN)):
                with self.call(
                    "model.embed_tokens",
                    "Embedding",
                    tokens.shape(1)[:2],
                    tokens.shape(HIDDEN),
                    weight=(VOCABULARY, HIDDEN),
                ):
                    self.run([elementwise("indexSelectLargeIndex", tokens.total * HIDDEN)])
                for layer in range(self.layers):
                    self.layer(layer, tokens)
                self.norm("model.norm", tokens)
            # Training needs every token's logits, serving the last one's of each sequence.
            scored = tokens if self.training else tokens._replace(new=1)
            self.linear("lm_head", scored, HIDDEN, VOCABULARY)

    def layer(self, layer: int, tokens: Tokens) -> None:
        """One decoder layer."""
        here, shape = f"model.layers.{layer}", tokens.shape(HIDDEN)
        with self.call(here, "LlamaDecoderLayer", shape, shape):
            self.norm(f"{here}.input_layernorm", tokens)
            with self.call(f"{here}.self_attn", "LlamaAttention", shape, shape):
                self.attention(f"{here}.self_attn", tokens)
            self.run([_added(tokens)])
            self.norm(f"{here}.post_attention_layernorm", tokens)
            with self.call(f"{here}.mlp", "LlamaMLP", shape, shape):
                self.mlp(f"{here}.mlp", layer, tokens)
            self.run([_added(tokens)])

    def attention(self, here: str, tokens: Tokens) -> None:
        """Projections, rotary embedding and attention."""
        self.linear(f"{here}.qkv_proj", tokens, HIDDEN, HIDDEN + 2 * KEY_VALUE)
        rotated = [
            elementwise("vectorized_elementwise_kernel", tokens.total * width, "at::native::CUDAFunctor_mul")
            for width in (HIDDEN, KEY_VALUE)
        ]
        self.run([*rotated, attention(tokens)])
        self.linear(f"{here}.o_proj", tokens, HIDDEN, HIDDEN)

    def mlp(self, here: str, layer: int, tokens: Tokens) -> None:
        """The gated MLP: one product up, SiLU times the gate, one product down."""
        elements = tokens.total * INTERMEDIATE
        self.linear(f"{here}.gate_up_proj", tokens, HIDDEN, 2 * INTERMEDIATE)
        wide = tokens.shape(INTERMEDIATE)
        with self.call(f"{here}.act_fn", "SiluAndMul" if self.fused_act else "SiLU", wide, wide):
            self.run([elementwise("silu_and_mul_kernel", elements)] if self.fused_act else eager_act(elements))
        if not self.fused_act:
            self.run([elementwise("vectorized_elementwise_kernel", elements, "at::native::CUDAFunctor_mul")])
        self.linear(f"{here}.down_proj", tokens, INTERMEDIATE, HIDDEN, self.down(layer, tokens.total))

    def norm(self, path: str, tokens: Tokens) -> None:
        """RMSNorm as eager PyTorch computes it: square, mean, scale."""
        elements, shape = tokens.total * HIDDEN, tokens.shape(HIDDEN)
        with self.call(path, "RMSNorm", shape, shape, weight=(HIDDEN,)):
            self.run(
                [
                    elementwise("vectorized_elementwise_kernel", elements, "at::native::pow_tensor_scalar"),
                    elementwise("reduce_kernel", elements, "at::native::MeanOps"),
                    elementwise("vectorized_elementwise_kernel", elements, "at::native::CUDAFunctor_mul"),
                ]
            )

    def linear(self, path: str, tokens: Tokens, inner: int, outer: int, kernel: Kernel | None = None) -> None:
        """A Linear without bias."""
        with self.call(path, "Linear", tokens.shape(inner), tokens.shape(outer), weight=(outer, inner)):
            self.run([kernel or matmul(tokens.total, inner, outer)])

    def run(self, kernels: Sequence[Kernel], stream: int = COMPUTE) -> None:
        """Operators, one kernel each."""
        for kernel in kernels:
            self.process.clock += _OPERATOR_NS
            self.process.launch(kernel, stream)

    @contextmanager
    def call(self, path: str, class_name: str, given: Shape, result: Shape, **params: Shape) -> Iterator[None]:
        """A module's range around a block, and the empty one after it that tells its result."""
        path = f"{ROOT}.{path}" if path else ROOT
        said = [Param(name, shape, "bfloat16") for name, shape in params.items()]
        on_gpu = "int64 cuda:0" if class_name in {"LlamaForCausalLM", "LlamaModel", "Embedding"} else "bfloat16 cuda:0"
        text = formatting.call(path, class_name, params=said, inputs=[(given, on_gpu)])
        with self.process.range(text):
            self.process.clock += _MODULE_NS
            yield
            self.process.clock += _MODULE_NS // 2
        with self.process.range(formatting.result(path, class_name, [(result, "bfloat16 cuda:0")])):
            self.process.clock += 200


def _added(tokens: Tokens) -> Kernel:
    functor = "at::native::CUDAFunctor_add"
    return elementwise("vectorized_elementwise_kernel", tokens.total * HIDDEN, functor)
