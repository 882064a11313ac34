"""What nsys says itself that it lost, in a report of 2024.5 or newer; older versions write no messages into the file.

Its messages are told by what they are of and by the words that all of them use for a loss; versions spell them
differently: ``Not all CUDA events might have been collected.``, ``CUPTI dropped 12 records.``, ``7 NVTX annotations
were discarded …``. What it says of CPU samples, of the operating system and of graphics is no loss of ours.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tracekit.causes import (
    CUDA_EVENTS_LOST,
    CUDA_NOT_TRACED,
    EVENTS_LOST,
    NVTX_EVENTS_LOST,
    NVTX_NOT_TRACED,
    REPORT,
)
from tracekit.nsight import tables as nsight
from tracekit.recording.provenance import Lack

if TYPE_CHECKING:
    from tracekit.causes import Cause, Tally
    from tracekit.readers.nsight_sqlite.ids import GlobalIds
    from tracekit.readers.sqlite.file import SqliteFile

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

#: What the report lacks then.
_LACKS = {
    CUDA_EVENTS_LOST.name: "perhaps some CUDA events",
    NVTX_EVENTS_LOST.name: "perhaps some NVTX events",
    EVENTS_LOST.name: "perhaps some events",
    CUDA_NOT_TRACED.name: "perhaps all CUDA events",
    NVTX_NOT_TRACED.name: "perhaps all NVTX events",
}
#: A message is quoted if nothing in it can be a path, a variable or a control character, up to here.
_QUOTABLE = re.compile(r"[\w ,.:;?!'`()%+-]+")
_LONGEST_QUOTE = 160


class Loss(NamedTuple):
    """What nsys says that it lost.

    Attributes:
        cause: What, as a cause.
        messages: How often it says so.
        quote: What it says first, where that can be shown.
        processes: Global ids of the processes of which it says so.
        anywhere: Whether it says so once without naming a process.
        inside: Whether something of these processes may be in the report.
    """

    cause: Cause
    messages: int
    quote: str
    processes: frozenset[int]
    anywhere: bool
    inside: bool


def losses_said(file: SqliteFile, ids: GlobalIds) -> tuple[Loss, ...]:
    """All that nsys says it lost, once for every cause."""
    columns = nsight.DIAGNOSTICS.c
    texts: list[tuple[str]] = file.typed(nsight.DIAGNOSTICS, (columns.text, str))
    of: list[tuple[str, int]] = file.typed(nsight.DIAGNOSTICS, (columns.text, str), (columns.globalPid, int))
    said: dict[str, tuple[Cause, list[str], list[int]]] = {}
    for [text] in texts:
        for cause in causes_of_message(text):
            said.setdefault(cause.name, (cause, [], []))[1].append(text)
    for text, process in of:
        # What the profiler says of the machine is said of its process 0.
        for cause in causes_of_message(text) if process >> nsight.THREAD_BITS & nsight.ID_MASK else ():
            said[cause.name][2].append(process & nsight.PROCESS_MASK)
    known = set(ids.pids.tolist())
    found = []
    for cause, messages, processes in said.values():
        anywhere = len(processes) < len(messages)
        inside = anywhere or not known.isdisjoint(processes)
        quote = _quote(messages[0])
        found.append(Loss(cause, len(messages), quote, frozenset(processes), anywhere, inside))
    return tuple(found)


def causes_of_message(text: str) -> tuple[Cause, ...]:
    """What a message says was lost; nothing if it is about something else."""
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
    """What the report lacks by these messages."""
    found = []
    for loss in losses:
        whose = "its processes" if loss.inside else "processes that left nothing in it"
        quote = f' (nsys says: "{loss.quote}")' if loss.quote else ""
        found.append(Lack(f"{_LACKS[loss.cause.name]} of {whose}{quote}", loss.cause.advice))
    return found


def _quote(text: str) -> str:
    """The message, if it can hold nothing private; its first sentence if it is long."""
    plain = " ".join(text.split())
    if len(plain) > _LONGEST_QUOTE:
        plain = plain.split(". ")[0].removesuffix(".") + "."
    return plain if len(plain) <= _LONGEST_QUOTE and _QUOTABLE.fullmatch(plain) else ""
