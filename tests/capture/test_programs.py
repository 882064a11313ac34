"""Programs that are recorded keep their output and exit code, and a stop leaves what was recorded."""

import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

import pytest

import tracekit
from tests.capture.places import stopped
from tests.command import arguments, environment
from tests.nsys import import_heard_nvtx
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.nsys, pytest.mark.heard_nvtx]

RANGE = f"{import_heard_nvtx()}nvtx.push_range('mine'); nvtx.pop_range()\n"
TALKING = """
import sys, os
sys.stdout.buffer.write(bytes(range(256)))
sys.stdout.flush()
os.write(1, b"raw ")
print("größe", file=sys.stderr)
print(sys.argv[1:], __name__, sys.stdin.read(), file=sys.stderr, flush=True)
if __name__ == "__main__":
    sys.exit(7)
"""
WORK = """
import torch
torch.nn.Linear(2, 2)(torch.zeros(1, 2))
"""
WAYS = {
    "torch": ("--engine", "torch", "talk er.py", "--", "--batch", "ä 8"),
    "nsys": ("--engine", "nsys", "talk er.py", "--", "--batch", "ä 8"),
    "command": ("--engine", "nsys", "--", sys.executable, "talk er.py", "--batch", "ä 8"),
}


@pytest.mark.parametrize("way", WAYS)
def test_output_arguments_and_exit_code_are_the_programs_own(way: str, tmp_path: Path) -> None:
    text = RANGE + (TALKING if way == "command" else WORK + TALKING)
    (tmp_path / "talk er.py").write_text(text)
    # No pipes: where nsys fails, its agent may outlive it and hold them open.
    with TemporaryFile() as out, TemporaryFile() as err:
        command = arguments("capture", "-o", "rep ört.sqlite", *WAYS[way])
        told = {"stdout": out, "stderr": err, "env": environment(PYTHONIOENCODING="utf-8")}
        done = subprocess.run(command, input=b"piped", timeout=PATIENCE_S, cwd=tmp_path, check=False, **told)
        out.seek(0), err.seek(0)
        assert (done.returncode, out.read()) == (7, bytes(range(256)) + b"raw "), err.read()
        own, *told = err.read().decode().splitlines()
    assert own == "größe"
    assert told[0] == "['--batch', 'ä 8'] __main__ piped"
    unmarked = "tracekit: warning: no process of the command called a torch module"
    starts = ("recorded ", "modules: ", "report: ", "next: ", *([unmarked] if way == "command" else []))
    assert [line for line in told[1:] if not line.startswith(starts)] == []
    dataset = tracekit.parse(tmp_path / "rep ört.sqlite")
    if way == "command":
        assert dataset.ranges(["text"]).text.tolist() == ["mine"]
    else:
        assert dataset.calls(["module"]).module.tolist() == ["Linear"]


ENDLESS_MODEL = """
import sys, time, torch
def main():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    for at in range(6000):
        model(torch.zeros(1, 2))
        if at == 3:
            print("ready", flush=True)
        time.sleep(0.01)
"""
ENDLESS = f"""
{import_heard_nvtx()}
import time
for at in range(6000):
    nvtx.push_range(str(at))
    nvtx.pop_range()
    if at == 3:
        print("ready", flush=True)
    time.sleep(0.01)
"""


def left_of(sign: str) -> list[str]:
    """Processes with this in their environment; that of zombies is empty."""
    left = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            left += [path.parent.name] * (sign.encode() in path.read_bytes())
    return left


@pytest.mark.parametrize(
    ("way", "number"), [("torch", signal.SIGTERM), ("nsys", signal.SIGINT), ("command", signal.SIGINT)]
)
def test_a_stop_leaves_what_was_recorded_and_nothing_running(way: str, number: int, tmp_path: Path) -> None:
    sign = uuid.uuid4().hex
    (tmp_path / "endless.py").write_text(ENDLESS if way == "command" else ENDLESS_MODEL)
    target = ("--engine", way, "endless.py:main")
    if way == "command":
        target = ("--engine", "nsys", "--", sys.executable, "endless.py", sign)
    outcome = stopped(tmp_path, number, "-o", "report.sqlite", *target, SIGN=sign)
    assert (outcome.code, outcome.out[:6]) == (128 + number, "ready\n"), outcome
    wait_until(lambda: not left_of(sign))
    dataset = tracekit.parse(tmp_path / "report.sqlite")
    if way == "command":
        assert len(dataset.ranges(["text"])) >= 4
    else:
        assert "Traceback" not in outcome.err
        assert len(dataset.calls(["module"])) >= 8
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
