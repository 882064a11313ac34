"""Options that several commands share: shares in every spelling, whole numbers, short names."""

import argparse

import pytest

from tests.command import command
from tracekit.cli.base import count, share

GIVEN = [
    (share, "5%", 0.05),
    (share, " 5% ", 0.05),
    (share, "0.05", 0.05),
    (share, "4.9%", 0.049),
    (share, "0", 0.0),
    (share, "1", "1 could be 1 % or 100 %; write 1%"),
    (share, "five", "expected a percentage such as 5% or a fraction such as 0.05, got 'five'"),
    *[(share, text, "expected a percentage") for text in ("-5%", "nan%", "inf%", "\u0665%", "")],
    (count, "0", 0),
    *[(count, text, "expected a whole number, 0 or more") for text in ("-1", "1.5", "many", "", "9" * 30)],
]


@pytest.mark.parametrize(("read", "text", "expected"), GIVEN)
def test_a_share_or_number_is_read_or_what_could_mean_either_or_neither_is_refused(read, text: str, expected) -> None:
    if not isinstance(expected, str):
        assert read(text) == pytest.approx(expected)
        return
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        read(text)
    assert expected in str(refused.value)


@pytest.mark.parametrize("name", ["capture", "parse", "html", "export", "demo"])
def test_force_and_quiet_have_short_names_wherever_they_are(name: str) -> None:
    text = command(name, "--help").out
    assert "-f, --force" in text
    assert ("-q, --quiet" in text) == ("--quiet" in text)


@pytest.mark.parametrize("name", ["show", "diff", "trend"])
def test_the_number_of_rows_has_one_name_and_keeps_its_old_one_silently(name: str) -> None:
    text = command(name, "--help").out
    assert "--top N" in text
    assert "--limit" not in text
    places = ["absent"] * (1 + (name == "diff"))
    for option in ("--top", "--limit"):
        outcome = command(name, *places, option, "3")
        assert (outcome.code, "does not exist" in outcome.err) == (1, True)
    assert "expected a whole number" in command(name, *places, "--limit", "-1").err
