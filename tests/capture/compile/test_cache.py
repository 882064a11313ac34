"""torch's caches inside the cache folder: what a later process finds there, and which pieces share code."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.capture.compile import COMPILING
from tests.capture.compile.models import ATTENTION, Llama, compiled, ids
from tests.capture.hollow_compiler import hollow_compiler
from tracekit.capture.compile import CompileConfig, PiecewiseBackend, counters
from tracekit.capture.compile.compiler import cache_folder

pytestmark = COMPILING


class Net(nn.Module):
    """Equal layers between operators; no C++ compiler is needed, so it is quick."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8, bias=False) for _ in range(3)])
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.ops.tracekit_tests.shifted(layer(x), self.by)
        return x


@torch.no_grad()
def counted(folder: str, *by: float) -> dict[str, int]:
    """Compiles models in pieces, and counts what is done."""
    counters.reset()
    with torch.library._scoped_library("tracekit_tests", "FRAGMENT") as library:
        library.define("shifted(Tensor x, float by) -> Tensor")
        library.impl("shifted", lambda x, by: x + by, "CPU")
        library.impl("shifted", lambda x, _by: torch.empty_like(x), "Meta")
        for each in by:
            torch._dynamo.reset()
            model, x = Net(each), torch.randn(6, 8)
            run = compiled(model, x, cache_dir=folder)
            for given in (x, x[:3]):
                torch.testing.assert_close(run(given), model(given))
    found = counters.snapshot()
    return {name: found[name] for name in ("cache_misses", "artifacts_saved", "artifacts_loaded")}


def test_later_processes_load_what_earlier_ones_compiled_also_from_a_copy(tmp_path: Path) -> None:
    assert counted(str(tmp_path / "cache"), 1) == {"cache_misses": 1, "artifacts_saved": 1, "artifacts_loaded": 0}
    copy = shutil.move(tmp_path / "cache", tmp_path / "elsewhere")
    program = f"import json; from {__name__} import counted; print(json.dumps(counted({str(copy)!r}, 1, 2)))"
    line = subprocess.check_output([sys.executable, "-W", "ignore", "-c", program], text=True).splitlines()[-1]
    assert json.loads(line) == {"cache_misses": 1, "artifacts_saved": 1, "artifacts_loaded": 1}


def test_equal_layers_have_three_different_pieces_and_a_warm_start_loads_these(tmp_path: Path) -> None:
    for expected in (
        {"cache_misses": 3, "cache_hits": 2, "artifacts_saved": 3, "artifacts_loaded": 0},
        {"cache_misses": 0, "cache_hits": 5, "artifacts_saved": 0, "artifacts_loaded": 3},
    ):
        torch._dynamo.reset()
        with hollow_compiler(), counters.expect(backend_compilations=5, **expected):
            compiled(Llama(4), *ids(16), splitting_ops=(ATTENTION,), cache_dir=tmp_path)(*ids(16))


def test_ranges_and_sizes_are_kept_apart(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1))
    settings = {"compile_ranges": (8, 32), "max_size": 64, "compile_sizes": (4,), "cache_dir": tmp_path}
    for expected in ({"artifacts_saved": 4, "artifacts_loaded": 0}, {"artifacts_saved": 0, "artifacts_loaded": 4}):
        torch._dynamo.reset()
        first = torch.randn(16, 8)
        with counters.expect(backend_compilations=4, **expected):
            run = compiled(model, first, **settings)
            run(first)
        for size in (1, 2, 4, 8, 9, 32, 33, 64, 65):
            x = torch.randn(size, 8)
            torch.testing.assert_close(run(x), model(x))


def test_code_that_inductor_made_for_one_size_is_not_used_for_others(tmp_path: Path) -> None:
    def pooled(x: torch.Tensor) -> torch.Tensor:
        """Inductor compiles the pooling for one size only; nothing before says so."""
        return nn.functional.adaptive_avg_pool2d(x.t().reshape(1, 4, -1, 1), (3, 1)).sin()

    run = torch.compile(pooled, backend=PiecewiseBackend(CompileConfig(cache_dir=tmp_path)), dynamic=True)
    for size in (9, 6, 12):
        x = torch.randn(size, 4)
        torch.testing.assert_close(run(x), pooled(x))


def test_the_environment_is_left_as_it_was_also_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_args: object, **_options: object) -> None:
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))
        raise ValueError("no")

    monkeypatch.setattr("torch._inductor.standalone_compile", failing)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/before")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    first = torch.randn(8)
    with pytest.raises(Exception, match="no"):
        compiled(nn.ReLU(), first, cache_dir=tmp_path)(first)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/before"
    assert "TRITON_CACHE_DIR" not in os.environ


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    first = torch.randn(6, 8)
    with counters.expect(cache_misses=1, artifacts_saved=0):
        compiled(nn.Linear(8, 8), first, cache_dir=taken)(first)
    assert caplog.text.count("cannot be written, so compiled code is not kept there") == 1


def test_the_folder_is_its_owner_s_and_unused_where_nothing_is_to_be_kept(tmp_path: Path) -> None:
    folder = cache_folder(CompileConfig(cache_dir=tmp_path / "cache"))
    assert folder is not None
    assert folder.parent == tmp_path / "cache"
    assert (folder / "inductor").stat().st_mode & 0o077 == 0
    for settings in ({"use_cache": False}, {"mode": "eager"}):
        assert cache_folder(CompileConfig(cache_dir=tmp_path / "none", **settings)) is None
    assert not (tmp_path / "none").exists()
