"""Reports in nsys's own format: exported with the nsys at hand, for as long as they are read. Input is left alone."""

import re
import shutil
from pathlib import Path

import pytest

import tracekit
from tests.command import command
from tests.needs import TRACES
from tests.pipeline.test_several_runs import check_ended
from tests.readers.files import LINES, lacks, rows, state
from tests.readers.folders import as_folder
from tests.trace_lines import report
from tracekit.nsight.nsys import RAW_MAGIC, REPORT_END, REPORT_MAGIC
from tracekit.pipeline import processes

#: Answers as nsys does, and notes every export.
NSYS = """#!/bin/sh
if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version {version}.54-0123456v0"; exit; fi
if [ "$2" = --help ]; then echo "Possible values are: {types}."; exit; fi
[ "$1" = export ] || exit 1
echo "$6" >> {here}/exports
printf 'Processing 12 events: [=50%% ]\\rProcessing 12 events: [==100%%]\\n'
{does}
"""
EXPORTS = 'cp -r {here}/tables "$5"'
#: As NVIDIA's does, it writes into its input.
IMPORTER = """#!/bin/sh
echo more >> "$2"
cp "$2" "$4"
"""
WRITER = b"\0/opt/nvidia/nsight-systems/2022.2.1/bin/nsys\0" + bytes(40) + b"2022.2.1.31-5fe97ab"
WHOLE = REPORT_MAGIC + WRITER + REPORT_END
RAW = RAW_MAGIC + b" 2022.4.2.1-df9881f!" + bytes(100)


class Machine:
    """A machine with an nsys and a report."""

    def __init__(self, folder: Path) -> None:
        self.here = folder / "machine"
        self.bin = self.here / "nsight" / "bin"
        self.bin.mkdir(parents=True)
        self.report = folder / "reports" / "run.nsys-rep"
        self.report.parent.mkdir()
        self.report.write_bytes(WHOLE)
        self.sqlite = report(folder / "run.sqlite", LINES)
        self.temporary = folder / "temporary"
        self.temporary.mkdir()

    def install(self, version: str = "2023.4.4", types: str = "sqlite, arrowdir", does: str = EXPORTS) -> None:
        tables = self.here / "tables"
        if not tables.exists():
            as_folder(self.sqlite, tables, ".arrow") if "arrowdir" in types else shutil.copy(self.sqlite, tables)
        script = NSYS.format(version=version, types=types, here=self.here, does=does.format(here=self.here))
        (self.bin / "nsys").write_text(script)
        (self.bin / "nsys").chmod(0o755)

    @property
    def exports(self) -> int:
        noted = self.here / "exports"
        return len(noted.read_text().splitlines()) if noted.exists() else 0


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setenv("TRACEKIT_NSYS", str(made.bin / "nsys"))
    monkeypatch.setattr("tempfile.tempdir", str(made.temporary))
    return made


def problem(machine: Machine) -> str:
    with pytest.raises(tracekit.ReportError) as raised:
        tracekit.parse(machine.report)
    assert raised.value.path == machine.report
    assert list(machine.temporary.iterdir()) == []
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("types", ["sqlite, hdf, arrow, and json", "sqlite, arrowdir, and parquetdir"])
@pytest.mark.parametrize("least_bytes", [processes.LEAST_BYTES, 0], ids=["small", "large"])
def test_a_report_is_exported_once_and_read(
    machine: Machine, types: str, least_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install(types=types)
    monkeypatch.setattr(processes, "LEAST_BYTES", least_bytes)
    before = state(machine.report.parent)
    dataset = tracekit.parse(machine.report, machine.here / "a.tracekit")
    assert rows(dataset) == rows(tracekit.parse(machine.sqlite))
    assert machine.exports == 1
    assert list(machine.temporary.iterdir()) == []
    assert state(machine.report.parent) == before
    source = dataset.manifest["source"]
    assert (source["name"], source["format"], source["exporter"]) == ("run.nsys-rep", "nsight-native", "2022.2.1")
    assert source["size_bytes"] == machine.report.stat().st_size
    assert source["sha256"] == state(machine.report.parent)["run.nsys-rep"][0]


def test_raw_data_is_imported_first_from_a_copy(machine: Machine) -> None:
    machine.install()
    importer = machine.bin.parent / "host-linux-x64" / "QdstrmImporter"
    importer.parent.mkdir()
    importer.write_text(IMPORTER)
    importer.chmod(0o755)
    raw = machine.report.with_name("run.qdstrm")
    raw.write_bytes(RAW)
    before = state(raw.parent)
    assert rows(tracekit.parse(raw, machine.here / "raw.tracekit")) == rows(tracekit.parse(machine.sqlite))
    assert state(raw.parent) == before


def test_without_nsys_the_line_says_who_wrote_it_and_what_to_do(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracekit.nsight.nsys.find", lambda: None)
    line = problem(machine)
    assert "was written by nsys 2022.2.1, and no nsys was found to read it with" in line
    assert "install Nsight Systems 2022.2.1 or newer" in line
    assert "nsys export --type sqlite" in line
    assert "truncated" not in line
    machine.report.write_bytes(machine.report.read_bytes()[:-1])
    assert "; its end is missing, so it is damaged or truncated; install" in problem(machine)


@pytest.mark.parametrize(
    ("version", "output", "content", "expected"),
    [
        ("2020.3.1", "std::exception::what: ProtobufParseException", WHOLE, "2020.3.1 .* is too old .*Protobuf"),
        ("2023.4.4", "Exportation error: Section Table mismatch.", WHOLE[:-1], "truncated: .*Section Table mismatch;"),
        ("2023.4.4", "Exportation error: No luck.", WHOLE, "by nsys 2022.2.1, and .*export it: No luck;"),
        ("2023.4.4", "Export to arrowdir is not supported.", WHOLE, "export it: Export to arrowdir is not supported;"),
        ("2023.4.4", "/opt/x cannot be run (No such file)", WHOLE, r"export it: /opt/x cannot be run \(No"),
        ("2023.4.4", "", WHOLE, "exit code 1"),
        (
            "2023.4.4",
            "",
            RAW,
            r"by nsys 2022.4.2, and nsys 2023.4.4.*QdstrmImporter cannot be run \(No .*; raw data needs",
        ),
    ],
)
def test_what_nsys_says_becomes_one_line(
    machine: Machine, version: str, output: str, content: bytes, expected: str
) -> None:
    machine.report.write_bytes(content)
    machine.install(version, does=f'mkdir "$5"; echo "{output}"; exit 1')
    problem_line = problem(machine)
    assert re.search(expected, problem_line), problem_line


def test_an_export_without_tables_is_refused_under_the_report_s_name(machine: Machine) -> None:
    machine.install(does='mkdir "$5"; printf junk > "$5/NVTX_EVENTS.arrow"')
    with pytest.raises(tracekit.ReportError, match=r"run\.nsys-rep: its export by nsys cannot be read: its file NVTX"):
        tracekit.parse(machine.report)


def test_a_full_disk_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.install(does="exit 1")
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
    assert "free some space in" in problem(machine)


def test_a_report_of_a_newer_nsys_may_lack_events(machine: Machine) -> None:
    machine.install("2021.1.1")
    assert "possibly events that only nsys 2022.2.1 knows" in lacks(tracekit.parse(machine.report))


@pytest.mark.traces
@pytest.mark.nsys
def test_a_real_report_gives_what_its_sqlite_export_gives(tmp_path: Path) -> None:
    native = TRACES / "nsys" / "emit_nvtx_training_v2022.2.nsys-rep"
    outcome = command("parse", native, "-o", tmp_path / "native.tracekit")
    assert outcome.code == 0, outcome.err
    export = native.with_name("emit_nvtx_training_v2022.2.export_v2023.4.4.sqlite")
    assert rows(tracekit.load(tmp_path / "native.tracekit")) == rows(tracekit.parse(export, tmp_path / "file.tracekit"))


def test_a_stop_ends_nsys_and_what_it_started_and_leaves_no_folder(machine: Machine) -> None:
    machine.install(does='sleep 1000 & mkdir "$5"; echo $! $$ > {here}/pids; kill -INT $PPID; wait')
    with pytest.raises(KeyboardInterrupt):
        tracekit.parse(machine.report)
    assert list(machine.temporary.iterdir()) == []
    check_ended({int(pid) for pid in (machine.here / "pids").read_text().split()})
