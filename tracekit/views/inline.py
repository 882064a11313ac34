"""A dataset in a notebook: answers as DataFrames, the summary and the page as HTML."""

from __future__ import annotations

import html
import io
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console, RenderableType

from tracekit.answers import tree
from tracekit.answers.side_by_side import frame
from tracekit.dataset.opening import Dataset
from tracekit.errors import plain
from tracekit.views import asking, summary, tree as tree_view
from tracekit.views.page.document import page

_WIDTH = 120


class Page(NamedTuple):
    """The page of a dataset, which a notebook shows in a frame."""

    content: bytes
    height: int

    def _repr_html_(self) -> str:
        # Else its links to its own sections would lead to those of the notebook.
        document = self.content.decode("utf-8").replace("<head>", '<head><base href="about:srcdoc">', 1)
        text = html.escape(document)
        return f'<iframe srcdoc="{text}" width="100%" height="{self.height}" style="border: 0"></iframe>'


def ask(dataset: Dataset, question: str, path: str | None, by: str | None, options: dict[str, Any]) -> pd.DataFrame:
    """The answer of a question, as :meth:`tracekit.Dataset.ask` describes it."""
    analysis = asking.question(question, by, options)
    return frame(dataset if path is None else dataset.subtree(path), analysis, by, **options)


def as_html(dataset: Dataset) -> str:
    """The summary of a dataset and its tree; of a subtree, which has no summary, its tree."""
    whole = _html(tree_view.of_dataset(dataset, tree.columns(dataset), _WIDTH))
    if dataset.root is not None:
        return whole
    return f"{_html(summary.as_text(dataset, _WIDTH))}<details><summary>The whole tree</summary>{whole}</details>"


def inline_page(dataset: Dataset, height: int) -> Page:
    """The page of a dataset in a frame of so many pixels."""
    return Page(page(dataset), height)


def _html(shown: RenderableType) -> str:
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_jupyter=False)
    console.print(shown)
    form = '<pre style="line-height: 1.2; font-family: monospace">{code}</pre>'
    return plain(console.export_html(inline_styles=True, code_format=form), keep="\n")
