"""Programs in pairs, with one thing that costs wall clock and without, recorded by nsys on a real GPU.

``python -m tests.gpu.pairs OUT`` leaves ``NAME.sqlite`` and ``NAME.nsys-rep`` of each, and ``times.json``: how long a
step took while it was recorded, and without a profiler. With them, promises of ``tracekit whatif`` and
``tracekit show findings`` are compared with what mending really brings. ``--only NAME`` records one.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
from typing_extensions import override

from tests.gpu.data_files import strip
from tracekit.capture import layer_markers, step
from tracekit.nsight import nsys
from tracekit.selftest.models import cuda_graph, device, synchronize

#: Each program with what it costs more than the one it is compared with.
PROGRAMS = {
    "eager": "bound by launches",
    "graph": "the same as eager, replayed from one CUDA graph",
    "item": "the same as eager, and every mlp waits for a number",
    "elementwise": "the same as eager, and every mlp ends in a chain of 24 small kernels",
    "loader": "the same as eager, and a DataLoader takes 4 ms for a batch",
    "wide": "bound by kernels",
    "wide_twice": "the same as wide, and every mlp computes twice",
    "training": "forward, backward and optimizer",
    "training_item": "the same as training, and each step waits for its loss",
    "training_pageable": "the same as training, and copies 64 MB from pageable memory in each step",
    "training_pinned": "the same as training_pageable, from pinned memory without waiting",
    "streams": "the same as wide, with products on a second stream between two events",
}
LAYERS, BATCH, WARMUP, STEPS = 4, 4, 5, 12
LOADING_S = 0.004
_OPTIONS = ("--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node", "--trace=cuda,nvtx,osrt")


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    @override
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 8, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Mlp(nn.Module):
    def __init__(self, width: int, program: str) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.program = program

    @override
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2 if self.program == "wide_twice" else 1):
            y = self.down(functional.gelu(self.up(x)))
        if self.program == "item":
            y.flatten()[0].item()
        if self.program == "elementwise":
            for _ in range(12):
                y = y * 1.0001 + 0.0001
        return y


class Block(nn.Module):
    def __init__(self, width: int, program: str) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width), Mlp(width, program)

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


def _slowly(batch: list[Tensor]) -> Tensor:
    time.sleep(LOADING_S)
    return torch.stack(batch)


def _training(model: nn.Module, x: Tensor, program: str) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    host = torch.randn(*x.shape[:2], 4 * x.shape[2], dtype=torch.bfloat16)
    if program == "training_pinned":
        host = host.pin_memory()

    def run() -> None:
        batch = x
        if "_p" in program:
            batch = host.to(x.device, non_blocking=host.is_pinned())[..., : x.shape[2]].contiguous()
        loss = model(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if program == "training_item":
            loss.item()

    return run


def _overlapped(model: nn.Module, x: Tensor) -> Callable[[], object]:
    second, weight = torch.cuda.Stream(), torch.randn(4_096, 4_096, device=x.device, dtype=x.dtype)

    def run() -> Tensor:
        first, begun, done = torch.cuda.current_stream(), torch.cuda.Event(), torch.cuda.Event()
        begun.record(first)
        with torch.cuda.stream(second):
            second.wait_event(begun)
            product = weight @ weight @ weight
            done.record(second)
        y = model(x)
        first.wait_event(done)
        return y[0, 0, 0] + product[0, 0]

    return run


def play(program: str, *, marked: bool) -> float:
    """Runs a program; returns how long a step took, in ns."""
    trains = program.startswith("training")
    width, length = (2_048, 1_024) if trains or program in {"wide", "wide_twice", "streams"} else (512, 128)
    blocks = (Block(width, program) for _ in range(LAYERS))
    model = nn.Sequential(*blocks, nn.LayerNorm(width)).to(device(), torch.bfloat16)
    x = torch.randn(BATCH, length, width, device=device(), dtype=torch.bfloat16)
    loaded: Iterator[object] = repeat(None)
    if program == "loader":
        loaded = iter(DataLoader([torch.zeros(1)] * STEPS, collate_fn=_slowly))
    with layer_markers(model) if marked else nullcontext(), nullcontext() if trains else torch.no_grad():
        made = {"graph": cuda_graph, "streams": _overlapped}
        run = _training(model, x, program) if trains else made.get(program, lambda model, x: lambda: model(x))(model, x)
        for _ in range(WARMUP):
            run()
        synchronize()
        began = time.perf_counter_ns()
        for _ in range(STEPS):
            with step("train" if trains else "infer") if marked else nullcontext():
                next(loaded)
                run()
        synchronize()
        return (time.perf_counter_ns() - began) / STEPS


def _record(tool: nsys.Nsys, program: str, out: Path) -> dict[str, float]:
    """Records a program and runs it plain; each in a process of its own."""
    own = [sys.executable, "-m", "tests.gpu.pairs", "--play", program]
    plain = subprocess.run(own, capture_output=True, check=True, text=True).stdout
    command = [tool.path, "profile", *_OPTIONS, "-f", "true", "-o", out / program, *own, "--marked"]
    recorded = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    report = out / f"{program}.sqlite"
    export = ["export", "-q", "true", "--type", "sqlite", "-f", "true", "-o", report, report.with_suffix(nsys.NATIVE)]
    subprocess.run([tool.path, *export], check=True)
    strip(report)
    times = [next(line for line in text.splitlines() if line.startswith("step_ns")) for text in (plain, recorded)]
    return {name: float(line.split()[1]) for name, line in zip(("plain_ns", "recorded_ns"), times, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.pairs", description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT", help="folder for the reports")
    parser.add_argument("--only", choices=PROGRAMS, action="append", metavar="NAME", help="record this one; repeatable")
    parser.add_argument("--play", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("--marked", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.play:
        sys.stdout.write(f"step_ns {play(args.play, marked=args.marked)}\n")
        return
    tool = nsys.find()
    if args.out is None or tool is None or not torch.cuda.is_available():
        parser.error(f"needs OUT, a GPU and nsys; {nsys.INSTALL}")
    args.out.mkdir(parents=True, exist_ok=True)
    times = {}
    for program in args.only or PROGRAMS:
        times[program] = _record(tool, program, args.out)
        (args.out / "times.json").write_text(json.dumps(times, indent=1) + "\n", "utf-8")
        sys.stderr.write(f"{program} {times[program]}\n")


if __name__ == "__main__":
    main()
