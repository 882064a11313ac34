"""The room's README names what is there, and its figures are those of the code."""

from __future__ import annotations

import re

from tests.command import ROOT
from tracekit.views.page import limits

ROOM = ROOT / "tracekit" / "views"
README = (ROOM / "README.md").read_text("utf-8")


def test_every_module_is_named() -> None:
    modules = {path.name for path in ROOM.glob("*.py")} - {"__init__.py"}
    assert modules <= set(re.findall(r"`([\w/]+\.py)`", README))


def test_the_limits_of_the_page_are_those_of_the_code() -> None:
    text = f"{limits.MODULES:,} modules, {limits.KERNELS} kernels, {limits.STEPS} steps, and {limits.PIECES:,} pieces"
    assert text in README
