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
import time
from pathlib import Path

import torch

from tests.benchmarks.measuring import benchmark
from tests.capture.compile.models import ATTENTION, Llama
from tracekit.capture.compile import CompileConfig, compile_model, counters

#: What a warm start may take of a cold one, and 32 equal layers of 2.
WARM_LIMIT = 0.3
LAYERS_LIMIT = 2.0


def first_call(layers: int, folder: Path, *, plain: bool) -> dict[str, float]:
    torch.manual_seed(0)
    model = Llama(layers, width=64).eval()
    ids = torch.arange(16)
    config = CompileConfig(splitting_ops=(ATTENTION,), cache_dir=folder)
    with torch.inference_mode():
        expected = model(ids, ids)
        run = torch.compile(model, fullgraph=True) if plain else compile_model(model, config, guards=False)
        began = time.perf_counter()
        found = run(ids, ids)
        took = time.perf_counter() - began
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    return {"seconds": took, "compiled": counters.cache_misses, "loaded": counters.artifacts_loaded}


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


def measure(args: argparse.Namespace, top: Path) -> None:
    if args.first_call is not None:
        print(json.dumps(first_call(args.layers, args.first_call, plain=args.plain)))
        return
    if args.only != "layers":
        _starts(args.layers, top)
    if args.only != "starts":
        _layers(args.few, args.many, top)


if __name__ == "__main__":
    more = {
        "--only": {"choices": ["starts", "layers"]},
        "--first-call": {"type": Path, "help": "measure here and now, with this folder"},
        "--plain": {"action": "store_true", "help": "plain torch.compile"},
    }
    benchmark(__doc__, measure, more, layers=12, few=2, many=32)
