"""Every release of the nvtx package that may be installed marks modules and windows; doctor says what else it does."""

import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import tracekit
from tests.capture.test_doctor import checks
from tests.command import ROOT, separately
from tests.needs import stop_without
from tests.nsys import RELEASES, nsys, nvtx_release, record
from tracekit.capture import emit
from tracekit.nsight.nsys import WINDOW, Nsys

pytestmark = [pytest.mark.torch, pytest.mark.nsys]

#: The first that pyproject.toml promises, those that changed what tracekit calls, and the installed one.
NUMBERS = ("0.2.11", "0.2.12", "0.2.16", version("nvtx"))
#: Loads one module of tracekit's alone, so that no torch is waited for.
PROGRAM = f"""
import importlib.util, threading
spec = importlib.util.spec_from_file_location("emit", {emit.__file__!r})
emit = importlib.util.module_from_spec(spec)
spec.loader.exec_module(emit)
to = emit.nvtx_emitter()
assert emit.unheard() is None, emit.unheard()

def call(text, *inner):
    to.opener(text)()
    for one in inner:
        one()
    to.close()

call("before")
end = to.start({WINDOW!r})
call("around", lambda: call("inside", lambda: call("inside")))
other = threading.Thread(target=call, args=("on another thread",))
other.start()
other.join()
elsewhere = threading.Thread(target=end)
elsewhere.start()
elsewhere.join()
call("after")
"""


def importable(number: str) -> str:
    if number == version("nvtx"):
        return str(ROOT)
    if (folder := nvtx_release(number)) is None:
        stop_without(f"nvtx {number} in the folder that {RELEASES} names")
    return os.pathsep.join([str(folder), str(ROOT)])


@pytest.mark.releases
@pytest.mark.parametrize("number", sorted(set(NUMBERS)))
def test_markers_and_the_window_of_every_release_reach_nsys(
    number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", importable(number))
    (tmp_path / "program.py").write_text(PROGRAM)
    report = tmp_path / "run.sqlite"
    command = [sys.executable, str(tmp_path / "program.py")]
    recorded = Nsys(nsys()).record(command, report, windowed=True)
    assert (recorded.exit_code, recorded.warnings) == (0, ())
    ranges = tracekit.parse(report).ranges(["text", "depth", "open"])
    assert not ranges.open.any()
    found = ranges[ranges.text != WINDOW]
    assert sorted(found.text) == ["around", "inside", "inside", "on another thread"]
    assert sorted(found.depth) == [0, 0, 1, 2]


@pytest.mark.parametrize("number", sorted({"0.2.11", version("nvtx")}))
def test_doctor_says_what_the_release_means_for_ranges_of_the_programs_own(number: str, tmp_path: Path) -> None:
    path = importable(number)
    program = "import nvtx; nvtx.push_range('mine'); nvtx.pop_range()"
    report = record(tmp_path, program, {"PYTHONPATH": path})
    heard = tracekit.parse(report).ranges(["text"]).text.tolist() == ["mine"]
    (empty := tmp_path / "empty").mkdir()
    found = checks(outcome := separately("doctor", "--json", cwd=empty, PYTHONPATH=path))
    assert outcome.code == 0
    assert not list(empty.iterdir())
    assert found["nvtx"]["detail"] == number
    assert found["NVTX under nsys"]["ok"], found
    assert found["engine nsys"]["ok"]
    own = found["nvtx.push_range under nsys"]
    assert own["ok"] == heard
    if not heard:
        assert f"silent: nvtx {number}" in str(own["detail"])
        assert f"nsys {Nsys(nsys()).version}" in str(own["detail"])
        assert "pip install nvtx==0.2.11" in str(own["advice"])
    assert heard or number != "0.2.11"
