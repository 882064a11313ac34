"""A dataset in a notebook: every question as a DataFrame, the summary and the page as HTML."""

import html
from collections.abc import Callable

import pandas as pd
import pytest

import tracekit
from tests.command import LINES
from tracekit.answers import ANALYSES, QUESTIONS
from tracekit.dataset.opening import Dataset


@pytest.fixture
def dataset(parsed: Callable[[str], Dataset]) -> Dataset:
    return parsed(LINES)


@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.NAME)
def test_every_question_is_answered_with_the_rows_of_its_analysis(dataset: Dataset, analysis) -> None:
    pd.testing.assert_frame_equal(dataset.ask(analysis.NAME), analysis.frame(dataset))


def test_questions_are_listed_by_name_with_the_first_line_of_their_module() -> None:
    assert tuple(tracekit.questions()) == QUESTIONS
    for analysis in ANALYSES:
        assert tracekit.questions()[analysis.NAME] == (analysis.__doc__ or "").split("\n")[0]


def test_a_question_is_asked_of_a_module_with_options_or_by_report(dataset: Dataset) -> None:
    assert dataset.ask("modules", path="top.a").path.tolist() == ["top.a"]
    assert dataset.ask("roofline", dtype="float16", peaks=["memory=8"]).peak_gb_per_s.tolist() == [8, 8]
    assert dataset.ask("kernels", by="rank").columns[0] == "rank"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"question": "lanches"}, "there is no question lanches; did you mean launches?"),
        ({"question": "tree", "dtype": "float16"}, "tree has no option dtype; expected one of path, by, sort"),
        ({"question": "tree", "pth": "top"}, "tree has no option pth; did you mean path?"),
        ({"question": "steps", "peaks": []}, "steps has no option peaks; expected one of path, by"),
        ({"question": "tree", "by": "rnk"}, "by='rnk': did you mean rank?"),
    ],
)
def test_a_question_that_does_not_exist_is_refused_in_one_line(dataset: Dataset, call: dict, message: str) -> None:
    with pytest.raises(tracekit.UsageError) as refused:
        dataset.ask(**call)
    assert str(refused.value) == message


def test_a_dataset_shows_its_summary_and_its_tree(parsed: Callable[[str], Dataset]) -> None:
    dataset = parsed(LINES.replace("'top", "'<b>top"))
    shown = dataset._repr_html_()
    assert "Coverage of GPU time" in shown
    assert shown.count("&lt;b&gt;top") > 1
    assert "<b>" not in shown
    tree = dataset.subtree("<b>top.a")._repr_html_()
    assert "Coverage" not in tree
    assert "100.0 %" in tree


def test_a_dataset_shows_its_page_in_a_frame(dataset: Dataset) -> None:
    shown = dataset.html(height=300)._repr_html_()
    assert 'height="300"' in shown
    document = html.unescape(shown.partition('srcdoc="')[2].partition('"')[0])
    assert document.startswith("<!")
    assert "top.a" in document
