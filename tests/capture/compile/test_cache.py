"""Compiled pieces on disk: which share an entry, and what a later process, place or machine finds."""

from __future__ import annotations

import json
import os
import shutil
import stat
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from tests.capture.compile.pieces import compiled, in_new_process, matmul, matmul_is_right, piece
from tracekit.capture.compile import ArtifactStore, CompileConfig
from tracekit.capture.compile.cache import (
    FACTORS_FILE,
    cache_folder,
    factors,
    piece_key,
    traced_files,
)
from tracekit.capture.compile.compiler import Compiler
from tracekit.capture.compile.counters import counters

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
X = torch.ones(4, 8)


def key(function: Callable, *args: object, dynamic: bool = True, **settings: object) -> str | None:
    graph, inputs = piece(function, *args, dynamic=dynamic)
    return piece_key(graph, inputs, settings)


def shifted(by: object) -> Callable:
    return lambda x: x + by


def test_a_closure_s_value_is_part_of_the_key() -> None:
    keys = [key(shifted(by), X) for by in (0, 0, 7, 7.0, True)]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
    assert all(len(found or "") == 64 for found in keys)


def test_a_constant_tensor_s_values_are_part_of_the_key() -> None:
    def constant(*values: float) -> Callable:
        held = torch.tensor(values)

        class Holding(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * torch.tensor(values).sum() + len(held)

        return Holding()

    keys = [key(constant(*values), X) for values in ((1.0, 2.0), (1.0, 2.0), (1.0, 3.0))]
    assert keys[0] == keys[1] != keys[2]


def test_attributes_of_the_graph_count_with_their_values() -> None:
    graph, inputs = piece(shifted(1), X)
    keys = []
    for value in (1.0, 1.0, 2.0):
        graph.register_buffer("held", torch.full((3,), value))
        with graph.graph.inserting_before(list(graph.graph.nodes)[-1]):
            node = graph.graph.get_attr("held")
        keys.append(piece_key(graph, inputs, {}))
        graph.graph.erase_node(node)
    assert keys[0] == keys[1] != keys[2]


def test_names_of_values_and_sizes_are_no_part_of_the_key() -> None:
    assert key(lambda x: x + 1, X) == key(lambda other: other + 1, X)
    one = key(lambda x, y: x.sum() + y, X, torch.ones(3, 2))
    assert one == key(lambda y, x: y.sum() + x, X, torch.ones(3, 2))


def test_the_size_of_the_first_call_is_no_part_of_the_key_if_it_is_dynamic() -> None:
    assert key(shifted(1), torch.ones(4, 8)) == key(shifted(1), torch.ones(9, 8))
    static = [key(shifted(1), torch.ones(n, 8), dynamic=False) for n in (4, 9)]
    assert len({*static, key(shifted(1), X)}) == 3


def test_what_tracing_had_to_know_of_sizes_is_part_of_the_key() -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] % 4 == 0 else x

    assert key(checked, X) != key(shifted(1), X)


@pytest.mark.parametrize(
    "other",
    [
        X.double(),
        torch.ones(8, 4).t(),
        torch.ones(4, 9),
        torch.ones(4, 8, 1),
        X.clone().requires_grad_(),
        torch.ones(5, 8)[1:],
        torch.ones(4, 8, device="meta"),
    ],
    ids=["dtype", "stride", "size", "rank", "grad", "offset", "device"],
)
def test_what_the_inputs_are_is_part_of_the_key(other: torch.Tensor) -> None:
    graph, inputs = piece(shifted(1), X, dynamic=False)
    assert inputs[0].shape == X.shape
    assert piece_key(graph, [X], {}) == piece_key(graph, [X.clone()], {})
    assert piece_key(graph, [X], {}) != piece_key(graph, [other], {})


def test_the_order_of_operands_is_part_of_the_key() -> None:
    x, y = torch.ones(3, 3), torch.ones(3, 3)
    assert key(lambda x, y: (x * 2, x - y), x, y) != key(lambda x, y: (x * 2, y - x), x, y)


def test_settings_are_part_of_the_key() -> None:
    plain = key(shifted(1), X)
    assert key(shifted(1), X, max_autotune=True) != plain
    with torch.no_grad():
        assert key(shifted(1), X) != plain
    with torch.autocast("cpu", torch.bfloat16):
        assert key(shifted(1), X) != plain
    assert key(shifted(1), X) == plain
    before = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = not before
    try:
        assert key(shifted(1), X) != plain
    finally:
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = before


def test_the_version_of_torch_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = key(shifted(1), X)
    monkeypatch.setattr("torch.__version__", "2.99.0")
    assert key(shifted(1), X) != plain


@torch._dynamo.allow_in_graph
def in_graph(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_a_function_that_the_graph_only_names_has_no_key() -> None:
    assert key(lambda x: in_graph(x) * 2, X) is None


def test_an_operator_of_the_user_that_is_looked_into_has_no_key() -> None:
    with torch.library._scoped_library("tracekit_tests", "DEF") as library:
        library.define("seen(Tensor x) -> Tensor")
        library.impl("seen", lambda x: x + 1, "CompositeImplicitAutograd")
        library.define("hidden(Tensor x) -> Tensor")
        library.impl("hidden", lambda x: x + 1, "CPU")
        library.impl("hidden", torch.empty_like, "Meta")
        ops = torch.ops.tracekit_tests
        assert key(lambda x: ops.seen(x) * 2, X) is None
        assert key(lambda x: ops.hidden(x) * 2, X) is not None


def test_equal_layers_of_a_model_share_a_key() -> None:
    block = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    other = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    smaller = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8, eps=1e-3))
    assert key(block, X) == key(other, X) != key(smaller, X)


def test_keys_are_the_same_in_every_process() -> None:
    code = """
        import torch
        from tests.capture.compile.pieces import piece
        from tracekit.capture.compile.cache import piece_key
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
        print(piece_key(*piece(model, torch.ones(4, 8)), {"max_autotune": True}))
    """
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    found = in_new_process(code, env={"PYTHONHASHSEED": "1"})
    assert found.strip() == key(model, X, max_autotune=True)


def test_a_saved_piece_is_loaded_and_counted(tmp_path: Path) -> None:
    graph, inputs = matmul()
    store = ArtifactStore(tmp_path / "cache")
    saved, loaded = counters.artifacts_saved, counters.artifacts_loaded
    assert store.load("k") is None
    with store.environment():
        store.save("k", compiled(graph, inputs))
    again = ArtifactStore(tmp_path / "cache").load("k")
    assert all(matmul_is_right(again, inputs, size) for size in (4, 7, 1))
    assert (counters.artifacts_saved - saved, counters.artifacts_loaded - loaded) == (1, 1)


@pytest.mark.parametrize("store", [ArtifactStore(None)])
def test_without_a_folder_nothing_is_kept(store: ArtifactStore) -> None:
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with store.environment():
        assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before
        store.save("k", None)
    assert store.load("k") is None


def test_no_cache_touches_no_disk(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "cache", enabled=False)
    store.save("k", None)
    assert store.load("k") is None
    assert not list(tmp_path.iterdir())


def test_inductor_and_triton_work_inside_of_the_folder(tmp_path: Path) -> None:
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    before = [os.environ.get(name) for name in names]
    store = ArtifactStore(tmp_path / "cache")
    with store.environment(), store.environment():
        for name in names:
            assert os.environ[name].startswith(str(tmp_path / "cache"))
    assert [os.environ.get(name) for name in names] == before


def test_the_environment_is_left_also_after_an_exception(tmp_path: Path) -> None:
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with pytest.raises(ValueError, match="x"), ArtifactStore(tmp_path).environment():
        raise ValueError("x")
    assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == before


def test_the_folder_is_its_owner_s_alone(tmp_path: Path) -> None:
    ArtifactStore(tmp_path / "cache")
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_a_key_of_any_text_is_a_file_in_the_folder(tmp_path: Path) -> None:
    graph, inputs = matmul()
    store = ArtifactStore(tmp_path / "cache")
    keys = ["../../a", "/etc/passwd", "x" * 500, "a b", "a/b", ""]
    with store.environment():
        artifact = compiled(graph, inputs)
    for name in keys:
        store.save(name, artifact)
        assert store.load(name) is not None
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    assert len(list((tmp_path / "cache" / "pieces").iterdir())) == len(keys)


def test_the_factors_are_written_beside_and_name_the_folder(tmp_path: Path, monkeypatch) -> None:
    source = tmp_path / "model.py"
    source.write_text("1")
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "0")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    config = CompileConfig(inductor_config={"max_autotune": False}, cache_dir=tmp_path)
    found = factors(config, [str(source)])
    folder = cache_folder(tmp_path, found)
    assert json.loads((folder / FACTORS_FILE).read_text()) == found
    assert folder.parent == tmp_path
    assert len(folder.name) == 10
    assert found.keys() >= {"environment", "config", "sources", "compiler", "torch", "machine"}
    assert "TORCHINDUCTOR_MAX_AUTOTUNE" in found["environment"]
    assert str(tmp_path) not in json.dumps(found)
    assert "/somewhere" not in json.dumps(found)


def test_every_factor_has_a_folder_of_its_own(tmp_path: Path, monkeypatch) -> None:
    source = tmp_path / "model.py"

    def folder(**settings: object) -> Path:
        import linecache

        linecache.clearcache()
        return cache_folder(tmp_path, factors(CompileConfig(**settings), [str(source)]))

    source.write_text("1")
    first = folder()
    assert folder() == folder(cache_dir=tmp_path, debug=True, use_cache=False) == first
    others = [folder(splitting_ops=("a::b",)), folder(inductor_config={"max_autotune": True})]
    source.write_text("2")
    others.append(folder())
    source.write_text("1")
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    others.append(folder())
    monkeypatch.delenv("TORCHINDUCTOR_FREEZING")
    assert folder() == first
    assert len({first, *others}) == 5


def test_a_program_that_was_moved_keeps_its_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.py").write_text("1")
    found = [factors(CompileConfig(), [str(tmp_path / n / "model.py")])["sources"] for n in "ab"]
    assert found[0] == found[1]
    assert found[0][0][0] == "model.py"


def test_the_files_that_dynamo_traced_are_known_inside_of_a_backend() -> None:
    found: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable:
        found.extend(traced_files())
        return graph.forward

    torch._dynamo.reset()
    torch.compile(nn.Linear(8, 8), backend=backend)(X)
    assert any(name.endswith("linear.py") for name in found)
    assert found == sorted(set(found))
    assert traced_files() == []


SHIFTED = """
    import sys, torch
    from pathlib import Path
    from tests.capture.compile.pieces import compiled, piece
    from tracekit.capture.compile import ArtifactStore
    from tracekit.capture.compile.cache import piece_key
    from tracekit.capture.compile.counters import counters

    def offset(by):
        return lambda x: x + by

    store = ArtifactStore(Path(sys.argv[1]))
    for by in sys.argv[2:]:
        graph, inputs = piece(offset(int(by)), torch.ones(4))
        key = piece_key(graph, inputs, {})
        with store.environment():
            found = store.load(key)
            if found is None:
                found = compiled(graph, inputs)
                store.save(key, found)
        print(int(found(3, torch.zeros(3))[0][0]), counters.artifacts_loaded, end=" ")
"""
NO_COMPILER = """#!/bin/sh
case "$1" in
  -v|--version) exec /usr/bin/env -i PATH="$TRUE_PATH" g++ "$@";;
esac
echo "$@" >> "$COMPILED"
exit 1
"""


def test_stale_closures_are_never_loaded_and_a_copied_folder_needs_no_compiler(
    tmp_path: Path,
) -> None:
    cold = in_new_process(SHIFTED, tmp_path / "cache", 3, 7, 7)
    assert cold.split() == ["3", "0", "7", "0", "7", "1"]
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(tmp_path / "cache", tmp_path / "elsewhere" / "copy")
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "bin").mkdir()
    compiler = tmp_path / "bin" / "g++"
    compiler.write_text(NO_COMPILER)
    compiler.chmod(0o755)
    env = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "TRUE_PATH": os.environ["PATH"],
        "COMPILED": str(tmp_path / "compiled"),
    }
    warm = in_new_process(SHIFTED, tmp_path / "elsewhere" / "copy", 7, 3, env=env)
    assert warm.split() == ["7", "1", "3", "2"]
    assert not (tmp_path / "compiled").exists()


class Pooled(nn.Module):
    """Inductor compiles its pooling for one size only; nothing before says so."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.t().reshape(1, 4, -1, 1)
        return nn.functional.adaptive_avg_pool2d(rows, (3, 1)).sin()


@pytest.mark.filterwarnings("ignore")
def test_code_that_the_compiler_made_for_one_size_is_not_kept_for_others(tmp_path: Path) -> None:
    graph, inputs = piece(Pooled(), torch.ones(9, 4))
    compiler = Compiler(CompileConfig(cache_dir=tmp_path), ArtifactStore(tmp_path / "cache"), piece_key)
    compiler.compiled(graph, inputs, concrete=False, tuned=False)
    assert list((tmp_path / "cache" / "pieces").iterdir()) == []

    graph, inputs = piece(nn.Tanh(), torch.ones(9, 4))
    compiler.compiled(graph, inputs, concrete=False, tuned=False)
    assert len(list((tmp_path / "cache" / "pieces").iterdir())) == 1
