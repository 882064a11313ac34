"""What kernel maps cost: compiling with them and without, cold and from the cache, and a call of a compiled graph.

``python -m tests.benchmarks.map_cost`` compiles a small Llama in processes of their own that take turns, and prints CPU
seconds: those of Python alone, where all that maps do is done, and those with the C++ compiler. A call is that of one
compiled graph whose code returns at once, with no tool attached.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tests.benchmarks.compile_time import Llama
from tracekit.capture import compiled_maps

if TYPE_CHECKING:
    from collections.abc import Callable

#: What compiling with maps may take of compiling without.
COMPILE_LIMIT = 1.1
#: What maps may add to a call of a compiled graph, in microseconds.
CALL_LIMIT = 2.0


def compiled(layers: int, *, maps: bool) -> dict[str, float]:
    """CPU seconds of the first call, here and now: of Python alone, and with the compilers it starts."""
    importlib.import_module("torch._inductor.compile_fx")  # what it costs is not the maps'
    torch.manual_seed(0)
    model, ids = Llama(layers), torch.arange(16) % 128
    with compiled_maps() if maps else nullcontext(), torch.inference_mode():
        run = torch.compile(model)
        began = _seconds()
        run(ids)
        ended = _seconds()
    return {name: ended[name] - began[name] for name in began}


def _seconds() -> dict[str, float]:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    python = time.process_time()
    return {"python": python, "with C++": python + children.ru_utime + children.ru_stime}


def _in_a_process(layers: int, folder: Path, *, maps: bool) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--layers", str(layers)]
    command += ["--here", "maps" if maps else "plain"]
    places = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(command, env=os.environ | places, stdout=subprocess.PIPE, text=True, check=True)
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def _starts(layers: int, *, maps: bool) -> dict[tuple[str, str], float]:
    """CPU seconds of a cold start, and of one from the cache that it leaves."""
    with tempfile.TemporaryDirectory() as folder:
        starts = {start: _in_a_process(layers, Path(folder), maps=maps) for start in ("cold", "cached")}
    return {(start, name): took for start, parts in starts.items() for name, took in parts.items()}


def compile_costs(layers: int, rounds: int) -> None:
    """Prints the CPU seconds of compiling and their ratios, the best of many rounds."""
    best: dict[bool, dict[tuple[str, str], float]] = {False: {}, True: {}}
    for _, maps in itertools.product(range(rounds), best):
        took = _starts(layers, maps=maps)
        best[maps] = {key: min(best[maps].get(key, seconds), seconds) for key, seconds in took.items()}
    for (start, name), plain in best[False].items():
        mapped = best[True][start, name]
        print(
            f"compile {start:6} {name:8} {plain:6.2f} s, with maps {mapped:6.2f} s: "
            f"{mapped / plain:.3f} (at most {COMPILE_LIMIT})"
        )


class _Bare(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def _graph(code: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What Inductor calls to run a graph that has a map, around code of our own."""
    from torch._inductor.output_code import CompiledFxGraph

    found: list[Any] = []
    with compiled_maps(), torch.no_grad():
        watched = CompiledFxGraph.post_compile

        def post_compile(self: Any, *args: Any, **kwargs: Any) -> None:
            watched(self, *args, **kwargs)
            found.append(self)

        CompiledFxGraph.post_compile = post_compile
        try:
            torch.compile(_Bare())(torch.ones(2))
        finally:
            CompiledFxGraph.post_compile = watched
    run = found[-1].current_callable
    run.run = code
    return run  # type: ignore[no-any-return]


def _code(_inputs: Any) -> None: ...


def _call(graph: Callable[[Any], Any], repeats: int) -> float:
    """Microseconds of a call."""
    inputs = [torch.ones(2)]
    graph(inputs)
    began = time.perf_counter_ns()
    for _ in range(repeats):
        graph(inputs)
    return (time.perf_counter_ns() - began) / repeats / 1e3


def call_costs(rounds: int, repeats: int) -> None:
    """Prints the microseconds of a call with its range, and while maps are off."""
    run = _graph(_code)
    forms = {"bare": (_code, nullcontext), "on": (run, compiled_maps), "off": (run, nullcontext)}
    best = dict.fromkeys(forms, float("inf"))
    for _, (name, (graph, switch)) in itertools.product(range(rounds), forms.items()):
        with switch():
            best[name] = min(best[name], _call(graph, repeats))
    for name in ("on", "off"):
        print(f"call, maps {name:3} {best[name] - best['bare']:6.2f} us (at most {CALL_LIMIT})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--only", choices=["compile", "call"])
    parser.add_argument("--here", choices=["maps", "plain"], help="compile here and now")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.here is not None:
        print(json.dumps(compiled(options.layers, maps=options.here == "maps")))
        return
    if options.only != "call":
        compile_costs(options.layers, options.rounds)
    if options.only != "compile":
        call_costs(10 * options.rounds, options.repeats)


if __name__ == "__main__":
    main()
