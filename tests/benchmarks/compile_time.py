"""How long compiling takes: cold and warm, in place and copied elsewhere, and for many equal layers beside few.

``python -m tests.benchmarks.compile_time`` starts every measurement in a process of its own. What it prints begins
with the first call, so tracing is in it, and importing PyTorch is not. Plain ``torch.compile``, with a cache folder of
its own, is measured beside.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from tracekit.capture.compile import CompileConfig, compile_model
from tracekit.capture.compile.counters import counters

#: What a warm start may take of a cold one, and 32 equal layers of 2.
WARM_LIMIT = 0.3
LAYERS_LIMIT = 2.0
_HIDDEN, _HEADS, _VOCABULARY = 64, 4, 128
_SPLIT = "tracekit_bench::attention"


@torch.library.custom_op(_SPLIT, mutates_args=())
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    heads = [t.view(t.shape[0], _HEADS, -1).transpose(0, 1) for t in (q, k, v)]
    found = nn.functional.scaled_dot_product_attention(*heads)
    return found.transpose(0, 1).reshape(q.shape).clone()


@attention.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(q)


class Layer(nn.Module):
    """A layer of a Llama: attention and a gated MLP, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(_HIDDEN), nn.RMSNorm(_HIDDEN)
        self.qkv = nn.Linear(_HIDDEN, 3 * _HIDDEN, bias=False)
        self.out = nn.Linear(_HIDDEN, _HIDDEN, bias=False)
        self.up = nn.Linear(_HIDDEN, 4 * _HIDDEN, bias=False)
        self.down = nn.Linear(2 * _HIDDEN, _HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.before(x)).chunk(3, dim=-1)
        x = x + self.out(torch.ops.tracekit_bench.attention(q, k, v))
        gate, up = self.up(self.between(x)).chunk(2, dim=-1)
        return x + self.down(nn.functional.silu(gate) * up)


class Llama(nn.Module):
    """A small Llama."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(_VOCABULARY, _HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.RMSNorm(_HIDDEN)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def first_call(layers: int, folder: Path | None, *, plain: bool) -> dict[str, float]:
    torch.manual_seed(0)
    model = Llama(layers).eval()
    ids = torch.arange(16) % _VOCABULARY
    config = CompileConfig(splitting_ops=(_SPLIT,), cache_dir=folder)
    with torch.inference_mode():
        expected = model(ids)
        run = torch.compile(model, fullgraph=True) if plain else compile_model(model, config, guards=False)
        began = time.perf_counter()
        found = run(ids)
        took = time.perf_counter() - began
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    compiled, loaded = counters.cache_misses, counters.artifacts_loaded
    return {"seconds": took, "compiled": compiled, "loaded": loaded}


def _measured(name: str, layers: int, folder: Path, *, plain: bool = False) -> float:
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--layers", str(layers)]
    command += ["--first-call", str(folder), *(["--plain"] if plain else [])]
    places = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "plain" if plain else folder.parent / "default"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    done = subprocess.run(command, env=os.environ | places, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    said = "" if plain else f"  {found['compiled']} compiled, {found['loaded']} loaded"
    print(f"{name:32} {layers:3} layers {found['seconds']:8.2f} s{said}", flush=True)
    return float(found["seconds"])


def _starts(layers: int, top: Path) -> None:
    cold = _measured("cold", layers, top / "cache")
    warm = _measured("warm", layers, top / "cache")
    shutil.copytree(top / "cache", top / "elsewhere" / "copy")
    shutil.rmtree(top / "cache")
    copied = _measured("warm, copied elsewhere", layers, top / "elsewhere" / "copy")
    plain = _measured("torch.compile, cold", layers, top / "plain", plain=True)
    plain_warm = _measured("torch.compile, warm", layers, top / "plain", plain=True)
    for name, took in (("warm", warm), ("warm, copied elsewhere", copied)):
        print(f"{name} / cold {took / cold:.2f} (at most {WARM_LIMIT})")
    print(f"torch.compile: warm / cold {plain_warm / plain:.2f}")


def _layers(few: int, many: int, top: Path) -> None:
    took = {n: _measured("cold", n, top / f"layers{n}") for n in (few, many)}
    said = f"{many} layers / {few} layers"
    print(f"{said} {took[many] / took[few]:.2f} (at most {LAYERS_LIMIT})")
    plain = {n: _measured("torch.compile, cold", n, top / f"p{n}", plain=True) for n in took}
    print(f"torch.compile: {said} {plain[many] / plain[few]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--few", type=int, default=2)
    parser.add_argument("--many", type=int, default=32)
    parser.add_argument("--only", choices=["starts", "layers"])
    parser.add_argument("--first-call", type=Path, help="measure here and now, with this folder")
    parser.add_argument("--plain", action="store_true", help="plain torch.compile")
    options = parser.parse_args()
    if options.first_call is not None:
        found = first_call(options.layers, options.first_call, plain=options.plain)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as top:
        if options.only != "layers":
            _starts(options.layers, Path(top))
        if options.only != "starts":
            _layers(options.few, options.many, Path(top))


if __name__ == "__main__":
    main()
