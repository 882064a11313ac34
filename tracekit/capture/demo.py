"""A small Llama with random weights that answers three requests: shows tracekit in seconds, without a download."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from tracekit.capture.steps import step

#: Number of steps of the first request, which is the warm-up.
WARMUP = 4
_REQUESTS, _DECODES = 3, 3
_BATCH, _TOKENS = 4, 64
_VOCABULARY, _HIDDEN, _LAYERS, _HEADS = 2_048, 256, 6, 8
_SIZE = _HIDDEN // _HEADS
_THETA = 10_000.0


#: Keys and values [2, batch, heads, tokens, size of a head] of the tokens so far, by layer.
Past = list[Tensor]


class LlamaRotaryEmbedding(nn.Module):
    """Cosines and sines of positions."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        exponents = torch.arange(0, _SIZE, 2) / _SIZE
        self.register_buffer("frequencies", _THETA**-exponents, persistent=False)

    @override
    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """For positions [tokens]: two tensors [tokens, size of a head]."""
        angles = positions[:, None] * self.frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()


class LlamaAttention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        projections = (nn.Linear(_HIDDEN, _HIDDEN, bias=False) for _ in range(4))
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = projections

    @override
    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], past: Past, layer: int) -> Tensor:
        """Maps [batch, tokens, hidden] to the same shape; appends the keys and values to the past."""
        projected = (project(x).unflatten(2, (_HEADS, _SIZE)) for project in (self.q_proj, self.k_proj, self.v_proj))
        query, key, value = (heads.transpose(1, 2) for heads in projected)
        query, key = _rotated(query, *rotary), _rotated(key, *rotary)
        past[layer] = torch.cat((past[layer], torch.stack((key, value))), dim=3)
        key, value = past[layer]
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=x.shape[1] > 1)
        joined: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return joined


class LlamaMLP(nn.Module):
    """The gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(_HIDDEN, 3 * _HIDDEN, bias=False)
        self.up_proj = nn.Linear(_HIDDEN, 3 * _HIDDEN, bias=False)
        self.down_proj = nn.Linear(3 * _HIDDEN, _HIDDEN, bias=False)
        self.act_fn = nn.SiLU()

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, tokens, hidden] to the same shape."""
        down: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return down


class LlamaDecoderLayer(nn.Module):
    """Attention and feed-forward network, each with a norm before it and a residual connection around it."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(_HIDDEN)
        self.self_attn = LlamaAttention()
        self.post_attention_layernorm = nn.RMSNorm(_HIDDEN)
        self.mlp = LlamaMLP()

    @override
    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], past: Past, layer: int) -> Tensor:
        """Maps [batch, tokens, hidden] to the same shape."""
        x = x + self.self_attn(self.input_layernorm(x), rotary, past, layer)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class LlamaModel(nn.Module):
    """The model without its head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(_VOCABULARY, _HIDDEN)
        self.layers = nn.ModuleList(LlamaDecoderLayer() for _ in range(_LAYERS))
        self.norm = nn.RMSNorm(_HIDDEN)
        self.rotary_emb = LlamaRotaryEmbedding()

    @override
    def forward(self, ids: Tensor, past: Past) -> Tensor:
        """Token ids [batch, tokens] to [batch, tokens, hidden]."""
        before = past[0].shape[3]
        rotary = self.rotary_emb(torch.arange(before, before + ids.shape[1], device=ids.device))
        x = self.embed_tokens(ids)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotary, past, index)
        normed: Tensor = self.norm(x)
        return normed


class LlamaForCausalLM(nn.Module):
    """The whole model: predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.model = LlamaModel()
        self.lm_head = nn.Linear(_HIDDEN, _VOCABULARY, bias=False)

    @override
    def forward(self, ids: Tensor, past: Past | None = None) -> Tensor:
        """Token ids [batch, tokens] to scores [batch, vocabulary] after the last."""
        hidden = self.model(ids, _no_past(ids) if past is None else past)
        scores: Tensor = self.lm_head(hidden[:, -1])
        return scores


def model_and_prompt() -> tuple[LlamaForCausalLM, Tensor]:
    """The model, and the token ids [batch, tokens] of the requests."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = LlamaForCausalLM().to(device).eval()
    return model, torch.randint(_VOCABULARY, (_BATCH, _TOKENS), device=device)


@torch.no_grad()
def small_llama() -> None:
    """Answers requests, each with one prefill step and some decode steps."""
    model, prompt = model_and_prompt()
    for _ in range(_REQUESTS):
        past = _no_past(prompt)
        with step("prefill", kind="prefill", batch_size=_BATCH, tokens=prompt.numel()):
            ids = model(prompt, past).argmax(-1, keepdim=True)
        for _ in range(_DECODES):
            with step("decode", kind="decode", batch_size=_BATCH, tokens=_BATCH):
                ids = model(ids, past).argmax(-1, keepdim=True)


def _no_past(ids: Tensor) -> Past:
    return [torch.empty(2, ids.shape[0], _HEADS, 0, _SIZE, device=ids.device)] * _LAYERS


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
