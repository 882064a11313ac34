"""Datasets that tests of the page share."""

import pytest

import tracekit
from tests.aggregates.test_phase_times import TRAINING
from tests.command import ROOT
from tests.trace_lines import report
from tracekit.dataset.opening import Dataset


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    source = ROOT / "data" / "small_llama.sqlite"
    return tracekit.parse(source, tmp_path_factory.mktemp("llama") / "small_llama.tracekit")


@pytest.fixture(scope="session")
def training(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return tracekit.parse(report(tmp_path_factory.mktemp("training") / "training.sqlite", TRAINING))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """One call of the root of ``llama``, without steps."""
    lines = "range 1 0 50 {'Module': 'LlamaForCausalLM'}\nlaunch 1 2 3 #1\nkernel 1 4 9 #1 gemm\n"
    return tracekit.parse(report(tmp_path_factory.mktemp("tiny") / "tiny.sqlite", lines))
