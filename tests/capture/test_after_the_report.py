"""What fails once a recording is safe is a warning: the exit code stays the program's, and nothing recorded is lost."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch

import tracekit
from tests.capture import places
from tests.capture.places import MODEL, last_line
from tests.command import ROOT, arguments, command, environment, separately
from tests.trace_lines import report as report_of
from tracekit.capture import machine
from tracekit.capture.child import NvtxWindow
from tracekit.capture.kineto import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.capture.places import Place
    from tests.command import Outcome

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
        """Records with it; only the program runs in a process of its own."""
        self.monkeypatch.setenv("TRACEKIT_NSYS", str(self.nsys))
        self.monkeypatch.setenv("BREAKS", breaks)
        self.monkeypatch.setenv("PYTHONPATH", os.pathsep.join([first_on_path, str(ROOT)]))
        return command("capture", "-o", "out", *args)

    def exists(self) -> bool:
        """Whether there is a report, and it can be read."""
        return len(tracekit.parse(self.place.folder / "out.sqlite").modules()) >= 1


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    yield from places.place(tmp_path, monkeypatch)


@pytest.fixture
def fake(place: Place, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Fake:
    folder = tmp_path_factory.mktemp("nsys")
    report = report_of(folder / "report.sqlite", "range 1 0 10 {'Module': 'top'}")
    nsys = folder / "bin" / "nsys"
    nsys.parent.mkdir()
    nsys.write_text(NSYS.format(report=str(report)))
    nsys.chmod(0o700)
    place.write(MODEL)
    place.write(LEAVING.format(last="pass"), "leaving.py")
    return Fake(place, nsys, monkeypatch)


def warned(outcome: Outcome) -> list[str]:
    """What was said beside the usual; every line of it is a warning of tracekit's."""
    usual = ("recorded ", "a step took ", "report: ", "next: ")
    lines = [line for line in outcome.err.splitlines() if not line.startswith(usual)]
    assert all(line.startswith("tracekit: warning: ") for line in lines), outcome.err
    return lines


MODEL_UNDER_NSYS = ("--engine", "nsys", "model.py:make")
PROGRAM_UNDER_NSYS = ("--engine", "nsys", "leaving.py:main")
COMMAND = ("--engine", "nsys", "--", sys.executable, "-c", "raise SystemExit(7)")


@pytest.mark.parametrize("target", [PROGRAM_UNDER_NSYS, COMMAND], ids=["a program", "a command"])
def test_a_report_that_cannot_be_exported_stays_as_nsys_wrote_it(target: tuple[str, ...], fake: Fake) -> None:
    (fake.place.folder / "out.sqlite").write_text("of an earlier run")
    outcome = fake.capture("export", "--force", *target)
    assert outcome.code == 7, outcome
    (line,) = warned(outcome)
    assert "out.nsys-rep: was recorded, but " in line
    assert "no space for this" in line
    assert "nsys export --type sqlite -o " in line
    assert "next: " not in outcome.err
    assert (fake.place.folder / "out.nsys-rep").read_text() == "recorded"
    assert fake.place.left() == {"model.py", "leaving.py", "out.nsys-rep"}


def test_an_export_that_complains_may_lack_something_and_is_there(fake: Fake) -> None:
    outcome = fake.capture("export with a file", *COMMAND)
    assert outcome.code == 7, outcome
    (line,) = warned(outcome)
    assert "out.sqlite: may be incomplete" in line
    assert "no space for this" in line
    assert fake.exists()


#: How NVIDIA's importer nests the one line of an error that explains it.
NESTED = r"""Error {
  Type: RuntimeError
  SubError {
    Type: ProcessEventsError
    Props {
      Items {
        Type: ErrorText
        Value: "/build/Analysis/EventCollection.cpp(1055): Throw in function void insert()\n[QuadDCommon::tag_message*] = Wrong event order has been detected:\nnew event ={ StartNs=5905990 }"
      }
    }
  }
}
"""  # noqa: E501 - as it is printed


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (None, "cannot be run"),
        ("no libssh\n", "printed: no libssh;"),
        (NESTED, "printed: Wrong event order has been detected;"),
        ("File is corrupted.\n{\n}\n", "printed: File is corrupted.;"),
        ("", "printed: nothing;"),
    ],
    ids=["absent", "failing", "nested", "closed", "silent"],
)
def test_raw_data_that_nothing_imports_stays_too(printed: str | None, reason: str, fake: Fake) -> None:
    if printed is not None:
        host = fake.nsys.parents[1] / "host-linux-x64"
        host.mkdir()
        (host / "said").write_text(printed)
        (host / "QdstrmImporter").write_text('#!/bin/sh\ncat "$(dirname "$0")/said" >&2\nexit 127\n')
        (host / "QdstrmImporter").chmod(0o700)
    outcome = fake.capture("importer", *COMMAND)
    assert outcome.code == 7, outcome
    (line,) = warned(outcome)
    assert "out.qdstrm: was recorded, but cannot be converted to a report" in line
    assert reason in line
    assert fake.place.left() == {"model.py", "leaving.py", "out.qdstrm"}


def test_an_nsys_that_fails_after_the_program_does_not_speak_for_it(fake: Fake) -> None:
    outcome = fake.capture("nsys", *MODEL_UNDER_NSYS)
    assert outcome.code == 0, outcome
    assert warned(outcome) == ["tracekit: warning: nsys exited with code 3 although the program had exited with 0"]
    assert fake.exists()


def test_the_end_of_the_window_may_fail(fake: Fake) -> None:
    fake.place.write(NVTX, "other/nvtx.py")
    outcome = fake.capture("", *PROGRAM_UNDER_NSYS, first_on_path="other")
    assert outcome.code == 7, outcome
    (line,) = warned(outcome)
    assert "nsys could not be told to stop recording" in line
    assert "TypeError: an integer is required" in line
    assert fake.exists()


def test_a_window_that_cannot_be_opened_is_told_in_one_line(fake: Fake) -> None:
    fake.place.write(NVTX + "start_range = None\n", "other/nvtx.py")
    outcome = fake.capture("", *MODEL_UNDER_NSYS, first_on_path="other")
    assert "the nvtx package cannot start a range" in last_line(outcome)


def test_a_program_that_clears_the_temporary_folder_keeps_its_exit_code(
    fake: Fake, capfd: pytest.CaptureFixture[str]
) -> None:
    clears = "import json, pathlib, shutil; shutil.rmtree(pathlib.Path(json.loads(sys.argv[1])[3]).parent)"
    fake.place.write(LEAVING.format(last=clears), "leaving.py")
    outcome = fake.capture("", *PROGRAM_UNDER_NSYS)
    assert (outcome.code, warned(outcome)) == (7, [])
    assert "the cost of recording is not known" in capfd.readouterr().err
    assert fake.exists()


def test_a_program_that_is_killed_while_it_says_what_came_of_it_keeps_its_exit_code(
    fake: Fake,
) -> None:
    last = "import json, os; open(json.loads(sys.argv[1])[3], 'w').write('{{'); os._exit(9)"
    fake.place.write(LEAVING.format(last=last.replace("{{", "{")), "leaving.py")
    outcome = fake.capture("", *PROGRAM_UNDER_NSYS)
    assert (outcome.code, warned(outcome)) == (9, [])
    assert fake.exists()


def test_a_fork_that_ends_last_does_not_speak_for_the_program(fake: Fake) -> None:
    last = "import os, time; os.fork() or (time.sleep(2), sys.exit(3))"
    fake.place.write(LEAVING.format(last=last), "leaving.py")
    fake.place.write(f'#!/bin/sh\n{fake.nsys} "$@"\ncode=$?\nsleep 4\nexit $code\n', "patient")
    (fake.place.folder / "patient").chmod(0o700)
    outcome = fake._replace(nsys=fake.place.folder / "patient").capture("", *PROGRAM_UNDER_NSYS)
    assert (outcome.code, warned(outcome)) == (7, [])


@pytest.mark.parametrize(
    ("target", "folders"),
    [(COMMAND, 2), (PROGRAM_UNDER_NSYS, 2), (("--engine", "torch", "leaving.py:main"), 1)],
    ids=["a command", "nsys", "torch"],
)
def test_temporary_files_that_cannot_be_removed_are_named(target: tuple[str, ...], folders: int, fake: Fake) -> None:
    removed = shutil.rmtree

    def busy(path: Path) -> None:
        removed(path)
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    fake.monkeypatch.setattr("tracekit.nsight.nsys.shutil.rmtree", busy)
    outcome = fake.capture("", *target)
    assert outcome.code == 7, outcome
    assert all("cannot be removed (Device or resource busy)" in line for line in warned(outcome))
    assert len(warned(outcome)) == folders
    fake.monkeypatch.undo()
    assert tracekit.parse(fake.place.folder / "out.sqlite", fake.place.folder / "out")


@pytest.mark.parametrize("engine", ["nsys", "torch"])
@pytest.mark.parametrize("last", ["", "raise ValueError('device-side assert')"])
def test_a_gpu_that_fails_at_the_end_does_not_cost_the_report(engine: str, last: str, fake: Fake) -> None:
    fake.place.write(LEAVING.format(last=f"{BROKEN_GPU}; {last}"), "leaving.py")
    for name in (
        "is_available",
        "synchronize",
    ):  # the program runs here, and shall not spoil what follows
        fake.monkeypatch.setattr(torch.cuda, name, getattr(torch.cuda, name))
    outcome = fake.capture("", "--engine", engine, "leaving.py:main")
    what = "tracekit: warning: the GPU did not finish the recorded work: ZeroDivisionError"
    assert what in outcome.err
    if last:
        assert "raised ValueError: device-side assert" in last_line(outcome)
    else:
        assert (outcome.code, len(warned(outcome))) == (7, 1)
    assert fake.exists()


BROKEN_GPU = "torch.cuda.is_available = lambda: True; torch.cuda.synchronize = lambda: 1 / 0"


def test_a_window_that_is_closed_in_the_middle_raises_nothing_and_is_closed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[int] = []
    window = NvtxWindow()
    monkeypatch.setattr("tracekit.capture.child._started", lambda: lambda: ends.append(1) or 1 / 0)
    window.open()
    window.close()
    window.close()
    assert (len(ends), len(window.warnings)) == (1, 1)


KERNEL = {
    "ph": "X",
    "cat": "kernel",
    "name": "gemm",
    "pid": 0,
    "tid": 7,
    "ts": 1.0,
    "dur": 2.0,
    "args": {"device": 0, "stream": 7, "correlation": 1, "context": 1},
}


def test_a_driver_that_answers_nothing_costs_the_description_of_the_gpus_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> int:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "device_count", fail)
    rows = rows_of({"traceEvents": [KERNEL]}, [], 1)
    assert rows.on_device
    warnings: list[str] = []
    tables = machine.about(rows, warnings)
    assert "META_DATA_EXPORT" in tables
    assert "TARGET_INFO_GPU" not in tables
    (line,) = warnings
    assert "does not describe the GPUs: RuntimeError: CUDA error: device-side assert" in line


@pytest.mark.parametrize("closed", ["stderr", "stdout"])
def test_a_program_that_closes_its_streams_keeps_its_exit_code(closed: str, fake: Fake) -> None:
    fake.place.write(LEAVING.format(last=f"sys.{closed}.close()"), "leaving.py")
    outcome = separately("capture", "-o", "out", "--engine", "torch", "leaving.py:main")
    assert outcome.code == 7, outcome
    assert "Traceback" not in outcome.err
    assert fake.exists()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_nobody_needs_to_listen_to_its_end(stream: str, fake: Fake) -> None:
    fake.place.write(LEAVING.format(last="print('said')"), "leaving.py")
    running = subprocess.Popen(
        arguments("capture", "-o", "out", "--engine", "torch", "leaving.py:main"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PYTHONUNBUFFERED=""),
    )
    assert running.stdout is not None
    assert running.stderr is not None
    unheard, heard = running.stdout, running.stderr
    if stream == "stderr":
        unheard, heard = heard, unheard
    unheard.close()
    with heard:
        said = heard.read()
    assert running.wait(60) == 7, said
    assert b"Traceback" not in said
    assert fake.exists()
