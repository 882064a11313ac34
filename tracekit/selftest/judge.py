"""Compares the report of a program with what is true.

Calls with hooks of its own, products with the shapes of weights, time with torch.profiler's own trace, replayed work
with eager work. ``RULES`` are what programs name: functions from :class:`Case` to :class:`Evidence`.
"""

import gzip
import json
import platform
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.errors import CaptureError
from tracekit.selftest.programs import CAPTURE, EAGER, LAYERS, PREFIX, REPLAY, WORKERS, Program
from tracekit.version import __version__

if TYPE_CHECKING:
    from tracekit.dataset.opening import Dataset

#: The report, torch.profiler's own trace next to it, and the folder with what processes knew of themselves.
REPORT, TRACE, TRUTH = "run.sqlite", "run.json.gz", "truth"
NO_GPU = "no GPU that torch can use"
#: In place of a module, for work that has none.
NONE = "no module"
_PRODUCTS = {"aten::addmm", "aten::mm", "aten::_addmm_activation"}
#: At most so many differences of one rule are listed.
_MOST = 3

Row = dict[str, Any]
_Work = Counter[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is, None for what is missing or not known; ``nsys_problem`` is why nsys cannot record markers here."""

    tracekit: str = __version__
    python: str = platform.python_version()
    torch: str | None = None
    cuda: str | None = None
    nvtx: str | None = None
    nccl: str | None = None
    driver: str | None = None
    gpus: Sequence[str] = ()
    nsys: str | None = None
    nsys_problem: str | None = "not tried"

    @property
    def engine(self) -> str:
        """The engine that records kernels best here."""
        return "nsys" if self.gpus and self.nsys_problem is None else "torch"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What came of a comparison.

    Attributes:
        problems: Each difference of the report from the truth, a line each.
        figures: What was compared or measured, by name.
        unproved: What could not be shown on this machine, and what is missing for it; None if everything was.
    """

    problems: list[str]
    figures: dict[str, int | float | str | None] = field(default_factory=dict)
    unproved: str | None = None


class Case:
    """What a program left, read when it is asked for."""

    def __init__(self, program: Program, folder: Path, machine: Machine) -> None:
        self.program, self.folder, self.machine = program, folder, machine

    @cached_property
    def dataset(self) -> "Dataset":
        """The report's tables."""
        from tracekit.pipeline import parse  # noqa: PLC0415 - takes half a second, and models would import it

        return parse(self.folder / REPORT, force=True)

    def rows(self, table: str, *columns: str) -> list[Row]:
        """Rows of a table."""
        found: list[Row] = self.dataset.table(table, columns).to_pylist()
        return found

    @cached_property
    def truths(self) -> list[Row]:
        """What the processes of the program knew of themselves."""
        files = sorted((self.folder / TRUTH).glob("*.json"))
        if not files:
            raise CaptureError("the recorded program left no truth to compare with, so it did not end by itself")
        return [json.loads(file.read_text("utf-8")) for file in files]

    @property
    def truth(self) -> Row:
        """What the one process knew."""
        (truth,) = self.truths
        return truth

    def steps(self, *names: str) -> list[int]:
        """The steps of some names, or all, in order."""
        rows = self.rows("steps", "step_id", "name")
        return sorted(row["step_id"] for row in rows if not names or row["name"] in names)

    def work_in(self, steps: Collection[int], *, replayed: bool = True) -> _Work:
        """How much work there is in steps, with or without what a CUDA graph replayed, by module and name."""
        work = self.rows("kernels", "module", "kind", "name", "step_id", "graph_node_id")
        found = [row for row in work if row["step_id"] in steps and (replayed or not row["graph_node_id"])]
        # A graph's node may record less about the memory that it copies or fills.
        names = [row["kind"] if row["kind"] in {"memcpy", "memset"} else row["name"] or "no name" for row in found]
        return Counter((row["module"] or NONE, name) for row, name in zip(found, names, strict=True))


Rule = Callable[[Case], Evidence]


def judged(case: Case) -> Evidence:
    """Everything that a program's rules find."""
    problems, figures, unproved = list[str](), dict[str, int | float | str | None](), None
    if case.program.engine == "nsys" and case.machine.nsys_problem is not None:
        unproved = f"markers under nsys: {case.machine.nsys_problem}; torch's engine recorded"
    for found in (RULES[name](case) for name in case.program.rules):
        more = len(found.problems) - _MOST
        problems += [*found.problems[:_MOST], *([f"and {more} more"] if more > 0 else [])]
        figures |= found.figures
        unproved = found.unproved or unproved
    return Evidence(problems, figures, unproved)


def _differences(what: str, found: Counter[str], true: Counter[str], apart: Mapping[str, int] = {}) -> list[str]:
    keys = (key for key in sorted(found.keys() | true.keys()) if abs(found[key] - true[key]) > apart.get(key, 0))
    return [f"{key} has {found[key]} {what}, expected {true[key]}" for key in keys]


def _right(case: Case) -> Evidence:
    return Evidence([] if case.truth["right"] else ["it computed something else than eager calls of the model"])


def _calls(case: Case) -> Evidence:
    problems = [problem for truth in case.truths for problem in _call_problems(case, truth, case.program.calls)]
    return Evidence(problems, {"calls": len(case.rows("calls", "call_id"))})


def _call_problems(case: Case, truth: Row, expected: int, steps: Collection[int] | None = None) -> list[str]:
    """Calls of the model in a process with all calls inside, each with its input, as the last ones that hooks saw."""
    columns = ("parent_call_id", "module", "phase", "inputs", "pid", "step_id", "start_ns")
    if len(truth["calls"]) < expected:
        return [f"the program's own hooks counted {len(truth['calls'])} calls of {expected}, so there is no truth"]
    rows = sorted(case.rows("calls", *columns), key=lambda row: int(row["start_ns"]))
    rows = [row for row in rows if row["pid"] == truth["pid"] and row["phase"] != "backward"]
    rows = [row for row in rows if steps is None or row["step_id"] in steps]
    recorded = [[row["module"], row["inputs"][0] if row["inputs"] else None] for row in rows]
    true = [call for calls in truth["calls"][-expected:] for call in calls]
    outermost = sum(row["parent_call_id"] is None for row in rows)
    if outermost != expected:
        return [f"{outermost} calls of the model are in the report, expected {expected}"]
    pairs = enumerate(zip_longest(recorded, true))
    differ = (f"call {at} in the model is of {one}, expected {other}" for at, (one, other) in pairs if one != other)
    return list(islice(differ, 1))


def _linear_calls(case: Case) -> Counter[str]:
    linears = case.truth["linears"]
    once = [path for path, _ in case.truth["calls"][0] if path in linears] if "calls" in case.truth else [*linears]
    return Counter({path: number * case.program.calls for path, number in Counter(once).items()})


def _products(case: Case) -> Evidence:
    """The owners of products, by the shapes of their operands. A library may launch several kernels for one."""
    owners = {frozenset(sizes): path for path, sizes in case.truth["linears"].items()}
    counts, wrong = Counter[tuple[str, str]](), list[str]()
    for row in case.rows("kernels", "op", "op_shapes", "module", "phase", "step_id", "cause"):
        if row["op"] not in _PRODUCTS or not row["op_shapes"] or row["step_id"] is None:
            continue
        # Its matrix that is not the rows of the input is the weight; attention multiplies without one.
        matrices = [shape for shape in json.loads(row["op_shapes"]) if len(shape) == 2]  # noqa: PLR2004 - matrices
        if owner := owners.get(frozenset(size for shape in matrices for size in shape) - {case.truth["rows"]}):
            counts[owner, row["phase"] or "forward"] += 1
            if row["module"] != owner:
                wrong.append(f"{row['op']} {row['op_shapes']} is of {row['module'] or row['cause']}, expected {owner}")
    # A backward call has two: the gradients of the input and of the weight.
    times = {"forward": 1, "backward": 2} if "--backward" in case.program.arguments else {"forward": 1}
    few = [
        f"{path} has {counts[path, phase]} products ({phase}), expected at least {number * each}"
        for path, number in _linear_calls(case).items()
        for phase, each in times.items()
        if counts[path, phase] < number * each
    ]
    return Evidence([*few, *wrong], {"products": counts.total()})


def _backward(case: Case) -> Evidence:
    calls = _linear_calls(case)
    rows = case.rows("calls", "module", "phase")
    backward = Counter(row["module"] for row in rows if row["phase"] == "backward" and row["module"] in calls)
    return Evidence(_differences("backward calls", backward, calls), {"backward_calls": backward.total()})


def _compiled(case: Case) -> Evidence:
    work = case.rows("kernels", "name", "module", "method", "cause")
    mapped = sum(row["method"] == "compiled" for row in work)
    problems = [] if mapped else ["no work was attributed by a kernel map"]
    without = [f"{row['name']} has no module: {row['cause']}" for row in work if row["module"] is None]
    return Evidence([*problems, *without], {"mapped_work": mapped, "work": len(work)})


def _processes(case: Case) -> Evidence:
    truths = sorted(case.truths, key=lambda truth: len(truth["calls"]))
    calls = [len(truth["calls"]) for truth in truths]
    if calls != list(WORKERS):
        return Evidence([f"the processes made {calls} calls, expected {WORKERS}"])
    problems = [problem for truth in truths for problem in _call_problems(case, truth, len(truth["calls"]))]
    work = Counter((row["pid"], row["module"]) for row in case.rows("kernels", "pid", "module"))
    for path in truths[0]["linears"]:
        first, second = (work[truth["pid"], path] for truth in truths)
        if not first or first * calls[1] != second * calls[0]:
            problems.append(f"{path} has {first} and {second} kernels in the processes, not as their calls")
    return Evidence(problems, {"processes": len({pid for pid, _ in work})})


def _replays(case: Case) -> Evidence:
    """Steps that replay a CUDA graph have the kernels of eager ones, each of the same module."""
    program, eager, replays = case.program, case.steps(EAGER), case.steps(REPLAY)
    found = Counter({EAGER: len(eager), REPLAY: len(replays)})
    problems = _differences("steps", found, Counter({kind: program.steps.count(kind) for kind in found}))
    problems += _call_problems(case, case.truth, program.steps.count(EAGER), eager)
    replayed = case.work_in(replays)
    # nsys records from a graph capture in the warm-up on; torch's engine begins after it.
    recorded = CAPTURE in program.steps or case.machine.engine == "nsys"
    unknown = _nodes_unknown(case, replays) if recorded else None
    if recorded and unknown is None:
        problems += _replay_problems(case, replays, case.work_in(eager), _of_modules)
    else:
        problems += [f"{one} is of a graph without known nodes" for one in _of_modules(replayed)]
        problems += [] if replayed else ["no replayed work is in the report"]
    return Evidence(problems, {"replayed_work": replayed.total()}, unknown)


def _replay_problems(
    case: Case, replays: Collection[int], eager: _Work, compared: Callable[[_Work], Counter[str]]
) -> list[str]:
    true = compared(eager)
    problems = [] if true else ["the eager step has no kernels with a module, so there is nothing to compare with"]
    for number in replays:
        problems += _differences(f"kernels in replay {number}", compared(case.work_in([number])), true)
    return problems


def _of_modules(work: _Work) -> Counter[str]:
    return Counter({f"{path}: {name}": number for (path, name), number in work.items() if path != NONE})


def _nodes_unknown(case: Case, replays: Collection[int]) -> str | None:
    """Why replayed work may have no modules: older torch.profilers do not record its nodes of graphs."""
    if case.machine.engine == "nsys":
        return None
    work = case.rows("kernels", "graph_node_id", "module", "launch_name", "step_id")
    replayed = [row for row in work if row["step_id"] in replays and "GraphLaunch" in (row["launch_name"] or "")]
    if not replayed or any(row["graph_node_id"] or row["module"] for row in replayed):
        return None
    torch = case.machine.torch
    return f"the modules of replayed work: with torch {torch}, none says which node of a CUDA graph it is"


def _pieces(case: Case) -> Evidence:
    """Counters and runs follow from the layers: a piece before, between and after the splits."""
    splits, between, (first, *replays) = LAYERS, LAYERS + 1, case.steps()
    expected = Counter(
        graphs_seen=1, pieces_seen=splits + between, capturable_pieces_seen=between, graphs_captured=between
    )
    counted = Counter({name: case.truth["counters"].get(name, 0) for name in expected})
    problems = _differences("counted", counted, expected)
    pieces = [row["text"] for row in case.rows("ranges", "text", "marker") if row["marker"] == "piece"]
    again = len(case.program.steps) - 1
    runs = Counter(captured=between, replayed=between * again, eager=splits * (again + 1))
    problems += _differences("runs of pieces", Counter(json.loads(text)["How"] for text in pieces), runs)

    def of_linears(work: _Work) -> Counter[str]:
        """Which kernels there are, of whatever number."""
        return Counter({f"{path}: {name}" for path, name in work if path in case.truth["linears"]})

    unknown = _nodes_unknown(case, replays)
    if unknown is None:
        # The step that captures replays at its end, too; what is no graph's is the run before.
        problems += _replay_problems(case, replays, case.work_in([first], replayed=False), of_linears)
    without_gpu = None if case.machine.gpus else f"{NO_GPU}: graphs were counted, not replayed"
    return Evidence(problems, {**counted}, unknown or without_gpu)


def _times(case: Case) -> Evidence:
    """Work and time by module are those of torch.profiler's own trace, to the nanosecond."""
    counts, times_ns = Counter[str](), Counter[str]()
    for row in case.rows("kernels", "module", "dur_ns"):
        counts[row["module"] or NONE] += 1
        times_ns[row["module"] or NONE] += row["dur_ns"]
    true, true_ns = profiled_work(case.folder / TRACE)
    problems = _differences("kernels", counts, true)
    problems += _differences("ns", times_ns, true_ns, apart=counts)
    if not true:
        problems.append("torch.profiler's trace has no work, so nothing was compared")
    return Evidence(problems, {"work": counts.total(), "time_ns": times_ns.total(), "modules": len(counts)})


def profiled_work(trace: Path) -> tuple[Counter[str], Counter[str]]:
    """Numbers and nanoseconds of work by module in torch.profiler's own trace, without tracekit's readers and markers.

    On a GPU, work belongs to the innermost range of the program's hooks around the API call that launched it; without
    one, operators are the work, each without those inside.
    """
    # Microseconds since the epoch with nanoseconds after the point do not fit into a float.
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    spans = defaultdict[str, list[Row]](list)
    for event in events:
        if event.get("ph") == "X" and "cat" in event:
            start, end = event["ts"], event["ts"] + event["dur"]
            spans[event["cat"]].append({**event, "start": int(start * 1000), "end": int(end * 1000)})
    ranges = [span for span in spans["user_annotation"] if span["name"].startswith(PREFIX)]
    launches = {span["args"]["correlation"]: span for span in spans["cuda_runtime"] + spans["cuda_driver"]}
    work = spans["kernel"] + spans["gpu_memcpy"] + spans["gpu_memset"]
    operators = [] if work else spans["cpu_op"]
    counts, times_ns = Counter[str](), Counter[str]()

    def module_around(span: Row) -> str:
        around = _innermost(span, ranges)
        return around["name"].removeprefix(PREFIX) if around else NONE

    for span in work or operators:
        path = module_around(launches[span["args"]["correlation"]] if work else span)
        counts[path] += 1
        times_ns[path] += span["end"] - span["start"]
        if around := _innermost(span, operators):
            times_ns[module_around(around)] -= span["end"] - span["start"]
    return counts, times_ns


def _innermost(span: Row, others: Iterable[Row]) -> Row | None:
    on_thread = (one for one in others if (one["pid"], one["tid"]) == (span["pid"], span["tid"]) and one is not span)
    around = (one for one in on_thread if one["start"] <= span["start"] and span["end"] <= one["end"])
    return min(around, key=lambda one: int(one["end"] - one["start"]), default=None)


RULES: dict[str, Rule] = {
    "backward": _backward,
    "calls": _calls,
    "compiled": _compiled,
    "pieces": _pieces,
    "processes": _processes,
    "products": _products,
    "replays": _replays,
    "right": _right,
    "times": _times,
}
