"""The JSON of a Chrome trace, decoded piece by piece into events and metadata.

Only the fields that are read are decoded. Some releases of Kineto write invalid JSON (names that are not escaped,
NaN); it is repaired.
"""

import json
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from tracekit.errors import ReportError
from tracekit.kineto.packed import BLANK, EXPECTED, MOST_BYTES, Chunks, chunks_of

#: Numbers are numbers in most traces; some hold texts in their place.
Number = int | float | str | None


class Args(Struct, gc=False):
    """The arguments of an event, as far as tracekit reads them; -1 where there is none."""

    correlation: Number = -1
    device: Number = -1
    context: Number = -1
    stream: Number = -1
    bytes: Number = -1
    registers: Number = field(name="registers per thread", default=-1)
    graph: Number = field(name="graph id", default=-1)
    graph_node: Number = field(name="graph node id", default=-1)
    event_stream: Number = field(name="wait_on_stream", default=-1)
    recorded_by: Number = field(name="wait_on_cuda_event_record_corr_id", default=-1)
    kernel: Raw | UnsetType = UNSET
    sequence: Number = field(name="Sequence number", default=-1)
    grid: Raw | UnsetType = UNSET
    block: Raw | UnsetType = UNSET
    dims: Raw | UnsetType = field(name="Input Dims", default=UNSET)
    dims_2020: Raw | UnsetType = field(name="Input dims", default=UNSET)
    types: Raw | UnsetType = field(name="Input type", default=UNSET)
    forward_thread: Number = field(name="Fwd thread id", default=0)
    allocated: Number = field(name="Bytes", default=0)
    device_type: Number = field(name="Device Type", default=0)
    device_id: Number = field(name="Device Id", default=-1)
    address: Number = field(name="Addr", default=-1)
    total: Number = field(name="Total Allocated", default=-1)
    finished: object = True
    name: Raw | UnsetType = UNSET
    module_fqn: Raw | UnsetType = UNSET
    module_type: Raw | UnsetType = UNSET
    collective: Raw | UnsetType = field(name="Collective name", default=UNSET)
    dtype: Raw | UnsetType = UNSET
    group_size: Raw | UnsetType = field(name="Group size", default=UNSET)
    group: Raw | UnsetType = field(name="Process Group Name", default=UNSET)
    elements_in: Raw | UnsetType = field(name="In msg nelems", default=UNSET)
    elements_out: Raw | UnsetType = field(name="Out msg nelems", default=UNSET)


_NO_ARGS = Raw(b"{}")


class Event(Struct, gc=False):
    """An entry of ``traceEvents``; its arguments stay JSON, for most events are functions, whose are not read."""

    ph: str | None = None
    cat: str | None = None
    name: Number = ""
    pid: Number = None
    tid: Number = None
    ts: Number = None
    dur: Number = 0
    id: Number = -1
    args: Raw = _NO_ARGS


class ExactTimes(Struct, gc=False):
    """An event's times in full: those since 1970 with decimals are too long for a double."""

    ts: Decimal | None = None
    dur: Decimal | None = None


class Metadata(Struct):
    """What a trace holds besides its events."""

    schema_version: object = field(name="schemaVersion", default=None)
    base_time: object = field(name="baseTimeNanoseconds", default=None)
    device_properties: object = field(name="deviceProperties", default=None)
    distributed: object = field(name="distributedInfo", default=None)
    trace_id: object = None
    with_modules: object = None


class Tail(Metadata):
    """What follows the last whole piece: the last events, as JSON, and metadata."""

    last_events: Raw = Raw(b"[]")
    traceEvents: Raw | UnsetType = UNSET  # noqa: N815 - as in the file


#: The name of an annotation, in which quotes and backslashes may stand as they are. It ends before the next event.
_NAME = re.compile(rb'("cat": ?"\w*user_annotation",\s*"name": ?")((?:(?!"cat": ?").)*)(",\s*"pid": ?)')
_NO_NUMBER = re.compile(rb"(:\s*)-?(?:nan|inf|infinity)(?=\s*[,}\]])", re.IGNORECASE)
_ESCAPE = re.compile(
    rb'\\(?:["\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|'
    rb"(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|u[0-9a-fA-F]{4})?"
)


def repair_json(text: bytes) -> bytes:
    """The text with names escaped, what is no character replaced, and null for numbers that are none."""
    text = _NAME.sub(_escaped, text.decode("utf-8", "replace").encode())
    text = _NO_NUMBER.sub(rb"\1null", text)
    return _ESCAPE.sub(_whole_escape, text)


def _whole_escape(match: re.Match[bytes]) -> bytes:
    return rb"\\" if len(match[0]) == 1 else rb"\ufffd" if match["half"] else match[0]


def _escaped(match: re.Match[bytes]) -> bytes:
    name = match[2]
    try:
        json.loads(b'"' + name + b'"')
    except ValueError:
        name = json.dumps(name.decode("utf-8", "replace"))[1:-1].encode()
    return match[1] + name + match[3]


_T = TypeVar("_T")

_WHOLE = f"{EXPECTED}; record or copy it again"
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,(?=\s*\{)")
#: How far from the end of a piece its boundary is looked for, and how many are tried.
_TAILS, _TRIES = (1 << 14, 1 << 18, MOST_BYTES), 4
#: How many lists of this name are looked at for the events, for one may be part of something else.
_NAMESAKES = 16

_DECODE_EVENTS = msgspec.json.Decoder(list[Event]).decode
_DECODE_EVENT = msgspec.json.Decoder(Event).decode
_DECODE_SOME_ARGS: Callable[[Raw | bytes], Args | None] = msgspec.json.Decoder(Args).decode
_DECODE_LISTED_ARGS = msgspec.json.Decoder(list[Args | None]).decode
_DECODE_TIMES = msgspec.json.Decoder(list[ExactTimes]).decode
_DECODE_TIME = msgspec.json.Decoder(ExactTimes).decode
_DECODE_ENTRIES = msgspec.json.Decoder(list[Raw]).decode
_DECODE_ANY = msgspec.json.Decoder().decode
_DECODE_TAIL = msgspec.json.Decoder(Tail).decode


class Piece(NamedTuple):
    """Some events, and their JSON; an empty one takes the place of an entry that is none."""

    events: list[Event]
    text: bytes
    position: int

    def exact(self) -> list[ExactTimes]:
        """The times of the events in full."""
        try:
            return _DECODE_TIMES(self.text)
        except msgspec.ValidationError:
            return [_or_empty(_DECODE_TIME, entry, ExactTimes()) for entry in _DECODE_ENTRIES(self.text)]

    def whole(self) -> list[Any]:
        """The events with all that is written of them."""
        return list(_DECODE_ANY(self.text))


def args_of(events: Sequence[Event]) -> tuple[list[Args], int]:
    """The arguments of some events, and how many of these are damaged and stay empty."""
    written = [event.args for event in events]
    try:
        return [args or Args() for args in _DECODE_LISTED_ARGS(b"[" + b",".join(written) + b"]")], 0
    except (msgspec.MsgspecError, UnicodeDecodeError):
        known = [_or_empty(_DECODE_SOME_ARGS, repair_json(bytes(args)), None) for args in written]
        return [args or Args() for args in known], known.count(None)


class Trace:
    """A trace on disk, and the byte of its JSON where it is cut off, if it is; metadata are known after all pieces.

    ``header`` is all that stands before the events; it is known after the first piece.
    """

    def __init__(self, path: Path) -> None:
        self.metadata = Metadata()
        self.header: dict[str, Any] = {}
        self.cut_at: int | None = None
        self._path = path

    def pieces(self) -> Generator[Piece, None, None]:
        """The events, piece by piece."""
        try:
            with chunks_of(self._path) as file:
                yield from self._pieces(file)
        except RecursionError:
            raise ReportError(self._path, "its JSON is nested too deeply", EXPECTED) from None

    def _pieces(self, file: Chunks) -> Iterator[Piece]:
        text, opening = self._events_begin(file)
        rest = yield from self._all_but_last(file, text)
        last = self._last(rest, opening, file.bytes - len(rest) - len(opening))
        if last is None:
            self.cut_at = file.bytes
            # Where the last event is whole, another could follow.
            events, text, _ = self._cut(rest.rstrip(b", \t\r\n") + b",{") or ([], b"[]", 0)
            last = events, text
        yield Piece(*last, file.position)

    def _events_begin(self, file: Chunks) -> tuple[bytes, bytes]:
        """Reads up to the events. Returns the text behind their opening bracket, and what to put before the last."""
        text = b""
        while not text and (more := file.next()):
            text = more.lstrip(BLANK)
        if text.startswith(b"["):
            return text[1:], b"["
        while True:
            for match in islice(_EVENTS.finditer(text), _NAMESAKES):
                if (header := _header(text[: match.end()] + b"]}")) is not None:
                    self.metadata, self.header = msgspec.convert(header, Metadata), header
                    return text[match.end() :], b'{"last_events":['
            if len(text) > MOST_BYTES:
                raise ReportError(self._path, f"has no list traceEvents in its first {MOST_BYTES >> 20} MiB", EXPECTED)
            if not (more := file.next()):
                raise self._no_events(text)
            text += more

    def _no_events(self, text: bytes) -> ReportError:
        try:
            _DECODE_ANY(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return ReportError(self._path, f"is not valid JSON ({_short(error)})", EXPECTED)
        return ReportError(self._path, "is JSON without a list traceEvents", EXPECTED)

    def _all_but_last(self, file: Chunks, rest: bytes) -> Generator[Piece, None, bytes]:
        """Yields the events of every piece that ends with an event. Returns what is left."""
        enough = 0
        while piece := file.next():
            rest += piece
            if len(rest) < enough:
                continue
            if (cut := self._cut(rest)) is not None:
                events, text, end = cut
                yield Piece(events, text, file.position)
                rest, enough = rest[end:], 0
            elif len(rest) > MOST_BYTES:
                where = f"after byte {file.bytes - len(rest):,}, or an event there has more than {MOST_BYTES >> 20} MiB"
                raise ReportError(self._path, f"its JSON is not valid {where}", _WHOLE)
            else:
                # Twice as much each time: what is no JSON shall not be read again for every piece.
                enough = min(2 * len(rest), MOST_BYTES + 1)
        return rest

    @staticmethod
    def _cut(text: bytes) -> tuple[list[Event], bytes, int] | None:
        """The events before one of the last boundaries, their JSON, and where the next one begins."""
        for end, behind in _boundaries(text):
            piece = b"".join((b"[", memoryview(text)[:end], b"]"))
            for spelling in (bytes, repair_json):
                with suppress(msgspec.DecodeError, UnicodeDecodeError):
                    return _events(spelled := spelling(piece)), spelled, behind
        return None

    def _last(self, rest: bytes, opening: bytes, start: int) -> tuple[list[Event], bytes] | None:
        """The last events and their JSON; None if it ends before it should."""
        errors: list[Exception] = []
        for spelling in (bytes, repair_json):
            try:
                return self._end(spelling(opening + rest), opening)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                errors.append(error)
        if "truncated" in str(errors[0]):
            return None
        raise ReportError(self._path, f"is not valid JSON ({_short(errors[0], start)})", _WHOLE)

    def _end(self, text: bytes, opening: bytes) -> tuple[list[Event], bytes]:
        if opening == b"[":
            return _events(text), text
        tail = _DECODE_TAIL(text)
        if tail.traceEvents is not UNSET:
            raise ReportError(self._path, "has traceEvents twice", EXPECTED)
        for name in Metadata.__struct_fields__:
            if getattr(self.metadata, name) is None:
                setattr(self.metadata, name, getattr(tail, name))
        listed = bytes(tail.last_events)
        return _events(listed), listed


def _header(text: bytes) -> dict[str, Any] | None:
    for spelling in (bytes, repair_json):
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            header: dict[str, Any] = _DECODE_ANY(spelling(text))
            return header
    return None


def _events(text: bytes) -> list[Event]:
    try:
        return _DECODE_EVENTS(text)
    except msgspec.ValidationError:
        _DECODE_ANY(text)  # what is no JSON is no entry
        return [_or_empty(_DECODE_EVENT, entry, Event()) for entry in _DECODE_ENTRIES(text)]


def _or_empty(decode: Callable[[Raw | bytes], _T], entry: Raw | bytes, empty: _T) -> _T:
    try:
        return decode(entry)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return empty


def _boundaries(text: bytes) -> list[tuple[int, int]]:
    """The ends of the last events that others follow, and where these begin; the last first."""
    for tail in _TAILS:
        if found := list(_BOUNDARY.finditer(text, max(0, len(text) - tail)))[-_TRIES:]:
            return [(match.start() + 1, match.end()) for match in reversed(found)]
    return []


def _short(error: Exception, start: int = 0) -> str:
    """What is wrong in text that begins at this byte of the JSON."""
    text = str(error).removeprefix("JSON is malformed: ").splitlines()[0][:100]
    return re.sub(r"byte (\d+)", lambda match: f"byte {start + int(match[1]):,}", text)
