"""Memory that was freed is used again, where the C library can be asked for that."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

TOUCHED = """
import resource, sys
import numpy as np
from tracekit.arrays.own_process import keep_memory
if sys.argv[1] == "kept":
    keep_memory()
def faults():
    np.ones(20_000_000 // 8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
first = faults()
for _ in range(10):
    last = faults()
print(last - first)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries decide for themselves")
def test_an_array_gets_the_memory_of_the_one_before() -> None:
    anew, kept = (int(subprocess.check_output([sys.executable, "-c", TOUCHED, how])) for how in ("new", "kept"))
    assert kept < anew / 10


@pytest.mark.parametrize("command", ["parse", "show tree", "html", "whatif"])
def test_commands_say_that_huge_pages_are_not_wanted_before_numpy_is_loaded(command: str, tmp_path: Path) -> None:
    watched = """
import os, sys
class Watch:
    def find_spec(self, name, *_):
        if name == "numpy":
            print(os.environ.get("NUMPY_MADVISE_HUGEPAGE"))
sys.meta_path.insert(0, Watch())
from tracekit.cli import main
main(sys.argv[1:])
"""
    env = {name: value for name, value in os.environ.items() if name != "NUMPY_MADVISE_HUGEPAGE"}
    run = [sys.executable, "-c", watched, *command.split(), str(tmp_path / "missing.sqlite")]
    assert subprocess.run(run, capture_output=True, text=True, env=env, check=False).stdout.split() == ["0"]
