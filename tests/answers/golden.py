"""A trace and answers about it in one text, so that they stand side by side."""

import re

from tests.golden import Parse, expect_frame


def check(parse: Parse, golden: str) -> None:
    """Parses the trace that a text begins with, and compares the answers that follow.

    Above the rows of an answer stands ``QUESTION:``, which a sentence about it may follow.
    """
    lines, *answers = re.split(r"^ *(\w+):(?: .*)?\n", golden, flags=re.MULTILINE)
    assert answers, "nothing is asked"
    dataset = parse(lines)
    for question, rows in zip(answers[::2], answers[1::2], strict=True):
        expect_frame(dataset.ask(question))(rows)
