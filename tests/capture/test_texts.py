"""What markers say of tensors and of layers."""

from __future__ import annotations

import ast
import json
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn

from tests.capture.models import by_path, markers, tree
from tracekit.capture import Listed, layer_markers
from tracekit.causes.markers import FIELD_CUT, FIELD_SKIPPED

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


class Echo(nn.Module):
    """Returns what it is told to."""

    def __init__(self, output: object = None) -> None:
        super().__init__()
        self.__dict__["output"] = output

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.output


def said(*args: object, output: object = None, **kwargs: object):
    """The markers of one call: before, and after if there is one."""
    to = Listed()
    with layer_markers(model := Echo(output), emitter=to):
        model(*args, **kwargs)
    for event in to.events:
        if event.text:
            assert ast.literal_eval(event.text) == json.loads(event.text)
    tree(to)
    return markers(to)


STRUCTURES = [
    (A, ((2, 3),)),
    ((A, B), ((2, 3), (4,))),
    ([A, [B, (A,)], None, 7, "x"], ((2, 3), (4,), (2, 3))),
    ({"a": A, "b": {"c": B}}, ((2, 3), (4,))),
    (Pair(A, B), ((2, 3), (4,))),
    (Data(A, [B]), ((2, 3), (4,))),
    (ModelOutput(last=A, cache=(B, B)), ((2, 3), (4,), (4,))),
    (torch.zeros(()), ((),)),
    (nn.Parameter(A), ((2, 3),)),
    ([], ()),
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


def test_another_dtype_of_the_same_shape_is_another_text() -> None:
    model, to = nn.ReLU(), Listed()
    with layer_markers(model, emitter=to):
        model(A)
        model(A.double())
    assert [marker.types[0] for marker in markers(to)] == ["float32 cpu"] * 2 + ["float64 cpu"] * 2


@pytest.mark.parametrize("name", ["Module", "Class", "Inputs", "Outputs", "Kwargs", "Types", "Cut", "StaticParams"])
def test_a_keyword_argument_named_like_a_key_overwrites_nothing(name: str) -> None:
    (first,) = said(A, **{name: B})
    assert (first.path, first.class_name, first.inputs) == ("top", "Echo", ((2, 3),))
    assert first.kwargs == {name: ((4,),)}
    assert first.cause is None


def test_a_structure_without_end_is_cut_and_said_to_be() -> None:
    endless: list[object] = []
    endless.append(endless)
    first, result = said([A] * 2_000, output=endless)
    assert (first.inputs, first.cause) == (None, FIELD_CUT)
    assert (result.outputs, result.cause) == (None, FIELD_CUT)


def test_dimensions_that_are_not_known_are_not_guessed() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_args, **_kwargs: None)
        jagged = torch.nested.nested_tensor([A, A[:1]], layout=torch.jagged)
    (first,) = said(jagged)
    assert (first.inputs, first.cause is not None) == (None, True)


class Hostile:
    """An argument that raises whatever one asks of it."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)


class HostileDict(dict):
    def values(self):
        raise RuntimeError


@pytest.mark.parametrize("kind", [Hostile, HostileDict])
def test_an_argument_that_raises_ends_no_run(kind: type) -> None:
    value = kind()
    for marker in said(value, output=value):
        assert (marker.path, marker.class_name) == ("top", "Echo")
        assert (marker.inputs, marker.outputs, marker.cause) == (None, None, FIELD_CUT)


STATIC = [
    (
        nn.Conv1d(2, 4, 3),
        {
            "in_chan": 2,
            "out_chan": 4,
            "filter_dim": [3],
            "stride": [1],
            "padding": [0],
            "dilation": [1],
            "transposed": 0,
            "output_padding": [0],
            "groups": 1,
            "padding_mode": "zeros",
        },
    ),
    (nn.Conv2d(2, 4, (3, 5), padding="same"), {"filter_dim": [3, 5], "padding": "same"}),
    (nn.Conv3d(2, 4, 3, groups=2), {"filter_dim": [3, 3, 3], "groups": 2}),
    (nn.ConvTranspose1d(2, 4, 3), {"transposed": 1, "in_chan": 2, "out_chan": 4}),
    (nn.ConvTranspose2d(2, 4, 3, 2, output_padding=1), {"stride": [2, 2], "output_padding": [1, 1]}),
    (nn.ConvTranspose3d(2, 4, 3), {"filter_dim": [3, 3, 3]}),
    (nn.MaxPool1d(2), {"filter_dim": [2], "stride": [2], "padding": [0], "dilation": [1], "ceil_mode": 0}),
    (nn.MaxPool2d((2, 3)), {"filter_dim": [2, 3], "stride": [2, 3], "dilation": [1, 1]}),
    (nn.MaxPool3d(2, ceil_mode=True), {"filter_dim": [2, 2, 2], "ceil_mode": 1}),
    (nn.AvgPool1d(2), {"filter_dim": [2], "stride": [2], "padding": [0], "ceil_mode": 0, "count_include_pad": 1}),
    (nn.AvgPool2d((2, 3)), {"filter_dim": [2, 3], "stride": [2, 3], "padding": [0, 0]}),
    (nn.AvgPool3d(2), {"filter_dim": [2, 2, 2]}),
    (nn.AdaptiveAvgPool1d(3), {"output_size": [3]}),
    (nn.AdaptiveAvgPool2d((1, 1)), {"output_size": [1, 1]}),
    (nn.AdaptiveAvgPool2d((None, 7)), {"output_size": ["None", 7]}),
    (nn.AdaptiveAvgPool3d(2), {"output_size": [2, 2, 2]}),
    (nn.Linear(4, 5), {"in_features": 4, "out_features": 5}),
    (nn.BatchNorm1d(3), {"num_features": 3, "epsilon": 1e-05, "momentum": 0.1}),
    (nn.BatchNorm2d(3, momentum=None), {"num_features": 3, "epsilon": 1e-05}),
    (nn.BatchNorm3d(3, eps=math.inf), {"epsilon": "inf"}),
    (nn.ReLU(inplace=True), {"in_place": 1}),
    (nn.Dropout(0.25), {"p": 0.25, "in_place": 0}),
    (nn.Embedding(10, 4), {"num_embeddings": 10, "embedding_dim": 4}),
    (nn.Upsample(scale_factor=2), {"scale_factor": 2.0, "mode": "nearest"}),
    (nn.UpsamplingBilinear2d(scale_factor=(2, 3)), {"scale_factor": [2.0, 3.0], "mode": "bilinear"}),
    (nn.LSTM(4, 5, 2, bidirectional=True), {"input_size": 4, "hidden_size": 5, "num_layers": 2, "bidirectional": 1}),
    (nn.GRU(4, 5, batch_first=True), {"hidden_size": 5, "batch_first": 1}),
    (nn.LayerNorm((3, 4)), {"normalized_shape": [3, 4], "epsilon": 1e-05, "elementwise_affine": 1}),
    (nn.RMSNorm(8, eps=1e-6), {"normalized_shape": [8], "epsilon": 1e-06}),
    (nn.MultiheadAttention(8, 2), {"embed_dim": 8, "num_heads": 2, "head_dim": 4}),
    (nn.Softmax(-1), None),
]


@pytest.mark.parametrize(("layer", "expected"), STATIC, ids=lambda it: type(it).__name__)
def test_a_layer_tells_what_it_was_built_with(layer: nn.Module, expected: dict | None) -> None:
    to = Listed()
    with layer_markers(layer, emitter=to, skip=()):
        marks = next(iter(layer._forward_pre_hooks.values()))
        marks(layer, (), {})
        next(iter(layer._forward_hooks.values()))(layer, (), None)
    text = to.events[0].text
    assert ast.literal_eval(text) == json.loads(text)
    found = by_path(to)["top"]
    assert found.cause is not FIELD_SKIPPED
    static = json.loads(found.static_params or "null")
    assert static is expected or {key: static[key] for key in expected} == expected


def test_trainable_parameters_of_the_module_itself_are_told_with_their_dtype() -> None:
    to = Listed()
    with layer_markers(nn.Sequential(model := nn.Linear(4, 2).double()), emitter=to):
        model(torch.zeros(1, 4).double())
    assert [(p.name, p.shape, p.dtype) for p in by_path(to)["top.0"].params] == [
        ("weight", (2, 4), "float64"),
        ("bias", (2,), "float64"),
    ]
