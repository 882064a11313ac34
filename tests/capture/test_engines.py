"""Both engines record the same of the same program."""

from pathlib import Path

import pytest

import tracekit
from tests.command import separately
from tracekit.dataset.opening import Dataset

pytestmark = [pytest.mark.torch, pytest.mark.nsys, pytest.mark.releases]

PROGRAM = """
import sys, threading
import torch
from tests.capture.models import Cnn, Encoder, Failing, Tagger
from tracekit.capture import step

def main():
    models = [
        (Cnn(), (torch.zeros(2, 3, 8, 8),), {}),
        (Encoder(), (torch.zeros(2, 3, dtype=torch.int64),), {"mask": torch.ones(2, 3)}),
        (Tagger(), (torch.zeros(2, 4, 6),), {}),
        (Failing(ValueError("no")), (torch.zeros(3),), {}),
        (Cnn(), (torch.zeros(1, 3, 8, 8),), {}),
    ]
    for turn in range(4):
        with step("all", kind="train", batch_size=turn):
            for model, args, kwargs in models:
                try:
                    model(*args, **kwargs)
                except ValueError:
                    pass
        other = threading.Thread(target=models[0][0], args=models[0][1])
        other.start()
        other.join()
"""


def calls(dataset: Dataset) -> list[tuple[object, ...]]:
    """What was called, as far as it is the same in every run: not ids of threads, not times."""
    found = dataset.table("calls").to_pylist()
    modules = {row["call_id"]: (row["module"], row["occurrence"]) for row in found}
    start = {row["call_id"]: row["start_ns"] for row in found}
    fields = ("module", "phase", "occurrence", "inputs", "outputs", "kwargs", "step_id")
    found.sort(key=lambda row: start[row["call_id"]])
    return [(*(row[field] for field in fields), modules.get(row["parent_call_id"])) for row in found]


def test_both_engines_record_the_same_calls_and_modules_without_the_warm_up(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    datasets = []
    for engine in ("torch", "nsys"):
        report = tmp_path / f"{engine}.sqlite"
        # What nsys lost is recorded again, in the same place.
        args = ("--force", "--engine", engine, "-o", report, "--warmup", 1, "--steps", 2, "program.py:main")
        outcome = separately("capture", *args, cwd=tmp_path)
        assert outcome.code == 0, outcome
        dataset = tracekit.parse(report, force=True)
        assert not dataset.ranges(["open"]).open.any()
        steps = dataset.steps(["name", "kind", "batch_size", "index"])
        assert steps.values.tolist() == [["all", "train", 1, 1], ["all", "train", 2, 2]]
        datasets.append(dataset)
    mine, theirs = map(calls, datasets)
    assert mine == theirs
    assert len(mine) > 40
    assert {call[0] for call in mine if call[-1] is None} == {"Cnn", "Encoder", "Tagger", "Failing", "Cnn_2"}
    assert [call[5] for call in mine if call[0] == "Encoder"] == [[("mask", [[2, 3]])]] * 2
    fields = ["path", "class_name", "alias_of", "params", "static_params"]
    one, other = (dataset.table("modules", fields).to_pylist() for dataset in datasets)
    assert one == other
