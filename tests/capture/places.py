"""A folder of targets, and ``tracekit capture`` run in it."""

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from tests.command import Outcome, arguments, command, environment
from tests.waiting import PATIENCE_S, wait_until

#: A model and its inputs, as ``make``; more lines may follow.
MODEL = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.zeros(2, 4)
"""


class Place(NamedTuple):
    """A folder in which targets are written and recorded."""

    folder: Path

    def write(self, text: str, name: str = "model.py") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    def capture(self, *args: object, engine: str = "torch") -> Outcome:
        return command("capture", "--engine", engine, *args)

    def left(self) -> set[str]:
        found = {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}
        return {name for name in found if "__pycache__" not in name}


def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.chdir(folder)
    paths, modules = list(sys.path), set(sys.modules)
    yield Place(folder)
    sys.path[:] = paths
    for name in set(sys.modules) - modules:
        file = str(getattr(sys.modules[name], "__file__", "") or "")
        path = getattr(sys.modules[name], "__path__", ())
        # torch.classes makes up whatever it is asked for.
        places = [file, *(path if isinstance(path, Iterable) else ())]
        if any(place.startswith(str(folder)) for place in places):
            del sys.modules[name]


def one_line(outcome: Outcome, code: int = 1) -> str:
    assert outcome.code == code, outcome
    assert "Traceback" not in outcome.err
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.startswith("tracekit"), outcome.err
    return outcome.err


def last_line(outcome: Outcome, code: int = 1) -> str:
    assert outcome.code == code, outcome
    assert "Traceback" not in outcome.err
    line = outcome.err.splitlines()[-1]
    assert line.startswith("tracekit: "), outcome.err
    return line


def stopped(folder: Path, number: int, *args: object, lines: int = 1, **variables: str) -> Outcome:
    """``tracekit capture`` in a process of its own, which gets a signal once its program has printed some lines."""
    # No pipes: where nsys fails, its agent may outlive it and hold them open.
    with TemporaryDirectory() as beside:
        out, err = (Path(beside) / name for name in ("out", "err"))
        with out.open("wb") as printed, err.open("wb") as said:
            words, env = arguments("capture", *args), environment(**variables)
            running = subprocess.Popen(words, stdout=printed, stderr=said, env=env, cwd=folder)
        try:
            wait_until(lambda: out.read_bytes().count(b"\n") >= lines or running.poll() is not None)
            time.sleep(0.2)
            running.send_signal(number)
            running.wait(PATIENCE_S)
        finally:
            running.kill()
            running.wait()
        return Outcome(running.returncode, out.read_text(), err.read_text())
