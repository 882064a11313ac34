"""Training by the trainers of others: Lightning, transformers, accelerate."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.capture.loops import COUNT, SIZE, Net

WORDS = 11


def _language_model() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
    )
    return LlamaForCausalLM(config)


def _hf_trained(**arguments: Any) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Counted(TrainerCallback):
        def on_step_end(self, *args: object, **kwargs: object) -> None:
            COUNT.step_ended()

    data = [{"input_ids": (ids := torch.randint(0, WORDS, (4,))), "labels": ids} for _ in range(12)]
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            per_device_train_batch_size=2,
            per_device_eval_batch_size=2,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            **arguments,
        )
        model = COUNT.watch(_language_model())
        Trainer(model, settings, train_dataset=data, eval_dataset=data[:6], callbacks=[Counted()]).train()


def hf_accumulating() -> None:
    _hf_trained(
        gradient_accumulation_steps=2, num_train_epochs=2, eval_strategy="steps", eval_steps=2,
        gradient_checkpointing=True,
    )  # fmt: skip


def hf_plain() -> None:
    _hf_trained(max_steps=5, eval_strategy="epoch")


def accelerated() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    net = COUNT.watch(Net())
    data = DataLoader(TensorDataset(torch.ones(20, SIZE)), batch_size=2)
    model, optimizer, data = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), data)
    for _ in range(2):
        for (batch,) in data:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().sum())
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                COUNT.step_ended()


def _lightning_module() -> Any:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.loss = Net(), nn.MSELoss()

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return self.loss(self.net(batch[0]), batch[0])

        def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
            self.loss(self.net(batch[0]), batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Module


def _fitted(module: Any, **settings: Any) -> None:
    import lightning

    class Counted(lightning.Callback):
        steps = 0

        def on_train_batch_end(self, trainer: Any, *args: object) -> None:
            if trainer.global_step > self.steps:
                self.steps = trainer.global_step
                COUNT.step_ended()

    COUNT.watch(module.net, "Net")
    data = DataLoader(TensorDataset(torch.ones(12, SIZE)), batch_size=2)
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[Counted()], **settings,
    )  # fmt: skip
    trainer.fit(module, data, data)


def lightning_plain() -> None:
    _fitted(_lightning_module()(), max_epochs=2)


def lightning_accumulating() -> None:
    _fitted(_lightning_module()(), max_epochs=2, accumulate_grad_batches=2)


def lightning_lbfgs() -> None:
    class Module(_lightning_module()):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=3, tolerance_grad=0, tolerance_change=0)

    _fitted(Module(), max_epochs=1)


def lightning_gan() -> None:
    class Module(_lightning_module()):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.maker = Net()

        def training_step(self, batch, _):
            makers, judges = self.optimizers()
            fake = self.maker(batch[0])
            for optimizer, input_ in ((judges, fake.detach()), (makers, fake)):
                optimizer.zero_grad()
                self.manual_backward(self.net(input_).mean())
                optimizer.step()

        def configure_optimizers(self):
            return [torch.optim.Adam(self.maker.parameters()), torch.optim.Adam(self.net.parameters())]

    _fitted(Module(), max_epochs=1)
