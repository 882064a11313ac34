"""The numbers of pieces, compilations and captures, and results equal to eager's."""

import logging
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.compile import COMPILING, models
from tests.capture.compile.models import ATTENTION, Counting, Encoder, Llama, Silly, calls, compiled, ids, traced
from tracekit.capture.compile import CompileConfig, Counters, PiecewiseBackend, counters
from tracekit.capture.compile.sizes import CodeSize, facts_of, inputs_of
from tracekit.capture.compile_config import SizeRange
from tracekit.errors import CaptureError, UsageError

pytestmark = COMPILING
RECORD: dict[str, Any] = {"graph_capture": "record", "cudagraph_sizes": (1, 2)}


def seen(*numbers: int) -> Any:
    names = "graphs_seen", "pieces_seen", "capturable_pieces_seen", "backend_compilations", "graphs_captured"
    return counters.expect(**dict(zip(names, numbers, strict=True)))


@pytest.mark.parametrize(("splitting", "counted"), [((ATTENTION,), (1, 5, 3, 3, 6)), ((), (1, 1, 1, 1, 2))])
def test_pieces_of_the_small_model_are_captured_at_two_sizes(splitting: Any, counted: Any) -> None:
    first = torch.randn(100)
    with seen(*counted):
        run = compiled(Silly(), first, mode="eager", splitting_ops=splitting, **RECORD)
        for x in (first, torch.randn(2), torch.randn(1)):
            assert torch.allclose(run(x), 9 * x + 19, atol=1e-4)
    calls[0] = 0
    assert run(torch.zeros(2)).tolist() == [19, 19]
    assert calls == [2]


@pytest.mark.parametrize(
    ("settings", "compilations", "sizes"),
    [
        ({"compile_ranges": (8, 32), "compile_sizes": (16, 64, 128)}, 6, (16, 5, 200, 64, 128, 8192)),
        ({"compile_ranges": ((8, 32),)}, 1 + 1, (100, 7, 101)),
    ],
)
def test_ranges_and_sizes_have_code_of_their_own_and_all_others_share_one(
    settings: dict[str, Any], compilations: int, sizes: tuple[int, ...]
) -> None:
    first = torch.randn(20)
    with seen(1, 1, 1, compilations, 0):
        run = compiled(nn.ReLU(), first, mode="eager", **settings)
        for x in (first, *map(torch.randn, sizes)):
            assert torch.equal(run(x), x.relu())


def test_it_is_a_backend_of_torch_compile_for_any_model() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    run = torch.compile(model, backend=PiecewiseBackend(CompileConfig(mode="eager")))
    for size in (2, 5, 2):
        image = torch.randn(size, 3, 8, 8)
        assert torch.allclose(run(image), model(image), atol=1e-5)


def test_masks_keywords_and_dicts_come_through() -> None:
    model = Encoder().eval()
    backend = PiecewiseBackend(CompileConfig(mode="eager", compile_sizes=(4,), **RECORD))
    run = torch.compile(model, backend=backend, dynamic=True)
    for batch, length in ((3, 5), (2, 7), (4, 5), (1, 3), (2, 7), (2, 4)):
        given = torch.randint(16, (batch, length))
        mask = torch.arange(length) < torch.randint(1, length + 1, (batch, 1))
        for kwargs in ({"mask": mask}, {}):
            torch.testing.assert_close(run(given, **kwargs), model(given, **kwargs), atol=1e-5, rtol=1e-5)


def test_a_model_that_dynamo_breaks_is_compiled_graph_by_graph() -> None:
    model = models.Branching().eval()
    backend = PiecewiseBackend(CompileConfig(mode="eager"))
    run = torch.compile(model, backend=backend)
    for x in (torch.randn(3, 4), torch.ones(3, 4), -torch.ones(3, 4), torch.randn(5, 4)):
        assert torch.equal(run(x), model(x))
    assert len(backend.splits) >= 3


@pytest.mark.parametrize("settings", [{}, {"copy_inputs": True}, {"cudagraph_warmups": 0}])
def test_a_model_that_writes_to_itself_does_so_once_a_call(settings: dict[str, Any]) -> None:
    model, first = Counting(), torch.ones(4, 4)
    run = compiled(model, first, **RECORD, **settings)
    for call, size in enumerate((4, 2, 2, 2, 1, 2, 4), start=1):
        x = first if call == 1 else torch.ones(size, 4)
        assert torch.equal(run(x), torch.full((size, 4), float(call)))
        assert model.count[0] == call


def test_a_size_that_cannot_be_compiled_is_served_by_the_general_code(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_args: object) -> None:
        raise RuntimeError("not this size\nbecause")

    monkeypatch.setattr("tracekit.capture.compile.backend.CodeSize.applied", refuse)
    first = torch.randn(8)
    run = compiled(nn.ReLU(), first, mode="eager", compile_sizes=(2,))
    for x in (first, torch.randn(2)):
        assert torch.equal(run(x), x.relu())
    assert "submod_0 is not compiled for size 2: not this size" in caplog.messages


def test_training_goes_through_pieces_and_gives_eager_s_gradients() -> None:
    class Scaled(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.ops.tracekit_tests.scaled(torch.sin(self[0](x)), 0.5)
            return self[1](x).relu()

    model = Scaled(nn.Linear(4, 4), nn.Linear(4, 2))
    other, first = deepcopy(model), torch.randn(6, 4)
    with torch.enable_grad(), counters.expect(pieces_seen=3, artifacts_saved=0):
        run = compiled(model, first, splitting_ops=("tracekit_tests::scaled",))
        for x in (first, torch.randn(3, 4)):
            for each in (run, other):
                each(x).square().sum().backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-5)


def test_an_argument_that_moved_is_an_error_in_debug_mode_unless_inputs_are_copied() -> None:
    first, x = torch.randn(8), torch.randn(2)
    run = compiled(nn.ReLU(), first, mode="eager", debug=True, **RECORD)
    run(first), run(x), run(x)
    with pytest.raises(CaptureError, match=r"submod_0: l_args_0_ has another address .* copy_inputs"):
        run(torch.randn(2))
    torch._dynamo.reset()
    run = compiled(nn.ReLU(), first, mode="eager", debug=True, copy_inputs=True, **RECORD)
    for _ in range(3):
        run(y := torch.randn(2))
        assert torch.equal(run(y), y.relu())


def test_cuda_graphs_where_there_is_no_gpu_are_refused_or_left_out_with_a_word(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with caplog.at_level(logging.INFO, "tracekit.capture"):
        assert PiecewiseBackend(CompileConfig(cudagraph_sizes=(1,))).graphs is None
        assert PiecewiseBackend(CompileConfig()).graphs is None
    assert caplog.messages == ["no GPU on this machine: pieces run without CUDA graphs"]
    with pytest.raises(CaptureError, match="no GPU"):
        PiecewiseBackend(CompileConfig(cudagraph_sizes=(1,), graph_capture="cuda"))


def test_a_setting_that_inductor_does_not_have_is_named() -> None:
    with pytest.raises(UsageError, match=r"Inductor has no setting max_autotun$"):
        PiecewiseBackend(CompileConfig(inductor_config={"max_autotun": True}))
    there = {"max_autotune": False, "triton.cudagraphs": False, "force_disable_caches": False}
    PiecewiseBackend(CompileConfig(inductor_config=there))


def test_the_graph_and_its_pieces_can_be_read(tmp_path: Path) -> None:
    first = ids(6)
    compiled(Llama(2), *first, mode="eager", splitting_ops=(ATTENTION,), debug_dir=tmp_path)(*first)
    text = (tmp_path / "computation_graph.py").read_text("utf-8")
    compile(text, "computation_graph.py", "exec")
    lines = text.splitlines()
    assert "# submod_1  splits  1 operations  layers.0" in lines
    assert "# submod_2  compiled" in text
    assert "layers.0.out, layers.0, layers.0.up, layers.0.down, layers.1.norm, layers.1.qkv, layers.1" in text
    assert [path.name for path in tmp_path.iterdir()] == ["computation_graph.py"]


def test_a_folder_that_takes_no_file_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    first = torch.randn(8)
    run = compiled(nn.ReLU(), first, mode="eager", debug_dir=taken)
    assert torch.equal(run(first), first.relu())
    assert "computation_graph.py: cannot be written" in caplog.text


@pytest.mark.parametrize("terminal", [False, True])
def test_a_line_sums_up_what_compiling_took_and_a_bar_is_drawn_on_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    before, first = counters.snapshot(), torch.randn(8)
    with caplog.at_level(logging.INFO, "tracekit.capture"):
        compiled(Silly(), first, mode="eager", splitting_ops=(ATTENTION,))(first)
    (line,) = [message for message in caplog.messages if message.startswith("graph ")]
    assert ": 5 pieces, 3 of them compiled; 3 compilations requested, 0 run, 0 loaded, in " in line
    assert counters.trace_ns > before["trace_ns"]
    assert counters.compile_ns > before["compile_ns"]
    assert ("compiling" in capsys.readouterr().err) is terminal


def test_pieces_with_further_sizes_share_the_code_of_all_ranges() -> None:
    model, x = Silly(unbacked=True), torch.randn(16)
    run = compiled(model, x, compile_ranges=(8, 32), mode="eager", splitting_ops=(ATTENTION,))
    torch.testing.assert_close(run(x), model(x))


def test_code_of_a_range_is_not_used_for_sizes_that_its_compiler_excluded() -> None:
    graph = traced(lambda x: x + 1, torch.ones(16))
    symbol = facts_of(graph, inputs_of(graph)).size.symbol
    assert symbol is not None
    made = CodeSize(SizeRange(8, 32))
    assert made.holds(9)
    (size,) = (value for value in inputs_of(made.applied(graph, symbol)) if isinstance(value, torch.SymInt))
    assert (bool(size >= 8), bool(size > 32)) == (True, False)  # known without a guard
    assert size % 2 == 0  # leaves a guard
    assert [made.holds(number) for number in (8, 9, 32)] == [True, False, True]


def test_a_backend_stays_itself_when_arguments_of_torch_compile_are_copied() -> None:
    backend = PiecewiseBackend(CompileConfig(mode="eager"))
    assert deepcopy({"backend": backend})["backend"] is backend


def test_counters_that_differ_from_what_a_block_expects_are_named() -> None:
    found = Counters(graphs_seen=5)

    def count(**expected: int) -> None:
        with found.expect(graphs_seen=1, **expected):
            found.graphs_seen += 1
            found.cache_hits += 2

    count(pieces_seen=0)
    with pytest.raises(AssertionError, match=r"^pieces_seen: expected 5, found 0; cache_hits: expected 0, found 2$"):
        count(pieces_seen=5, cache_hits=0)
    with pytest.raises(TypeError, match="no counter piece_seen; there are graphs_seen"):
        count(piece_seen=1)
