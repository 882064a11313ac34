"""What is decoded of a trace: its fields by the names that Kineto has given them since 2020."""

from __future__ import annotations

from decimal import Decimal

from msgspec import UNSET, Raw, Struct, UnsetType, field

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
    kernel: Raw | UnsetType = UNSET
    sequence: Number = field(name="Sequence number", default=-1)
    grid: Raw | UnsetType = UNSET
    block: Raw | UnsetType = UNSET
    dims: Raw | UnsetType = field(name="Input Dims", default=UNSET)
    dims_2020: Raw | UnsetType = field(name="Input dims", default=UNSET)
    types: Raw | UnsetType = field(name="Input type", default=UNSET)
    forward_thread: Number = field(name="Fwd thread id", default=0)
    hierarchy: Number = field(name="Module Hierarchy", default="")
    allocated: Number = field(name="Bytes", default=0)
    device_type: Number = field(name="Device Type", default=0)
    finished: Raw | UnsetType = UNSET
    name: Raw | UnsetType = UNSET


class Event(Struct, gc=False):
    """An entry of ``traceEvents``."""

    ph: str | None = None
    cat: str | None = None
    name: Number = ""
    pid: Number = None
    tid: Number = None
    ts: Number = None
    dur: Number = 0
    id: Number = -1
    args: Args | None = None


class ExactTimes(Struct, gc=False):
    """An event's times in full: those since 1970 with decimals are too long for a double."""

    ts: Decimal | None = None
    dur: Decimal | None = None


class LastTimes(Struct):
    """The times of events that are decoded together with what follows them."""

    last_events: list[ExactTimes]


class LastEntries(Struct):
    """The same entries as they are, where some are no events."""

    last_events: list[Raw]


class Metadata(Struct):
    """What a trace says beside its events."""

    schema_version: object = field(name="schemaVersion", default=None)
    base_time: object = field(name="baseTimeNanoseconds", default=None)
    device_properties: object = field(name="deviceProperties", default=None)
    distributed: object = field(name="distributedInfo", default=None)
    trace_id: object = None
    with_modules: object = None
    traceEvents: list[Event] | None = None  # noqa: N815 - as in the file
    #: The events after the last whole piece, which are decoded together with what follows them.
    last_events: list[Event] | None = None

    def filled(self, later: Metadata) -> Metadata:
        """Both parts of a trace's metadata: what stands before the events, and after them."""
        for name in ("schema_version", "base_time", "device_properties", "distributed", "trace_id", "with_modules"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(later, name))
        return self


#: Arguments of an event that has none.
NO_ARGS = Args()
