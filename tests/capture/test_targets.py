"""Targets that are missing, raise, exit or return nonsense get one line that names them; nothing is half-written."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import tracekit
from tests.capture import places
from tests.capture.places import MODEL, last_line, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.capture.places import Place

pytestmark = pytest.mark.torch


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from places.place(tmp_path, monkeypatch)


MISSING = {
    "absent.py:make": "absent.py: file not found",
    "absent.py": "absent.py: file not found",
    "model.py:absent": "model.py: has no function absent",
    "model.py:NUMBER": "NUMBER is not a function",
    "model.py:wants": "wants(x, y)",
    "absent.module:make": "absent.module: module not found",
    "package.absent:make": "package.absent: module not found",
    "package.needy:make": "No module named 'absent_dependency'",
    "broken.py:make": "SyntaxError",
    "broken.py": "SyntaxError",
    "raising.py:make": "ValueError: at import (raising.py, line 2, in <module>)",
    "folder.py:make": "folder.py: file not found",
}


@pytest.mark.parametrize("target", MISSING)
def test_a_target_that_cannot_be_had_is_named_in_one_line(place: Place, target: str) -> None:
    place.write(MODEL + "\nNUMBER = 3\ndef wants(x, y): ...\n")
    place.write("def make(:\n", "broken.py")
    place.write("\nraise ValueError('at import')\n", "raising.py")
    place.write("import absent_dependency\n", "package/needy.py")
    place.write("", "package/__init__.py")
    (place.folder / "folder.py").mkdir()
    before = place.left()
    said = one_line(place.capture(target))
    assert target.split(":")[0] in said
    assert MISSING[target] in said
    assert place.left() == before


NOWHERE = ["model", "model.py:", ":make", "", "model.txt", "model.py:make:"]


@pytest.mark.parametrize("target", NOWHERE)
def test_what_names_no_target_is_a_wrong_call(place: Place, target: str) -> None:
    place.write(MODEL)
    said = one_line(place.capture(target), 2)
    assert "expected" in said
    assert place.left() == {"model.py"}


NONSENSE = {
    "3": "an object of type int",
    "'text'": "an object of type str",
    "(1, 2)": "(int, int)",
    "(nn.ReLU(),)": "(ReLU)",
    "(nn.ReLU(), torch.zeros(1), 3)": "(ReLU, Tensor, int)",
    "[nn.ReLU(), torch.zeros(1)]": "an object of type list",
    "nn.ReLU()": "an object of type ReLU",
    "(x for x in [1])": "an object of type generator",
    "()": "()",
}


@pytest.mark.parametrize("made", NONSENSE)
def test_a_function_that_returns_nonsense_is_told_what_is_expected(place: Place, made: str) -> None:
    place.write(f"import torch\nfrom torch import nn\ndef make(): return {made}\n")
    said = one_line(place.capture("model.py:make"))
    assert f"returned {NONSENSE[made]}" in said
    assert "expected (model, inputs)" in said
    assert place.left() == {"model.py"}


def test_an_async_function_is_refused_and_python_says_nothing(place: Place, recwarn) -> None:
    place.write("async def make(): return 1\n")
    one_line(place.capture("model.py:make"))
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]


RAISING = (
    MODEL
    + """
class Bad(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.inner, self.calls, self.last = nn.Linear(4, 4), 0, last
    def forward(self, x):
        self.calls += 1
        y = self.inner(x)
        if self.calls > self.last:
            raise RuntimeError("first\\nsecond")
        return y

def raises(): return [][1]
def at_once(): return Bad(0), torch.zeros(1, 4)
def later(): return Bad(3), torch.zeros(1, 4)
def wrong_shape(): return nn.Linear(3, 3), torch.zeros(2, 2)
def wrong_arguments(): return nn.Linear(3, 3), {"absent": torch.zeros(2, 2)}
"""
)


def test_what_a_function_or_a_forward_raises_is_one_line_with_its_place(place: Place) -> None:
    place.write(RAISING)
    said = one_line(place.capture("model.py:raises"))
    assert "IndexError: list index out of range (model.py, line" in said
    assert "in raises)" in said
    said = one_line(place.capture("model.py:at_once"))
    assert "RuntimeError: first second (model.py, line" in said
    assert "in forward)" in said
    assert "RuntimeError" in one_line(place.capture("model.py:wrong_shape"))
    assert "TypeError" in one_line(place.capture("model.py:wrong_arguments"))
    assert place.left() == {"model.py"}


def test_a_forward_that_raises_in_its_second_recorded_step_leaves_the_first(place: Place) -> None:
    place.write(RAISING)
    said = last_line(place.capture("model.py:later", "-o", "out.sqlite"))
    assert "RuntimeError: first second" in said
    dataset = tracekit.parse(place.folder / "out.sqlite")
    assert dataset.calls(["module"]).module.tolist() == ["Bad", "Bad", "Bad.inner", "Bad.inner"]
    assert not dataset.ranges(["open"]).open.any()


LEAVING = {
    "sys.exit(0)": (0, ""),
    "sys.exit()": (0, ""),
    "sys.exit(3)": (3, ""),
    "sys.exit('no luck')": (1, "no luck\n"),
}


@pytest.mark.parametrize("leave", LEAVING)
def test_a_target_that_exits_while_recorded_keeps_its_exit_code(place: Place, leave: str) -> None:
    place.write(MODEL + f"import sys\ndef main():\n    m, x = make()\n    m(x)\n    {leave}\n")
    code, said = LEAVING[leave]
    outcome = place.capture("--quiet", "model.py:main")
    assert (outcome.code, outcome.out, outcome.err) == (code, "", said)
    assert tracekit.parse(place.folder / "main.sqlite").calls().module.tolist()[0] == "Sequential"


@pytest.mark.parametrize("leave", LEAVING)
@pytest.mark.parametrize("where", ["at import", "in the function"])
def test_a_target_that_exits_before_leaves_no_report(place: Place, leave: str, where: str) -> None:
    lines = f"import sys\n{leave}\n" if where == "at import" else ""
    place.write(f"import sys\n{lines}def make():\n    {leave}\n")
    outcome = place.capture("model.py:make")
    code, said = LEAVING[leave]
    assert outcome.code == (code or 1)
    assert outcome.err.startswith(said)
    assert "before anything was recorded" in outcome.err.splitlines()[-1]
    assert place.left() == {"model.py"}


KINDS = (
    MODEL
    + """
class Named(nn.Module):
    def forward(self, x, scale=None): return x * scale

class Maker:
    def __call__(self): return make()
    def made(self): return make()
    @staticmethod
    def static(): return make()

maker = Maker()
short = lambda: make()
def optional(size=3): return make()
def by_name(): return Named(), {"x": torch.ones(2), "scale": torch.ones(1)}
def single(): return nn.ReLU(), torch.zeros(3)
def several(): return nn.Bilinear(2, 2, 2), (torch.zeros(1, 2), torch.zeros(1, 2))
def listed(): return nn.Bilinear(2, 2, 2), [torch.zeros(1, 2), torch.zeros(1, 2)]
def compiled(): return torch.compile(nn.Linear(4, 4), backend="eager"), torch.zeros(1, 4)
"""
)
FIRST = {
    "maker": "Sequential",
    "maker.made": "Sequential",
    "Maker.static": "Sequential",
    "short": "Sequential",
    "optional": "Sequential",
    "by_name": "Named",
    "single": "ReLU",
    "several": "Bilinear",
    "listed": "Bilinear",
    "compiled": "Linear",
}


@pytest.mark.parametrize("name", FIRST)
def test_whatever_can_be_called_without_arguments_may_make_a_model(place: Place, name: str) -> None:
    place.write(KINDS)
    outcome = place.capture("--steps", 2, "--warmup", 1, "-o", "out.sqlite", f"model.py:{name}")
    assert outcome.code == 0, outcome
    dataset = tracekit.parse(place.folder / "out.sqlite")
    calls = dataset.calls(["module", "step_id"])
    assert calls[calls.module == FIRST[name]].step_id.tolist() == [0, 1]
    assert len(dataset.steps()) == 2


def test_a_file_with_the_name_of_a_module_that_others_use_stands_in_nobodys_way(
    place: Place,
) -> None:
    place.write(MODEL, "json.py")
    assert place.capture("-o", "out.sqlite", "json.py:make").code == 0
    assert json.loads("[1]") == [1]
    assert sys.modules["json"] is json


def test_a_model_gets_two_calls_of_warm_up_and_five_recorded_ones(place: Place) -> None:
    place.write(
        MODEL + "def loud():\n    m, x = make()\n    m.register_forward_hook(lambda *a: print('ran'))\n"
        "    return m, x\n"
    )
    outcome = place.capture("model.py:loud")
    assert outcome.out == "ran\n" * 7
    calls = tracekit.parse(place.folder / "loud.sqlite").calls(["module"])
    assert (calls.module == "Sequential").sum() == 5


def test_gradients_are_off_but_for_backward_and_every_step_then_trains(place: Place) -> None:
    place.write(
        MODEL + "def loud():\n    m, x = make()\n"
        "    m.register_forward_hook(lambda m, a, y: print(y.requires_grad))\n    return m, x\n"
    )
    assert place.capture("--steps", 1, "--warmup", 0, "model.py:loud").out == "False\n"
    outcome = place.capture("--steps", 1, "--warmup", 0, "--force", "--backward", "model.py:loud")
    assert outcome.out == "True\n"
    dataset = tracekit.parse(place.folder / "loud.sqlite")
    calls = dataset.calls(["module", "phase"])
    assert set(calls[calls.phase == "backward"].module) >= {"Sequential.0", "Sequential.1"}
    assert dataset.steps(["kind"]).kind.tolist() == ["train"]


def test_backward_of_what_needs_no_gradient_is_refused(place: Place) -> None:
    place.write(KINDS)
    outcome = place.capture("--backward", "--warmup", 1, "model.py:single")
    assert "requires a gradient; remove --backward" in one_line(outcome)
    assert place.left() == {"model.py"}


def test_skipped_and_deeper_modules_have_no_markers(place: Place) -> None:
    place.write(
        MODEL + "def deep(): return nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.ReLU()), torch.zeros(1, 4)\n"
    )
    place.capture("--depth", 1, "--skip", "*.1", "--steps", 1, "model.py:deep")
    calls = tracekit.parse(place.folder / "deep.sqlite").calls(["module"])
    assert calls.module.tolist() == ["Sequential", "Sequential.0"]


def test_the_report_says_who_wrote_it_and_what_recording_cost(place: Place) -> None:
    place.write(MODEL)
    place.capture("--steps", 1, "model.py:make")
    with closing(sqlite3.connect(place.folder / "make.sqlite")) as db:
        said = dict(db.execute("SELECT name, value FROM META_DATA_EXPORT"))
        figures = dict(db.execute("SELECT name, value FROM TRACEKIT_RECORDER"))
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    assert said["EXPORT_PRODUCT_NAME"] == "tracekit"
    assert said["EXPORT_SCHEMA_VERSION"].startswith("3.")
    assert figures["markers"] >= 3
    assert figures["markers_lost"] == 0
    assert {"start_ns", "stop_ns", "convert_ns"} <= set(figures)
    assert not [name for name in tables if name.startswith("CUPTI")]
