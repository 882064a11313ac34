"""The answer to a run, from its links alone: what each kernel, call and range of the file truly is.

Where a file has lost rows: a launch whose call's range is lost belongs to the next enclosing call that is still there,
and a call's place follows from the calls that are still there. Work whose launch is lost has no module, launch, range
or step. Work replayed from a graph belongs to the call that was open when its node was captured; an updated executable
runs nodes of its first capture. A graph traced as a whole belongs to the innermost call that holds everything captured.
Where the file does not show the capture for certain, a replay may also belong to the call that launched it.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from tests.simulator.events import Call, Launch, Node, Range, Shape, Work
from tests.simulator.run import Run


class RangeKey(NamedTuple):
    """What tells one range of a file from the others."""

    pid: int
    tid: int
    start_ns: int
    end_ns: int
    text: str | None


@dataclass(frozen=True, slots=True)
class TrueCall:
    """One call that the file holds."""

    key: RangeKey
    path: str
    alias_of: str | None
    parent: RangeKey | None
    said: Call
    outputs: frozenset[tuple[Shape, ...]]  # the one answer; several only where its second range is lost
    step: RangeKey | None
    params: dict[str, Shape]
    static: object
    phases: frozenset[str]  # the one answer; both where the file lacks the begin or the end of its capture
    iteration: str | None


@dataclass(frozen=True, slots=True)
class TrueWork:
    """One piece of device work that the file holds.

    It has a module or, if there is one among ``causes``, no module and one of these causes.
    """

    work: Work
    launch: Launch | None  # what launched it, if the file tells that
    module: str | None
    call: RangeKey | None
    range: RangeKey | None  # the innermost push/pop range
    spans: tuple[RangeKey, ...]  # the start/end ranges that its thread had open, too, and ended itself
    step: RangeKey | None
    causes: frozenset[str]
    methods: frozenset[str]  # how its module may be known
    as_a_whole: tuple[str, RangeKey] | None  # what launched the replay, where the file need not show the capture

    @property
    def answers(self) -> frozenset[tuple[str, RangeKey, str]]:
        """Each module that it may have, with the call and how that is known."""
        of_launch = {(*self.as_a_whole, AS_A_WHOLE)} if self.as_a_whole else set()
        if self.module is None or self.call is None:
            return frozenset(of_launch)
        return frozenset({(self.module, self.call, method) for method in self.methods} | of_launch)


@dataclass(frozen=True, slots=True)
class TrueRange:
    """One range of the file, with NVIDIA's GPU projection."""

    key: RangeKey
    kind: str
    domain: str | None
    open: bool
    parent: RangeKey | None
    gpu_start_ns: int | None
    gpu_end_ns: int | None
    gpu_op_count: int


@dataclass(frozen=True, slots=True)
class TrueStep:
    """One step that the file holds."""

    key: RangeKey
    name: str
    kind: str | None


@dataclass(frozen=True, slots=True)
class Truth:
    """Everything the file should be understood to say."""

    calls: list[TrueCall]
    work: list[TrueWork]
    ranges: list[TrueRange]
    steps: list[TrueStep]
    iterations: frozenset[str]  # the turns of loops that nobody marked


def truth_of(run: Run) -> Truth:
    ranges = [pushed for pushed in run.ranges if not pushed.lost]
    projected = _projections(run)
    return Truth(
        calls=[_call(run, pushed, ranges) for pushed in ranges if pushed.call],
        work=[_work(run, piece) for piece in run.work if not piece.lost],
        ranges=[_range(run, pushed, projected[pushed]) for pushed in ranges],
        steps=[TrueStep(_key(run, pushed), *pushed.step) for pushed in ranges if pushed.step],
        iterations=frozenset(pushed.iteration for pushed in run.ranges if pushed.iteration),
    )


def placed(marker: str, enclosing: str | None, enclosing_marker: str | None) -> str:
    """Where a call stands: rule 6, the enclosing call's path plus what the marker adds to the enclosing marker.

    Only the last name is added where the marker is not below the enclosing call's at all.
    """
    if enclosing is None or enclosing_marker is None:
        return marker
    if marker.startswith(f"{enclosing_marker}."):
        return enclosing + marker.removeprefix(enclosing_marker)
    return f"{enclosing}.{marker.rpartition('.')[2]}"


def _still_there(innermost: Range | None, of: Callable[[Range], object] = lambda pushed: pushed) -> Range | None:
    """The innermost range that the file holds, and that is of a call or a step."""
    while innermost is not None and (innermost.lost or of(innermost) is None):
        innermost = innermost.parent
    return innermost


def _enclosing_call(innermost: Range | None) -> Range | None:
    return _still_there(innermost, attrgetter("call"))


def _call_around_all(launches: list[Launch]) -> Range | None:
    def around(innermost: Range | None) -> Iterator[Range]:
        while (innermost := _enclosing_call(innermost)) is not None:
            yield innermost
            innermost = innermost.parent

    first, *others = [list(around(launch.inside)) for launch in launches] or [[]]
    return next((call for call in first if all(call in chain for chain in others)), None)


def _step_key(run: Run, innermost: Range | None) -> RangeKey | None:
    return _key_or_none(run, _still_there(innermost, attrgetter("step")))


def _path(pushed: Range | None) -> str | None:
    if pushed is None:
        return None
    above = _enclosing_call(pushed.parent)
    return placed(_said(pushed), _path(above), above and _said(above))


def _said(pushed: Range) -> str:
    return _call_of(pushed).module.path


def _key(run: Run, pushed: Range) -> RangeKey:
    last_seen = run.last_seen_ns.get(pushed.thread, pushed.start_ns)
    end = last_seen if pushed.end_ns is None else pushed.end_ns
    return RangeKey(pushed.thread.pid, pushed.thread.tid, pushed.start_ns, end, pushed.text)


def _key_or_none(run: Run, pushed: Range | None) -> RangeKey | None:
    return None if pushed is None else _key(run, pushed)


def _call(run: Run, pushed: Range, ranges: list[Range]) -> TrueCall:
    call, path = _call_of(pushed), _path(pushed)
    assert path is not None
    silent = run.plan.dialect == "compact"
    return TrueCall(
        key=_key(run, pushed),
        path=path,
        alias_of=None if path == call.module.path else call.module.path,
        parent=_key_or_none(run, _enclosing_call(pushed.parent)),
        said=call,
        outputs=_outputs(pushed, ranges),
        step=_step_key(run, pushed.parent),
        params={} if silent else call.module.params,
        static=None if silent or not call.module.static else json.loads(json.dumps(call.module.static)),
        phases=phases(pushed),
        iteration=pushed.iteration,
    )


def _outputs(pushed: Range, ranges: list[Range]) -> frozenset[tuple[Shape, ...]]:
    told = [second.outputs_of for second in ranges if second.outputs_of]
    if pushed in told:
        return frozenset({_call_of(pushed).outputs})
    astray = [first for first in told if first.lost and first.thread == pushed.thread]
    return frozenset({()} | {_call_of(first).outputs for first in astray if _said(first) == _said(pushed)})


def _call_of(pushed: Range) -> Call:
    assert pushed.call is not None
    return pushed.call


def _work(run: Run, piece: Work) -> TrueWork:
    launch = piece.launch if piece.launch and not piece.launch.lost and not piece.early else None
    inside = launch.inside if launch else None
    launched_in = _enclosing_call(inside)
    if never_captured(piece):
        call = launched_in
    elif piece.captured is not None:
        call = _call_around_all(piece.captured.launches)
    else:
        captured_by = piece.node.root.captured_by if piece.node else None
        call = _enclosing_call(captured_by.inside if captured_by else None) if piece.replayed else launched_in
    by_launch = launched_in if piece.replayed and not (piece.node and recorded(piece.node)) else None
    return TrueWork(
        work=piece,
        launch=launch,
        module=_path(call),
        call=_key_or_none(run, call),
        range=_key_or_none(run, _still_there(inside)),
        spans=tuple(_key(run, span) for span in _spans(launch)),
        step=_step_key(run, inside),
        causes=causes(piece, launch, call) - (UNKNOWN if by_launch else frozenset()),
        methods=methods(piece, call),
        as_a_whole=None if by_launch is None else (_path(by_launch) or "", _key(run, by_launch)),
    )


def _spans(launch: Launch | None) -> list[Range]:
    spans = launch.spans if launch else ()
    return [span for span in spans if not span.lost and span.end_thread is None]


def _range(run: Run, pushed: Range, projected: list[Launch]) -> TrueRange:
    pieces = [piece for launch in projected for piece in launch.work if not (piece.lost or piece.early)]
    return TrueRange(
        key=_key(run, pushed),
        kind=pushed.kind,
        domain=pushed.domain,
        open=pushed.end_ns is None,
        parent=_key_or_none(run, _still_there(pushed.parent)),
        gpu_start_ns=min((piece.start_ns for piece in pieces), default=None),
        gpu_end_ns=max((piece.end_ns for piece in pieces), default=None),
        gpu_op_count=len(projected),
    )


def _projections(run: Run) -> defaultdict[Range, list[Launch]]:
    projected: defaultdict[Range, list[Launch]] = defaultdict(list)
    for launch in run.launches:
        if launch.lost or all(piece.lost or piece.early for piece in launch.work):
            continue
        inside = launch.inside
        while inside is not None:
            projected[inside].append(launch)
            inside = inside.parent
        for span in _spans(launch):
            projected[span].append(launch)
    return projected


AS_A_WHOLE = "graph_launch"
UNMAPPED, NOT_EXPANDED, OUTSIDE = "graph_unmapped", "graph_not_expanded", "outside_modules"
UNKNOWN = frozenset({UNMAPPED, NOT_EXPANDED})
IN_NO_CALL = frozenset({OUTSIDE, "graph_not_expanded"})


def never_captured(piece: Work) -> bool:
    """Whether it was replayed from a graph of which the run has no capture at all."""
    captured = piece.captured if piece.node is None else piece.node.root.captured_by
    return piece.replayed and captured is None


def recorded(node: Node) -> bool:
    while node.original is not None:
        if not any(said.original is node.original and not said.lost for said in node.records):
            return False
        node = node.original
    launch = node.captured_by
    in_time = any(not said.late and not said.lost for said in node.records)
    return launch is not None and not launch.lost and in_time


def causes(piece: Work, launch: Launch | None, call: Range | None) -> frozenset[str]:
    """Why a kernel may have no module; none where it must have one.

    ``launch`` is what launched it, if that is in the file, ``call`` its call, be that told by the file or not.
    """
    if piece.node is not None:
        ran_outside = call is None and piece.node.root.captured_by is not None
        unknown = not recorded(piece.node)
        return frozenset({UNMAPPED} if unknown else ()) | frozenset({OUTSIDE} if ran_outside else ())
    if piece.replayed:
        return frozenset({NOT_EXPANDED}) | (IN_NO_CALL if piece.captured and call is None else frozenset())
    if launch is None and piece.correlation is None:
        return frozenset({"managed_memory"})
    if launch is None:
        return frozenset({"no_launch"})
    return frozenset({OUTSIDE} if call is None else ())


def methods(piece: Work, call: Range | None) -> frozenset[str]:
    if never_captured(piece):
        method = AS_A_WHOLE
    elif piece.replayed:
        method = "graph_node" if piece.node else "graph_capture"
    else:
        method = "range"
    return frozenset({method} if call else ())


def phases(pushed: Range) -> frozenset[str]:
    """What a call was part of. Without the bounds of its capture a file need not say that it was one."""
    if pushed.capture is None:
        return frozenset({"forward"})
    bounds = pushed.capture.begin, pushed.capture.end
    known = all(bound is not None and not bound.lost for bound in bounds)
    return frozenset({"capture"} if known else {"capture", "forward"})
