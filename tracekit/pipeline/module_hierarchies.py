"""Writes the hierarchy of modules on every operator and kernel of a Chrome trace that ``tracekit capture`` left."""

import gzip
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path

import msgspec
import numpy as np

from tracekit.attribution import attribute
from tracekit.errors import ReportError
from tracekit.files import whole_file
from tracekit.markers.base import MODULES
from tracekit.markers.torch_texts import FIELD, Node, hierarchy_texts
from tracekit.progress import Progress, no_progress
from tracekit.readers import kineto
from tracekit.recording.tables import CPU_OP, KERNEL, MEMCPY, MEMSET
from tracekit.trace.decoding import decode, with_last_paths
from tracekit.trace.evidence import evidence_of

_LEVEL = 1
#: Lines that are written at once: many small pieces take long to compress.
_BATCH = 10_000
#: Categories of work by the beginnings of the lines that hold it.
_BEGINNINGS = {"cpu_op": CPU_OP, "kernel": KERNEL, "gpu_memcpy": MEMCPY, "gpu_memset": MEMSET}
_BEGINNING = b'{"ph":"X","cat":"%s"'
_LONGEST = max(len(_BEGINNING % category.encode()) for category in _BEGINNINGS)
_DECODE, _ENCODE = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode


def write_module_hierarchies(path: Path, progress: Progress = no_progress) -> None:
    """Adds PyTorch's field ``Module Hierarchy`` to the operators and kernels that belong to a module.

    The trace is as :func:`tracekit.capture.kineto.keep_chrome_trace` writes it, one event a line, and is replaced.
    """
    recording = with_last_paths(kineto.read(path, progress, operators_as_work=True))
    trace = attribute(evidence_of(recording, decode(recording.texts), MODULES))
    modules = trace.evidence.calls.modules
    nodes = [Node(module.parent, module.name, module.facts.class_name, module.kind) for module in modules]
    kind, texts = recording.work.kind, hierarchy_texts(nodes)
    text_of_work = np.array([*texts, None], dtype=object)[trace.module]
    expected = {number: iter(text_of_work[kind == number]) for number in _BEGINNINGS.values()}
    with whole_file(path) as partial, gzip.open(path, "rb") as lines, gzip.open(partial, "wb", _LEVEL) as file:
        written, events = _with_hierarchies(lines, expected, path), len(recording.work) + len(recording.ranges)
        for done in count(_BATCH, _BATCH):
            if not (batch := b"".join(islice(written, _BATCH))):
                break
            file.write(batch)
            progress("adding modules", min(1.0, done / events))


def _with_hierarchies(lines: Iterable[bytes], expected: dict[int, Iterator[str | None]], path: Path) -> Iterator[bytes]:
    kinds = {_BEGINNING % category.encode(): kind for category, kind in _BEGINNINGS.items()}
    for line in lines:
        kind = kinds.get(line[: line.find(b",", len(b'{"ph":"X",'), _LONGEST + 1)])
        if kind is None:
            yield line
            continue
        try:
            hierarchy = next(expected[kind])
        except StopIteration:
            raise _mismatch(path) from None
        if hierarchy is None:
            yield line
            continue
        text = line.rstrip(b",\n")
        event = _DECODE(text)
        event["args"] = (event.get("args") or {}) | {FIELD: hierarchy}
        yield _ENCODE(event) + line[len(text) :]
    if any(next(rest, StopIteration) is not StopIteration for rest in expected.values()):
        raise _mismatch(path)


def _mismatch(path: Path) -> ReportError:
    return ReportError(path, "some of its events have no times that can be true", "record it again")
