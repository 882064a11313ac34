"""What nsys says that it lost, and where a reader of the results meets it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.command import command
from tests.views.page.pages import shown
from tracekit.readers.nsight.losses import causes_of_message

if TYPE_CHECKING:
    from pathlib import Path

    from tests.readers.files import Rewrite
    from tracekit.dataset.opening import Dataset

WHOLE = """
    range  7/1   0 100  {'Module': 'top'}
    launch 7/1  20  25  #1
    kernel 7/1 900 950  #1 gemm
"""
CUDA = "Not all CUDA events might have been collected."
SAID = {
    CUDA: "cuda_events_lost",
    "Not all NVTX events might have been collected.": "nvtx_events_lost",
    "CUPTI dropped 12 records. Some CUPTI events might be missing.": "cuda_events_lost",
    "7 CUPTI events were detected incomplete while processing a buffer": "cuda_events_lost",
    "Couldn't allocate CUPTI buffers 3 times.Some CUPTI events might be missing.": "cuda_events_lost",
    "Number of incomplete CUPTI events dropped: 5. Incomplete events appear when …": "cuda_events_lost",
    "12345 kernel events were lost": "cuda_events_lost",
    "4 GPU events were discarded as their timestamps could not be converted.": "cuda_events_lost",
    "3 NVTX annotations were discarded because they contained an invalid handle": "nvtx_events_lost",
    "Some events were lost.": "events_lost",
    "Wrong event order has been detected. It seems to be a data corruption.": "events_lost",
    "CUDA profiling might have not been started correctly.": "cuda_not_traced",
    "NVTX profiling might have not been started correctly.": "nvtx_not_traced",
}
#: Messages of real reports that name no loss, or none of ranges, launches and work.
HARMLESS = (
    "Not all OS runtime libraries events might have been collected.",
    "Not all OpenGL events might have been collected.",
    "OS runtime libraries profiling might have not been started correctly.",
    "Sampling events were lost in the interval 1 - 2 (3) ns.",
    "Some events (\t12) were lost. Certain charts (including CPU utilization) may display incorrect data.",
    "Number of incomplete CUPTI events dropped: 0.",
    "0 CUDA events were lost",
    "No CUDA events collected. Does the process use CUDA?",
    "Number of CUPTI events produced: \t11296, CUPTI buffers: 50.",
    "Buffers holding CUDA trace data will be flushed on CudaProfilerStop() call.",
    "CUDA hardware tracing is not supported on this system. A legacy (software instrumented) trace was collected.",
    "No MMAP events were received for process with pid 1 before attempting to resolve symbol.",
    "Scheduling information is absent.",
    "CUDA injection initialized successfully.",
)


def doubts(dataset: Dataset) -> dict[str, int]:
    counted = dataset.manifest["coverage"]
    return {row["cause"]: row["count"] for row in counted if row["what"] == "report: losses"}


@pytest.mark.parametrize("message", SAID)
def test_a_loss_is_told_by_its_words(message: str) -> None:
    assert [cause.name for cause in causes_of_message(message)] == [SAID[message]]


@pytest.mark.parametrize("message", HARMLESS)
def test_other_messages_are_no_loss(message: str) -> None:
    assert causes_of_message(message) == ()


def test_what_nsys_lost_stands_in_coverage_lacks_and_manifest_with_advice(
    rewritten: Rewrite,
) -> None:
    dataset = rewritten(lines=f"{WHOLE}\nsaid 7/1 1 1 {CUDA}\nsaid 9/1 1 1 {CUDA}")
    assert doubts(dataset) == {"cuda_events_lost": 2}
    [lack] = dataset.manifest["lacks"]
    assert lack["what"] == f'possibly some CUDA events of its processes (nsys says: "{CUDA}")'
    assert "torch.cuda.synchronize" in lack["remedy"]
    [row] = [row for row in dataset.table("coverage").to_pylist() if row["advice"]]
    assert (row["what"], row["known"]) == ("report: losses", False)


def test_a_loss_of_processes_that_are_not_in_the_report_says_so(rewritten: Rewrite) -> None:
    dataset = rewritten(lines=f"{WHOLE}\nsaid 9/1 1 1 {CUDA}")
    [lack] = dataset.manifest["lacks"]
    assert lack["what"].startswith("possibly some CUDA events of processes without any data in it")


def test_a_message_of_no_process_counts_too(rewritten: Rewrite) -> None:
    nobody = "UPDATE DIAGNOSTIC_EVENT SET globalPid = NULL"
    assert doubts(rewritten(nobody, f"{WHOLE}\nsaid 7/1 1 1 {CUDA}")) == {"cuda_events_lost": 1}


def test_paths_in_a_message_are_not_repeated(rewritten: Rewrite) -> None:
    message = "CUDA events were lost, see /home/hunter2/log TOKEN=hunter2"
    dataset = rewritten(lines=f"{WHOLE}\nsaid 7/1 1 1 {message}")
    assert doubts(dataset) == {"cuda_events_lost": 1}
    assert "hunter2" not in json.dumps(dataset.manifest)


def test_a_whole_report_without_messages_raises_no_doubt(rewritten: Rewrite, tmp_path: Path) -> None:
    dataset = rewritten(lines=f"{WHOLE}\nsaid 7/1 1 1 {HARMLESS[0]}")
    assert doubts(dataset) == {}
    assert dataset.manifest["lacks"] == []
    assert "possibly" not in command("parse", tmp_path / "report.sqlite", "--force").out


def test_all_is_attributed_is_never_said_without_what_nsys_says(rewritten: Rewrite, tmp_path: Path) -> None:
    dataset = rewritten(lines=f"{WHOLE}\nsaid 7/1 1 1 {CUDA}")
    said = " ".join(command("parse", tmp_path / "report.sqlite", "--force").out.split())
    assert "attributed by range 1 50 ns 100.0 % possibly lost: cuda_events_lost ? ?" in said
    assert "the report lacks possibly some CUDA events" in said
    assert said.count("torch.cuda.synchronize") == 1
    table = command("show", "coverage", dataset.folder, "--csv").out
    assert "report: losses,cuda_events_lost,false,1" in table.casefold()
    summary = json.loads(command("parse", tmp_path / "report.sqlite", "--force", "--json").out)
    assert "cuda_events_lost" in {row["cause"] for row in summary["coverage"]}
    page = shown(dataset)["coverage"]
    assert page["doubts"] == ["possibly lost: cuda_events_lost"]
    assert any("possibly some CUDA events" in line for line in page["advice"])
