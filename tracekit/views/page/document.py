"""The page as one HTML file: template, styles, scripts and data, with nothing to be loaded.

The page's Content-Security-Policy allows only these styles and scripts, by digest, and no requests at all. Names of
modules and kernels are data: JSON without any character that means something in HTML, shown as text only.
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
#: In the order in which they run: each uses only those before it.
SCRIPTS = (
    "wording",
    "elements",
    "labels",
    "data",
    "colours",
    "selection",
    "phases",
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
    "idle",
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
    """The page of a dataset, compared with an earlier one if there is one.

    Args:
        dataset: The dataset.
        before: An earlier dataset.
        progress: Called with the share that is done.
        options: Peaks of devices and dtypes: keyword arguments of the analysis ``roofline``.

    Raises:
        DatasetError: If a dataset cannot be read, or the two cannot be compared.
        UsageError: If a peak or dtype is not understood.
    """
    return document(contents(dataset, before, progress, options or {}))


def document(data: dict[str, Any]) -> bytes:
    """The page of the data that :func:`~tracekit.views.page.contents.contents` gathered."""
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
    """JSON for a script element: no character in it can end the element or begin another."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPED)


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text("utf-8")


def _digest(text: str) -> str:
    """The digest by which a Content-Security-Policy allows a script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
