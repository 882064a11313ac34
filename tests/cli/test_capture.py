"""``tracekit capture`` is called wrongly, or has no place or no tool: one line, and nothing half-written."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture import places
from tests.capture.places import MODEL, Place, one_line
from tests.command import command, separately

torch = pytest.mark.torch
NSYS = ("--engine", "nsys")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from places.place(tmp_path, monkeypatch)


WRONG = {
    (): "nothing to record",
    ("model.py:make", "--steps", "-1"): "expected a whole number, 0 or more, got '-1'",
    ("model.py:make", "--steps", "0"): "--steps 0 records nothing",
    ("model.py:make", "--depth", "1.5"): "1.5",
    ("model.py:make", "--absent"): "--absent",
    ("model.py:make", "model.py:other"): "model.py:other",
    ("python", "model.py"): "unrecognized arguments: model.py; a command stands behind --: tracekit capture -- python",
    ("model.py:make", "--", "8"): "takes no arguments",
    ("--engine", "nsys", "--steps", "3", "--", "true"): "--steps of a command needs --engine torch",
    ("--engine", "nsys", "--ops", "--", "true"): "--ops",
    ("--engine", "nsys", "--hierarchy", "model.py:make"): "--hierarchy needs --engine torch",
    ("--compile", "--", "true"): "--compile is for a function",
    ("--compile-size", "4", "model.py:make"): "--compile-size needs --compile",
    ("--cudagraph-size", "4", "model.py:make"): "--cudagraph-size needs --compile",
    ("--no-cache", "model.py:make"): "--no-cache needs --compile",
    ("--split", "a::b", "model.py:make"): "--split needs --compile",
    ("--split", "aten::mm", "--", "true"): "--split",
    ("--compile", "--dynamic-dims", "ids", "model.py:make"): "'ids': expected ARGUMENT:DIM, such as input_ids:0",
    ("--engine", "wrong", "--", "true"): "wrong",
}


@torch
@pytest.mark.parametrize("args", WRONG, ids=" ".join)
def test_a_wrong_call_is_told_in_one_line(place: Place, args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_NSYS", "true")
    place.write(MODEL)
    line = one_line(command("capture", *args), 2)
    assert WRONG[args] in line
    assert "count" not in line
    assert place.left() == {"model.py"}


@torch
@pytest.mark.parametrize("given", ["", "..", "absent/out.sqlite", "/dev/null", "/dev/full"])
def test_a_place_that_cannot_hold_a_report_is_told_before_anything_runs(place: Place, given: str) -> None:
    place.write("print('ran')\n" + MODEL)
    outcome = place.capture("-o", given, "model.py:make")
    assert ("is a device, not a file; choose another place with -o" in one_line(outcome)) == given.startswith("/dev")
    assert outcome.out == ""
    assert place.left() == {"model.py"}


@torch
def test_a_report_that_is_there_stays_unless_forced(place: Place) -> None:
    place.write(MODEL)
    there = place.folder / "make.sqlite"
    there.write_text("mine")
    line = one_line(place.capture("model.py:make"))
    assert "make.sqlite: already exists" in line
    assert "--force" in line
    assert there.read_text() == "mine"
    assert place.capture("--force", "model.py:make").code == 0
    assert there.read_bytes()[:6] == b"SQLite"


NAMES = {
    ("model.py:make",): "make.sqlite",
    ("-o", "given", "model.py:make"): "given.sqlite",
    ("-o", "two words/größe.v1", "model.py:make"): "two words/größe.v1.sqlite",
    ("sub dir/modül.py:make",): "make.sqlite",
    ("package.inner:Maker.make",): "make.sqlite",
    ("sub dir/train.v2.py",): "train.v2.sqlite",
}


@torch
@pytest.mark.parametrize("args", NAMES, ids=" ".join)
def test_the_report_is_named_after_the_target_and_lands_here(place: Place, args: tuple[str, ...]) -> None:
    place.write(MODEL)
    place.write(MODEL, "sub dir/modül.py")
    place.write(MODEL + "m, x = make()\nm(x)\n", "sub dir/train.v2.py")
    place.write(MODEL + "class Maker:\n    make = staticmethod(make)\n", "package/inner.py")
    (place.folder / "two words").mkdir()
    outcome = place.capture(*args)
    assert outcome.code == 0, outcome
    assert (place.folder / NAMES[args]).exists()
    assert f"report: {NAMES[args]}\nnext: tracekit parse {shlex.quote(NAMES[args])}\n" in outcome.err
    assert len([name for name in place.left() if name.endswith(".sqlite")]) == 1


@torch
@pytest.mark.parametrize("more", [(), ("--ops",)])
def test_operators_are_marked_only_if_asked_for(place: Place, more: tuple[str, ...]) -> None:
    place.write(MODEL)
    assert place.capture(*more, "model.py:make").code == 0
    assert (b"op_id = " in (place.folder / "make.sqlite").read_bytes()) == bool(more)


@torch
def test_what_a_full_disk_cannot_hold_is_the_report_where_the_user_expects_it(place: Place, monkeypatch) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tracekit.nsight.file.whole_file", full)
    place.write(MODEL)
    said = f"tracekit: {place.folder / 'make.sqlite'}: cannot be written (No space left on device)"
    assert one_line(place.capture("model.py:make")).startswith(said)


TOOLS = {
    "/absent/nsys": "/absent/nsys: is not an executable program",
    "model.py": "model.py: is not an executable program",
    "/bin/false": "nothing was recorded",
    "./says_no": "nothing was recorded",
    "./no_program": "cannot be run",
}


@torch
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("target", ["a model", "a command"])
def test_a_variable_that_names_no_nsys_is_told_in_one_line(place: Place, tool: str, target: str, monkeypatch) -> None:
    place.write(MODEL)
    place.write("#!/bin/sh\necho 'no licence for this' >&2\nexit 9\n", "says_no").chmod(0o700)
    place.write("\0\1", "no_program").chmod(0o700)
    before = place.left()
    monkeypatch.setenv("TRACEKIT_NSYS", tool)
    args = ("model.py:make",) if target == "a model" else ("-o", "out", "--", "true")
    outcome = command("capture", *NSYS, *args)
    assert outcome.code in {1, 9}
    line = one_line(outcome, outcome.code)
    assert TOOLS[tool] in line
    assert ("no licence for this" in line) == (tool == "./says_no")
    assert place.left() == before


@torch
def test_without_nsys_it_is_said_what_is_possible(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write(MODEL)
    monkeypatch.delenv("TRACEKIT_NSYS", raising=False)
    monkeypatch.setattr("tracekit.nsight.nsys._PLACES", ())
    monkeypatch.setenv("PATH", str(place.folder))
    for target in (("model.py:make",), ("--", "true")):
        line = one_line(command("capture", *NSYS, *target))
        assert "nsys was not found" in line
        assert "TRACEKIT_NSYS" in line
    assert place.capture("model.py:make", engine="auto").code == 0


def test_a_command_that_does_not_exist_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_NSYS", "true")
    for absent in ("absent-program", "./absent", ""):
        assert "no such program" in one_line(command("capture", "-o", "out", "--", absent))
    assert place.left() == set()


@torch
def test_a_script_that_may_not_be_run_or_is_no_python_is_told_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_NSYS", "true")
    place.write("echo hi\n", "my script.sh")
    line = one_line(command("capture", "-o", "out", "--", "./my script.sh"))
    assert "./my script.sh: is not executable; run chmod +x './my script.sh', or tracekit capture -- bash" in line
    line = one_line(command("capture", "my script.sh"), 2)
    assert "a command follows --: tracekit capture -- './my script.sh'" in line
    assert place.left() == {"my script.sh"}


@pytest.mark.parametrize(
    ("absent", "args"),
    [
        ("torch", ("capture", "model.py:make")),
        ("torch", ("demo",)),
        ("torch", ("capture", "demo")),
        pytest.param("nvtx", ("capture", *NSYS, "model.py:make"), marks=[torch, pytest.mark.nsys]),
    ],
)
def test_without_a_package_the_message_says_what_to_install(place: Place, absent: str, args: tuple[str, ...]) -> None:
    place.write("print('ran')\n" + MODEL)
    place.write(f"import sys\nsys.modules[{absent!r}] = None\n", "blocked/sitecustomize.py")
    paths = os.pathsep.join([str(place.folder / "blocked"), str(Path(__file__).parents[2])])
    outcome = separately(*args, cwd=place.folder, PYTHONPATH=paths)
    printed = one_line(outcome, 2 if absent == "nvtx" else 1)
    assert f"pip install {'torch nvtx' if absent == 'torch' else 'nvtx'}" in printed
    assert "raised" not in printed
    assert outcome.out == ""
    assert place.left() == {"model.py", "blocked", "blocked/sitecustomize.py"}
