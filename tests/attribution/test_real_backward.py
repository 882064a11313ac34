"""A real report of emit_nvtx: backward work stands below the operator whose sequence number its node has."""

import re
from pathlib import Path

import pandas as pd
import pytest

import tracekit
from tests.needs import TRACES

REPORT = TRACES / "nsys" / "emit_nvtx_training_v2022.2.export_v2023.4.4.sqlite"
EVALUATION = "autograd::engine::evaluate_function"
_NUMBERED = re.compile(r"(?P<name>[\w:]+), seq = (?P<number>\d+)")

pytestmark = pytest.mark.traces


def test_all_work_of_numbered_nodes_stands_below_the_operator_with_the_number(tmp_path: Path) -> None:
    dataset = tracekit.parse(REPORT, tmp_path / "dataset")
    ranges: pd.DataFrame = dataset.table("ranges", ["text", "tid", "start_ns", "end_ns"]).to_pandas()
    backward = ranges.tid[ranges.text.str.startswith(EVALUATION, na=False)].unique()
    numbered = ranges[ranges.text.str.contains(", seq = ", na=False)].sort_values("start_ns")
    made: dict[str, str] = {}
    nodes: list[tuple[int, int, str]] = []
    for row in numbered.to_dict("records"):
        found = _NUMBERED.match(row["text"])
        assert found
        if row["tid"] in backward:
            nodes.append((row["start_ns"], row["end_ns"], made[found["number"]]))
        else:
            made[found["number"]] = found["name"]
    kernels: pd.DataFrame = dataset.kernels(["tid", "launch_start_ns", "module", "method", "phase"])
    kernels = kernels[kernels.tid.isin(backward)].sort_values("launch_start_ns")
    linked = 0
    for start, end, operator in nodes:
        inside = kernels[(kernels.launch_start_ns >= start) & (kernels.launch_start_ns < end)]
        assert inside.module.str.contains(f".{operator}.", regex=False).all()
        assert set(inside.method) | set(inside.phase) <= {"backward"}
        linked += len(inside)
    # The rest is of gradients that are accumulated, and of what a node does around its function.
    assert (kernels.method == "backward").sum() >= linked > 2_000
    assert kernels[kernels.method != "backward"].module.str.contains("AccumulateGrad").all()
