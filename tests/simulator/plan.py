"""What a simulated program is made of: sizes and switches, nothing random but the seed.

A plan is a value: the same plan always gives the same program, the same report and the same truth, so a failing plan
can be copied from a test's output and run again. Hypothesis strategies build plans in ``strategies.py``.
"""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What went wrong while recording: chances are per row, switches are for the whole file."""

    lost_ranges: float = 0.0
    lost_launches: float = 0.0
    lost_work: float = 0.0
    early_work: float = 0.0  # pieces of work whose times in the file lie before the call that launched them
    late_start: bool = False
    cut_off: bool = False  # threads stop in the middle: their open ranges have no end in the file
    #: When the nodes of captured graphs were recorded: ``in_time``, inside the launch that added each; ``late``, all
    #: of a graph at the end of its capture or after; ``never``.
    node_records: str = "in_time"
    node_batch: int = 1  # of how many captures of a thread late node records are written together, after the last one
    lost_nodes: float = 0.0
    skipped_capture_calls: bool = False  # calls that begin and end captures are not recorded (CUDA_SKIP_SOME_API_CALLS)
    capture_range: bool = False  # with ``late_start``: what says how graphs were made is there all the same
    #: Every thread captures a graph before the recording, and the same once more in it: only the first is replayed.
    captured_before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Oddities:
    """Shapes a file may have that must change nothing in the answer."""

    shuffled: bool = False
    backtraces: bool = False  # class-67 rows repeat the correlation ids of launches (``--cudabacktrace``)
    #: API calls that failed, that start nothing, or that have no id stand beside launches, some with their ids.
    bystanders: bool = False
    user_additions: bool = False  # someone added columns and tables of their own
    empty_tables: bool = False  # exported with ``--lazy false``: tables without rows are there too
    registered_strings: float = 0.5  # how many texts are ids into ``StringIds`` instead of standing in the row
    nameless_domains: bool = False  # the rows that name the NVTX domains are missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One program and the way it was recorded."""

    seed: int = 0
    generation: str = "3.25.0"
    processes: int = 1
    threads: int = 1
    devices: int = 1
    streams: int = 2
    iterations: int = 2
    modules: int = 8
    actions: int = 120  # stop calling further modules after about so many actions of a thread

    dialect: str = "vllm"
    marker_domain: str | None = None  # the NVTX domain of the markers; the default one of ``torch.cuda.nvtx`` is None
    outputs: bool = True  # each call leaves its second range with ``Outputs`` (never in the compact dialect)
    no_tensors: float = 0.0  # how many modules give and take no tensors but a dataclass, of which markers say nothing
    hooks: int = 1  # how many sets of hooks mark every call
    #: How many acts of forwards raise, on threads that capture no graphs; the last calls of a thread never do.
    raises: float = 0.0
    ends_always: bool = False  # hooks end a call's range also when its forward raises; else they leave it open
    steps: str | None = None  # ``vllm``, ``sglang`` or ``torch``: how iterations are named, if at all
    loop: str | None = None  # what the program is an unmarked loop of (``loops.LOOPS``); None for forwards at random
    epoch_ns: int = 1_000_000

    same_model: bool = True
    namesakes: bool = False  # each process hooks a second model by its first one's prefix, with other sizes of layers
    shared: bool = False
    recursive: bool = False
    plain_ranges: bool = False
    spans: bool = False  # start/end ranges, some of which end on another thread
    empty_ranges: bool = False
    outside_work: bool = False
    orphans: bool = False  # device work whose launch the profiler did not record, and unified-memory migrations
    blocking_copies: bool = False  # calls that copy return only after the copy has ended
    graph_replays: bool = False  # ``cudaGraphLaunch`` of a graph captured before the recording, recorded node by node
    graph_traces: bool = False  # ``cudaGraphLaunch`` recorded as one kernel, where the schema has the table
    #: How many graphs each thread captures at most; replays of them are recorded as those of earlier ones are.
    graph_captures: int = 0
    piecewise: bool = False  # some forwards run every other callee from a graph of its own
    graph_clones: bool = False  # graphs are cloned, and the clones made executable
    graph_updates: bool = False  # graphs are captured again, and executables updated with them
    graph_extras: bool = False  # executables have nodes that were never captured, some captured calls add several nodes
    first_graph: int = 2  # the number of the first graph of every process
    negative_ids: bool = False  # global ids with a high HW byte: negative as signed 64-bit numbers
    same_pid: bool = False  # all processes have one pid, on different machines (HW ids)

    faults: Faults = field(default_factory=Faults)
    oddities: Oddities = field(default_factory=Oddities)

    @property
    def from_the_start(self) -> bool:
        """Whether the recording holds all that the program asks of CUDA, as far as rows are not lost by chance."""
        late = self.faults.late_start or self.faults.captured_before
        return not (late or self.graph_replays or self.graph_traces)

    @property
    def writes_outputs(self) -> bool:
        return self.outputs and self.dialect != "compact"


def eventful(seed: int, **changes: object) -> Plan:
    """A plan with everything switched on that leaves the answer in the file."""
    switches = (
        *("shared", "recursive", "plain_ranges", "spans", "empty_ranges", "outside_work", "orphans"),
        *("graph_replays", "graph_traces"),
    )
    oddities = Oddities(shuffled=True, backtraces=True, bystanders=True, user_additions=True)
    sizes = {"processes": 2, "threads": 2, "devices": 2, "streams": 3, "modules": 12}
    plan = Plan(seed=seed, **sizes, steps="vllm", **dict.fromkeys(switches, True), oddities=oddities)
    return replace(plan, **changes)  # type: ignore[arg-type]


def capturing(seed: int, **changes: object) -> Plan:
    switches = dict.fromkeys(("piecewise", "graph_clones", "graph_updates", "graph_extras"), True)
    return eventful(seed, **{"graph_captures": 3, "graph_traces": False, **switches, **changes})
