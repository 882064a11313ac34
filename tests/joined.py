"""Joined datasets against the datasets of their single reports, compared row by row, the slow and obvious way."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import tracekit
from tracekit.dataset.joining import Part, join
from tracekit.dataset.opening import Dataset
from tracekit.pipeline.several import IDS_PER_REPORT
from tracekit.pipeline.stages import ParseOptions, tables_of
from tracekit.progress import no_progress
from tracekit.readers import reader_for
from tracekit.tables import TABLES

IDS = {"kernel_id", "call_id", "parent_call_id", "range_id", "parent_range_id", "step_id"}
BY_REPORT = [table.SPEC.name for table in TABLES if table.SPEC.name != "modules"]


def joined_here(reports: Sequence[Path], folder: Path) -> Dataset:
    folder.mkdir()
    parts = [Part(path.stem, folder / f".{path.stem}", number * IDS_PER_REPORT) for number, path in enumerate(reports)]
    for path, part in zip(reports, parts, strict=True):
        part.folder.mkdir()
        tables_of(path, reader_for(path), part.folder, no_progress, ParseOptions(first_id=part.first_id))
    join(folder, parts, [], no_progress)
    return tracekit.load(folder)


def check_joined(whole: Dataset, singles: dict[str, Dataset]) -> None:
    """Checks that a dataset of several reports says of each what its own dataset says.

    Args:
        whole: The dataset of all.
        singles: The datasets of the single reports, by name.
    """
    assert whole.reports == list(singles)
    modules = whole.table("modules").to_pylist()
    check_hierarchy(modules, [one.table("modules").to_pylist() for one in singles.values()])
    path_of = {None: None} | {row["module_id"]: row["path"] for row in modules}
    entries = {entry["name"]: entry for entry in whole.manifest["reports"]}
    for name in BY_REPORT:
        rows = whole.table(name).to_pylist()
        by_report = defaultdict(list)
        for row in rows:
            by_report[row.pop("report")].append(row)
        assert whole.manifest["rows"][name] == len(rows)
        for report, single in singles.items():
            theirs = {None: None} | dict(enumerate(single.table("modules", ["path"]).column("path").to_pylist()))
            alone = [spelled(row, theirs, 0) for row in single.table(name).to_pylist()]
            expected = [row for row in alone if "modules_differ" not in row]
            first_id = entries[report]["first_id"]
            found = [spelled(row, path_of, first_id) for row in by_report[report]]
            ours = [row for row in found if "modules_differ" not in row]
            assert Counter(ours) == Counter(expected), (name, report)
            check_order(name, by_report[report])
    check_references(whole)


def said_of_reports(dataset: Dataset) -> dict[str, Any]:
    """All rows by table and report, with ids as the report alone has them, and what the manifest says."""
    said: dict[str, Any] = {"modules": dataset.table("modules").to_pylist()}
    first = {entry["name"]: entry["first_id"] for entry in dataset.manifest["reports"]}
    for table in BY_REPORT:
        rows = defaultdict(list)
        for row in dataset.table(table).to_pylist():
            name = row["report"]
            plain = {key: row[key] - first[name] if key in IDS and row[key] is not None else row[key] for key in row}
            rows[name].append(plain)
        said[table] = dict(rows)
    said["reports"] = {
        entry["name"]: {key: value for key, value in entry.items() if key not in {"first_id", "table_ids"}}
        for entry in dataset.manifest["reports"]
    }
    said["rows"], said["left_out"] = dataset.manifest["rows"], dataset.manifest["left_out"]
    key = lambda row: (row["what"], row["cause"], row["detail"], row["known"])  # noqa: E731
    said["coverage of all"] = sorted(dataset.manifest["coverage"], key=key)
    return said


def spelled(row: dict, paths: dict, first_id: int) -> tuple:
    plain = {name: value - first_id if name in IDS and value is not None else value for name, value in row.items()}
    if "module_id" in plain:
        plain["module_id"] = paths[plain["module_id"]]
    return tuple(value if value.__hash__ else repr(value) for value in plain.values())


def check_order(table: str, rows: list[dict]) -> None:
    spec = next(one.SPEC for one in TABLES if one.SPEC.name == table)
    if table != "ranges":
        keys = [tuple((row[key] is None, row[key] or 0) for key in spec.sorted_by) for row in rows]
        assert keys == sorted(keys), table


def alike(one: object, other: object) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return sorted(map(str, one)) == sorted(map(str, other))
    return one == other


def check_hierarchy(modules: list[dict], singles: list[list[dict]]) -> None:
    """Every path once, in pre-order, below its parent in the reports; siblings that all order alike stand so."""
    paths = [row["path"] for row in modules]
    theirs = [[row["path"] for row in rows] for rows in singles]
    # By ids, as names of ranges may hold dots.
    above = {
        row["path"]: "" if (at := row["parent_id"]) is None else rows[at]["path"] for rows in singles for row in rows
    }
    assert sorted(paths) == sorted(above)
    assert paths == preordered(paths, above)
    for parent in {*above.values()}:
        siblings = [[one for one in its if above[one] == parent] for its in theirs]
        check_order_of_siblings([one for one in paths if above[one] == parent], siblings)
    for at, row in enumerate(modules):
        parent = above[row["path"]]
        assert row["parent_id"] == (paths.index(parent) if parent else None)
        assert (row["module_id"], row["path"]) == (at, f"{parent}.{row['name']}" if parent else row["name"])
        assert row["depth"] == (1 + modules[row["parent_id"]]["depth"] if parent else 0)
        assert row["subtree_end_id"] == at + 1 + len(preordered(paths, above, row["path"]))
        for said in ("class_name", "alias_of", "params", "static_params"):
            told = [one[said] for rows in singles for one in rows if one["path"] == row["path"]]
            words = [one for one in told if one]
            if said == "alias_of" or all(alike(one, words[0]) for one in words):
                assert row[said] in (words or told) or row[said] is None, "or told in two ways"
            else:
                assert not row[said] or row[said] not in words or None in sizes(row[said])


def sizes(params: list[dict]) -> list:
    return [size for param in params for size in param["shape"] or [None]]


def check_order_of_siblings(found: list[str], theirs: list[list[str]]) -> None:
    after = {one: set() for one in found}
    for its in theirs:
        for earlier, later in pairwise(its):
            after[earlier].add(later)
    reached = {one: set() for one in found}
    for one in found:
        pending = [one]
        while pending:
            new = after[pending.pop()] - reached[one]
            reached[one] |= new
            pending += new
    if any(one in reached[one] for one in found):
        return
    for at, one in enumerate(found):
        assert not reached[one] & set(found[:at])


def preordered(seen: list[str], above: dict[str, str], parent: str = "") -> list[str]:
    children = [path for path in seen if above[path] == parent]
    return [one for child in children for one in (child, *preordered(seen, above, child))]


def check_references(whole: Dataset) -> None:
    tables = {name: whole.table(name).to_pylist() for name in BY_REPORT}
    keys = {"kernels": "kernel_id", "calls": "call_id", "ranges": "range_id", "steps": "step_id"}
    for table, key in keys.items():
        report_of = {row[key]: row["report"] for row in tables[table]}
        assert len(report_of) == len(tables[table])
        referring = [row for rows in tables.values() for row in rows]
        for name in (key, f"parent_{key}"):
            used = [(row[name], row["report"]) for row in referring if row.get(name) is not None]
            assert all(report_of[number] == report for number, report in used)
