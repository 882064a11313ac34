"""tracekit: which ``nn.Module`` the GPU's time went to.

The stages, in order: ``capture`` runs a model and records it, ``readers`` turn the report into a recording, ``trace``
finds the calls of modules in its markers, ``attribution`` gives every kernel its module, ``tables`` are written as a
dataset, ``answers`` has a file for each question, ``views`` show the answers. ``pipeline`` connects them; start there.

>>> import tracekit
>>> dataset = tracekit.load("report.sqlite")     # a dataset, or a report; doctest: +SKIP
>>> dataset = tracekit.parse(["rank0.sqlite", "rank1.sqlite"], "run.tracekit")     # doctest: +SKIP
>>> dataset.ask("launches", path="top.layers")     # doctest: +SKIP
>>> dataset.kernels().groupby("module").dur_ns.sum().nlargest(10)     # doctest: +SKIP
"""

from __future__ import annotations

from tracekit.version import __version__

TYPE_CHECKING = False  # the command answers Ctrl-C once this file is imported, so it imports next to nothing
if TYPE_CHECKING:
    from tracekit.answers import questions
    from tracekit.errors import (
        CaptureError,
        DatasetError,
        ExportError,
        ReportError,
        ReportsError,
        TracekitError,
        UsageError,
    )
    from tracekit.loading import Dataset, load
    from tracekit.parsing import parse

__all__ = [
    "CaptureError",
    "Dataset",
    "DatasetError",
    "ExportError",
    "ReportError",
    "ReportsError",
    "TracekitError",
    "UsageError",
    "__version__",
    "load",
    "parse",
    "questions",
]

#: Packages that are attributes of this one.
_PACKAGES = ("answers", "errors")
_LATE = dict.fromkeys((name for name in __all__ if name.endswith("Error")), "tracekit.errors") | {
    "parse": "tracekit.parsing",
    "load": "tracekit.loading",
    "Dataset": "tracekit.loading",
    "questions": "tracekit.answers",
}


def __getattr__(name: str) -> object:
    """Loads the heavy parts when they are first used, so that ``import tracekit`` stays fast."""
    from importlib import import_module  # noqa: PLC0415

    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
