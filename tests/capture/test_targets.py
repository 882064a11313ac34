"""Targets that are missing, raise, exit or return nonsense get one line that names them; nothing is half-written."""

import pytest

import tracekit
from tests.capture.places import MODEL, Place, last_line, one_line

pytestmark = pytest.mark.torch


MISSING = {
    "absent.py:make": "absent.py: file not found",
    "model.py:absent": "model.py: has no function absent",
    "model.py:NUMBER": "NUMBER is not a function",
    "model.py:wants": "wants(x, y)",
    "absent.module:make": "absent.module: module not found",
    "package.needy:make": "No module named 'absent_dependency'",
    "broken.py:make": "SyntaxError",
    "raising.py:make": "ValueError: at import (raising.py, line 2, in <module>)",
}
NOWHERE = {"model", "model.py:", ":make", ""}


@pytest.mark.parametrize("target", [*MISSING, *sorted(NOWHERE)])
def test_a_target_that_cannot_be_had_is_named_in_one_line(place: Place, target: str) -> None:
    place.write(MODEL + "\nNUMBER = 3\ndef wants(x, y): ...\n")
    place.write("def make(:\n", "broken.py")
    place.write("\nraise ValueError('at import')\n", "raising.py")
    place.write("import absent_dependency\n", "package/needy.py")
    place.write("", "package/__init__.py")
    before = place.left()
    said = one_line(place.capture(target), 2 if target in NOWHERE else 1)
    assert target.split(":")[0] in said
    assert MISSING.get(target, "expected ") in said
    assert place.left() == before


NONSENSE = {
    "3": "an object of type int",
    "(nn.ReLU(),)": "(ReLU)",
    "[nn.ReLU(), torch.zeros(1)]": "an object of type list",
    "nn.ReLU()": "an object of type ReLU",
}


@pytest.mark.parametrize("made", NONSENSE)
def test_a_function_that_returns_nonsense_is_told_what_is_expected(place: Place, made: str) -> None:
    place.write(f"import torch\nfrom torch import nn\ndef make(): return {made}\n")
    said = one_line(place.capture("model.py:make"))
    assert f"returned {NONSENSE[made]}" in said
    assert "expected (model, inputs)" in said
    assert place.left() == {"model.py"}


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
def later(): return Bad(2), torch.zeros(1, 4, requires_grad=True)
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


def test_what_was_recorded_before_a_forward_raised_is_kept(place: Place) -> None:
    place.write(RAISING)
    line = last_line(place.capture("--warmup", 1, "--backward", "model.py:later"))
    assert line.startswith("tracekit: model.py:later: raised RuntimeError: first second (model.py, line")
    dataset = tracekit.parse(place.folder / "later.sqlite")
    assert dataset.steps(["kind"]).kind.tolist() == ["train", "train"]
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


@pytest.mark.parametrize(
    ("leave", "where"), [("sys.exit(0)", "at import"), ("sys.exit(3)", "at import"), ("sys.exit('no luck')", "called")]
)
def test_a_target_that_exits_before_leaves_no_report(place: Place, leave: str, where: str) -> None:
    lines = f"import sys\n{leave}\n" if where == "at import" else ""
    place.write(f"import sys\n{lines}def make():\n    {leave}\n")
    outcome = place.capture("model.py:make")
    code, said = LEAVING[leave]
    assert outcome.code == (code or 1)
    assert outcome.err.startswith(said)
    assert "before anything was recorded" in outcome.err.splitlines()[-1]
    assert place.left() == {"model.py"}


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
