"""The examination of a machine ends, and says why where torch or nsys does not work, in one line."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from tracekit.errors import CaptureError
from tracekit.proof import machine
from tracekit.proof.machine import examined, last_line

if TYPE_CHECKING:
    from pathlib import Path

#: What torch says last of an error of CUDA's.
OF_CUDA = """Traceback (most recent call last):
  File "about.py", line 18, in about
    torch.cuda.synchronize()
torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device
Search for `cudaErrorNoKernelImageForDevice' in https://docs.nvidia.com/cuda for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

[W1123 00:00:00.0 CUDAGuardImpl.h:119] Warning: CUDA warning (function destroyEvent)
"""


def test_the_reason_is_the_error_of_cuda_and_not_the_advice_behind_it(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(OF_CUDA)
    expected = "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"
    assert last_line(tmp_path / "log") == expected
    assert last_line(tmp_path / "absent") == "it printed nothing"


@pytest.fixture
def torch_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a torch in place of the installed one: a line of Python."""

    def put(line: str) -> None:
        (tmp_path / "packages" / "torch").mkdir(parents=True)
        (tmp_path / "packages" / "torch" / "__init__.py").write_text(f"{line}\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))

    return put


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "raise RuntimeError('CUDA error: out of memory')",
            "ended with exit code 1: RuntimeError: CUDA error: out of memory",
        ),
        ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV: it printed nothing"),
    ],
    ids=["raises", "crashes"],
)
def test_a_torch_that_cannot_be_used_is_one_line_with_its_own_reason(
    line: str, said: str, torch_of, tmp_path: Path
) -> None:
    torch_of(line)
    (tmp_path / "machine").mkdir()
    with pytest.raises(CaptureError) as error:
        examined(tmp_path / "machine")
    assert str(error.value) == f"the examination ended with exit code 1: the first use of torch {said}"


CANNOT_EXPORT = "echo Generating; exit 1"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("does", "said"),
    [("sleep 600", "the first recording with nsys did not end within 3 s and was stopped"), (CANNOT_EXPORT, "nsys")],
    ids=["hangs", "cannot export"],
)
def test_an_nsys_that_hangs_or_cannot_export_leaves_all_else_to_be_proved(
    does: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nsys"
    tool.write_text(f"#!/bin/sh\ncase $1 in --version) echo 2025.3.1;; *) {does};; esac\n")
    tool.chmod(0o755)
    monkeypatch.setenv("TRACEKIT_NSYS", str(tool))
    monkeypatch.setattr(machine, "_NSYS_LIMIT_S", 3 if does != CANNOT_EXPORT else 60)
    (tmp_path / "machine").mkdir()
    place = tmp_path / "machine" / "machine.json"
    machine.examine(place)
    found = machine.restored(json.loads(place.read_text("utf-8")))
    assert found.torch is not None
    assert found.nsys_problem is not None
    assert said in found.nsys_problem
    assert "\n" not in found.nsys_problem
    assert sys.executable not in found.nsys_problem
