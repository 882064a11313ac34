"""Every distinct text is parsed once, by the first dialect that knows it; what tensors do not decide is asked once."""

from __future__ import annotations

from tracekit.markers.base import ModuleMarker, StepMarker
from tracekit.trace.decoding import decode

MLP = "{'Module': 'top.mlp', 'TrainableParams': {'weight': [4, 4]}, 'Inputs': [[%d, 4]]}"
NORM = "{'Module': 'top.norm', 'Inputs': [[8, 4]]}"


def test_markers_that_differ_only_in_tensors_share_a_bare_one() -> None:
    texts = [MLP % 8, "plain", MLP % 16, NORM, "{'Module': 'top.mlp', 'Outputs': [[8, 4]]}"]
    decoded = decode(texts)
    assert decoded.of_text.tolist() == [0, -1, 1, 2, 3]
    assert decoded.bare_row.tolist() == [0, 0, 1, 2, -1]
    assert decoded.bare == [decoded.markers[0], decoded.markers[2], decoded.markers[3]]


def test_whether_a_marker_is_of_a_kind_is_told_for_all_of_them_and_for_none() -> None:
    decoded = decode([MLP % 8, MLP % 16]).with_more([StepMarker("step 1")])
    assert decoded.rows(ModuleMarker).tolist() == [True, True, False, False]
    assert decoded.rows(StepMarker).tolist() == [False, False, True, False]
    assert decoded.of_text.tolist() == [0, 1]
