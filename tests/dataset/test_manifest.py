"""An edited or damaged manifest is answered in one line; nothing is missing in silence."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from rich.console import Console

import tracekit
from tests.command import LINES, command, refusal
from tests.joined import joined_here
from tests.sqlite import writing
from tests.trace_lines import report
from tracekit.causes import LOSSES, REPORT
from tracekit.dataset.manifest import as_text, total_coverage
from tracekit.views import summary

Json = Any
#: Questions that read the manifest, each in its own way.
ASKED = ("modules", "coverage", "roofline")


@pytest.fixture(scope="module", params=["one report", "several reports"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("manifest")
    paths = [report(place / f"rank{at}.sqlite", LINES) for at in range(2)]
    several = request.param == "several reports"
    return tracekit.parse(paths if several else paths[0], place / "whole").folder


def manifest(folder: Path) -> Json:
    return json.loads((folder / "manifest.json").read_text("utf-8"))


def answers(folder: Path) -> list[str] | None:
    """What is answered; None if each question that cannot be is refused in one line that names the folder."""
    outputs = []
    for name in ASKED:
        outcome = command("show", name, folder, "--json")
        assert refusal(outcome, folder) if outcome.code else not outcome.err
        outputs.append(None if outcome.code else outcome.out)
    try:
        Console(file=io.StringIO()).print(summary.as_text(tracekit.load(folder)))
        json.dumps(summary.as_json(tracekit.load(folder)))
    except tracekit.DatasetError:
        return None
    return None if None in outputs else outputs


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(folder, folder.with_name("edited"), dirs_exist_ok=True))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_bytes_that_change_in_a_manifest_are_noticed(whole: Path, data: st.DataObject) -> None:
    folder, text, right = copied(whole), (whole / "manifest.json").read_bytes(), answers(whole)
    assert right is not None
    at = data.draw(st.integers(0, len(text.rstrip()) - 1))  # without what follows the JSON a manifest is whole
    more = data.draw(st.sampled_from([b"", b"0", b"\xff", b"}", b'"', b"[" * 100_000]))
    (folder / "manifest.json").write_bytes(text[:at] + more + text[at + 1 :])
    assert answers(folder) in (None, right)
    (folder / "manifest.json").write_bytes(text[:at])
    assert answers(folder) is None


def places(value: Json, *above: str | int) -> list[tuple[str | int, ...]]:
    """Where each field of a manifest is, and of lists each first item."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    return [place for name, item in items for place in [(*above, name), *places(item, *above, name)]]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_manifest_by_another_hand_is_answered_or_refused_in_one_line(whole: Path, data: st.DataObject) -> None:
    """Its id is right, but a field is absent, or not what it should be."""
    folder, fields = copied(whole), manifest(whole)
    *above, name = data.draw(st.sampled_from(places(fields)))
    inside = fields
    for part in above:
        inside = inside[part]
    odd = data.draw(st.sampled_from([None, "x", -1, [], {}, [[]], {"a": 1}, 1e308, 1 << 70, True, "a\0b"]))
    if data.draw(st.booleans()):
        del inside[name]
    else:
        inside[name] = odd
    try:
        text = as_text({name: value for name, value in fields.items() if name != "id"})
    except (AttributeError, TypeError):  # reports that are no objects have no id
        text = json.dumps(fields)
    (folder / "manifest.json").write_text(text, "utf-8")
    answers(folder)
    outcome = command("html", folder, "-o", folder.with_name("page.html"), "--force")
    if outcome.code:
        refusal(outcome, folder)


@pytest.mark.parametrize(
    ("inside", "name", "value", "problem"),
    [
        ("rows", "kernels", 1, "its manifest.json was changed after it was written; undo that, or parse"),
        ("source", "started_utc_ns", -1, "its manifest.json is damaged (started_utc_ns is -1); parse"),
        ("rows", "calls", float("nan"), "its manifest cannot be read (not JSON: NaN is not a number); parse"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_said(whole, inside, name, value, problem) -> None:
    folder, fields = copied(whole), manifest(whole)
    (fields if inside in fields else fields["reports"][0])[inside][name] = value
    (folder / "manifest.json").write_text(json.dumps(fields), "utf-8")
    line = refusal(command("show", "modules", folder), folder)
    assert line == f"tracekit: {folder}: {problem} the report again\n"


def test_reports_that_lie_in_the_folder_and_are_not_listed_are_noticed(three: Path, tmp_path: Path) -> None:
    ranks = Path(shutil.copytree(three, tmp_path / "ranks"))
    parts = ranks / "kernels.parquet"
    shutil.copytree(parts / "report=rank1", parts / "report=rank7")
    line = refusal(command("show", "modules", ranks), ranks)
    assert "its table kernels cannot be read (its folder has other reports than manifest" in line
    shutil.rmtree(parts / "report=rank7")
    shutil.rmtree(parts / "report=rank1")
    refusal(command("show", "modules", ranks), ranks)


@pytest.mark.parametrize("started", [-1, 1 << 62])
def test_a_report_that_was_recorded_at_no_time_can_be_parsed_and_opened(started: int, tmp_path: Path) -> None:
    path = report(tmp_path / "r.sqlite", LINES)
    with writing(path) as db:
        db.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT)")
        db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (started,))
    assert tracekit.parse(path).manifest["source"]["started_utc_ns"] is None


#: What happens to a file in the middle, and what is said of it.
BAD = {
    "removed": "is missing",
    "cut short": "is damaged: Parquet magic bytes not found",
    "a folder": "is a folder, not a file",
    "a link to itself": "cannot be opened: ",
    "of another report": "is from another parse",
    "overwritten": "is damaged: ",
}


def damage(path: Path, how: str) -> None:
    whole = path.read_bytes()
    other = (path.parent.parent / "report=rank2" / path.name).read_bytes()
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how == "a link to itself":
        path.symlink_to(path)
    elif how != "removed":
        overwritten = whole[:4] + b"\xff" * 4_000 + whole[4_004:]
        contents = {"cut short": whole[: len(whole) // 2], "of another report": other}
        path.write_bytes(contents.get(how, overwritten))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    files = [report(folder / f"rank{at}.sqlite", LINES.replace("gemm", f"gemm_{at}")) for at in range(3)]
    return joined_here(files, folder / "run.tracekit").folder


@pytest.mark.parametrize("how", BAD)
def test_a_bad_file_in_the_middle_is_named_with_what_is_wrong_and_what_to_do(three, how, tmp_path) -> None:
    folder = Path(shutil.copytree(three, tmp_path / "run.tracekit"))
    damage(folder / "kernels.parquet" / "report=rank1" / "part-0.parquet", how)
    line = refusal(command("show", "kernels", folder), folder)
    assert f"its table kernels cannot be read (kernels.parquet/report=rank1/part-0.parquet {BAD[how]}" in line
    assert line.rstrip().endswith("); parse the reports again")


def test_rows_before_a_bad_file_are_whole_lines_of_a_list_that_does_not_end(three: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(three, tmp_path / "run.tracekit"))
    damage(folder / "kernels.parquet" / "report=rank2" / "part-0.parquet", "overwritten")
    whole, cut = (command("show", "budget", place, "--json") for place in (three, folder))
    refusal(cut._replace(out=""), folder)
    lines = cut.out.splitlines(keepends=True)
    assert len(json.loads(whole.out)) > len(lines) > 1
    assert lines == whole.out.splitlines(keepends=True)[: len(lines)]


def test_the_coverage_of_two_parts_has_shares_of_time_or_of_counts_and_counts_once_what_each_says() -> None:
    row = {"cause": "any", "detail": "", "known": False, "share": 0.0, "count": 3}
    whats = ("kernels", "compiled graph 1", "ranges", f"launches{LOSSES}", f"{REPORT}{LOSSES}")
    rows = [row | {"what": what, "time_ns": 0 if what.endswith(LOSSES) else 60} for what in whats]
    wholes = {"kernels": 6, "ranges": 12, "launches": 24, REPORT: 6}
    found = total_coverage([*rows, *rows], wholes, counted_once=f"{REPORT}{LOSSES}")
    values = [(row["count"], row["time_ns"], row["share"]) for row in found]
    assert values == [(6, 120, 1.0), (6, 120, 1.0), (6, 120, 0.5), (6, 0, 0.25), (3, 0, 0.5)]


def test_losses_of_several_reports_are_shares_of_the_rows_of_all(tmp_path: Path) -> None:
    lost = "launch 1 0 10 #1\nkernel 1 20 30 #1\nlaunch 1 50 40 #2"
    paths = [report(tmp_path / f"{at}.sqlite", f"{lost}\n{'launch 1 12 14 #3' * at}") for at in range(2)]
    coverage = joined_here(paths, tmp_path / "both").manifest["coverage"]
    assert [(row["count"], row["share"]) for row in coverage if row["what"] == f"launches{LOSSES}"] == [(2, 0.4)]
