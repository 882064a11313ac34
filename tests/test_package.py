"""The package as a whole: what importing it costs, its errors, its packages, its promises in words."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tracekit
from tests.command import environment
from tracekit import answers, attribution, causes as coverage, cli, errors, tables
from tracekit.dataset.opening import TABLE_NAMES
from tracekit.schema import TableSpec

HEAVY = {"numpy", "nvtx", "pandas", "pyarrow", "rich", "sqlalchemy", "torch"}
SPECS = [table.SPEC for table in tables.TABLES]
#: Floating-point numbers that are no times.
SHARES = {"coverage.share", "kernel_modules.weight", "ranges.payload_float"}


def loaded_by(statement: str) -> set[str]:
    script = f"{statement}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment())
    return set(json.loads(done.stdout))


def test_importing_it_loads_no_heavy_package_and_reading_never_torch() -> None:
    """Analyses are there when they are asked for."""
    for statement in ("import tracekit", "import tracekit.cli", "import tracekit.errors"):
        loaded = loaded_by(statement)
        assert not (HEAVY | {"tracekit.answers"} if statement == "import tracekit" else HEAVY) & loaded
    assert "tracekit.answers.launches" in loaded_by("import tracekit; tracekit.answers.launches.NAME")
    assert not {"torch", "nvtx"} & loaded_by("import tracekit; tracekit.parse, tracekit.load")


def test_all_names_exist_and_are_what_they_say() -> None:
    assert sorted(tracekit.__all__) == sorted(set(tracekit.__all__))
    for name in tracekit.__all__:
        assert getattr(tracekit, name).__class__ in (type, type(tracekit.load), str)
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", tracekit.__version__)
    with pytest.raises(AttributeError, match="module 'tracekit' has no attribute 'prase'"):
        tracekit.prase  # noqa: B018


def drawn_tree(text: str) -> dict[str, str | None]:
    above: dict[str, str | None] = {}
    stack: list[tuple[int, str]] = []
    for indent, name in re.findall(r"^(?: {4})([ │├└─]*)([A-Z]\w+Error)\b", text, flags=re.MULTILINE):
        while stack and stack[-1][0] >= len(indent):
            stack.pop()
        above[name] = stack[-1][1] if stack else None
        stack.append((len(indent), name))
    return above


def test_the_tree_of_errors_and_their_exit_codes_are_drawn_as_they_are() -> None:
    classes = {name: value for name, value in vars(errors).items() if isinstance(value, type) and name[0] != "_"}
    public = [value for value in classes.values() if issubclass(value, Exception)]
    codes = dict(re.findall(r"(\w+Error) +exit code (\d)", errors.__doc__ or ""))
    real = {}
    for one in public:
        real[one.__name__] = next((base.__name__ for base in one.__mro__[1:] if base in public), None)
        assert one.exit_code == int(codes.get(one.__name__, codes["TracekitError"])), one
    assert drawn_tree(errors.__doc__ or "") == real
    assert set(real) <= set(tracekit.__all__)


def test_an_error_about_a_file_is_one_line_that_says_what_to_do() -> None:
    error = tracekit.ReportError(Path("a b"), "is\nbroken", "mend\n  it")
    assert str(error) == "a b: is broken; mend it"
    assert (error.path, error.exit_code) == (Path("a b"), 1)


def test_the_names_of_a_package_s_members_differ() -> None:
    for members in (attribution.METHODS, answers.ANALYSES, cli.COMMANDS):
        names = [member.NAME for member in members]
        assert len(names) == len(set(names))
    assert [table.SPEC.name for table in tables.TABLES] == [*TABLE_NAMES]


def test_every_cause_is_listed_named_and_explained() -> None:
    names = [cause.name for cause in coverage.CAUSES]
    assert len(names) == len({(cause.name, cause.detail) for cause in coverage.CAUSES})
    # Backward work has a method where its module is known and a cause where it is not; a column tells which.
    assert set(names) & {method.NAME for method in attribution.METHODS} <= {"backward"}
    for cause in coverage.CAUSES:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", cause.name)
        assert cause.doc[0].isupper()
        assert cause.doc.endswith(".")
        assert not cause.advice.endswith(".") or cause.name == "outside_modules"
        assert "\n" not in cause.doc + cause.advice
        # Reports of other profilers get this advice, too.
        assert "nsys" in cause.advice or "--cuda-graph-trace" not in cause.advice


@pytest.mark.parametrize("spec", SPECS, ids=[f"{spec.name}-{len(spec.columns)}" for spec in SPECS])
def test_every_table_is_explained_and_types_of_its_columns_are_what_their_names_say(spec: TableSpec) -> None:
    names = [column.name for column in spec.columns]
    assert len(names) == len(set(names))
    assert set(spec.sorted_by) <= set(names)
    assert spec.doc[0].isupper()
    assert spec.doc.endswith(".")
    for column in spec.columns:
        name, type_ = column.name, column.type
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)
        assert column.doc.endswith((".", "…")), name
        assert column.unit == {"ns": "ns", "bytes": "bytes"}.get(name.rpartition("_")[2] if "_" in name else "")
        assert not name.endswith("_ns") or type_ == pa.int64()
        assert not name.endswith(("_bytes", "_id")) or type_ in (pa.int32(), pa.int64())
        assert not pa.types.is_floating(type_) or f"{spec.name}.{name}" in SHARES or name.endswith("_pct")
        assert name not in {"module_id", "parent_id", "subtree_end_id", "pid", "tid"} or type_ == pa.int32()


def test_a_key_has_the_same_type_in_every_table() -> None:
    types: dict[str, set[str]] = {}
    for spec in SPECS:
        for column in spec.columns:
            if column.name.endswith("_id") and column.name != "parent_id":
                types.setdefault(column.name.removeprefix("parent_"), set()).add(str(column.type))
    assert {name: found for name, found in types.items() if len(found) > 1} == {}
