"""Long names in narrow columns."""

from __future__ import annotations

import io

from hypothesis import given, strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tracekit.views.breaking import Breakable


def lines(text: str, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(Breakable(Text(text)))
    return console.file.getvalue().splitlines()


def test_a_path_is_broken_after_its_dots_and_underscores() -> None:
    assert lines("model.layers.0.self_attn.o_proj", 16) == ["model.layers.0.", "self_attn.o_proj"]
    assert lines("model.layers.0.self_attn.o_proj", 40) == ["model.layers.0.self_attn.o_proj"]


def test_a_number_stays_whole_and_with_its_unit() -> None:
    assert lines("layers.0.norm 62.5 %, embed 37.5 %", 16) == ["layers.0.norm", "62.5 %, embed", "37.5 %"]
    assert lines("layers.0.12.norm", 10) == ["layers.", "0.12.norm"]


def test_what_has_no_such_place_is_broken_where_the_line_ends() -> None:
    assert lines("abcdefgh", 3) == ["abc", "def", "gh"]
    assert lines("日本語", 4) == ["日本", "語"]
    assert lines("", 4) == [""]


@given(st.text("ab._日e\u0301", max_size=60), st.integers(2, 12))
def test_no_character_is_lost_and_no_line_is_too_long(text: str, width: int) -> None:
    shown = lines(text, width)
    assert "".join(shown) == text
    assert all(cell_len(line) <= width for line in shown)
