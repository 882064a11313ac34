"""Names of other tools lead to our questions and commands, each to one."""

import os
import re
import subprocess
from collections import Counter

import pytest

from tests.command import command
from tracekit.answers import QUESTIONS
from tracekit.cli import COMMANDS
from tracekit.views.other_tools import _NAME, ROWS, counterpart

#: The reports of nsys without a counterpart: graphics, other libraries, the operating system, managed memory.
NONE = (
    *("dx1", "khr", "mpi", "network", "nvvideo", "openacc", "opengl"),
    *("openmp", "osrt", "um", "unified", "vulkan", "wddm"),
)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("compare", "a", "b"), "tracekit diff"),
        (("report", "a"), "tracekit html"),
        (("overlap", "a"), "tracekit show communication"),
        (("ops", "a"), "tracekit parse REPORT --rows operators"),
        (("kernels", "a"), "tracekit show kernels"),
        (("show", "overlap", "a"), "tracekit show communication"),
        (("show", "cuda_gpu_kern_sum", "a"), "tracekit show kernels"),
        (("show", "gpukernsum"), "tracekit show kernels"),
        (("show", "get_temporal_breakdown", "a"), "tracekit show budget"),
        (("show", "idle_time_breakdown", "a"), "tracekit show budget"),
        (("show", "ops", "a"), "tracekit parse REPORT --rows operators"),
    ],
    ids=" ".join,
)
def test_a_name_of_another_tool_is_answered_with_what_to_type_here(words: tuple[str, ...], meant: str) -> None:
    outcome = command(*words)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert f"did you mean {meant}" in outcome.err


def test_no_name_leads_to_two_answers_or_hides_one_of_ours() -> None:
    names = [name.lower() for used, _, more in ROWS for name in {*_NAME.findall(used), *more.split()}]
    assert [name for name, times in Counter(names).items() if times > 1] == []
    assert not set(names) & {*QUESTIONS, *(one.NAME for one in COMMANDS)} - {"parse", "diff"}


@pytest.mark.nsys
def test_every_report_of_nsys_with_a_counterpart_leads_to_it() -> None:
    asked = [os.environ["TRACEKIT_NSYS"], "stats", "--help-reports"]
    listed = subprocess.run(asked, capture_output=True, text=True, check=False)
    names = set(re.findall(r"^  (\w+).* -- ", listed.stdout, re.MULTILINE))
    assert len(names) > 25
    assert [name for name in sorted(names) if not name.startswith(NONE) and counterpart(name) is None] == []
