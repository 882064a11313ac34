"""What programs ask of CUDA: calls that torch's own classes take, in an order that CUDA allows. Nothing runs on a GPU.

Stand-ins have the signatures of what they stand for, so a call that torch would refuse fails here, too.
"""

from __future__ import annotations

from unittest.mock import Mock, create_autospec

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """CUDA as programs call it; its calls are in order in ``mock_calls``. Tensors stay on the CPU."""
    import torch

    cuda = Mock()
    for name in ("Stream", "stream", "current_stream", "synchronize", "CUDAGraph", "graph", "Event"):
        stand_in = create_autospec(getattr(torch.cuda, name))
        cuda.attach_mock(stand_in, name)
        monkeypatch.setattr(torch.cuda, name, stand_in)
    # What is entered must not swallow errors.
    cuda.graph.return_value.__exit__.return_value = None
    return cuda


def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on there is a GPU, as far as programs can see."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def names(cuda: Mock) -> list[str]:
    """What was called, in order."""
    return [name for name, _, _ in cuda.mock_calls]


def test_a_graph_is_captured_after_a_call_on_a_side_stream_that_has_ended(cuda: Mock) -> None:
    import torch

    from tracekit.proof.programs import replayed
    from tracekit.proof.programs.chain import chain, example

    model = chain()
    x = example(model)
    graph = replayed.CudaGraph(model, x)
    graph.capture()
    called = names(cuda)
    assert called.index("Stream().wait_stream") < called.index("synchronize") < called.index("graph().__enter__")
    assert called.count("graph().__enter__") == called.count("graph().__exit__") == 1
    cuda.graph.assert_called_once_with(cuda.CUDAGraph.return_value)
    assert torch.equal(graph.replay(), model(x))
    cuda.CUDAGraph.return_value.replay.assert_called_once_with()


def test_the_graph_by_hand_is_captured_in_the_same_way_and_replays(cuda: Mock, monkeypatch) -> None:
    import torch

    from tests.gpu.programs import replay_speed

    on_cuda(monkeypatch)
    model = torch.nn.Linear(2, 2)
    run = replay_speed.by_hand(model, torch.ones(1, 2))
    assert run is not None
    run()
    assert names(cuda)[-1] == "CUDAGraph().replay"
    assert names(cuda).index("synchronize") < names(cuda).index("graph().__enter__")


def test_events_give_milliseconds_of_all_runs_and_seconds_are_of_one(cuda: Mock, monkeypatch) -> None:
    from tests.gpu.programs import peaks

    on_cuda(monkeypatch)
    cuda.Event.return_value.elapsed_time.return_value = 40.0
    runs: list[int] = []
    assert peaks.seconds(lambda: runs.append(0)) == pytest.approx(40.0 / 1e3 / peaks.RUNS)
    assert len(runs) == peaks.WARMUP + peaks.RUNS
    assert all(call.kwargs == {"enable_timing": True} for call in cuda.Event.call_args_list)
    assert names(cuda)[-2:] == ["synchronize", "Event().elapsed_time"]


def test_sizes_are_those_of_a_gpu_where_there_is_one(cuda: Mock, monkeypatch) -> None:
    from tests.gpu.programs import peaks
    from tracekit.proof.programs import observed

    assert (observed.device().type, peaks.size()) == ("cpu", peaks.SIZE_ON_CPU)
    on_cuda(monkeypatch)
    assert (observed.device().type, peaks.size()) == ("cuda", peaks.SIZE_ON_GPU)


def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors for a GPU are made on the CPU."""
    import torch

    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *sizes, device: ones(*sizes, device="cpu"))


def test_the_examination_multiplies_on_the_gpu_and_names_it(cuda: Mock, monkeypatch) -> None:
    import torch

    from tracekit.proof.programs import about

    on_cuda(monkeypatch)
    on_the_cpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"NVIDIA H100 {number}")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    found = about.about()
    assert (found["gpus"], found["nccl"]) == (["NVIDIA H100 0"], "2.28.9")
    assert "synchronize" in names(cuda)


def test_a_gpu_that_multiplies_wrongly_is_told(cuda: Mock, monkeypatch) -> None:
    import torch

    from tracekit.proof.programs import about

    on_the_cpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _number: "NVIDIA H100")
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda one, _other: one)
    with pytest.raises(RuntimeError, match="NVIDIA H100 multiplies wrongly"):
        about.about()


def test_a_script_multiplies_before_its_model_does(cuda: Mock, monkeypatch) -> None:
    from tracekit.proof.programs import observed

    observed.warmed()
    assert cuda.mock_calls == []
    on_cuda(monkeypatch)
    on_the_cpu(monkeypatch)
    observed.warmed()
    assert names(cuda) == ["synchronize"]
