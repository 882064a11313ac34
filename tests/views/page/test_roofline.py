"""The roofline on the page, from the answer of its analysis made by hand."""

from typing import Any

import pandas as pd
import pytest

import tracekit
from tests.command import ROOT
from tests.views.page.pages import shown
from tracekit.aggregates.subtrees import hierarchy
from tracekit.answers import launches
from tracekit.dataset.opening import Dataset
from tracekit.views.page.figures import roof
from tracekit.views.page.nodes import nodes

LAYER = "LlamaForCausalLM.model.layers.0"
COLUMNS = {
    "path": [f"{LAYER}.mlp.gate_up_proj", f"{LAYER}.self_attn.attn", f"{LAYER}.mlp"],
    "class_name": ["Linear", None, "MLP"],
    "dtype": ["bfloat16", None, "bfloat16"],
    "self_ns": [477_000, 261_000, 0],
    "flops": [2.98e10, float("nan"), 0.0],
    "tflops_per_s": [62.5, float("nan"), float("nan")],
    "gb_per_s": [812.0, float("nan"), float("nan")],
    "flops_per_byte": [77.0, float("nan"), float("nan")],
    "peak_tflops_per_s": [312.0, float("nan"), 312.0],
    "peak_gb_per_s": [1555.0, float("nan"), 1555.0],
    "roof_share": [0.52, float("nan"), float("nan")],
    "bound": ["memory", None, None],
    "unknown": [None, "no FLOPs are known of attn", None],
}
KNOWN = pd.DataFrame(COLUMNS)
KNOWN.loc[1, ["tflops_per_s", "flops_per_byte", "gb_per_s"]] = [3.5, 20.0, 175.0]
SOME = pd.DataFrame(COLUMNS)
UNKNOWN = SOME.assign(tflops_per_s=float("nan"), peak_tflops_per_s=float("nan"), peak_gb_per_s=float("nan"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    source = ROOT / "data" / "small_llama.sqlite"
    return tracekit.parse(source, tmp_path_factory.mktemp("llama") / "out")


def drawn(dataset: Dataset, frame: pd.DataFrame) -> dict[str, Any]:
    modules = hierarchy(dataset)
    return roof(frame, modules, nodes(dataset, modules, launches.frame(dataset), {}))


def data_with(dataset: Dataset, frame: pd.DataFrame) -> dict[str, Any]:
    return shown(dataset) | {"roofline": drawn(dataset, frame)}


def test_what_is_not_known_is_said_with_its_share(llama: Dataset) -> None:
    notes = drawn(llama, SOME)["notes"]
    assert notes[1] == "Unknown for 35.4 % of self time: no FLOPs are known of attn"
    assert "64.6 %" in notes[0]
    assert not any("--peak" in note for note in notes)


def test_without_peaks_or_flops_the_notes_say_what_to_do(llama: Dataset) -> None:
    roofline = drawn(llama, UNKNOWN)
    assert roofline["points"] == roofline["roofs"] == []
    assert "--peak" in roofline["notes"][-1]
    # Of no dtype, only the peak of memory counts.
    without_dtype = SOME.assign(dtype=None, peak_tflops_per_s=float("nan"))
    assert not any("--peak" in note for note in drawn(llama, without_dtype)["notes"])
