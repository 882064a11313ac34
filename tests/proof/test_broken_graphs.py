"""What is replayed, compiled or gathered is proved with stand-ins, and fails where it is broken on purpose.

Reports of one run are broken, then judged again. What only a GPU can show is judged on reports written as lines.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.gpu.measures import replay_speed
from tests.proof.gpu_reports import on_a_gpu
from tests.proof.proofs import (
    EAGER,
    H100,
    H100_WITHOUT_NSYS,
    IN_WINDOW,
    KERNELS,
    NODES,
    OPERATORS,
    RANGES,
    RENAMED,
    REPLAYED,
    REPLAYED_OR_COMPILED,
    REPLAYS,
    WHOLE,
    edit,
    look_at_data,
    nothing_fails,
    problems,
    proved,
    simulated,
    tell,
    whole,
)
from tracekit.proof import recording
from tracekit.proof.checks import (
    compiled,
    graph_in_warmup,
    graph_in_window,
    nccl,
    pieces,
    whole_graph,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.base import Check

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a machine without a GPU and nsys."""
    return proved(tmp_path_factory.mktemp("proof") / "out", REPLAYED_OR_COMPILED, TRACEKIT_NSYS="/absent/nsys")


def test_without_a_gpu_nothing_fails_and_what_only_a_gpu_shows_is_missing(proof: Path) -> None:
    nothing_fails(proof, REPLAYED_OR_COMPILED)


def test_small_reports_for_data_can_be_parsed_and_tell_nothing_of_the_machine(proof: Path) -> None:
    look_at_data(proof, "cpu_graph_in_window.sqlite")


def test_compiled_fails_without_kernel_maps(copied) -> None:
    folder = copied(compiled)
    edit(folder, RANGES, "%KernelMap%", 1_000)
    assert "no work was attributed by a kernel map" in problems(compiled, folder)


def test_compiled_fails_where_a_map_names_another_module(copied) -> None:
    folder = copied(compiled)
    edit(folder, RENAMED, "layers.0.up", "layers.0.out")
    assert "is of Chain.layers.0.out, expected Chain.layers.0.up" in problems(compiled, folder)


def test_pieces_fails_where_graphs_pieces_or_results_are_not_as_they_follow(copied) -> None:
    folder = copied(pieces)
    tell(folder, counters={**recording.truth(folder)["counters"], "graphs_captured": 2}, right=False)
    edit(folder, RANGES, '%"How": "replayed"%', 1)
    found = problems(pieces, folder)
    assert "computed something else" in found
    assert "graphs_captured has 2 counted, expected 3" in found
    assert "replayed has 8 runs of pieces, expected 9" in found


def test_pieces_fails_where_replayed_kernels_are_not_those_of_an_eager_run(copied) -> None:
    """The stand-in runs the operators again: judged as if on a GPU, they are the replayed kernels."""
    folder = copied(pieces)
    assert not problems(pieces, folder, H100)
    edit(folder, OPERATORS, "aten::addmm", 4)
    assert "lacks Attentive.layers.1.out: aten::addmm" in problems(pieces, folder, H100)


def test_nccl_fails_where_a_module_lacks_what_it_sent(copied) -> None:
    folder = copied(nccl)
    edit(folder, OPERATORS, "c10d::%", 1)
    assert "Ranks.gather has 2 operators of gloo, expected 3" in problems(nccl, folder)


@pytest.mark.parametrize("check", [graph_in_window, graph_in_warmup], ids=["window", "warmup"])
def test_graphs_fail_where_a_replay_is_incomplete_or_wrong(check: Check, copied) -> None:
    folder = copied(check)
    edit(folder, OPERATORS, "aten::addmm", 1)
    tell(folder, right=False)
    found = problems(check, folder)
    assert "11 products in replays, expected 12" in found
    assert "computed something else" in found


def test_replays_whose_nodes_nobody_tells_are_missing_and_fail_without_work(copied) -> None:
    folder = on_a_gpu(copied(graph_in_window), nodes=False)
    found = graph_in_window.judge(folder, replace(H100_WITHOUT_NSYS, torch="2.11.0"))
    assert found.problems == []
    assert (
        found.unproved == "the modules of replayed work: with torch 2.11.0, none says which node of a CUDA graph it is"
    )
    for kind in ("KERNEL", "MEMSET"):
        edit(folder, REPLAYED.format(kind))
    assert "has 0 kernels in replay" in problems(graph_in_window, folder, H100_WITHOUT_NSYS)


def test_a_graph_passes_where_replays_have_the_modules_of_an_eager_step(tmp_path: Path) -> None:
    assert not problems(graph_in_window, simulated(tmp_path, IN_WINDOW), H100)


def test_a_graph_fails_where_replayed_kernels_are_of_other_modules(tmp_path: Path) -> None:
    swapped = IN_WINDOW.replace("112 112 1\n", "112 112 2\n").replace("113 113 2\n", "113 113 1\n")
    found = problems(graph_in_window, simulated(tmp_path, swapped), H100)
    assert "Chain.down: gemm_up has 1 kernels in replay" in found


def test_a_graph_fails_where_replayed_kernels_have_no_module(tmp_path: Path) -> None:
    found = problems(graph_in_window, simulated(tmp_path, IN_WINDOW.replace(NODES, "")), H100)
    assert "Chain.up: gemm_up has 0 kernels in replay" in found


def test_a_graph_captured_before_the_recording_has_no_modules_and_fails_if_it_has(tmp_path: Path) -> None:
    assert not problems(graph_in_warmup, simulated(tmp_path / "before", EAGER + REPLAYS), H100_WITHOUT_NSYS)
    assert "Chain.up has gemm_up" in problems(
        graph_in_warmup, simulated(tmp_path / "recorded", IN_WINDOW), H100_WITHOUT_NSYS
    )
    assert "no replayed work" in problems(graph_in_warmup, simulated(tmp_path / "none", EAGER), H100_WITHOUT_NSYS)


def test_whole_graphs_pass_where_each_is_of_the_model_and_fail_where_not(tmp_path: Path) -> None:
    assert not problems(whole_graph, whole(tmp_path / "right", WHOLE), H100)
    lost = WHOLE.replace("    graph   1 930 950 #9 exec 2 of 1\n", "")
    assert "1 graphs are in the report, expected 2" in problems(whole_graph, whole(tmp_path / "lost", lost), H100)
    unknown = WHOLE.replace("made 1  119  119 exec 2 of 1", "made 1  119  119 exec 2 of 3")
    assert "a graph is of graph_" in problems(whole_graph, whole(tmp_path / "unknown", unknown), H100)
    none = REPLAYS.replace("!11", "").replace("!12", "")
    assert "no graphs traced as a whole" in problems(whole_graph, whole(tmp_path / "none", none), H100)


def test_the_speed_of_replays_fails_where_nothing_was_captured(copied) -> None:
    folder = copied(replay_speed)
    tell(folder, graphs_captured=0, right=False)
    assert "0 graphs were captured, expected 6" in problems(replay_speed, folder)


@pytest.mark.parametrize("check", [compiled, nccl, graph_in_window], ids=lambda check: check.NAME)
def test_kernels_of_a_gpu_in_place_of_operators_pass(check: Check, copied) -> None:
    """Three pieces of work for a product, and steps that replay a graph: what no CPU records."""
    found = check.judge(on_a_gpu(copied(check)), H100_WITHOUT_NSYS)
    assert (found.problems, found.unproved) == ([], None)


def test_a_graph_fails_where_a_replayed_kernel_is_lost(copied) -> None:
    folder = on_a_gpu(copied(graph_in_window))
    edit(folder, KERNELS, "nvjet%", 1)
    expected = "Chain.again: nvjet_sst_64x48_64x8_4x1_v_bz_splitK_TNT has 1 kernels in replay"
    assert expected in problems(graph_in_window, folder, H100_WITHOUT_NSYS)
