"""What nsys says that it lost, and where a reader of the results meets it."""

import json
from pathlib import Path

import pytest

from tests.command import command
from tests.readers.files import Rewrite
from tests.views.page.pages import shown
from tracekit.readers.nsight.losses import causes_of_message

WHOLE = """
    range  7/1   0 100  {'Module': 'top'}
    launch 7/1  20  25  #1
    kernel 7/1 900 950  #1 gemm
"""
CUDA = "Not all CUDA events might have been collected."
SAID = {
    CUDA: "CUDA events",
    "Not all NVTX events might have been collected.": "NVTX events",
    "CUPTI dropped 12 records. Some CUPTI events might be missing.": "CUDA events",
    "Number of incomplete CUPTI events dropped: 5. Incomplete events appear when …": "CUDA events",
    "12345 kernel events were lost": "CUDA events",
    "3 NVTX annotations were discarded because they contained an invalid handle": "NVTX events",
    "Some events were lost.": "",
    "Wrong event order has been detected. It seems to be a data corruption.": "",
    "CUDA profiling might have not been started correctly.": "no CUDA events of a process",
    "NVTX profiling might have not been started correctly.": "no NVTX events of a process",
    # Messages of real reports that name no loss, or none of ranges, launches and work.
    "Not all OS runtime libraries events might have been collected.": None,
    "Sampling events were lost in the interval 1 - 2 (3) ns.": None,
    "Some events (\t12) were lost. Certain charts (including CPU utilization) may display incorrect data.": None,
    "Number of incomplete CUPTI events dropped: 0.": None,
    "No CUDA events collected. Does the process use CUDA?": None,
}


@pytest.mark.parametrize("message", SAID)
def test_a_loss_is_told_by_its_words(message: str) -> None:
    said = SAID[message]
    assert [cause.detail for cause in causes_of_message(message)] == ([] if said is None else [said])


def test_what_nsys_lost_stands_with_advice_wherever_something_is_said_of_the_report(
    rewritten: Rewrite, tmp_path: Path
) -> None:
    dataset = rewritten(lines=f"{WHOLE}\nsaid 7/1 1 1 {CUDA}\nsaid 9/1 1 1 {CUDA}")
    [row] = [row for row in dataset.table("coverage").to_pylist() if row["advice"]]
    assert [row[name] for name in ("what", "detail", "count", "known")] == ["report: losses", "CUDA events", 2, False]
    [lack] = dataset.manifest["missing"]
    assert lack["what"] == f'possibly some CUDA events of its processes (nsys says: "{CUDA}")'
    assert "torch.cuda.synchronize" in lack["remedy"]
    said = " ".join(command("parse", tmp_path / "report.sqlite", "--force").out.split())
    assert "launched inside a module's call 1 50 ns 100.0 % possibly lost: CUDA events ? ?" in said
    assert "the report lacks possibly some CUDA events" in said
    assert said.count("torch.cuda.synchronize") == 1
    table = command("show", "coverage", dataset.folder, "--csv").out
    assert "report: losses,events_lost,cuda events,false,2" in table.casefold()
    summary = json.loads(command("parse", tmp_path / "report.sqlite", "--force", "--json").out)
    assert "events_lost" in {row["cause"] for row in summary["coverage"]}
    page = shown(dataset)["coverage"]
    assert page["doubts"] == ["possibly lost: CUDA events"]
    assert any("possibly some CUDA events" in line for line in page["advice"])
