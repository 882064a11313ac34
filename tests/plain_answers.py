"""Answers to the questions of the analyses, worked out row by row from the tables: the slow and obvious way."""

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tracekit.dataset.opening import Dataset

Row = dict[str, Any]


class Plain:
    """The tables of a dataset as rows."""

    def __init__(self, dataset: Dataset) -> None:
        self.modules, self.calls, self.kernels, self.steps = (
            dataset.table(name).to_pylist() for name in ("modules", "calls", "kernels", "steps")
        )
        self.several = bool(dataset.reports)
        self.path = {None: None} | {row["module_id"]: row["path"] for row in self.modules}
        self.class_of = {None: None} | {row["module_id"]: row["class_name"] for row in self.modules}
        self.own: dict[int | None, list[Row]] = {number: [] for number in self.path}
        for row in self.kernels:
            self.own[row["module_id"]].append(row)
        self.whole = total(self.kernels)

    def below(self, module: Row) -> list[Row]:
        return [row for row in self.kernels if inside(row["module_id"], module)]

    def by_device(self, rows: Iterable[Row]) -> list[list[Row]]:
        return list(grouped(rows, device_of).values())

    def steps_with(self, rows: Iterable[Row]) -> dict[int, int]:
        times: dict[int, int] = defaultdict(int)
        for row in rows:
            if row["step_id"] is not None:
                times[row["step_id"]] += row["dur_ns"]
        return times

    def share(self, time: int) -> float:
        return time / self.whole if self.whole else 0.0


def inside(module_id: int | None, module: Row) -> bool:
    return module_id is not None and module["module_id"] <= module_id < module["subtree_end_id"]


def device_of(row: Row) -> tuple:
    return row.get("report"), row["device"]


def grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def total(rows: Iterable[Row], column: str = "dur_ns") -> int:
    return sum(row[column] for row in rows)


def by_phase(rows: Iterable[Row]) -> dict[str, int]:
    times = dict.fromkeys(("forward_ns", "backward_ns", "recompute_ns", "optimizer_ns", "other_ns"), 0)
    for row in rows:
        name = f"{row['phase']}_ns"
        times[name if name in times else "other_ns"] += row["dur_ns"]
    return times


def length(intervals: Iterable[tuple[int, int]]) -> int:
    covered, reach = 0, None
    for start, end in sorted(intervals):
        begin = start if reach is None else max(start, reach)
        covered += max(end - begin, 0)
        reach = end if reach is None else max(end, reach)
    return covered


def busy(plain: Plain, rows: Iterable[Row]) -> int:
    return sum(length((row["start_ns"], row["end_ns"]) for row in ones) for ones in plain.by_device(rows))


def mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return statistics.fmean(values) if values else None


def quantile(values: Iterable[float], share: float) -> float | None:
    values = list(values)
    return float(np.quantile(values, share)) if values else None


def ratio(part: float | None, whole: float) -> float | None:
    return part / whole if whole and part is not None else None


def modules(plain: Plain) -> Iterable[Row]:
    within: dict[int | None, int] = defaultdict(int)
    for call in plain.calls:
        within[call["parent_call_id"]] += call["end_ns"] - call["start_ns"]
    host = [(row, max(0, row["end_ns"] - row["start_ns"] - within[row["call_id"]])) for row in plain.calls]
    for module in plain.modules:
        own = plain.own[module["module_id"]]
        below = plain.below(module)
        steps = plain.steps_with(below).values()
        yield {
            "path": module["path"],
            "class_name": module["class_name"],
            "depth": module["depth"],
            "calls": sum(call["module_id"] == module["module_id"] for call in plain.calls),
            "kernels": len(own),
            "self_ns": total(own),
            "subtree_ns": total(below),
            **by_phase(below),
            "share": plain.share(total(below)),
            "kind": module["kind"],
            "busy_ns": busy(plain, below),
            "steps": len(steps),
            "step_mean_ns": mean(steps),
            "step_median_ns": quantile(steps, 0.5),
            "step_p95_ns": quantile(steps, 0.95),
            "host_ns": sum(time for call, time in host if call["module_id"] == module["module_id"]),
            "subtree_host_ns": sum(time for call, time in host if inside(call["module_id"], module)),
        }


def classes(plain: Plain) -> Iterable[Row]:
    def type_of(row: Row) -> tuple[str | None, str | None]:
        if row["class_name"] is not None:
            return row["class_name"], None
        *_, above, name = ["", *row["path"].split(".")]
        return None, f"{above}.*" if name.isdecimal() and above else name

    for (class_name, name), members in grouped(plain.modules, type_of).items():
        ids = {row["module_id"] for row in members}
        own = [row for row in plain.kernels if row["module_id"] in ids]
        below = [row for row in plain.kernels if any(inside(row["module_id"], module) for module in members)]
        yield {
            "class_name": class_name,
            "name": name,
            "modules": len(members),
            "calls": sum(call["module_id"] in ids for call in plain.calls),
            "kernels": len(own),
            "self_ns": total(own),
            "self_share": plain.share(total(own)),
            "subtree_ns": total(below),
            **by_phase(below),
            "share": plain.share(total(below)),
        }


def shapes(plain: Plain) -> Iterable[Row]:
    parent = {call["call_id"]: call["parent_call_id"] for call in plain.calls}
    above: dict[int, list[Row]] = defaultdict(list)
    for row in plain.kernels:
        call = row["call_id"]
        while call is not None:
            above[call].append(row)
            call = parent[call]
    tokens = {row["step_id"]: row["tokens"] for row in plain.steps}

    def key(call: Row) -> str:
        said = [call["module_id"], call["phase"], call["inputs"], call["kwargs"]]
        return json.dumps(said)

    for calls in grouped(plain.calls, key).values():
        first = calls[0]
        steps = plain.steps_with(row for call in calls for row in above[call["call_id"]])
        told = [step for step in steps if tokens[step]]
        each = [
            call["gpu_time_ns"]
            for call in calls
            if call["phase"] != "capture" and not any(map(of_graph, above[call["call_id"]]))
        ]
        yield {
            "path": plain.path[first["module_id"]],
            "class_name": plain.class_of[first["module_id"]],
            "phase": first["phase"],
            "inputs": first["inputs"],
            "kwargs": None if first["kwargs"] is None else dict(first["kwargs"]),
            "calls": len(calls),
            "gpu_time_ns": total(calls, "gpu_time_ns"),
            **by_phase(row for call in calls for row in above[call["call_id"]]),
            "gpu_ns_per_token": ratio(sum(steps[step] for step in told), sum(tokens[step] for step in told)),
            "steps": len(steps),
            "step_median_ns": quantile(steps.values(), 0.5),
            "step_mean_ns": mean(steps.values()),
            "median_ns": quantile(each, 0.5),
            "mean_ns": mean(each),
        }


def kernels(plain: Plain) -> Iterable[Row]:
    for (name, kind), rows in grouped(plain.kernels, lambda r: (r["name"], r["kind"])).items():
        users = grouped((r for r in rows if r["module_id"] is not None), lambda row: row["module_id"])
        most = min(users, key=lambda user: (-total(users[user]), user)) if users else None
        yield {
            "name": name,
            "kind": kind,
            "kernels": len(rows),
            "gpu_time_ns": total(rows),
            "share": plain.share(total(rows)),
            "mean_ns": mean(row["dur_ns"] for row in rows),
            "median_ns": quantile([row["dur_ns"] for row in rows], 0.5),
            "max_ns": max(row["dur_ns"] for row in rows),
            "modules": len(users),
            "module": plain.path[most],
            "module_share": ratio(total(users[most]), total(rows)) if users else None,
            "serves": None,
        }


def of_graph(row: Row) -> bool:
    graph = row["graph_id"] is not None or row["graph_node_id"] is not None
    return graph or row["kind"] == "graph"


def launches(plain: Plain) -> Iterable[Row]:
    waits = {
        row["kernel_id"]: _found(row, [other for other in rows if other is not row])
        for rows in plain.by_device(plain.kernels)
        for row in rows
    }
    sums = {number: _launch_sums(rows, waits) for number, rows in plain.own.items()}
    for module in [None, *plain.modules]:
        number = module and module["module_id"]
        if module is not None or sums[None]["launches"] or any(map(of_graph, plain.own[None])):
            below = [sums[other] for other in sums if (inside(other, module) if module else other is None)]
            named = {"path": plain.path[number], "class_name": plain.class_of[number]}
            yield named | sums[number] | _included(below)


def _included(rows: list[Row]) -> Row:
    columns = ("launches", "launch_ns", "blocked_ns", "gpu_time_ns", "replayed_ns", "launch_bound_ns", "waiting_ns")
    found = {f"subtree_{name}": sum(row[name] for row in rows) for name in columns}
    bound, time = found["subtree_launch_bound_ns"], found["subtree_gpu_time_ns"]
    return found | {"subtree_launch_bound_share": ratio(bound, time)}


def _found(row: Row, others: list[Row]) -> tuple[int | None, int]:
    """For how long the device had waited for a launch, None if it was not launch-bound, and how long it blocked."""
    start, begun, returned = (row[name] for name in ("start_ns", "launch_start_ns", "launch_end_ns"))
    if returned is None:
        return (None, 0)
    ended = max((other["end_ns"] for other in others if other["end_ns"] <= start), default=begun)
    queued = returned > start and ended > begun and ended - begun >= start - ended
    blocked = max(returned - max(start, begun), 0) + (ended - begun if queued else 0)
    key = (start, row["kernel_id"])
    earlier = [other for other in others if (other["start_ns"], other["kernel_id"]) < key]
    if not earlier:
        return (0, blocked)
    idle = min(start, returned) - max(other["end_ns"] for other in earlier)
    return (None if idle <= 0 or queued else idle, blocked)


def _launch_sums(rows: list[Row], waits: dict[int, tuple[int | None, int]]) -> Row:
    launched = [row for row in rows if row["launch_end_ns"] is not None and not of_graph(row)]
    keys = ("report", "pid", "tid", "launch_start_ns", "launch_end_ns")
    calls = grouped(launched, lambda row: tuple(row.get(key) for key in keys))
    first = [min(ones, key=lambda row: row["start_ns"]) for ones in calls.values()]
    blocked = sum(waits[row["kernel_id"]][1] for row in first)
    host = sum(row["launch_end_ns"] - row["launch_start_ns"] for row in first) - blocked
    bound = [row for row in launched if waits[row["kernel_id"]][0] is not None]
    delays = [row["start_ns"] - row["launch_end_ns"] for row in launched]
    return {
        "launches": len(calls),
        "launch_ns": host,
        "blocked_ns": blocked,
        "gpu_time_ns": total(launched),
        "launch_per_gpu": ratio(host, total(launched)),
        "launch_bound_share": ratio(total(bound), total(launched)),
        "launch_bound_ns": total(bound),
        "waiting_ns": sum(waits[row["kernel_id"]][0] or 0 for row in bound),
        "queue_median_ns": quantile(delays, 0.5),
        "queue_p95_ns": quantile(delays, 0.95),
        "replayed_ns": total(row for row in rows if of_graph(row)),
    }


def gaps(plain: Plain) -> Iterable[Row]:
    for rows in plain.by_device(plain.kernels):
        ordered = sorted(rows, key=lambda row: row["start_ns"])
        found = defaultdict(list)
        last = ordered[0]
        for row in ordered[1:]:
            if row["start_ns"] > last["end_ns"]:
                idle = row["start_ns"] - last["end_ns"]
                found[last["module_id"], row["module_id"]].append(idle)
            last = row if row["end_ns"] > last["end_ns"] else last
        report, device = device_of(rows[0])
        for (before, after), times in found.items():
            yield {
                "report": report,
                "device": device,
                "before": plain.path[before],
                "after": plain.path[after],
                "gaps": len(times),
                "idle_ns": sum(times),
                "share": ratio(sum(times), last["end_ns"] - ordered[0]["start_ns"]),
                "median_ns": quantile(times, 0.5),
                "longest_ns": max(times),
            }


def steps(plain: Plain) -> Iterable[Row]:
    for step in plain.steps:
        rows = [row for row in plain.kernels if row["step_id"] == step["step_id"]]
        said = ("step_id", "kind", "index", "batch_size", "tokens", "rank", "pid", "name")
        yield {
            **({"report": step["report"]} if plain.several else {}),
            **{name: step[name] for name in said},
            "host_ns": step["end_ns"] - step["start_ns"],
            "gpu_time_ns": total(rows),
            "busy_ns": busy(plain, rows),
            "gpu_ns_per_token": ratio(total(rows), step["tokens"] or 0),
            "kernels": len(rows),
            "compile_ns": 0,  # no simulated program compiles
        }


def phases(plain: Plain) -> Iterable[Row]:
    rows = list(steps(plain))
    for (kind, size), ones in grouped(rows, lambda r: (r["kind"], r["batch_size"])).items():
        gpu, tokens = [row["gpu_time_ns"] for row in ones], [row["tokens"] for row in ones]
        known = None if None in tokens else sum(tokens)
        yield {
            "kind": kind,
            "batch_size": size,
            "steps": len(ones),
            "tokens": known,
            "gpu_time_ns": sum(gpu),
            "share": ratio(sum(gpu), total(rows, "gpu_time_ns")) or 0.0,
            "gpu_ns_per_token": ratio(sum(gpu), known or 0),
            "gpu_median_ns": quantile(gpu, 0.5),
            "gpu_mean_ns": mean(gpu),
            "gpu_p95_ns": quantile(gpu, 0.95),
            "busy_median_ns": quantile([row["busy_ns"] for row in ones], 0.5),
            "host_median_ns": quantile([row["host_ns"] for row in ones], 0.5),
        }


PLAIN: dict[str, Callable[[Plain], Iterable[Row]]] = {
    one.__name__: one for one in (modules, classes, shapes, kernels, launches, gaps, steps, phases)
}
