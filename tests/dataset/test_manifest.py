"""An edited or damaged manifest is answered in one line; nothing is missing in silence."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from rich.console import Console

import tracekit
from tests.command import LINES, command, refusal
from tests.joined import joined_here
from tests.trace_lines import report
from tracekit.views import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Json = Any
#: Questions that read the manifest, each in its own way.
ASKED = (
    ("show", "modules", "--json"),
    ("show", "coverage", "--json"),
    ("show", "roofline", "--json"),
)


@pytest.fixture(scope="module", params=["one report", "several reports"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset as it was written."""
    place = tmp_path_factory.mktemp("manifest")
    paths = [report(place / f"rank{at}.sqlite", LINES) for at in range(2)]
    several = request.param == "several reports"
    return tracekit.parse(paths if several else paths[0], place / "whole").folder


@pytest.fixture(scope="module")
def old(whole: Path) -> Path:
    """The same as tracekit 0.1.0 wrote it, which knew no ids."""
    folder = whole.with_name("old")
    shutil.copytree(whole, folder)
    without_ids(folder)
    return folder


def without_ids(folder: Path) -> None:
    for path in folder.rglob("*.parquet"):
        if path.is_file():
            table = pq.ParquetFile(path).read()
            pq.write_table(table.replace_schema_metadata(None), path)
    fields = manifest(folder)
    for one in (fields, *fields.get("reports", ())):
        one.pop("id", None)
        one.pop("table_ids", None)
    write(folder, fields)


def manifest(folder: Path) -> Json:
    return json.loads((folder / "manifest.json").read_text("utf-8"))


def write(folder: Path, fields: Json) -> None:
    (folder / "manifest.json").write_text(json.dumps(fields), "utf-8")


def answers(folder: Path) -> list[str] | None:
    """What is answered; None if each question that cannot be is refused in one line that names the folder."""
    outputs = []
    for verb, name, form in ASKED:
        outcome = command(verb, name, folder, form)
        if outcome.code:
            refusal(outcome, folder)
            outputs.append(None)
        else:
            assert not outcome.err
            outputs.append(outcome.out)
    try:
        Console(file=io.StringIO()).print(summary.as_text(tracekit.load(folder)))
        json.dumps(summary.as_json(tracekit.load(folder)))
    except tracekit.DatasetError:
        return None
    return None if None in outputs else outputs


@pytest.fixture(scope="module")
def right(whole: Path) -> list[str]:
    answer = answers(whole)
    assert answer is not None
    return answer


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(folder, folder.with_name("edited"), dirs_exist_ok=True))


def places(fields: Json, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where in the manifest something stands."""
    entries = fields.items() if isinstance(fields, dict) else enumerate(fields) if isinstance(fields, list) else ()
    for key, value in entries:
        yield (*above, key)
        yield from places(value, (*above, key))


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 7, 1 << 62, 1 << 63, 10**30, 10**400, 0.5, float("nan"), float("inf")]),
    st.sampled_from(["", "rank0", "rank1", "../whole", "top\n", "\ud800", "\x1b[31m"]),
    st.sampled_from([[], {}, [[]], [None], {"name": "rank0"}, [{}]]),
)


@st.composite
def edits(draw: st.DrawFn, fields: Json) -> Json:
    """The manifest with something else, nothing, or the same thing twice at some places."""
    edited = deepcopy(fields)
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from([*places(edited)] or [("format",)]))
        at = edited
        for key in way:
            at = at[key]
        match draw(st.sampled_from(["other", "gone", "twice"])):
            case "other":
                at[last] = draw(JUNK)
            case "gone":
                del at[last]
            case "twice" if isinstance(at, list):
                at.append(deepcopy(at[last]))
            case _:
                at["more"] = deepcopy(at[last])
    return edited


def beside_sources(fields: Json) -> Json:
    """What is said, less what describes sources, in the words of JSON: NaN is a word."""
    kept = {key: value for key, value in fields.items() if key != "source"}
    if isinstance(kept.get("reports"), list):
        kept["reports"] = [
            {k: v for k, v in one.items() if k != "source"} if isinstance(one, dict) else one for one in kept["reports"]
        ]
    return json.dumps(kept, sort_keys=True)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_an_edit_of_a_manifest_is_refused_in_one_line_unless_it_describes_a_source(
    whole: Path, right: list[str], data: st.DataObject
) -> None:
    fields, folder = manifest(whole), copied(whole)
    edited = data.draw(edits(fields))
    write(folder, edited)
    answer = answers(folder)
    if beside_sources(edited) != beside_sources(fields):
        assert answer is None
    else:
        assert answer in (None, right)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_an_edit_of_an_old_manifest_without_ids_loses_no_rows_and_shows_no_traceback(
    old: Path, right: list[str], data: st.DataObject
) -> None:
    folder = copied(old)
    write(folder, data.draw(edits(manifest(old))))
    answer = answers(folder)
    assert answer is None or answer[:2] == right[:2]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_bytes_that_change_in_a_manifest_are_noticed(whole: Path, right: list[str], data: st.DataObject) -> None:
    folder, text = copied(whole), (whole / "manifest.json").read_bytes()
    at = data.draw(st.integers(0, len(text.rstrip()) - 1))  # without what follows the JSON a manifest is whole
    more = data.draw(st.sampled_from([b"", b"0", b"\xff", b"}", b'"', b"[" * 100_000]))
    (folder / "manifest.json").write_bytes(text[:at] + more + text[at + 1 :])
    assert answers(folder) in (None, right)
    (folder / "manifest.json").write_bytes(text[:at])
    assert answers(folder) is None


def test_an_old_dataset_without_ids_still_opens(old: Path, right: list[str]) -> None:
    assert answers(old) == right


def replaced(fields: Json, old: object, new: object) -> Json:
    return json.loads(json.dumps(fields).replace(json.dumps(old), json.dumps(new)))


EDITS: dict[str, tuple[Callable[[Json], Json], str]] = {
    "rows of kernels": (
        lambda fields: {**fields, "rows": {**fields["rows"], "kernels": 1}},
        "its manifest.json was changed after it was written; undo that, or parse the report again",
    ),
    "no rows": (
        lambda fields: {key: value for key, value in fields.items() if key != "rows"},
        "its manifest.json is damaged (rows is missing); parse the report again",
    ),
    "rows that are words": (
        lambda fields: {**fields, "rows": {**fields["rows"], "calls": "many"}},
        "its manifest.json is damaged (rows.calls is 'many'); parse the report again",
    ),
    "less coverage": (
        lambda fields: {**fields, "coverage": fields["coverage"][:1]},
        "its manifest.json was changed after it was written; undo that, or parse the report again",
    ),
    "ids of reports alone": (
        lambda fields: {
            **{key: value for key, value in fields.items() if key not in {"id", "table_ids"}},
            **(
                {"reports": [{**one, "table_ids": 1} for one in fields["reports"]]}
                if "reports" in fields
                else {"table_ids": 1}
            ),
        },
        "its manifest.json was changed after it was written; undo that, or parse the report again",
    ),
    "no number": (
        lambda fields: {**fields, "launches": float("nan")},
        "its manifest cannot be read (not JSON: NaN is not a number); parse the report again",
    ),
}


@pytest.mark.parametrize("what", EDITS)
def test_what_is_wrong_with_a_manifest_is_said(whole: Path, what: str) -> None:
    edit, problem = EDITS[what]
    folder = copied(whole)
    write(folder, edit(manifest(whole)))
    line = refusal(command("show", "modules", folder), folder)
    assert line == f"tracekit: {folder}: {problem}\n"


@pytest.fixture(params=["of today", "old"])
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset of three reports."""
    paths = [report(tmp_path / f"rank{at}.sqlite", LINES) for at in range(3)]
    folder = tracekit.parse(paths, tmp_path / "ranks").folder
    if request.param == "old":
        without_ids(folder)
    return folder


@pytest.mark.parametrize("edit", ["left out", "twice", "renamed", "none"])
def test_reports_that_the_manifest_does_not_list_are_not_left_out_in_silence(ranks: Path, edit: str) -> None:
    fields = manifest(ranks)
    entries = fields["reports"]
    fields["reports"] = {
        "left out": entries[:2],
        "twice": [*entries, entries[0]],
        "renamed": [{**entries[0], "name": "../rank0"}, *entries[1:]],
        "none": [],
    }[edit]
    write(ranks, fields)
    refusal(command("show", "modules", ranks), ranks)


@pytest.mark.parametrize("table", ["kernels", "calls"])
def test_reports_that_lie_in_the_folder_and_are_not_listed_are_noticed(ranks: Path, table: str) -> None:
    parts = ranks / f"{table}.parquet"
    shutil.copytree(parts / "report=rank1", parts / "report=rank7")
    line = refusal(command("show", "modules", ranks), ranks)
    assert f"its table {table} cannot be read (its folder has other reports than manifest" in line
    shutil.rmtree(parts / "report=rank7")
    shutil.rmtree(parts / "report=rank1")
    refusal(command("show", "modules", ranks), ranks)


def test_a_table_that_differs_in_one_figure_has_another_id(tmp_path: Path) -> None:
    datasets = []
    for late in (40, 41):
        lines = [f"kernel 1 {at} {at + 2 + (at == late)} #9 k" for at in range(50)]
        datasets.append(tracekit.parse(report(tmp_path / f"{late}.sqlite", "\n".join(lines))))
    one, other = (dataset.manifest["table_ids"] for dataset in datasets)
    assert {name for name in one if one[name] != other[name]} == {"kernels"}


@pytest.mark.parametrize("started", [-1, -(1 << 63), (1 << 63) - 1, 1 << 62])
def test_a_report_that_was_recorded_at_no_time_can_be_parsed_and_opened(started: int, tmp_path: Path) -> None:
    path = report(tmp_path / "r.sqlite", LINES)
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT)")
    db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (started,))
    db.commit()
    db.close()
    assert tracekit.parse(path).manifest["source"]["started_utc_ns"] is None


def test_a_table_of_another_parse_is_refused(tmp_path: Path) -> None:
    one, other = (
        tracekit.parse(report(tmp_path / f"{name}.sqlite", LINES.replace("gemm", name))) for name in ("gemm", "gemv")
    )
    shutil.copy(other.folder / "kernels.parquet", one.folder / "kernels.parquet")
    line = refusal(command("show", "kernels", one.folder), one.folder)
    assert "its table kernels cannot be read (kernels.parquet is from another parse); parse the report again" in line


PARTS = ("rank0", "rank1", "rank2")
#: What happens to a file in the middle, and what is said of it.
BAD = {
    "removed": "is missing",
    "cut short": "is damaged: Parquet magic bytes not found",
    "empty": "is damaged: Parquet file size is 0 bytes",
    "a folder": "is a folder, not a file",
    "of another report": "is from another parse",
    "overwritten": "is damaged: ",
}


def damage(path: Path, how: str) -> None:
    whole = path.read_bytes()
    other = path.parent.parent / "report=rank2" / path.name
    path.unlink()
    match how:
        case "cut short" | "empty":
            path.write_bytes(whole[: len(whole) // 2 if how == "cut short" else 0])
        case "a folder":
            path.mkdir()
        case "of another report":
            path.write_bytes(other.read_bytes())
        case "overwritten":
            path.write_bytes(whole[:4] + b"\xff" * 4_000 + whole[4_004:])


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    files = [report(folder / f"{name}.sqlite", LINES.replace("gemm", f"gemm_{name}")) for name in PARTS]
    return joined_here(files, folder / "run.tracekit").folder


@pytest.mark.parametrize("question", [("show", "kernels"), ("show", "shapes"), ("diff", ""), ("report", "-q")])
@pytest.mark.parametrize("how", BAD)
def test_a_bad_file_in_the_middle_is_named_with_what_is_wrong_and_what_to_do(
    three: Path, how: str, question: tuple[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "run.tracekit"
    shutil.copytree(three, folder)
    damage(folder / "kernels.parquet" / "report=rank1" / "part-0.parquet", how)
    args = [folder if arg == "" else arg for arg in question]
    line = refusal(command(*args, folder), folder)
    assert f"its table kernels cannot be read (kernels.parquet/report=rank1/part-0.parquet {BAD[how]}" in line
    assert line.rstrip().endswith("); parse the reports again")


def test_a_report_whose_folder_is_missing_is_named(three: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run.tracekit"
    shutil.copytree(three, folder)
    shutil.rmtree(folder / "kernels.parquet" / "report=rank1")
    line = refusal(command("show", "kernels", folder), folder)
    assert "(its folder has other reports than manifest.json: report=rank1); parse the reports again" in line
    shutil.rmtree(folder / "kernels.parquet")
    line = refusal(command("show", "kernels", folder), folder)
    assert "its table kernels cannot be read (kernels.parquet is missing); parse the reports again" in line


def test_a_source_may_be_corrected_by_hand(whole: Path) -> None:
    folder, fields = copied(whole), manifest(whole)
    for one in fields.get("reports", [fields]):
        one["source"]["started_utc_ns"] = 1_700_000_000_000_000_000
    write(folder, fields)
    assert tracekit.load(folder).table("kernels").num_rows > 0
