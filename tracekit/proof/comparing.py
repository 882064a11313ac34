"""Compares a dataset with what programs knew of themselves: calls with hooks, products with the shapes of weights."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tracekit.dataset.opening import Dataset
    from tracekit.proof.machine import Machine

#: Operators that multiply by a weight.
PRODUCTS = {"aten::addmm", "aten::mm", "aten::_addmm_activation"}
#: In place of a module, for work that has none.
NONE = "no module"
#: At most so many differences of one kind are told one by one.
_MOST = 3
_MATRIX = 2
_OF_MEMORY = {"memcpy", "memset"}

Row = dict[str, Any]


def rows(dataset: Dataset, table: str, columns: Sequence[str]) -> list[Row]:
    """Rows of a table."""
    found: list[Row] = dataset.table(table, columns).to_pylist()
    return found


def shortened(problems: Sequence[str]) -> list[str]:
    """The first problems of a kind, and how many more there are."""
    more = len(problems) - _MOST
    return [*problems[:_MOST], *([f"and {more} more of this kind"] if more > 0 else [])]


def call_problems(
    dataset: Dataset, truth: Mapping[str, Any], expected: int, *, steps: Collection[int] | None = None
) -> list[str]:
    """Where the recorded calls of a process's model differ from those that its own hooks counted.

    Args:
        dataset: The report.
        truth: What the process knew.
        expected: How many calls of the model were recorded.
        steps: Only calls in these steps count; None counts all.
    """
    known = truth["calls"]
    if not known or any(calls != known[0] for calls in known):
        return ["the program's own hooks counted other calls each time, so there is no truth"]
    trees = [tree for tree in _trees(dataset, truth["pid"]) if steps is None or tree[0]["step_id"] in steps]
    problems = [problem for number, tree in enumerate(trees) if (problem := _difference(number, tree, known[0]))]
    if len(trees) != expected:
        problems.insert(0, f"{len(trees)} calls of the model are in the report, expected {expected}")
    return shortened(problems)


def _trees(dataset: Dataset, pid: int) -> list[list[Row]]:
    """The forward calls of a process, those of each outermost call together and in order."""
    columns = ["call_id", "parent_call_id", "module", "phase", "inputs", "pid", "step_id", "start_ns"]
    calls = [row for row in rows(dataset, "calls", columns) if row["pid"] == pid and row["phase"] != "backward"]
    calls.sort(key=lambda row: row["start_ns"])
    tops: dict[int, int] = {}
    for row in calls:
        number: int = row["call_id"]
        tops[number] = tops.get(row["parent_call_id"], number)
    together = sorted(calls, key=lambda row: tops[row["call_id"]])
    trees = [list(tree) for _, tree in groupby(together, key=lambda row: tops[row["call_id"]])]
    return sorted(trees, key=lambda tree: tree[0]["start_ns"])


def _difference(number: int, tree: Sequence[Row], known: Sequence[Sequence[Any]]) -> str | None:
    """The first difference between a recorded call with all inside and the true one."""
    recorded = [[row["module"], row["inputs"][0] if row["inputs"] else None] for row in tree]
    if recorded == [list(call) for call in known]:
        return None
    if len(recorded) != len(known):
        return f"call {number} of the model holds {len(recorded)} calls, expected {len(known)}"
    one, other = next((one, other) for one, other in zip(recorded, known, strict=True) if one != list(other))
    return f"call {number} of the model has {one[0]} {one[1]}, expected {other[0]} {other[1]}"


class Products(NamedTuple):
    """Products with weights, by module of the weight.

    Attributes:
        counts: Work of products by (module, phase).
        problems: Products that another module has, or that no weight explains.
    """

    counts: Counter[tuple[str, str]]
    problems: list[str]


def products(dataset: Dataset, truth: Mapping[str, Any], steps: Collection[int] | None = None) -> Products:
    """Whose the products are, by the shapes of what they multiply and by the dataset.

    Args:
        dataset: The report, whose operators have shapes.
        truth: What the process knew: its Linears, and the rows of its input.
        steps: Only work in these steps counts; None counts all.
    """
    owners = {tuple(sizes): path for path, sizes in truth["linears"].items()}
    counts: Counter[tuple[str, str]] = Counter()
    problems = []
    for row in rows(dataset, "kernels", ["op", "op_shapes", "module", "phase", "pid", "step_id", "cause"]):
        wanted = row["pid"] == truth["pid"] and (steps is None or row["step_id"] in steps)
        if not wanted or row["op"] not in PRODUCTS or not row["op_shapes"]:
            continue
        if (owner := owners.get(_weight(json.loads(row["op_shapes"]), truth["rows"]))) is None:
            continue  # no weight: attention multiplies, too
        counts[owner, row["phase"] or "forward"] += 1
        if row["module"] != owner:
            problems.append(f"{row['op']} {row['op_shapes']} is of {row['module'] or row['cause']}, expected {owner}")
    return Products(counts, problems)


def _weight(shapes: Sequence[Sequence[int]], rows_: int) -> tuple[int, ...]:
    """The sizes of the weight in a product: of its matrices, what is not the rows of the input."""
    sizes = sorted({size for shape in shapes if len(shape) == _MATRIX for size in shape} - {rows_})
    return (sizes[0], sizes[0]) if len(sizes) == 1 else tuple(sizes)


def product_problems(found: Products, least: Mapping[tuple[str, str], int]) -> list[str]:
    """What is wrong with products, and of which there are too few. A library may launch several kernels for one."""
    few = [
        f"{path} has {found.counts[path, phase]} products ({phase}), expected at least {number}"
        for (path, phase), number in least.items()
        if found.counts[path, phase] < number
    ]
    return [*shortened(found.problems), *shortened(few)]


def linear_calls(truth: Mapping[str, Any], calls: int) -> Counter[str]:
    """How often each Linear runs in so many calls of the model."""
    once = Counter(path for path, _ in truth["calls"][0] if path in truth["linears"])
    return Counter({path: number * calls for path, number in once.items()})


def steps_named(dataset: Dataset) -> dict[str, set[int]]:
    """The steps by their names."""
    named: defaultdict[str, set[int]] = defaultdict(set)
    for row in rows(dataset, "steps", ["step_id", "name"]):
        named[row["name"]].add(row["step_id"])
    return named


def work_by_module(dataset: Dataset, steps: Collection[int]) -> Counter[tuple[str, str]]:
    """How much work there is in some steps, by module and name."""
    columns = ["module", "kind", "name", "step_id"]
    return Counter(
        (row["module"] or NONE, name(row)) for row in rows(dataset, "kernels", columns) if row["step_id"] in steps
    )


def name(work: Row) -> str:
    """What work is called in a launch and in a replay alike: a graph's node may say less of the memory it fills."""
    called: str = work["kind"] if work["kind"] in _OF_MEMORY else work["name"]
    return called or "no name"


def nodes_unknown(dataset: Dataset, replays: Collection[int], machine: Machine) -> str | None:
    """Why replayed work can have no modules: none says which node of a graph it is, as with older torch.profilers."""
    if machine.engine == "nsys" or not machine.gpus:
        return None
    work = rows(dataset, "kernels", ["graph_node_id", "module", "launch_name", "step_id"])
    replayed = [row for row in work if row["step_id"] in replays and "GraphLaunch" in (row["launch_name"] or "")]
    if not replayed or any(row["graph_node_id"] or row["module"] for row in replayed):
        return None
    return f"the modules of replayed work: with torch {machine.torch}, none says which node of a CUDA graph it is"


def counts_by_module(dataset: Dataset) -> Counter[str]:
    """How many pieces of work each module has."""
    return Counter(row["module"] or NONE for row in rows(dataset, "kernels", ["module"]))


def times_by_module(dataset: Dataset) -> Counter[str]:
    """How long the work of each module took, in nanoseconds."""
    times: Counter[str] = Counter()
    for row in rows(dataset, "kernels", ["module", "dur_ns"]):
        times[row["module"] or NONE] += row["dur_ns"]
    return times


def differences(
    what: str, found: Counter[str], true: Counter[str], *, tolerance: Mapping[str, int] = MappingProxyType({})
) -> list[str]:
    """Where counts differ from the true ones by more than is tolerated, a line each."""
    return shortened(
        [
            f"{key} has {found[key]} {what}, expected {true[key]}"
            for key in sorted(found.keys() | true.keys())
            if abs(found[key] - true[key]) > tolerance.get(key, 0)
        ]
    )


def without_work(dataset: Dataset, truth: Mapping[str, Any]) -> list[str]:
    """Linears that have no work."""
    counts = counts_by_module(dataset)
    return shortened([f"{path} has no work" for path in truth["linears"] if not counts[path]])
