"""The colours of the page can be told apart, in both schemes and by people who see few colours."""

import re

import numpy as np
import pytest

from tests.command import ROOT
from tests.views.page.colour_difference import contrast, least_differences

STYLES = ROOT / "tracekit" / "views" / "page" / "assets" / "page.css"
SHADES = 3
#: A difference of 1 can just be seen; from 5 on it is plain at a glance.
PLAIN = 7
#: What WCAG asks of small text.
READABLE = 4.5


def colours(scheme: str) -> dict[str, str]:
    blocks = re.findall(r"(:root[^{]*){(.*?)}", STYLES.read_text("utf-8"), re.DOTALL)
    chosen = [body for name, body in blocks if scheme == "dark" or name.strip() == ":root"]
    values = dict(re.findall(r"--([\w-]+): ([^;]+);", "".join(chosen)))
    return {name: values.get(value.removeprefix("var(--").rstrip(")"), value) for name, value in values.items()}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_boxes_side_by_side_have_colours_that_everybody_can_tell_apart(scheme: str) -> None:
    values = colours(scheme)
    shades = {name: int(name[-1]) for name in values if re.fullmatch(r"tone-\w+-\d", name)}
    assert len(shades) == SHADES * 14
    apart = least_differences(values[name] for name in shades)
    shade = np.array(list(shades.values()))
    assert apart[shade[:, None] != shade].min() >= PLAIN


def test_types_of_layers_have_tones_that_everybody_can_tell_apart() -> None:
    values = colours("light")
    apart = least_differences(values[f"tone-{at}"] for at in range(12))
    np.fill_diagonal(apart, np.inf)
    assert apart.min() >= PLAIN


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_in_boxes_can_be_read(scheme: str) -> None:
    values = colours(scheme)
    for name, value in values.items():
        if re.fullmatch(r"tone-\w+-\d", name):
            text = values["tone-ink" if name.split("-")[1].isdigit() else "ink"]
            assert contrast(text, value) >= READABLE, name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phases_have_colours_that_everybody_can_tell_apart(scheme: str) -> None:
    values = colours(scheme)
    apart = least_differences(value for name, value in values.items() if name.startswith("phase-"))
    assert apart.shape == (5, 5)
    np.fill_diagonal(apart, np.inf)
    assert apart.min() >= PLAIN
    forward, backward = least_differences([values["phase-forward"], values["phase-backward"]])[0]
    assert backward >= 5 * PLAIN > forward
