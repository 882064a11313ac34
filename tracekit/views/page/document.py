"""The page as one HTML file: template, styles, scripts and data, with nothing to be loaded.

The page's policy lets only these styles and scripts, by their digests, have any effect, and nothing be fetched from
anywhere. Names of modules and kernels are data: JSON without a letter that HTML gives a meaning to, put into the page
as text alone.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from tracekit.progress import silent
from tracekit.views.page.contents import contents

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset
    from tracekit.progress import Progress

_ASSETS = files("tracekit.views.page") / "assets"
#: In the order in which they are read: each uses what stands before it.
SCRIPTS = (
    "wording",
    "elements",
    "data",
    "colours",
    "selection",
    "table",
    "overview",
    "changes",
    "icicle",
    "card",
    "modules",
    "kernels",
    "steps",
    "bands",
    "timeline",
    "timeline_moves",
    "roofline",
    "waiting",
    "theme",
    "main",
)
STYLES = ("page", "parts")
_ESCAPED = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


def page(
    dataset: Dataset,
    before: Dataset | None = None,
    *,
    progress: Progress = silent,
    options: dict[str, Any] | None = None,
) -> bytes:
    """The page of a dataset, compared with an earlier one if that is given.

    Args:
        dataset: The dataset.
        before: An earlier one.
        progress: Told how far this is.
        options: What is said of devices and dtypes: keywords of the analysis ``roofline``.

    Raises:
        DatasetError: If a dataset cannot be read, or the two cannot be compared.
        UsageError: If a peak or dtype is not understood.
    """
    return document(contents(dataset, before, progress, options or {}))


def document(data: dict[str, Any]) -> bytes:
    """The page that shows what :func:`~tracekit.views.page.contents.contents` gathered."""
    scripts = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{scripts}}})();\n'
    style = "".join(_asset(f"{name}.css") for name in STYLES)
    text = Template(_asset("page.html")).substitute(
        title=html.escape(data["about"]["title"]),
        script_digest=_digest(script),
        style_digest=_digest(style),
        style=style,
        script=script,
        data=embedded(data),
    )
    return text.encode("utf-8", "replace")


def embedded(data: object) -> str:
    """JSON that can stand in a script element: no letter of it ends the element or begins another."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPED)


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text("utf-8")


def _digest(text: str) -> str:
    """What a Content-Security-Policy knows a script or style by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
