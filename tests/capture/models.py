"""Small models of the kinds that markers must get right, and what their markers said."""

import threading
from collections import Counter

import torch
from torch import nn

from tracekit.capture import MemoryEmitter
from tracekit.markers.base import ModuleMarker
from tracekit.trace.decoding import decode


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(8, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.stem(image)).mean((2, 3)))


class Layer(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 8)
        self.act = act

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x + self.act(self.up(self.norm(x)))


class Encoder(nn.Module):
    """Two layers share an activation; the second layer runs twice."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.GELU()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList([Layer(act), Layer(act)])

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> dict:
        x = self.embed(ids)
        for layer in (self.layers[0], self.layers[1], self.layers[1]):
            x = layer(x, mask=mask)
        return {"last": x, "mask": mask}


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.out = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0])


class Failing(nn.Module):
    """A module two levels down raises; the one above may catch it."""

    def __init__(self, error: BaseException, *, caught: bool = False) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Identity(), Raising(error))
        self.after = nn.ReLU()
        self.caught = caught
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            self.inner(x)
        except type(self.error):
            if not self.caught:
                raise
        return self.after(x)


class Raising(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


def markers(to: MemoryEmitter) -> list[ModuleMarker]:
    texts = [event.text for event in to.events if event.text is not None]
    decoded = decode(texts)
    said = [decoded.markers[at] for at in decoded.of_text]
    assert len(said) == len(texts)
    return [marker for marker in said if isinstance(marker, ModuleMarker)]


def tree(to: MemoryEmitter, thread: int | None = None) -> list[str]:
    lines, depth = [], 0
    mine = [event for event in to.events if event.thread == (thread or threading.get_ident())]
    for event in mine:
        if event.text is None:
            depth -= 1
            assert depth >= 0, "closed more than was opened"
            continue
        for marker in decode([event.text]).markers if not event.text.startswith('{"Renamed"') else ():
            if getattr(marker, "only_result", False):
                continue
            lines.append("  " * depth + getattr(marker, "path", getattr(marker, "name", "")))
        depth += 1
    assert depth == 0, "left open"
    return lines


def by_path(to: MemoryEmitter, *, result: bool = False) -> dict[str, ModuleMarker]:
    return {marker.path: marker for marker in markers(to) if marker.only_result is result}


def counted(to: MemoryEmitter) -> dict[str, int]:
    return Counter(marker.path for marker in markers(to) if not marker.only_result)
