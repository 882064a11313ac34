"""The generated blocks of READMEs say what the code says."""

from __future__ import annotations

import re

import pytest

from tests.references import BLOCKS, ROOT, block_names, markdown_table, readmes, updated


@pytest.mark.parametrize("path", readmes(), ids=lambda path: str(path.relative_to(ROOT)))
def test_generated_blocks_are_up_to_date(path) -> None:
    text = path.read_text("utf-8")
    assert text == updated(text), "run: python -m tests.references"


def test_every_block_stands_in_one_readme() -> None:
    names = [name for path in readmes() for name in block_names(path.read_text("utf-8"))]
    assert sorted(names) == sorted(BLOCKS)


@pytest.mark.parametrize("room", ["markers", "nsight", "readers", "recording", "tables"])
def test_a_room_s_readme_names_exactly_its_modules(room: str) -> None:
    folder = ROOT / "tracekit" / room
    modules = {path.stem for path in folder.rglob("*.py")} - {"__init__"}
    own, _, _ = (folder / "README.md").read_text("utf-8").partition("<!-- generated")
    named = {name for line in re.findall(r"^\| (`.+?) \|", own, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)}
    assert named - {"__init__"} == modules


def test_a_block_that_is_out_of_date_is_replaced_and_the_text_around_it_kept(monkeypatch) -> None:
    monkeypatch.setitem(BLOCKS, "example", lambda: "new")
    text = "before\n<!-- generated: example -->\nold\n<!-- end -->\nafter\n"
    assert updated(text) == "before\n<!-- generated: example -->\n\nnew\n\n<!-- end -->\nafter\n"
    assert updated(updated(text)) == updated(text)


def test_a_block_without_a_generator_is_an_error() -> None:
    with pytest.raises(KeyError, match="unknown"):
        updated("<!-- generated: unknown -->\n<!-- end -->")


def test_bars_in_cells_of_a_table_are_escaped() -> None:
    assert markdown_table(["A"], [["x | y"]]) == "| A |\n| --- |\n| x \\| y |"
