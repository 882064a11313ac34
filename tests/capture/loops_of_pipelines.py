"""Pipelines that denoise, and loops that generate: several models called in turn, none of them trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.capture.loops import COUNT, Net

WORDS = 11


def _stable_diffusion() -> Any:
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    unet = UNet2DConditionModel(
        block_out_channels=(4, 8), layers_per_block=1, sample_size=8, in_channels=4, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=8, norm_num_groups=2, attention_head_dim=2,
    )  # fmt: skip
    vae = AutoencoderKL(
        block_out_channels=[4, 8], in_channels=3, out_channels=3, down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2, latent_channels=4, norm_num_groups=2,
    )  # fmt: skip
    text = CLIPTextConfig(
        hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=2, vocab_size=WORDS,
        bos_token_id=0, eos_token_id=2, pad_token_id=1,
    )  # fmt: skip
    pipeline = StableDiffusionPipeline(
        vae=vae, unet=unet, text_encoder=CLIPTextModel(text), tokenizer=None, scheduler=DDIMScheduler(),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@torch.no_grad()
def _images(steps: int, images: int, guidance: float = 5.0) -> None:
    pipeline = _stable_diffusion()
    COUNT.watch(pipeline.unet, training=False)
    pipeline.scheduler.step = COUNT.ends_with(pipeline.scheduler.step)
    for _ in range(images):
        text = pipeline.text_encoder(torch.ones(1, 7, dtype=torch.long))[0]
        negative = pipeline.text_encoder(torch.zeros(1, 7, dtype=torch.long))[0] if guidance > 1 else None
        pipeline(
            prompt_embeds=text, negative_prompt_embeds=negative, num_inference_steps=steps,
            guidance_scale=guidance, height=16, width=16, output_type="np",
        )  # fmt: skip


def diffusion() -> None:
    _images(4, 1)


def diffusion_of_images() -> None:
    _images(3, 2)


def ddpm() -> None:
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    unet = UNet2DModel(
        sample_size=8, block_out_channels=(4, 8), layers_per_block=1, norm_num_groups=2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=2,
    )  # fmt: skip
    pipeline = DDPMPipeline(unet, DDPMScheduler())
    pipeline.set_progress_bar_config(disable=True)
    COUNT.watch(pipeline.unet, training=False)
    pipeline.scheduler.step = COUNT.ends_with(pipeline.scheduler.step)
    for _ in range(2):
        pipeline(num_inference_steps=4)


def _transformer_images(steps: int, images: int) -> None:
    from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel

    transformer = DiTTransformer2DModel(
        sample_size=8, num_layers=2, patch_size=2, attention_head_dim=4, num_attention_heads=2, in_channels=4,
        out_channels=8, attention_bias=True, num_embeds_ada_norm=1000, norm_elementwise_affine=False,
    )  # fmt: skip
    vae = AutoencoderKL(block_out_channels=[4], norm_num_groups=2, latent_channels=4)
    pipeline = DiTPipeline(transformer, vae, DDIMScheduler())
    pipeline.set_progress_bar_config(disable=True)
    COUNT.watch(pipeline.transformer, training=False)
    pipeline.scheduler.step = COUNT.ends_with(pipeline.scheduler.step)
    for _ in range(images):
        pipeline(class_labels=[1], num_inference_steps=steps, output_type="np")


def transformer_diffusion() -> None:
    _transformer_images(10, 1)


def transformer_diffusion_of_images() -> None:
    """The decoder has about as many modules as the model that denoises."""
    _transformer_images(4, 2)


def _language_model(layers: int = 2) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=8, intermediate_size=8, num_hidden_layers=layers, num_attention_heads=2,
        bos_token_id=0, eos_token_id=None, pad_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


IDS = torch.tensor([[3, 4, 5]])


def generate() -> None:
    model = _language_model()
    COUNT.watch(model, training=False)
    model.register_forward_hook(COUNT.step_ended)
    for length in (5, 3, 4):
        model.generate(IDS, max_new_tokens=length, do_sample=False)


def beams() -> None:
    model = _language_model()
    COUNT.watch(model, training=False)
    model.register_forward_hook(COUNT.step_ended)
    model.generate(IDS, max_new_tokens=6, num_beams=2)


def _assisted(tokens: int, layers: int) -> None:
    model, draft = _language_model(4), _language_model(layers)
    draft.generation_config.num_assistant_tokens = tokens
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0
    COUNT.watch(model, "LlamaForCausalLM_2", training=False)
    model.register_forward_hook(COUNT.step_ended)
    model.generate(IDS, max_new_tokens=12, do_sample=False, assistant_model=draft)


def assisted() -> None:
    _assisted(3, 1)


def assisted_alike() -> None:
    """The draft has as many modules as its target."""
    _assisted(4, 4)


def _encoder_decoder(lengths: list[int]) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=WORDS, d_model=8, d_ff=8, d_kv=4, num_layers=2, num_heads=2, decoder_start_token_id=0,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).eval()
    COUNT.watch(model, training=False)
    model.register_forward_hook(COUNT.step_ended)
    for length in lengths:
        model.generate(IDS, max_new_tokens=length, do_sample=False)


def encoder_decoder() -> None:
    _encoder_decoder([5, 5, 3])


def evaluation() -> None:
    model, loss = COUNT.watch(Net(), training=False).eval(), nn.MSELoss()
    with torch.inference_mode():
        for _ in range(5):
            loss(model(torch.ones(2, 4)), torch.ones(2, 4))
            COUNT.step_ended()


def rollout() -> None:
    actor, critic = COUNT.watch(Net(), training=False), Net(1)
    with torch.no_grad():
        for _ in range(5):
            actor(torch.ones(2, 4)), critic(torch.ones(2, 4))
            COUNT.step_ended()
