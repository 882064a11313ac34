"""Losses that nsys reports itself, in reports of 2024.5 or newer; older versions write no messages into the file.

A message is recognised by its subject and by words that mean a loss, since versions differ: ``Not all CUDA events
might have been collected.``, ``CUPTI dropped 12 records.``, ``7 NVTX annotations were discarded …``. Losses of CPU
samples, of the operating system and of graphics do not matter here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracekit.causes import REPORT
from tracekit.causes.reports import CUDA_EVENTS_LOST, CUDA_NOT_TRACED, EVENTS_LOST, NVTX_EVENTS_LOST, NVTX_NOT_TRACED
from tracekit.nsight import tables as nsight
from tracekit.readers.source import typed
from tracekit.recording.provenance import Lack

if TYPE_CHECKING:
    from tracekit.causes.base import Cause
    from tracekit.readers.nsight.ids import GlobalIds
    from tracekit.readers.source import TableSource
    from tracekit.recording.tally import Tally

_LOST = re.compile(
    r"\bnot all\b|\b(lost|dropped|discarded|missing|incomplete|truncated|overwritten|exceeded|overflow\w*)\b"
    r"|\bcrossed maximum\b|\bran out of\b|\bout of order\b|\bwrong event order\b"
    r"|\b(could|were|was) not (be )?(collected|recorded|converted|added|traced)\b",
    re.IGNORECASE,
)
_NOTHING_LOST = re.compile(
    r"\b(0|no) (\w+ ){0,3}(lost|dropped|discarded|missing|incomplete)\b"
    r"|\b(lost|dropped|discarded|missing|incomplete)\s*:\s*0\b",
    re.IGNORECASE,
)
_NOT_BEGUN = re.compile(r"\b(might|may) (have not|not have) been started\b|\bfailed to start\b", re.IGNORECASE)
_NOT_OURS = re.compile(
    r"\b(OS runtime|OpenGL|EGL|Vulkan|DX\d+|D3D\d*|Direct3D|WDDM|OpenXR|sampl\w+|backtraces?|call ?chains?|CPU|"
    r"context switch\w*|schedul\w+|ftrace|ETW|perf|GPU metrics|SoC metrics|NIC|InfiniBand|network|cuDNN|cuBLAS|OpenACC|"
    r"OpenMP|OpenSHMEM|UCX|MPI|symbols?|debuginfod|MMAP|video|syscalls?|Python|diagnostic events)\b",
    re.IGNORECASE,
)
_NVTX = re.compile(r"NVTX|annotation", re.IGNORECASE)
_CUDA = re.compile(r"CUDA|CUPTI|GPU|kernel|memcpy|memset|graph", re.IGNORECASE)

#: What the report then lacks.
_LACKS = {
    CUDA_EVENTS_LOST.name: "possibly some CUDA events",
    NVTX_EVENTS_LOST.name: "possibly some NVTX events",
    EVENTS_LOST.name: "possibly some events",
    CUDA_NOT_TRACED.name: "possibly all CUDA events",
    NVTX_NOT_TRACED.name: "possibly all NVTX events",
}
#: A message is quoted if it cannot contain a path, a variable or a control character, and is at most this long.
_QUOTABLE = re.compile(r"[\w ,.:;?!'`()%+-]+")
_LONGEST_QUOTE = 160


class Loss(NamedTuple):
    """A loss that nsys reports.

    Attributes:
        cause: The kind of loss.
        messages: Number of messages about it.
        quote: The first message, or nothing if it cannot be shown.
        processes: Global ids of the processes that messages name.
        anywhere: Whether a message names no process.
        inside: Whether the report may hold data of these processes.
    """

    cause: Cause
    messages: int
    quote: str
    processes: frozenset[int]
    anywhere: bool
    inside: bool


def reported_losses(source: TableSource, ids: GlobalIds) -> tuple[Loss, ...]:
    """All losses that nsys reports, one for each cause."""
    texts: list[tuple[str]] = typed(source, nsight.DIAGNOSTICS, "text")
    with_process: list[tuple[str, int]] = typed(source, nsight.DIAGNOSTICS, "text", "globalPid")
    messages: defaultdict[Cause, list[str]] = defaultdict(list)
    for [text] in texts:
        for cause in causes_of_message(text):
            messages[cause].append(text)
    processes: defaultdict[Cause, list[int]] = defaultdict(list)
    for text, process in with_process:
        # Messages about the machine as a whole name process 0.
        for cause in causes_of_message(text) if process >> nsight.THREAD_BITS & nsight.ID_MASK else ():
            processes[cause].append(process & nsight.PROCESS_MASK)
    known = set(ids.pids.tolist())
    return tuple(_loss(cause, texts_of_cause, processes[cause], known) for cause, texts_of_cause in messages.items())


def _loss(cause: Cause, messages: list[str], processes: list[int], known: set[int]) -> Loss:
    anywhere = len(processes) < len(messages)
    inside = anywhere or not known.isdisjoint(processes)
    return Loss(cause, len(messages), _quote(messages[0]), frozenset(processes), anywhere, inside)


def causes_of_message(text: str) -> tuple[Cause, ...]:
    """The losses that a message reports; none if it is about something else."""
    if _NOT_OURS.search(text):
        return ()
    if _NOT_BEGUN.search(text):
        return _of_kind(text, CUDA_NOT_TRACED, NVTX_NOT_TRACED)
    if not _LOST.search(text) or _NOTHING_LOST.search(text):
        return ()
    return _of_kind(text, CUDA_EVENTS_LOST, NVTX_EVENTS_LOST) or (EVENTS_LOST,)


def _of_kind(text: str, cuda: Cause, nvtx: Cause) -> tuple[Cause, ...]:
    """Which of two causes a message is about."""
    return tuple(cause for cause, kind in ((cuda, _CUDA), (nvtx, _NVTX)) if kind.search(text))


def count(losses: tuple[Loss, ...], tally: Tally) -> None:
    """Counts the messages."""
    for loss in losses:
        tally.add(REPORT, loss.cause, loss.messages)


def lacking(losses: tuple[Loss, ...]) -> list[Lack]:
    """What the report lacks because of these losses."""
    lacks = []
    for loss in losses:
        processes = "its processes" if loss.inside else "processes without any data in it"
        quote = f' (nsys says: "{loss.quote}")' if loss.quote else ""
        lacks.append(Lack(f"{_LACKS[loss.cause.name]} of {processes}{quote}", loss.cause.advice))
    return lacks


def _quote(text: str) -> str:
    """The message, if it can hold nothing private; its first sentence if it is long."""
    plain = " ".join(text.split())
    if len(plain) > _LONGEST_QUOTE:
        plain = plain.split(". ")[0].removesuffix(".") + "."
    return plain if len(plain) <= _LONGEST_QUOTE and _QUOTABLE.fullmatch(plain) else ""
