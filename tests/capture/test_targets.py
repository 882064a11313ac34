"""Targets that are missing, raise, exit or return nonsense get one line that names them; nothing is half-written."""

import re

import pytest

import tracekit
from tests.capture.places import MODEL, Place, last_line, one_line

pytestmark = pytest.mark.torch


TARGETS = (
    MODEL
    + """
NUMBER = 3
def wants(x, y): ...
def number(): return 3
def no_inputs(): return (nn.ReLU(),)
def listed(): return [nn.ReLU(), torch.zeros(1)]
def module(): return nn.ReLU()

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
#: What is said of targets that cannot be recorded.
FAILING = {
    "absent.py:make": "absent.py: file not found",
    "model.py:absent": "model.py: has no function absent",
    "model.py:NUMBER": "NUMBER is not a function",
    "model.py:wants": r"wants\(x, y\)",
    "absent.module:make": "absent.module: module not found",
    "package.needy:make": "package.needy.*No module named 'absent_dependency'",
    "broken.py:make": "broken.py.*SyntaxError",
    "raising.py:make": r"ValueError: at import \(raising.py, line 2, in <module>\)",
    "model.py:number": r"returned an object of type int.*expected \(model, inputs\)",
    "model.py:no_inputs": r"returned \(ReLU\).*expected \(model, inputs\)",
    "model.py:listed": r"returned an object of type list.*expected \(model, inputs\)",
    "model.py:module": r"returned an object of type ReLU.*expected \(model, inputs\)",
    "model.py:raises": r"IndexError: list index out of range \(model.py, line.*in raises\)",
    "model.py:at_once": r"RuntimeError: first second \(model.py, line.*in forward\)",
    "model.py:wrong_shape": "RuntimeError",
    "model.py:wrong_arguments": "TypeError",
}
NOWHERE = dict.fromkeys(("model", "model.py:", ":make", ""), "expected ")


@pytest.mark.parametrize(("target", "said"), [*FAILING.items(), *NOWHERE.items()])
def test_a_target_that_cannot_be_had_or_called_is_named_in_one_line(place: Place, target: str, said: str) -> None:
    place.write(TARGETS)
    place.write("def make(:\n", "broken.py")
    place.write("\nraise ValueError('at import')\n", "raising.py")
    place.write("import absent_dependency\n", "package/needy.py")
    place.write("", "package/__init__.py")
    before = place.left()
    line = one_line(place.capture(target), 2 if target in NOWHERE else 1)
    assert target.split(":")[0] in line
    assert re.search(said, line), line
    assert place.left() == before


def test_what_was_recorded_before_a_forward_raised_is_kept(place: Place) -> None:
    place.write(TARGETS)
    line = last_line(place.capture("--warmup", 1, "--backward", "model.py:later"))
    assert line.startswith("tracekit: model.py:later: raised RuntimeError: first second (model.py, line")
    dataset = tracekit.parse(place.folder / "later.sqlite")
    assert dataset.steps(["kind"]).kind.tolist() == ["train", "train"]
    assert not dataset.ranges(["open"]).open.any()


LEAVING = {"sys.exit(0)": (0, ""), "sys.exit()": (0, ""), "sys.exit(3)": (3, ""), "sys.exit('no')": (1, "no\n")}


@pytest.mark.parametrize("leave", LEAVING)
def test_a_target_that_exits_while_recorded_keeps_its_exit_code(place: Place, leave: str) -> None:
    place.write(MODEL + f"import sys\ndef main():\n    m, x = make()\n    m(x)\n    {leave}\n")
    code, said = LEAVING[leave]
    assert place.capture("--quiet", "model.py:main") == (code, "", said)
    assert tracekit.parse(place.folder / "main.sqlite").calls().module.tolist()[0] == "Sequential"


@pytest.mark.parametrize(("leave", "indent"), [("sys.exit(0)", ""), ("sys.exit(3)", ""), ("sys.exit('no')", "    ")])
def test_a_target_that_exits_before_leaves_no_report(place: Place, leave: str, indent: str) -> None:
    place.write(f"import sys\ndef make():\n    pass\n{indent}{leave}\n")
    outcome = place.capture("model.py:make")
    code, said = LEAVING[leave]
    assert outcome.code == (code or 1)
    assert outcome.err.startswith(said)
    assert "before anything was recorded" in outcome.err.splitlines()[-1]
    assert place.left() == {"model.py"}


LOUD = (
    MODEL
    + """
def loud():
    m, x = make()
    m.register_forward_hook(lambda m, a, y: print(y.requires_grad))
    return m, x
"""
)


@pytest.mark.parametrize(
    ("args", "printed"),
    [
        ((), "False\n" * 7),  # two calls of warm-up, five recorded ones
        (("--steps", 1, "--warmup", 0), "False\n"),
        (("--steps", 1, "--warmup", 0, "--backward"), "True\n"),
    ],
)
def test_a_model_is_called_as_often_as_asked_and_trains_only_for_backward(
    place: Place, args: tuple[object, ...], printed: str
) -> None:
    place.write(LOUD)
    assert place.capture(*args, "model.py:loud").out == printed
    dataset = tracekit.parse(place.folder / "loud.sqlite")
    calls, recorded = dataset.calls(["module", "phase"]), 1 if args else 5
    assert ((calls.module == "Sequential") & (calls.phase == "forward")).sum() == recorded
    trained = set(calls.module[calls.phase == "backward"])
    assert trained >= {"Sequential.0", "Sequential.1"} if "--backward" in args else not trained
    assert set(dataset.steps(["kind"]).kind.dropna()) == ({"train"} if "--backward" in args else set())
