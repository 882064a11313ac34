"""The generated blocks of READMEs say what the code says."""

import pytest

from tests.references import BLOCKS, ROOT, readmes, updated


@pytest.mark.parametrize("path", readmes(), ids=lambda path: str(path.relative_to(ROOT)))
def test_generated_blocks_are_up_to_date(path) -> None:
    text = path.read_text("utf-8")
    assert text == updated(text), "run: python -m tests.references"


def test_a_block_that_is_out_of_date_is_replaced_and_the_text_around_it_kept(monkeypatch) -> None:
    monkeypatch.setitem(BLOCKS, "example", lambda: "new")
    text = "before\n<!-- generated: example -->\nold\n<!-- end -->\nafter\n"
    assert updated(text) == "before\n<!-- generated: example -->\n\nnew\n\n<!-- end -->\nafter\n"
    assert updated(updated(text)) == updated(text)
