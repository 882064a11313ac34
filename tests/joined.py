"""Joined datasets against the datasets of their single reports, compared row by row, the slow and obvious way."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tracekit
from tracekit.dataset.joining import Part, join
from tracekit.dataset.opening import Dataset
from tracekit.pipeline.processes import write_tables
from tracekit.pipeline.several import IDS_PER_REPORT
from tracekit.pipeline.stages import ParseOptions
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
        write_tables(path, reader_for(path), part.folder, no_progress, ParseOptions(first_id=part.first_id), None)
    join(folder, parts, [], no_progress)
    return tracekit.load(folder)


def check_joined(whole: Dataset, singles: dict[str, Dataset]) -> None:
    """Checks that a dataset of several reports says of each what its own dataset, by name among the singles, says."""
    assert whole.reports == list(singles)
    modules = whole.table("modules").to_pylist()
    check_hierarchy(modules, [row for one in singles.values() for row in with_parents(one)])
    path_of = {None: None} | {row["module_id"]: row["path"] for row in modules}
    entries = {entry["name"]: entry for entry in whole.manifest["reports"]}
    for spec in (table.SPEC for table in TABLES if table.SPEC.name in BY_REPORT):
        rows = whole.table(spec.name).to_pylist()
        by_report = defaultdict(list)
        for row in rows:
            by_report[row.pop("report")].append(row)
        assert whole.manifest["rows"][spec.name] == len(rows)
        for report, single in singles.items():
            theirs = {None: None} | dict(enumerate(single.table("modules", ["path"]).column("path").to_pylist()))
            alone = [spelled(row, theirs, 0) for row in single.table(spec.name).to_pylist()]
            found = [spelled(row, path_of, entries[report]["first_id"]) for row in by_report[report]]
            ours, expected = (Counter(row for row in these if "modules_differ" not in row) for these in (found, alone))
            assert ours == expected, (spec.name, report)
            keys = [tuple((row[key] is None, row[key] or 0) for key in spec.sorted_by) for row in by_report[report]]
            assert spec.name == "ranges" or keys == sorted(keys), spec.name


def with_parents(dataset: Dataset) -> list[dict]:
    """The modules of a report with the path of each one's parent, by ids, as names of ranges may hold dots."""
    rows = dataset.table("modules").to_pylist()
    return [row | {"above": None if row["parent_id"] is None else rows[row["parent_id"]]["path"]} for row in rows]


def check_hierarchy(modules: list[dict], theirs: list[dict]) -> None:
    """Every path once, in pre-order, below its parent in the reports, with what they say of it."""
    paths, above = [row["path"] for row in modules], {row["path"]: row["above"] for row in theirs}
    assert sorted(paths) == sorted(above)
    assert paths == preordered(paths, above)
    for at, row in enumerate(modules):
        parent = above[row["path"]]
        assert row["parent_id"] == (paths.index(parent) if parent is not None else None)
        path = row["name"] if parent is None else f"{parent}.{row['name']}"
        assert (row["module_id"], row["path"]) == (at, path)
        assert row["depth"] == (0 if parent is None else 1 + modules[row["parent_id"]]["depth"])
        assert row["subtree_end_id"] == at + 1 + len(preordered(paths, above, row["path"]))
        for said in ("class_name", "alias_of", "params", "static_params"):
            told = [one[said] for one in theirs if one["path"] == row["path"]]
            words = [one for one in told if one]
            if said == "alias_of" or all(alike(one, words[0]) for one in words):
                assert row[said] in (words or told) or row[said] is None, "or told in two ways"
            else:
                assert not row[said] or row[said] not in words or None in sizes(row[said])


def preordered(paths: list[str], above: dict[str, str | None], parent: str | None = None) -> list[str]:
    children = [path for path in paths if above[path] == parent]
    return [one for child in children for one in (child, *preordered(paths, above, child))]


def alike(one: object, other: object) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return sorted(map(str, one)) == sorted(map(str, other))
    return one == other


def sizes(params: list[dict]) -> list:
    return [size for param in params for size in param["shape"] or [None]]


def said_of_reports(dataset: Dataset) -> dict[str, Any]:
    """All rows by table and report, with ids as the report alone has them, and what the manifest says."""
    said: dict[str, Any] = {"modules": dataset.table("modules").to_pylist()}
    first = {entry["name"]: entry["first_id"] for entry in dataset.manifest["reports"]}
    for table in BY_REPORT:
        said[table] = defaultdict(list)
        for row in dataset.table(table).to_pylist():
            said[table][row["report"]].append(of_one(row, first[row["report"]]))
    said["reports"] = {
        entry["name"]: {key: value for key, value in entry.items() if key not in {"first_id", "table_ids"}}
        for entry in dataset.manifest["reports"]
    }
    said["rows"], said["left_out"] = dataset.manifest["rows"], dataset.manifest["left_out"]
    key = lambda row: (row["what"], row["cause"], row["detail"], row["known"])  # noqa: E731
    said["coverage of all"] = sorted(dataset.manifest["coverage"], key=key)
    return said


def of_one(row: dict, first_id: int) -> dict:
    return {name: value - first_id if name in IDS and value is not None else value for name, value in row.items()}


def spelled(row: dict, paths: dict, first_id: int) -> tuple:
    plain = of_one(row, first_id)
    if "module_id" in plain:
        plain["module_id"] = paths[plain["module_id"]]
    return tuple(value if value.__hash__ else repr(value) for value in plain.values())
