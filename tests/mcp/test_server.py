"""``tracekit mcp``, called by the SDK's own client, in this process and as a command."""

import asyncio
import json
import math
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

import tracekit
from tests.command import LINES, ROOT, command, contents
from tests.test_data import DATA
from tests.trace_lines import report
from tracekit.answers import QUESTIONS
from tracekit.mcp.bounds import MOST_CHARACTERS, bounded, refused
from tracekit.mcp.server import server

Call = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = tmp_path_factory.mktemp("made") / "runs"
    own.mkdir()
    tracekit.parse(report(own / "run.sqlite", LINES))
    return own


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "runs")


@pytest.fixture
def call(folder: Path, tmp_path: Path) -> Call:
    """What calls a tool and gives its answer, or ``{"refused": why}``."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    async def called(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        async with Client(server([folder], scratch)) as client:
            result = await client.call_tool(tool, arguments)
        text = result.content[0].text
        if result.is_error:
            return {"refused": text}
        assert json.loads(text) == result.structured_content
        assert len(text) < MOST_CHARACTERS + 1_000, "no spaces are added to what was cut to size"
        return result.structured_content

    return lambda tool, **arguments: asyncio.run(called(tool, arguments))


def test_every_tool_is_described_and_only_reads(folder: Path, tmp_path: Path) -> None:
    async def listed() -> Any:
        async with Client(server([folder], tmp_path)) as client:
            return (await client.list_tools()).tools

    tools = asyncio.run(listed())
    assert [tool.name for tool in tools] == ["files", "parse", "questions", "ask", "diff", "whatif", "schema"]
    assert all(tool.description and tool.annotations.read_only_hint for tool in tools)


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_is_answered_with_the_rows_that_its_command_prints(call: Call, question: str) -> None:
    given = call("ask", dataset="run.tracekit", question=question)
    name, *arguments = shlex.split(given["command"])
    assert (name, arguments[:2]) == ("tracekit", ["show", question])
    printed = json.loads(command(*arguments).out)
    rows = given["answer"]["rows"]
    if question != "budget":  # of which the command prints every window
        assert rows == [{column: row[column] for column in rows[0]} for row in printed[: len(rows)]]
        assert given["answer"]["rows_in_all"] == len(printed)
    assert rows or given["answer"]["why_empty"].startswith("no matching rows: ")


def test_tables_are_described_and_rows_and_columns_of_an_answer_are_chosen(call: Call) -> None:
    assert call("schema")["answer"]["steps"]
    columns = call("schema", table="steps")["answer"]["columns"]
    assert {"name", "type", "doc"} <= columns[0].keys()
    given = call("ask", dataset="run.tracekit", question="modules", columns=["path", "calls"], sort="path", top=1)
    assert given["answer"]["rows"] == [{"path": "top", "calls": 1}]
    assert "self_ns" in given["answer"]["other_columns"]
    assert (given["complete"], given["answer"]["rows_in_all"]) == (False, 2)
    roots = call("ask", dataset="run.tracekit", question="modules", depth=0)
    assert (roots["answer"]["rows_in_all"], "--depth 0 " in roots["command"]) == (2, True)
    below = call("ask", dataset="run.tracekit", question="modules", path="top.a", columns=["path"])
    assert below["answer"]["rows"] == [{"path": "top.a"}]


def test_a_report_is_parsed_into_a_temporary_dataset_and_nothing_else_is_written(call: Call, folder: Path) -> None:
    before = contents(folder)
    answer = call("parse", reports=["run.sqlite"])["answer"]
    assert answer["rows"]["kernels"] == 3
    rows = call("ask", dataset=answer["dataset"], question="kernels", columns=["name"])["answer"]["rows"]
    assert [row["name"] for row in rows] == ["relu", "gemm", "[CUDA memcpy Host-to-Device]"]
    files = call("files")["answer"]
    assert files["reports"] == [str(folder / "run.sqlite")]
    assert files["datasets"] == [str(folder / "run.tracekit"), answer["dataset"]]
    asked = call("ask", dataset="run.sqlite", question="kernels", columns=["name"])
    assert asked["answer"]["rows"] == rows
    assert asked["command"].startswith(f"tracekit show kernels {folder / 'run.sqlite'} ")
    assert contents(folder) == before


def test_two_datasets_are_compared_and_changes_predicted(call: Call, folder: Path) -> None:
    for name in ("llama_graphs", "llama_graphs_changed", "llama_eager"):
        tracekit.parse(DATA / f"{name}.sqlite", folder / name)
    compared = call("diff", before="llama_graphs", after="llama_graphs_changed")
    several = call("diff", before=["llama_graphs", "llama_graphs"], after="llama_graphs_changed")
    changes = {"scale": {"*": 0.5}, "no_launch_cost": ["*"], "overlap_communication": True}
    predicted = call("whatif", dataset="llama_eager", **changes)
    assert several["answer"]["notes"][0].startswith("Noise between runs is learned from 2 baselines")
    assert several["command"].count("llama_graphs ") == 2
    assert [row["status"] for row in compared["answer"]["steps"]]
    assert any("down_proj" in row["path"] for row in compared["answer"]["changes"])
    assert json.loads(command(*shlex.split(compared["command"])[1:]).out)["rows"]
    assert predicted["answer"]["step_after_ns"] < predicted["answer"]["step_before_ns"]
    printed = json.loads(command(*shlex.split(predicted["command"])[1:]).out)
    assert printed["step_after_ns"] == predicted["answer"]["step_after_ns"]
    assert shlex.split(predicted["command"])[3:] == [
        *("--scale", "*=0.5", "--no-launch-cost", "*", "--overlap-communication", "--json")
    ]


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        (
            "ask",
            {"dataset": "run.tracekit", "question": "tree", "limit": 1},
            "ask: limit: Extra inputs are not permitted",
        ),
        ("ask", {"dataset": "run.tracekit", "question": "lanches"}, "did you mean launches?"),
        ("ask", {"dataset": "run.tracekit", "question": "tree", "columns": ["shar"]}, "did you mean share?"),
        ("ask", {"dataset": "run.tracekit", "question": "tree", "dtype": "float16"}, "tree has no option dtype"),
        ("ask", {"dataset": "run.tracekit", "question": "tree", "path": "tap"}, "did you mean top?"),
        ("ask", {"dataset": "absent", "question": "tree"}, "does not exist"),
        ("ask", {"dataset": "..", "question": "tree"}, "lies outside the folders that may be read"),
        ("ask", {"dataset": "/etc", "question": "tree"}, "lies outside the folders that may be read"),
        ("ask", {"dataset": "https://host/run", "question": "tree"}, "does not exist"),
        ("parse", {"reports": ["../secret.sqlite"]}, "lies outside the folders that may be read"),
        ("parse", {"reports": ["link.sqlite"]}, "lies outside the folders that may be read"),
        ("ask", {"dataset": "linking.tracekit", "question": "tree"}, "links to files outside"),
        ("parse", {"reports": ["link*.sqlite"]}, "link.sqlite: lies outside the folders that may be read"),
        ("parse", {"reports": ["linkdi[r]/*.sqlite"]}, "secret.sqlite: lies outside the folders that may be read"),
        ("parse", {"reports": ["*/*.sqlite"]}, "secret.sqlite: lies outside the folders that may be read"),
        ("parse", {"reports": ["../*"]}, "lies outside the folders that may be read"),
        ("parse", {"reports": ["**/**/run.sqlite"]}, "has ** twice"),
        ("parse", {"reports": ["absent*"]}, "matches nothing"),
        ("parse", {"reports": ["a**b"]}, "a**b: is no pattern"),
        ("parse", {"reports": ["/".join("*" * 1_000)]}, "is no pattern"),
        ("parse", {"reports": []}, "which reports?"),
        ("diff", {"before": [], "after": "run.tracekit"}, "which datasets before, at most 32?"),
        ("diff", {"before": ["run.tracekit"] * 990, "after": "run.tracekit"}, "which datasets before, at most 32?"),
        ("schema", {"table": "kernel"}, "did you mean kernels?"),
    ],
)
def test_a_call_that_is_refused_is_told_why(call: Call, folder: Path, tool: str, arguments: dict, message: str) -> None:
    (folder.parent / "secret.sqlite").write_bytes((folder / "run.sqlite").read_bytes())
    (folder / "link.sqlite").symlink_to(folder.parent / "secret.sqlite")
    (folder / "linkdir").symlink_to(folder.parent)
    (folder / "linking.tracekit").mkdir()
    (folder / "linking.tracekit" / "manifest.json").symlink_to(folder.parent / "secret.sqlite")
    line = call(tool, **arguments)["refused"]
    assert line.startswith(f"Error executing tool {tool}: ")
    assert message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": "run\0"}, "a text with characters that no name has"),
        ({"dataset": "run\ud800"}, "a text with characters that no name has"),
        ({"dataset": "run.tracekit", "path": "[" * 10_000}, "a text of 10,000 characters; expected at most 4,096"),
        ({"dataset": "run.tracekit", "path": "[" * 4_000}, "has no module [[["),
        ({"dataset": "run.tracekit", "columns": ["path"] * 10_000}, "more than 1,000 arguments"),
        ({"dataset": {"a" * 1_000: "b" * 1_000}}, "dataset: Input should be a valid string"),
    ],
)
def test_odd_arguments_are_refused_in_one_line_that_is_short(call: Call, arguments: dict, message: str) -> None:
    line = call("ask", question="tree", **arguments)["refused"]
    assert message in line
    assert len(line.splitlines()) == 1
    assert len(line) <= 1_000
    # The client of the tests would not send it.
    assert refused(["whatif", {"scale": {"*": math.nan}}]) == "nan is not a number"


def test_a_pattern_stands_for_the_reports_that_match_it_and_several_are_one_dataset(call: Call, folder: Path) -> None:
    (folder / "run[1].sqlite").write_bytes((folder / "run.sqlite").read_bytes())
    (folder / "other.sqlite").symlink_to(folder / "run.sqlite")
    assert call("parse", reports=["run[1].sqlite"])["answer"]["source"]["name"] == "run[1].sqlite"
    assert call("parse", reports=["oth*.sqlite"])["answer"]["source"]["name"] == "run.sqlite"
    several = call("parse", reports=["run.sqlite", "run[1].sqlite"])
    assert sorted(one["name"] for one in several["answer"]["reports"]) == ["run", "run_1_"]
    assert several["command"].endswith("-o runs.tracekit")


def test_answers_are_cut_to_size_and_say_so() -> None:
    whole = {"answer": {"rows": [1, 2]}, "complete": True, "command": "a 'b c'"}
    assert bounded({"rows": [1, 2]}, ["a", "b c"]) == whole
    for long in ([["x" * 100] * 50] * 1_000, {"a": "y" * 10**6}, {f"{name:0300}": 1 for name in range(1_000)}):
        given = bounded(long, ["tracekit"])
        assert len(json.dumps(given["answer"])) <= MOST_CHARACTERS
    assert not bounded([["x" * 100] * 50] * 1_000, ["tracekit"])["complete"]


def test_the_command_answers_each_line_of_standard_input_also_those_that_are_no_messages(folder: Path) -> None:
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    asked = {"name": "ask", "arguments": {"dataset": "run.tracekit", "question": "tree"}}
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}),
        json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "\ud800"}}),
        "[" * 10_000,
        json.dumps({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": asked}),
    ]
    words = [sys.executable, "-m", "tracekit", "mcp", str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as serving:
        late = threading.Timer(60, serving.kill)
        late.start()
        answers = []
        for line in lines:
            serving.stdin.write(f"{line}\n")
            serving.stdin.flush()
            answers.append(json.loads(serving.stdout.readline()))
        serving.stdin.close()
        late.cancel()
    assert [answer["id"] for answer in answers] == [1, None, None, 3]
    assert all(answer["error"]["message"].startswith("a line is no message: ") for answer in answers[1:3])
    rows = answers[3]["result"]["structuredContent"]["answer"]["rows"]
    assert [row["path"] for row in rows] == ["top", "top.a"]


def test_a_folder_that_does_not_exist_is_told_and_without_the_sdk_what_to_install(tmp_path: Path, monkeypatch) -> None:
    assert command("mcp", tmp_path / "absent") == (2, "", f"tracekit: {tmp_path / 'absent'}: is not a folder\n")
    monkeypatch.delitem(sys.modules, "tracekit.mcp.server")
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    line = "tracekit: needs the extra mcp; install it with: pip install 'nsight-tracekit[mcp]'\n"
    assert command("mcp", tmp_path) == (2, "", line)
