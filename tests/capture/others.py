"""Models of others, built from small configurations with random weights: nothing is downloaded."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

WORDS, WIDTH = 48, 16
Run = Callable[[], Any]


class Other(NamedTuple):
    """A model, what calls it once, and what it is then called with: positional, or by name."""

    model: nn.Module
    run: Run
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
    if isinstance(loss := getattr(output, "loss", None), Tensor):
        return loss
    return sum((tensor.sum() for tensor in tensors_in(output) if tensor.requires_grad), torch.zeros(()))


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return [tensor for part in value for tensor in tensors_in(part)] if isinstance(value, list | tuple) else []


def llama() -> Other:
    from transformers import LlamaConfig, LlamaForCausalLM

    return language_model(LlamaForCausalLM(LlamaConfig(**decoder(), num_key_value_heads=1)))


def decoder() -> dict[str, int]:
    sizes = {"intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return {"vocab_size": WORDS, "hidden_size": WIDTH, **sizes}


def llama_generates() -> Other:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**decoder(), pad_token_id=0, bos_token_id=1, eos_token_id=None)).eval()
    asked, mask = ids(), torch.ones_like(ids())
    return Other(model, lambda: model.generate(asked, attention_mask=mask, max_new_tokens=3, do_sample=False))


def t5() -> Other:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    return language_model(T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)))


def mixtral() -> Other:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**decoder(), num_key_value_heads=1, num_local_experts=4, output_router_logits=True)
    return language_model(MixtralForCausalLM(config))


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


def lora() -> Other:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "gate_proj"], lora_dropout=0.1)
    return language_model(get_peft_model(llama().model, config))


#: Models by name.
OTHERS: dict[str, Callable[[], Other]] = {
    make.__name__: make for make in (llama, llama_generates, t5, mixtral, clip, resnet, unet, lora)
}


def recompute(model: Any, *, reentrant: bool) -> None:
    if reentrant:
        model.enable_input_require_grads()
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    else:
        model.enable_gradient_checkpointing()
