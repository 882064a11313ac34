"""What runs eagerly is proved without a GPU, and every check fails where what it proves is broken on purpose.

Reports of one run are broken, then judged again. What only a GPU can show is judged on reports written as lines.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.gpu.measures import MEASURES, clock_error, roofline
from tests.proof.gpu_reports import on_a_gpu
from tests.proof.proofs import (
    EAGER,
    EAGERLY,
    H100,
    H100_WITHOUT_NSYS,
    KERNELS,
    OPERATORS,
    RANGES,
    RENAMED,
    REPLAYED_OR_COMPILED,
    SHORTENED,
    UNDER_NSYS,
    edit,
    look_at_data,
    nothing_fails,
    problems,
    proved,
    simulated,
    tell,
)
from tracekit.proof import CHECKS
from tracekit.proof.checks import (
    backward,
    command,
    eager,
    markers,
    operators,
    processes,
    script,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.proof.base import Check

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a machine without a GPU and nsys."""
    return proved(tmp_path_factory.mktemp("proof") / "out", EAGERLY, TRACEKIT_NSYS="/absent/nsys")


def test_every_check_and_measure_is_proved_in_one_of_these_files() -> None:
    proved_somewhere = {check.NAME for check in (*EAGERLY, *REPLAYED_OR_COMPILED, *UNDER_NSYS)}
    assert proved_somewhere == {check.NAME for check in (*CHECKS, *MEASURES)}


def test_without_a_gpu_nothing_fails_and_what_only_a_gpu_shows_is_missing(proof: Path) -> None:
    nothing_fails(proof, EAGERLY)


def test_small_reports_for_data_can_be_parsed_and_tell_nothing_of_the_machine(proof: Path) -> None:
    look_at_data(proof, "cpu_eager.sqlite")


def test_markers_fails_where_kernels_are_not_those_of_torch_profiler(proof: Path, tmp_path: Path) -> None:
    """A report of operators stands in for one of kernels by nsys: the comparison is the same."""
    folder = shutil.copytree(proof / eager.NAME, tmp_path / "markers")
    shutil.copytree(proof / eager.NAME, folder / "profiled")
    assert not problems(markers, folder, H100)
    edit(folder, OPERATORS, "aten::addmm", 1)
    assert "Chain.again has 59 kernels, expected 60" in problems(markers, folder, H100)


def test_eager_fails_where_a_time_is_not_that_of_torch_profiler(copied) -> None:
    folder = copied(eager)
    edit(folder, SHORTENED, "aten::relu")
    assert "Chain.layers.1.act has" in problems(eager, folder)


def test_eager_fails_where_work_is_of_another_module(copied) -> None:
    folder = copied(eager)
    edit(folder, RANGES, '%"Chain.again"%', 2)
    assert "pieces of work, expected 60" in problems(eager, folder)


def test_operators_fails_where_a_product_is_not_of_its_weight_s_module(copied) -> None:
    folder = copied(operators)
    edit(folder, RENAMED, "Chain.layers.0.up", "Chain.layers.0.out")
    assert "is of Chain.layers.0.out, expected Chain.layers.0.up" in problems(operators, folder)


def test_operators_fails_where_a_linear_has_no_product(copied) -> None:
    folder = copied(operators)
    edit(folder, RANGES, "%[12, 14]%", 1_000)
    assert "Chain.layers.1.up has 0 products" in problems(operators, folder)


def test_backward_fails_where_a_backward_call_is_lost(copied) -> None:
    folder = copied(backward)
    edit(folder, RANGES, '%"Chain.layers.0.up"%backward%', 1)
    assert "Chain.layers.0.up has 2 backward calls, expected 3" in problems(backward, folder)


def test_processes_fails_where_a_process_is_not_recorded(copied) -> None:
    folder = copied(processes)
    edit(folder, "DELETE FROM NVTX_EVENTS WHERE globalTid >> 24 = (SELECT min(globalTid) >> 24 FROM NVTX_EVENTS)")
    assert "0 calls of the model are in the report" in problems(processes, folder)


def test_processes_fails_where_work_of_a_process_is_lost(copied) -> None:
    folder = copied(processes)
    edit(folder, OPERATORS, "aten::addmm", 1)
    assert "not as their calls" in problems(processes, folder)


@pytest.mark.parametrize("check", [script, command], ids=["script", "command"])
def test_a_script_or_command_fails_where_a_call_of_the_model_is_lost(check: Check, copied) -> None:
    folder = copied(check)
    edit(folder, RANGES, '{"Module": "Chain%', 22)
    assert "2 calls of the model are in the report, expected 3" in problems(check, folder)


def test_roofline_fails_where_it_differs_from_events_and_exceeds_what_nvidia_states(copied) -> None:
    folder = copied(roofline)
    tell(folder, tflops_per_s=600.0)
    assert "roofline says" in problems(roofline, folder, H100)
    edit(folder, 'UPDATE TRACEKIT_CPU_OPS SET "end" = start + 1')
    assert "more than the 989.4 that NVIDIA states" in problems(roofline, folder, H100)


def test_clocks_fail_where_a_kernel_starts_before_its_launch(tmp_path: Path) -> None:
    assert not problems(clock_error, simulated(tmp_path / "right", EAGER), H100)
    early = EAGER.replace("kernel  1 440 445 #6", "kernel  1 420 445 #6")
    assert "gemm_up has no launch: impossible_launch" in problems(
        clock_error, simulated(tmp_path / "early", early), H100
    )
    without = EAGER.replace("kernel  1 440 445 #6 gemm_up", "").replace("kernel  1 470 475 #7 gemm_down", "")
    assert "nothing was measured" in problems(clock_error, simulated(tmp_path / "none", without), H100)


@pytest.mark.parametrize(
    "check", [eager, operators, backward, processes, script, command], ids=lambda check: check.NAME
)
def test_kernels_of_a_gpu_in_place_of_operators_pass(check: Check, copied) -> None:
    """Three pieces of work for a product, and steps that replay a graph: what no CPU records."""
    found = check.judge(on_a_gpu(copied(check)), H100_WITHOUT_NSYS)
    assert (found.problems, found.unproved) == ([], None)


@pytest.mark.parametrize(
    ("check", "said"),
    [(eager, "Chain.again has 17 pieces of work, expected 18"), (processes, "Chain.again has")],
    ids=lambda value: getattr(value, "NAME", None),
)
def test_a_kernel_that_is_lost_fails_what_counts_them(check: Check, said: str, copied) -> None:
    folder = on_a_gpu(copied(check))
    edit(folder, KERNELS, "nvjet%", 1)
    assert said in problems(check, folder, H100_WITHOUT_NSYS)
