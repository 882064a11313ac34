"""What models ask of CUDA: calls that torch's own classes take, in an order that CUDA allows. Nothing runs on a GPU.

Stand-ins have the signatures of what they stand for, so a call that torch would refuse fails here, too.
"""

import json
from unittest.mock import Mock, create_autospec

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Mock:
    import torch

    cuda = Mock()
    for name in ("Stream", "stream", "current_stream", "synchronize", "CUDAGraph", "graph", "Event"):
        stand_in = create_autospec(getattr(torch.cuda, name))
        cuda.attach_mock(stand_in, name)
        monkeypatch.setattr(torch.cuda, name, stand_in)
    # What is entered must not swallow errors.
    cuda.graph.return_value.__exit__.return_value = None
    return cuda


def test_graphs_are_captured_after_a_call_on_a_side_stream_that_has_ended(cuda: Mock, monkeypatch) -> None:
    """All steps run and compute what eager calls do."""
    from tracekit.selftest import models

    facts = {}
    monkeypatch.setattr(models, "record_truth", lambda **more: facts.update(more))
    models.replay_in_warmup()
    assert facts["right"]
    # Preparation is not counted; two calls by the graph capture.
    assert len(facts["calls"]) == 1 + 2 + 1
    called = [name for name, _, _ in cuda.mock_calls]
    assert called.index("Stream().wait_stream") < called.index("synchronize") < called.index("graph().__enter__")
    assert called.count("graph().__enter__") == called.count("graph().__exit__") == 1
    cuda.graph.assert_called_once_with(cuda.CUDAGraph.return_value)
    assert cuda.CUDAGraph.return_value.replay.call_count == 2


def test_the_examination_names_the_gpu(cuda: Mock, monkeypatch, tmp_path) -> None:
    import torch

    from tracekit.selftest import models

    # From now on there is a GPU, as far as models can see; its tensors are made on the CPU.
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *sizes, device: ones(*sizes, device="cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"NVIDIA H100 {number}")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    models.about(str(tmp_path / "about.json"))
    found = json.loads((tmp_path / "about.json").read_text())
    assert (found["gpus"], found["nccl"]) == (["NVIDIA H100 0"], "2.28.9")
