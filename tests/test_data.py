"""The reports that come along are what the programs beside them make, and small."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from data import make_annotated_training, make_llama_batches, make_llama_modes, make_llama_ranks, make_small_llama
from tests.command import ROOT

DATA = ROOT / "data"
MAKERS = (make_small_llama, make_llama_batches, make_llama_modes, make_llama_ranks, make_annotated_training)
MOST_BYTES, MOST_BYTES_IN_ALL = 400_000, 2_500_000
#: How the names of reports begin that a GPU made.
REAL = "h100_"


def reports(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*.sqlite"))}


def lines(report: Path) -> list[str]:
    with closing(sqlite3.connect(report)) as db:
        return list(db.iterdump())


def test_there_is_a_program_for_every_simulated_report_and_it_makes_just_that(tmp_path) -> None:
    for maker in MAKERS:
        maker.make(tmp_path)
    made = reports(tmp_path)
    kept = {name: path for name, path in reports(DATA).items() if not name.startswith(REAL)}
    assert made.keys() == kept.keys()
    for name, path in kept.items():
        assert lines(made[name]) == lines(path), f"{name} is not what its program makes"


@pytest.mark.parametrize("name", [name for name in reports(DATA) if name.startswith(REAL)])
def test_a_recorded_report_tells_nothing_of_its_machine(name: str) -> None:
    texts = [text.lower() for text in lines(DATA / name)]
    assert texts
    for telling in ("uuid", "export_host", "'/", "hostname", "/home", "/root"):
        assert not [text for text in texts if telling in text]


def test_the_reports_are_small_and_the_readme_names_every_one_and_its_program() -> None:
    sizes = [path.stat().st_size for path in reports(DATA).values()]
    assert max(sizes) < MOST_BYTES
    assert sum(sizes) < MOST_BYTES_IN_ALL
    table = (DATA / "README.md").read_text("utf-8")
    for maker in MAKERS:
        assert re.search(r"\bsimulated\b", str(maker.__doc__))
        assert f"`python -m {maker.__name__}`" in table
    named = set(re.findall(r"`([\w/]+\.sqlite)`", table))
    named |= {f"llama_ranks/rank{rank}.sqlite" for rank in range(4)}
    assert {name for name in reports(DATA) if "/" not in name} <= named
    assert "`llama_ranks/rank0.sqlite` … `rank3.sqlite`" in table
