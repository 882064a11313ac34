"""Programs with threads end as they would without tracekit; texts, big arguments and big traces stay affordable."""

from __future__ import annotations

import json
import pickle
import threading
import weakref
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import tracekit
from tests.capture import places
from tests.capture.models import tree
from tests.capture.places import one_line
from tracekit.capture import Listed, layer_markers, step
from tracekit.capture.kineto_file import trace_in
from tracekit.capture.tensors import MOST_PARTS, all_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.capture.places import Place

pytestmark = pytest.mark.torch


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from places.place(tmp_path, monkeypatch)


@pytest.mark.parametrize("target", ["model.py", "model.py:main"])
def test_a_worker_that_is_not_joined_is_recorded_to_its_end(place: Place, target: str) -> None:
    place.write("""
import threading, time, torch
model = torch.nn.Linear(4, 4)
def work():
    for _ in range(5):
        time.sleep(0.02)
        model(torch.zeros(2, 4))
def main():
    model(torch.zeros(1, 4))
    threading.Thread(target=work).start()
if __name__ == "__main__":
    main()
""")
    outcome = place.capture(target, "-o", "out.sqlite")
    assert outcome.code == 0, outcome.err
    assert "recorded 12 markers" in outcome.err


def test_a_forward_that_fails_is_named_with_its_shapes(place: Place) -> None:
    place.write("""
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(3, 3)])
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
def make(): return Net(), torch.zeros(2, 4)
""")
    assert "in Net.layers.1 (Linear) with inputs [2, 4] float32" in one_line(place.capture("model.py:make"))
    assert "has no function mkae; did you mean make?" in one_line(place.capture("model.py:mkae"))


def test_a_namedtuple_is_one_argument(place: Place) -> None:
    place.write("""
import torch
from collections import namedtuple
Batch = namedtuple("Batch", "ids mask")
class Net(torch.nn.Module):
    def forward(self, batch): return batch.ids + batch.mask
def make(): return Net(), Batch(torch.zeros(2), torch.ones(2))
""")
    assert place.capture("model.py:make").code == 0


def test_a_model_saved_while_it_is_marked_holds_nothing_of_tracekit() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    with layer_markers(model, backward=True, emitter=Listed()):
        content = pickle.dumps(model)
    assert b"tracekit" not in content
    assert pickle.loads(content)(torch.zeros(1, 3, 8)).shape == (1, 3, 8)


def test_a_step_that_another_thread_ends_is_closed_before_the_next_one() -> None:
    to = Listed()
    first = step("first", emitter=to)
    first.__enter__()
    ending = threading.Thread(target=first.__exit__, args=(None, None, None))
    ending.start()
    ending.join()
    with step("second", emitter=to):
        pass
    assert tree(to) == ["first", "second"]


def test_losses_made_for_every_call_are_one_root(place: Place) -> None:
    place.write("""
import torch
def main():
    for _ in range(5):
        torch.nn.MSELoss()(torch.zeros(2), torch.ones(2))
""")
    assert place.capture("model.py:main", "-o", "out.sqlite").code == 0
    assert tracekit.parse(place.folder / "out.sqlite").modules().path.tolist() == ["MSELoss"]


@pytest.mark.parametrize(("each", "all_"), [(5, 10_000), (10_000, 30)])
def test_texts_of_ever_new_shapes_are_forgotten_and_made_again(
    monkeypatch: pytest.MonkeyPatch, each: int, all_: int
) -> None:
    monkeypatch.setattr("tracekit.capture.marks._MOST_TEXTS", each)
    monkeypatch.setattr("tracekit.capture.marks._MOST_TEXTS_OF_ALL", all_)
    kept: weakref.WeakSet[Callable[[], object]] = weakref.WeakSet()

    class Watched(Listed):
        def opener(self, text: str, /) -> Callable[[], object]:
            kept.add(opener := super().opener(text))
            return opener

    to, model = Watched(), nn.Sequential(*(nn.ReLU() for _ in range(4)))
    sizes = [*range(1, 60), 1, 59]
    with layer_markers(model, emitter=to):
        for size in sizes:
            model(torch.ones(size))
        assert len(kept) <= min(2 * 5 * (each + 1), 2 * all_)  # two texts a call: before and after
    markers = [json.loads(event.text) for event in to.events if event.text]
    inputs = [marker["Inputs"] for marker in markers if "Inputs" in marker]
    assert inputs == [[[size]] for size in sizes for _module in range(5)]


def test_a_large_dict_is_not_walked_through() -> None:
    class Counted(dict):
        seen = 0

        def values(self):
            for value in super().values():
                Counted.seen += 1
                yield value

    assert all_tensors(Counted.fromkeys(range(100_000), "text")) is None
    assert Counted.seen <= MOST_PARTS + 1


@pytest.mark.parametrize("size", [40, 1 << 22])
def test_a_trace_is_read_in_pieces_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("tracekit.capture.kineto_file._PIECE_BYTES", max(size, 1 << 10))
    names = ["plain", "end\\n  },\\n", *map(str, range(500))]
    events = ",\n".join(
        f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "{name}",\n    "ts": {at}.5\n  }}'
        for at, name in enumerate(names)
    )
    path = tmp_path / "trace.json"
    path.write_text(f'{{"baseTimeNanoseconds": 7,\n    "traceEvents": [\n{events}\n  ],"traceName": "x"}}')
    trace = trace_in(path)
    assert trace["baseTimeNanoseconds"] == 7
    assert list(trace["traceEvents"]) == json.loads(path.read_text())["traceEvents"]
