"""What nsys records is proved, and fails where it is broken on purpose."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.gpu.measures import marker_cost
from tests.proof.proofs import (
    H100,
    RANGES,
    UNDER_NSYS,
    edit,
    look_at_data,
    outcomes,
    problems,
    proved,
)
from tracekit.proof.checks import (
    markers,
    whole_graph,
)
from tracekit.proof.machine import Machine

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = [pytest.mark.torch]


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of what nsys records."""
    return proved(tmp_path_factory.mktemp("proof") / "out", UNDER_NSYS, TRACEKIT_NSYS=os.environ["TRACEKIT_NSYS"])


@pytest.mark.nsys
def test_under_nsys_markers_are_heard(proof: Path) -> None:
    found = outcomes(proof)
    assert {name: one["verdict"] for name, one in found.items()} == {
        "markers": "passed",
        "whole_graph": "missing",
        "marker_cost": "passed",
    }
    assert found["markers"]["figures"]["calls"] == 33


@pytest.mark.nsys
def test_small_reports_of_nsys_for_data_tell_nothing_of_the_machine_either(proof: Path) -> None:
    look_at_data(proof, "cpu_markers.sqlite")


@pytest.mark.nsys
def test_markers_fails_where_a_call_was_not_heard(copied) -> None:
    folder = copied(markers)
    edit(folder, RANGES, '%"Chain.layers.1.down"%', 2)
    assert "holds 10 calls, expected 11" in problems(markers, folder)


@pytest.mark.nsys
def test_whole_graphs_fail_where_a_call_was_not_heard(copied) -> None:
    folder = copied(whole_graph)
    edit(folder, RANGES, '%"Chain.again"%', 2)
    assert "holds 10 calls, expected 11" in problems(whole_graph, folder)


@pytest.mark.nsys
def test_the_cost_of_markers_fails_where_none_was_heard(copied) -> None:
    folder = copied(marker_cost)
    edit(folder, "DELETE FROM NVTX_EVENTS")
    assert "nsys heard no marker" in problems(marker_cost, folder, Machine(nsys_problem=None))


def test_the_cost_of_markers_is_missing_without_the_package_that_pushes_them() -> None:
    assert marker_cost.missing(replace(H100, nvtx="0.2.17")) is None
    assert marker_cost.missing(H100) == "the package nvtx, which pushes markers, is not installed"
