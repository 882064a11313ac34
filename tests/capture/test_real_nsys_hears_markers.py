"""NVIDIA's own nsys receives every range, nested as the modules are, with the nvtx that is installed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
import torch

import tracekit
from tests.capture.models import Cnn, Encoder, Failing, Tagger, by_path, tree
from tests.command import ROOT
from tests.nsys import record
from tracekit.capture import Listed, layer_markers

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

pytestmark = [pytest.mark.torch, pytest.mark.nsys]

PROGRAM = f"""
import sys, threading
sys.path.append({str(ROOT)!r})
import nvtx, torch
from tests.capture.test_real_nsys_hears_markers import MODELS
from tracekit.capture import layer_markers, step, unheard

assert unheard() is None, unheard()
for name, (make, inputs) in MODELS.items():
    with layer_markers(model := make(), prefix=name), step(name, kind="train", batch_size=2):
        for run in range(2):
            try:
                model(inputs)
            except ValueError:
                pass
with layer_markers(model := MODELS["cnn"][0](), prefix="thread"):
    other = threading.Thread(target=model, args=(MODELS["cnn"][1],))
    other.start()
    other.join()
"""
MODELS = {
    "cnn": (Cnn, torch.zeros(2, 3, 8, 8)),
    "encoder": (Encoder, torch.zeros(2, 3, dtype=torch.int64)),
    "tagger": (Tagger, torch.zeros(2, 4, 6)),
    "failing": (lambda: Failing(ValueError("no")), torch.zeros(1)),
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("nsys")
    return tracekit.parse(record(folder, PROGRAM), folder / "run.tracekit")


def listed(name: str) -> Listed:
    """What one forward pass says when nobody but us listens."""
    make, inputs = MODELS[name]
    to = Listed()
    with layer_markers(model := make(), prefix=name, emitter=to):
        try:
            model(inputs)
        except ValueError:
            assert name == "failing"
    return to


@pytest.mark.parametrize("name", MODELS)
def test_every_call_arrives_with_its_shapes_and_nests_as_the_modules_do(name: str, dataset: Dataset) -> None:
    calls = dataset.calls()
    alias = dataset.modules().set_index("path").alias_of.dropna().to_dict()
    said = [alias.get(path, path) for path in calls.module.astype(str)]
    paths = dict(zip(calls.call_id, said, strict=True))
    above = [paths.get(call, "") for call in calls.parent_call_id]
    mine = [pair for pair in zip(above, said, strict=True) if pair[1].split(".")[0] == name]
    to = listed(name)
    assert Counter(mine) == Counter(2 * nested(tree(to)))
    inputs = {path: [list(shape) for shape in call.inputs or ()] for path, call in by_path(to).items()}
    for path, shapes in zip(said, calls.inputs, strict=True):
        if path in inputs:
            assert [list(shape) for shape in shapes] == inputs[path]


def nested(lines: list[str]) -> list[tuple[str, str]]:
    """Every call with the one around it, from indented lines."""
    pairs, open_ = [], [""]
    for line in lines:
        depth = (len(line) - len(line.lstrip())) // 2
        open_ = [*open_[: depth + 1], line.strip()]
        pairs.append((open_[-2], open_[-1]))
    return pairs


def test_every_range_was_closed(dataset: Dataset) -> None:
    ranges = dataset.ranges(["text", "open"])
    assert not ranges.open.any()
    assert len(ranges) > 50


def test_classes_parameters_and_settings_arrive(dataset: Dataset) -> None:
    modules = dataset.modules().set_index("path")
    assert modules.class_name["tagger.lstm"] == "LSTM"
    assert '"hidden_size": 5' in modules.static_params["tagger.lstm"]
    assert modules.params["cnn.head"][0]["dtype"] == "float32"


def test_steps_and_threads_arrive(dataset: Dataset) -> None:
    steps = dataset.steps()
    assert steps[["name", "kind", "batch_size", "index"]].values.tolist() == [
        [name, "train", 2, index] for index, name in enumerate(MODELS)
    ]
    calls = dataset.calls(["module", "tid"])
    assert calls[calls.module == "thread"].tid.unique() != calls[calls.module == "cnn"].tid.unique()
