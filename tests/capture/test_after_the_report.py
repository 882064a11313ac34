"""What fails once a recording is safe is a warning: the exit code stays the program's, and nothing recorded is lost."""

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import tracekit
from tests.capture.places import MODEL, Place, last_line
from tests.command import ROOT, Outcome, command
from tests.trace_lines import report as report_of

pytestmark = pytest.mark.torch

#: Runs what it is given, leaves a report, and breaks as it is told to.
NSYS = f"""#!{sys.executable}
import os, shutil, subprocess, sys
args, breaks = sys.argv[1:], os.environ.get("BREAKS", "")
if args[0] == "export":
    if breaks != "export":
        shutil.copy({{report!r}}, args[args.index("-o") + 1])
    if breaks.startswith("export"):
        sys.exit("no space for this")
elif args[0] == "profile" and "--help" not in args:
    at = args.index("-o")
    code = subprocess.call(args[at + 2:], close_fds=False)
    print("[QuadDCommon::tag_message*] = Some of the device's counters are not available")
    kind = ".qdstrm" if breaks.startswith("importer") else ".nsys-rep"
    open(args[at + 1] + kind, "w").write("recorded")
    sys.exit(3 if breaks == "nsys" else code)
"""
#: Neither release of nvtx that there is: its public functions alone, of which one does not take what it gave.
NVTX = """
push_range = pop_range = start_range = lambda *_: None
get_domain = lambda _: None
def end_range(range_id): raise TypeError("an integer is required")
"""
LEAVING = MODEL + "\nimport sys\ndef main():\n    m, x = make()\n    m(x)\n    {last}\n    sys.exit(7)\n"


class Fake(NamedTuple):
    """A folder with targets, and an nsys that breaks as it is told to."""

    place: Place
    nsys: Path
    monkeypatch: pytest.MonkeyPatch

    def capture(self, breaks: str, *args: object, first_on_path: str = ".") -> Outcome:
        self.monkeypatch.setenv("TRACEKIT_NSYS", str(self.nsys))
        self.monkeypatch.setenv("BREAKS", breaks)
        self.monkeypatch.setenv("PYTHONPATH", os.pathsep.join([first_on_path, str(ROOT)]))
        return command("capture", "-o", "out", *args)

    def exists(self) -> bool:
        return len(tracekit.parse(self.place.folder / "out.sqlite").modules()) >= 1


@pytest.fixture
def fake(place: Place, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Fake:
    folder = tmp_path_factory.mktemp("nsys")
    report = report_of(folder / "report.sqlite", "range 1 0 10 {'Module': 'top'}")
    (nsys := folder / "bin" / "nsys").parent.mkdir()
    nsys.write_text(NSYS.format(report=str(report)))
    nsys.chmod(0o700)
    place.write(MODEL)
    place.write(LEAVING.format(last="pass"), "leaving.py")
    return Fake(place, nsys, monkeypatch)


def warning(outcome: Outcome, code: int) -> str:
    """The one warning, but for that of the calls which the fake nsys does not record."""
    usual = ("recorded ", "modules: ", "a step took ", "report: ", "next: ", "tracekit: warning: nsys lost ")
    (line,) = (line for line in outcome.err.splitlines() if not line.startswith(usual))
    assert line.startswith("tracekit: warning: "), outcome.err
    assert outcome.code == code, outcome
    return line


PROGRAM_UNDER_NSYS = ("--engine", "nsys", "leaving.py:main")
COMMAND = ("--engine", "nsys", "--", sys.executable, "-c", "raise SystemExit(7)")


@pytest.mark.parametrize("target", [PROGRAM_UNDER_NSYS, COMMAND], ids=["a program", "a command"])
def test_a_report_that_cannot_be_exported_stays_as_nsys_wrote_it(target: tuple[str, ...], fake: Fake) -> None:
    (fake.place.folder / "out.sqlite").write_text("of an earlier run")
    outcome = fake.capture("export", "--force", *target)
    said = r"out.nsys-rep: was recorded, but .*no space for this.*nsys export --type sqlite -o "
    assert re.search(said, warning(outcome, 7))
    assert "next: " not in outcome.err
    assert (fake.place.folder / "out.nsys-rep").read_text() == "recorded"
    assert fake.place.left() == {"model.py", "leaving.py", "out.nsys-rep"}


@pytest.mark.parametrize(
    ("importer", "reason"),
    [(None, "cannot be run"), ("#!/bin/sh\necho no libssh >&2\nexit 127\n", "printed: no libssh;")],
    ids=["absent", "failing"],
)
def test_raw_data_that_nothing_imports_stays_too(importer: str | None, reason: str, fake: Fake) -> None:
    if importer is not None:
        (path := fake.nsys.parents[1] / "host-linux-x64" / "QdstrmImporter").parent.mkdir()
        path.write_text(importer)
        path.chmod(0o700)
    said = warning(fake.capture("importer", *COMMAND), 7)
    assert re.search(f"out.qdstrm: was recorded, but cannot be converted to a report.*{reason}", said)
    assert fake.place.left() == {"model.py", "leaving.py", "out.qdstrm"}


def test_an_nsys_that_fails_after_the_program_does_not_speak_for_it(fake: Fake) -> None:
    said = warning(fake.capture("nsys", "--engine", "nsys", "model.py:make"), 0)
    assert said == "tracekit: warning: nsys exited with code 3 although the program had exited with 0"
    assert fake.exists()


def test_the_end_of_the_window_may_fail(fake: Fake) -> None:
    fake.place.write(NVTX, "other/nvtx.py")
    said = warning(fake.capture("", *PROGRAM_UNDER_NSYS, first_on_path="other"), 7)
    assert re.search("nsys could not be told to stop recording.*TypeError: an integer is required", said)
    assert fake.exists()


@pytest.mark.parametrize(("engine", "last"), [("nsys", ""), ("torch", "raise ValueError('device-side assert')")])
def test_a_gpu_that_fails_at_the_end_does_not_cost_the_report(engine: str, last: str, fake: Fake) -> None:
    broken = "torch.cuda.is_available = lambda: True; torch.cuda.synchronize = lambda: 1 / 0"
    fake.place.write(LEAVING.format(last=f"{broken}; {last}"), "leaving.py")
    for name in ("is_available", "synchronize"):  # the program runs here, and shall not spoil what follows
        fake.monkeypatch.setattr(torch.cuda, name, getattr(torch.cuda, name))
    outcome = fake.capture("", "--engine", engine, "leaving.py:main")
    said = "tracekit: warning: the GPU did not finish the recorded work: ZeroDivisionError"
    if last:
        assert said in outcome.err
        assert "raised ValueError: device-side assert" in last_line(outcome)
    else:
        assert warning(outcome, 7).startswith(said)
    assert fake.exists()
