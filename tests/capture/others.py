"""Models of others, built from small configurations with random weights: nothing is downloaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch import nn

WORDS, WIDTH = 48, 16
Run = Callable[[], Any]


class Other(NamedTuple):
    """A model and how it is called.

    Attributes:
        model: The model.
        run: Calls it once, on inputs that stay the same.
        trains: Whether what it returns can be differentiated.
        inputs: What it is called with: positional, or by name.
    """

    model: nn.Module
    run: Run
    trains: bool = True
    inputs: tuple[Any, ...] | dict[str, Any] = ()


def ids(length: int = 6, batch: int = 2) -> Tensor:
    return torch.arange(length * batch).view(batch, length) % WORDS


def image(size: int = 16, channels: int = 3) -> Tensor:
    return torch.linspace(-1, 1, 2 * channels * size * size).view(2, channels, size, size)


def with_inputs(model: nn.Module, *inputs: Any, **named: Any) -> Other:
    return Other(model, lambda: model(*inputs, **named), inputs=named or inputs)


def language_model(model: nn.Module) -> Other:
    return with_inputs(model, input_ids=ids(), labels=ids())


def loss_of(output: Any) -> Tensor:
    """Its own loss, or the sum of all numbers in it."""
    if isinstance(loss := getattr(output, "loss", None), Tensor):
        return loss
    return sum((tensor.sum() for tensor in differentiable(output)), torch.zeros(()))


def differentiable(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.requires_grad else []
    if isinstance(output, Mapping):
        output = list(output.values())
    elif dataclasses.is_dataclass(output):
        output = list(vars(output).values())
    return [tensor for part in output for tensor in differentiable(part)] if isinstance(output, list | tuple) else []


def llama() -> Other:
    from transformers import LlamaConfig, LlamaForCausalLM

    return language_model(LlamaForCausalLM(LlamaConfig(**decoder(), num_key_value_heads=1)))


def decoder() -> dict[str, int]:
    return {
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }


def llama_eager() -> Other:
    from transformers import LlamaConfig, LlamaForCausalLM

    return language_model(LlamaForCausalLM(LlamaConfig(**decoder(), attn_implementation="eager")))


def llama_generates() -> Other:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**decoder(), pad_token_id=0, bos_token_id=1, eos_token_id=None)).eval()
    asked = ids()
    return Other(
        model,
        lambda: model.generate(asked, attention_mask=torch.ones_like(asked), max_new_tokens=3, do_sample=False),
        trains=False,
    )


def gpt2() -> Other:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": WORDS, "n_positions": 16, "n_embd": WIDTH, "n_layer": 2, "n_head": 2}
    return language_model(GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)))


def t5() -> Other:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    return language_model(T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)))


def bart() -> Other:
    from transformers import BartConfig, BartForConditionalGeneration

    sizes = {f"{side}_{part}": 2 for side in ("encoder", "decoder") for part in ("layers", "attention_heads")}
    sizes |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": WORDS, "d_model": WIDTH}
    return language_model(BartForConditionalGeneration(BartConfig(**sizes, max_position_embeddings=16)))


def bert() -> Other:
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(**decoder(), max_position_embeddings=16))
    return with_inputs(model, input_ids=ids(), labels=torch.tensor([0, 1]))


def mixtral() -> Other:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**decoder(), num_key_value_heads=1, num_local_experts=4, output_router_logits=True)
    return language_model(MixtralForCausalLM(config))


def qwen_experts() -> Other:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    sizes = {"num_experts": 4, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 12}
    return language_model(Qwen2MoeForCausalLM(Qwen2MoeConfig(**decoder(), **sizes, num_key_value_heads=1)))


def mamba() -> Other:
    from transformers import MambaConfig, MambaForCausalLM

    sizes = {"vocab_size": WORDS, "hidden_size": WIDTH, "state_size": 4, "num_hidden_layers": 2}
    return language_model(MambaForCausalLM(MambaConfig(**sizes)))


def whisper() -> Other:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {f"{side}_{part}": 2 for side in ("encoder", "decoder") for part in ("layers", "attention_heads")}
    sizes |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": WORDS, "d_model": WIDTH}
    sizes |= {"num_mel_bins": 4, "max_source_positions": 8, "max_target_positions": 16}
    tokens = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 0}
    model = WhisperForConditionalGeneration(WhisperConfig(**sizes, **tokens))
    return with_inputs(model, input_features=torch.linspace(-1, 1, 2 * 4 * 16).view(2, 4, 16), labels=ids())


def vit() -> Other:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {name: size for name, size in decoder().items() if name != "vocab_size"}
    return with_inputs(ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=8)), image())


def clip() -> Other:
    from transformers import CLIPConfig, CLIPModel

    text = decoder() | {"max_position_embeddings": 8, "bos_token_id": 0, "eos_token_id": 47}
    vision = {name: size for name, size in decoder().items() if name != "vocab_size"}
    vision |= {"image_size": 16, "patch_size": 8}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    return with_inputs(model, input_ids=ids(), pixel_values=image(), return_loss=True)


def resnet() -> Other:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic")
    return with_inputs(ResNetForImageClassification(config), image(32))


def convnext() -> Other:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(num_stages=2, hidden_sizes=[8, 16], depths=[1, 2])
    return with_inputs(ConvNextForImageClassification(config), image(32))


def segformer() -> Other:
    """Stages of several resolutions, whose results are joined at the end."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    sizes = {"depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "patch_sizes": [3, 3], "strides": [2, 2]}
    config = SegformerConfig(
        num_encoder_blocks=2, **sizes, num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=8
    )
    return with_inputs(SegformerForSemanticSegmentation(config), image())


def unet() -> Other:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    return with_inputs(model, image(8, 4), torch.tensor([3, 7]), torch.ones(2, 5, WIDTH))


def autoencoder() -> Other:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
    )
    return with_inputs(model, image())


def dit() -> Other:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8, num_embeds_ada_norm=10
    )
    steps, labels = torch.tensor([3, 7]), torch.tensor([1, 2])
    return with_inputs(model, image(8, 4), timestep=steps, class_labels=labels)


def lora() -> Other:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "gate_proj"], lora_dropout=0.1)
    return language_model(get_peft_model(llama().model, config))


def lora_off() -> Other:
    other = lora()

    def run() -> Any:
        with other.model.disable_adapter():
            return other.run()

    return Other(other.model, run, trains=False)


def lora_merged() -> Other:
    return language_model(lora().model.merge_and_unload().requires_grad_())


def sentences() -> Other:
    import tempfile

    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Pooling, Transformer
    from transformers import BertConfig, BertModel

    with tempfile.TemporaryDirectory() as folder:
        BertModel(BertConfig(**decoder(), max_position_embeddings=16)).save_pretrained(folder)
        words = Transformer(folder)
    model = SentenceTransformer(modules=[words, Pooling(WIDTH), Dense(WIDTH, 8)], device="cpu")
    return Other(model, lambda: model({"input_ids": ids(), "attention_mask": torch.ones_like(ids())}))


#: Models by name.
OTHERS: dict[str, Callable[[], Other]] = {
    make.__name__: make
    for make in (
        *(llama, llama_eager, llama_generates, gpt2, t5, bart, bert, mixtral, qwen_experts, mamba, whisper),
        *(vit, clip, resnet, convnext, segformer, unet, autoencoder, dit, lora, lora_off, lora_merged, sentences),
    )
}
#: Those of several kinds of layers that can be recomputed.
RECOMPUTED = ("llama", "gpt2", "t5", "mixtral", "vit", "lora", "unet")


def recompute(model: Any, *, reentrant: bool) -> None:
    """Switches gradient checkpointing on."""
    if reentrant:
        model.enable_input_require_grads()
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    else:
        model.enable_gradient_checkpointing()
