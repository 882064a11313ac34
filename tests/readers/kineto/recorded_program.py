"""A program to record: modules that are shared or called twice, keywords, shapes that change, backward passes."""

from __future__ import annotations

import torch

from tests.capture.models import Cnn, Encoder
from tracekit.capture import layer_markers, step


def main() -> None:
    """Runs unmarked, as ``tracekit capture`` marks it."""
    train(Cnn(), Encoder())


def marked() -> None:
    """The same, marked."""
    cnn, encoder = Cnn(), Encoder()
    with layer_markers(cnn, "Cnn"), layer_markers(encoder, "Encoder"):
        train(cnn, encoder)


def train(cnn: Cnn, encoder: Encoder) -> None:
    image, ids, mask = torch.ones(2, 3, 8, 8), torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3)
    for size in (1, 2):
        with step("train", kind="train", batch_size=size):
            cnn(image[:size]).sum().backward()
            encoder(ids[:size], mask=mask[:size])["last"].sum().backward()
