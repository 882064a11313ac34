"""FLOPs and bytes of modules, added up call by call: the slow and obvious way.

What one run of a call itself costs is taken from what is being tested; that has tests of its own, beside traces.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.plain_answers import inside, of_graph, ratio, total
from tracekit.analyses.costs.calls import costs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.plain_answers import Plain, Row
    from tracekit.dataset.opening import Dataset


class Cost(NamedTuple):
    """Of one run of a call itself; None where not known."""

    flops: int | None
    bytes: int | None
    runs: int | None

    def of_all(self, name: str) -> int | None:
        """Of all runs; nothing, however often, is nothing."""
        one = getattr(self, name)
        if one in (None, 0):
            return one
        return None if self.runs is None else one * self.runs


def call_costs(dataset: Dataset, plain: Plain) -> dict[int, Cost]:
    found = costs(dataset)
    runs = replays(plain, dataset)
    ids, flops, size = found.table.column("call_id").to_pylist(), found.flops, found.column("bytes")
    return {
        call: Cost(known(flop), known(byte), runs[call])
        for call, flop, byte in zip(ids, flops.tolist(), size.tolist(), strict=True)
    }


def known(figure: int) -> int | None:
    return None if figure < 0 else figure


def replays(plain: Plain, dataset: Dataset) -> dict[int, int | None]:
    """How often each call ran."""
    children = defaultdict(list)
    for call in plain.calls:
        children[call["parent_call_id"]].append(call)
    again = defaultdict(list)
    for row in filter(of_graph, plain.kernels):
        again[row["call_id"]].append(row)
    updated = any(row["cause"] == "graph_updated" for row in dataset.manifest["coverage"])

    def counts(call: Row) -> set[int]:
        if call["phase"] != "capture":
            return set()
        return often(again[call["call_id"]]) or {
            number for child in children[call["call_id"]] for number in counts(child)
        }

    def runs(call: Row) -> int | None:
        if call["phase"] != "capture":
            return 1
        seen = counts(call)
        if updated or len(seen) > 1:
            return None
        return (seen or {None if again[None] else 0}).pop()

    return {call["call_id"]: runs(call) for call in plain.calls}


def often(rows: list[Row]) -> set[int]:
    """How often the nodes of a call ran; 0 among others where they did unlike often."""
    by_order = [row for row in rows if row["method"] == "graph_order" or row["original_graph_node_id"] is None]
    by_node = Counter(row["original_graph_node_id"] for row in rows if row not in by_order)
    launches = Counter((row.get("report"), row["pid"], row["tid"], row["launch_start_ns"]) for row in by_order)
    found = {*by_node.values()}
    if launches:
        found |= {len(launches)} | ({0} if len({*launches.values()}) > 1 else set())
    return found


def added(values: Iterable[int | None]) -> int | None:
    values = list(values)
    return None if None in values else sum(values)


def roofline(plain: Plain, cost: dict[int, Cost]) -> Iterable[Row]:
    """The figures that are sums, of every module that was called."""
    for module in plain.modules:
        own = [call for call in plain.calls if call["module_id"] == module["module_id"]]
        below = [call for call in plain.calls if inside(call["module_id"], module)]
        if not own:
            continue
        flops = added(cost[call["call_id"]].of_all("flops") for call in own)
        size = added(cost[call["call_id"]].of_all("bytes") for call in own)
        whole = added(cost[call["call_id"]].of_all("flops") for call in below)
        ns = total(row for row in plain.kernels if row["module_id"] == module["module_id"])
        all_ns = total(plain.below(module))
        told = [call for call in below if cost[call["call_id"]].of_all("flops") is not None]
        yield {
            "path": module["path"],
            "runs": added(cost[call["call_id"]].runs for call in own),
            "self_ns": ns,
            "flops": flops,
            "bytes": size,
            "tflops_per_s": ratio(None if flops is None else flops / 1e3, ns),
            "gb_per_s": ratio(size, ns),
            "flops_per_byte": None if size is None else ratio(flops, size),
            "inclusive_ns": all_ns,
            "inclusive_flops": whole,
            "inclusive_tflops_per_s": ratio(None if whole is None else whole / 1e3, all_ns),
            "known_flops": sum(cost[call["call_id"]].of_all("flops") for call in told),
            "known_share": ratio(total(told, "gpu_self_time_ns"), all_ns),
        }


def inclusive(plain: Plain, cost: dict[int, Cost]) -> dict[int, tuple[int | None, int | None]]:
    """FLOPs of each call with all in it: of one run, and of all runs."""
    children = defaultdict(list)
    for call in plain.calls:
        children[call["parent_call_id"]].append(call)
    found: dict[int, tuple[int | None, int | None]] = {}

    def look(call: Row) -> tuple[int | None, int | None]:
        mine, ones = cost[call["call_id"]], children[call["call_id"]]
        inner = [look(child) for child in ones]
        apart = call["phase"] != "capture" and any(child["phase"] == "capture" for child in ones)
        one = None if apart else added([mine.flops, *(flops for flops, _ in inner)])
        found[call["call_id"]] = one, added([mine.of_all("flops"), *(whole for _, whole in inner)])
        return found[call["call_id"]]

    for root in children[None]:
        look(root)
    return found


def of_shape(calls: list[Row], flops: dict[int, tuple[int | None, int | None]]) -> dict[str, Any]:
    """The columns of calls of one shape."""
    each = {flops[call["call_id"]][0] for call in calls}
    whole = added(flops[call["call_id"]][1] for call in calls)
    time = total(calls, "gpu_time_ns")
    return {
        "flops_per_call": each.pop() if len(each) == 1 else None,
        "tflops_per_s": ratio(None if whole is None else whole / 1e3, time),
    }
