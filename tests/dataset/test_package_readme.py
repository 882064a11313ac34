"""The code in the README of the package runs on a dataset of one report and, as far as it reads files, of several."""

import re
from typing import Any

import pytest

import tracekit
from tests.command import ROOT

README = (ROOT / "tracekit" / "dataset" / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```py(?:thon)?\n(.*?)```", README, re.DOTALL)
REPORTS = {
    "one report": ROOT / "data" / "llama_eager.sqlite",
    "several reports": sorted((ROOT / "data" / "llama_ranks").glob("*.sqlite")),
}


@pytest.mark.parametrize("which", REPORTS)
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_code_runs(number: int, which: str, tmp_path, monkeypatch) -> None:
    if "polars" in BLOCKS[number]:
        pytest.importorskip("polars")
        pytest.importorskip("duckdb")
    tracekit.parse(REPORTS[which], tmp_path / "demo.tracekit")
    code = BLOCKS[number]
    if which == "several reports":
        code = code.replace("kernels.parquet'", "kernels.parquet/*/*.parquet'")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names


def test_there_is_code() -> None:
    assert len(BLOCKS) == 2
