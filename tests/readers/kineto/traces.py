"""Small traces as Kineto writes them, and what is read from them."""

import json
from pathlib import Path
from typing import Any

import tracekit
from tracekit.dataset.opening import Dataset
from tracekit.progress import no_progress
from tracekit.readers import kineto
from tracekit.recording.tables import Recording

Event = dict[str, object]
PID = 100


def event(cat: str, name: str, ts: float, dur: float, tid: int | str = PID, **args: object) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launch(ts: float, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    return event("cuda_runtime", name, ts, 1, correlation=correlation)


def kernel(ts: float, correlation: int, name: str = "void ns::gemm<4>(int)", **args: object) -> Event:
    place = {"device": 0, "context": 1, "stream": 7, "correlation": correlation}
    row = event("kernel", name, ts, 5, "stream 7", **({"grid": [2, 1, 1], "block": [128, 1, 1]} | place | args))
    return row | {"pid": 0}


def trace(path: Path, *events: Event, **metadata: object) -> Path:
    path.write_text(json.dumps({**metadata, "traceEvents": events, "traceName": "/tmp/x"}))
    return path


def marked(path: str, ts: float, dur: float, tid: int = PID) -> Event:
    return event("user_annotation", f"{{'Module': '{path}'}}", ts, dur, tid)


def called(name: str, ts: float, dur: float, tid: int = PID) -> Event:
    return event("python_function", f"nn.Module: {name}", ts, dur, tid)


def recorded(folder: Path, *events: Any, **metadata: object) -> Recording:
    return kineto.read(trace(folder / "trace.json", *events, **metadata), no_progress)


def parsed(folder: Path, *events: Any, rows: str = "auto") -> Dataset:
    return tracekit.parse(trace(folder / "trace.json", *events), folder / "out", rows=rows, force=True)
