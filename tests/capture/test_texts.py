"""Texts of markers: what they say of tensors and layers; big arguments and big traces stay affordable."""

import ast
import json
import pickle
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn

from tests.capture.models import by_path, markers, tree
from tracekit.capture import MemoryEmitter, layer_markers, step
from tracekit.causes import FIELD_CUT, FIELD_SKIPPED

pytestmark = pytest.mark.torch

A, B = torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64)


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclass
class Data:
    hidden: torch.Tensor
    rest: object = None


class ModelOutput(OrderedDict):
    """Like that of transformers: a dict that is a dataclass, too."""


def said(*args: object, output: object = None, **kwargs: object):
    model, to = nn.Module(), MemoryEmitter()
    model.forward = lambda *_args, **_kwargs: output
    with layer_markers(model, emitter=to):
        model(*args, **kwargs)
    for event in to.events:
        if event.text:
            assert ast.literal_eval(event.text) == json.loads(event.text)
    tree(to)
    return markers(to)


STRUCTURES = [
    ([A, [B, (A,)], None, 7, "x"], ((2, 3), (4,), (2, 3))),
    ({"a": A, "b": {"c": B}}, ((2, 3), (4,))),
    (Pair(A, B), ((2, 3), (4,))),
    (Data(A, [B]), ((2, 3), (4,))),
    (ModelOutput(last=A, cache=(B, B)), ((2, 3), (4,), (4,))),
    (torch.zeros(()), ((),)),
    (Data, ()),
    (object(), ()),
]


@pytest.mark.parametrize(("value", "shapes"), STRUCTURES, ids=lambda it: type(it).__name__)
def test_tensors_are_found_in_every_structure(value: object, shapes: tuple) -> None:
    first, *rest = said(value, output=value, named=value)
    assert first.inputs == shapes
    assert first.kwargs == ({"named": shapes} if shapes else {})
    assert [marker.outputs for marker in rest] == ([shapes] if shapes else [])


def test_dtype_and_device_are_told() -> None:
    first, result = said(A, torch.zeros(1, device="meta"), output=B, mask=A > 0)
    assert first.types == ("float32 cpu", "float32 meta")
    assert first.kwarg_types == {"mask": ("bool cpu",)}
    assert result.types == ("int64 cpu",)


@pytest.mark.parametrize("name", ["Module", "Class", "Inputs", "Outputs", "Kwargs", "Types", "Cut", "StaticParams"])
def test_a_keyword_argument_named_like_a_key_overwrites_nothing(name: str) -> None:
    (first,) = said(A, **{name: B})
    assert (first.path, first.class_name, first.inputs) == ("top", "Module", ((2, 3),))
    assert first.kwargs == {name: ((4,),)}
    assert first.cause is None


def test_a_structure_without_end_is_cut_and_said_to_be() -> None:
    endless: list[object] = []
    endless.append(endless)
    first, result = said([A] * 2_000, output=endless)
    assert (first.inputs, first.cause) == (None, FIELD_CUT)
    assert (result.outputs, result.cause) == (None, FIELD_CUT)


class Hostile:
    """Raises whatever one asks of it."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)


class HostileDict(Hostile, dict):
    pass


def test_an_argument_that_raises_ends_no_run_and_is_asked_nothing_if_its_type_holds_no_tensors() -> None:
    first, result = said(HostileDict(), output=HostileDict())
    assert (first.path, first.inputs, first.cause) == ("top", None, FIELD_CUT)
    assert (result.path, result.outputs, result.cause) == ("top", None, FIELD_CUT)
    (marker,) = said(Hostile(), A, output=Hostile())
    assert (marker.path, marker.inputs, marker.cause) == ("top", ((2, 3),), None)


STATIC = [
    (nn.Conv1d(2, 4, 3), {"in_chan": 2, "filter_dim": [3], "transposed": 0, "groups": 1, "padding_mode": "zeros"}),
    (nn.MaxPool1d(2), {"filter_dim": [2], "stride": [2], "padding": [0], "dilation": [1], "ceil_mode": 0}),
    (nn.AdaptiveAvgPool2d((None, 7)), {"output_size": ["None", 7]}),
    (nn.BatchNorm2d(3, momentum=None), {"num_features": 3, "epsilon": 1e-05}),
    (nn.LSTM(4, 5, 2, bidirectional=True), {"input_size": 4, "hidden_size": 5, "num_layers": 2, "bidirectional": 1}),
    (nn.MultiheadAttention(8, 2), {"embed_dim": 8, "num_heads": 2, "head_dim": 4}),
    (nn.Softmax(-1), None),
]


@pytest.mark.parametrize(("layer", "expected"), STATIC, ids=lambda it: type(it).__name__)
def test_a_layer_tells_what_it_was_built_with(layer: nn.Module, expected: dict | None) -> None:
    layer.forward = lambda: None
    with layer_markers(layer, emitter=(to := MemoryEmitter()), skip=()):
        layer()
    text = to.events[0].text
    assert ast.literal_eval(text) == json.loads(text)
    found = by_path(to)["top"]
    assert found.cause is not FIELD_SKIPPED
    static = json.loads(found.static_params or "null")
    assert static is expected or {key: static[key] for key in expected} == expected


def test_trainable_parameters_of_the_module_itself_are_told_with_their_dtype() -> None:
    to = MemoryEmitter()
    with layer_markers(nn.Sequential(model := nn.Linear(4, 2).double()), emitter=to):
        model(torch.zeros(1, 4).double())
    told = [(param.name, param.shape, param.dtype) for param in by_path(to)["top.0"].params]
    assert told == [("weight", (2, 4), "float64"), ("bias", (2,), "float64")]


def test_a_model_saved_while_it_is_marked_holds_nothing_of_tracekit() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    with layer_markers(model, backward=True, emitter=MemoryEmitter()):
        content = pickle.dumps(model)
    assert b"tracekit" not in content
    assert pickle.loads(content)(torch.zeros(1, 3, 8)).shape == (1, 3, 8)


def test_a_step_that_another_thread_ends_is_closed_before_the_next_one() -> None:
    to = MemoryEmitter()
    (first := step("first", emitter=to)).__enter__()
    with ThreadPoolExecutor(1) as other:
        other.submit(first.__exit__, None, None, None)
    with step("second", emitter=to):
        pass
    assert tree(to) == ["first", "second"]


def test_texts_of_ever_new_shapes_are_forgotten_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.capture.marks._MOST_TEXTS", most := 30)
    kept: weakref.WeakSet[Callable[[], object]] = weakref.WeakSet()

    class Watched(MemoryEmitter):
        def opener(self, text: str, /) -> Callable[[], object]:
            kept.add(opener := super().opener(text))
            return opener

    to, model, sizes = Watched(), nn.Sequential(*(nn.ReLU() for _ in range(4))), [*range(1, 60), 1, 59]
    with layer_markers(model, emitter=to):
        for size in sizes:
            model(torch.ones(size))
        assert len(kept) <= 2 * most
    markers = [json.loads(event.text) for event in to.events if event.text]
    inputs = [marker["Inputs"] for marker in markers if "Inputs" in marker]
    assert inputs == [[[size]] for size in sizes for _module in range(5)]
