"""Options that several commands share: shares in every spelling, whole numbers, short names."""

import argparse

import pytest

from tests.command import command
from tracekit.cli.base import count, share, share_of_whole

SHARES = {"5%": 0.05, " 5% ": 0.05, "0.05": 0.05, "4.9%": 0.049, "0": 0.0}
REFUSED = {
    "1": "1 could be 1 % or 100 %; write 1%",
    "five": "expected a percentage such as 5% or a fraction such as 0.05, got 'five'",
    "-5%": "expected a percentage",
    "inf%": "expected a percentage",
    "\u0665%": "expected a percentage",
    "": "expected a percentage",
}


@pytest.mark.parametrize("text", SHARES)
def test_a_share_may_be_a_percentage_or_a_fraction(text: str) -> None:
    assert share(text) == pytest.approx(SHARES[text])


@pytest.mark.parametrize("text", REFUSED)
def test_what_could_mean_either_or_neither_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        share(text)
    assert REFUSED[text] in str(refused.value)


def test_a_share_of_the_whole_is_at_most_all_of_it() -> None:
    assert share_of_whole("100%") == 1
    with pytest.raises(argparse.ArgumentTypeError, match="expected at most 100%, got '101%'"):
        share_of_whole("101%")


@pytest.mark.parametrize("text", ["-1", "1.5", "many", "", "9" * 30])
def test_a_number_is_whole_and_not_negative(text: str) -> None:
    assert count("0") == 0
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number, 0 or more"):
        count(text)


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
