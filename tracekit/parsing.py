"""Reads reports into a dataset that shows itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from tracekit import pipeline
from tracekit.dataset import opening
from tracekit.loading import Dataset

Arguments = ParamSpec("Arguments")


def _showing(parse: Callable[Arguments, opening.Dataset]) -> Callable[Arguments, Dataset]:
    @wraps(parse)
    def parsed(*args: Arguments.args, **options: Arguments.kwargs) -> Dataset:
        return Dataset(parse(*args, **options).folder)

    return parsed


parse = _showing(pipeline.parse)
