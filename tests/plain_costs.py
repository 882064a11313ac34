"""FLOPs and bytes of modules, added up call by call: the slow and obvious way.

What is seen of a call is gathered from the rows of its tables; what follows from that is left to ``tracekit.flops``,
which has tests of its own.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.plain_answers import grouped, inside, of_graph, ratio, total
from tracekit.flops.base import Call
from tracekit.flops.judging import Seen, judged
from tracekit.flops.kernels import Kind, kind_of, operator_kind
from tracekit.flops.operators import operator
from tracekit.flops.tensors import Tensors

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
    runs = replays(plain, dataset)
    own = grouped([row for row in plain.kernels if row["kind"] != "graph"], lambda row: row["call_id"])
    unseen = {*held_by(plain), *whole_graphs(plain)}
    told = told_by_operators(plain, own, runs, unseen)
    modules = {row["module_id"]: row for row in plain.modules}
    callers = {call["parent_call_id"] for call in plain.calls}
    launched = {row["range_id"] for row in plain.kernels if row["module_id"] is None}
    lost = {row["module_id"] for row in plain.ranges if row["range_id"] in launched} - {None}
    found = {}
    for call in plain.calls:
        number, work = call["call_id"], own[call["call_id"]]
        kinds = [kind_of_work(row) for row in work]
        seen = Seen(
            recorded=bool(plain.kernels),
            backward=call["phase"] == "backward",
            unseen=number in unseen,
            idle=not work and number not in unseen,
            harmless=bool(work) and number not in unseen and all(kind.harmless for kind in kinds),
            product=any(kind.product for kind in kinds),
            cpu_attention=any(kind.cpu_attention for kind in kinds),
            tensor_float=any(kind.tensor_float for kind in kinds),
            single=any(kind.single for kind in kinds),
            unlike_linear=any(kind.unlike_linear for kind in kinds),
            lost=call["module_id"] in lost,
            around=number in callers,
            never=runs[number] == 0,
            by_operators=told.get(number) is not None,
            operators_unclear=number in told and told[number] is None,
            example=None,
        )
        one = judged(*as_formulas_see_it(modules[call["module_id"]], call), seen)
        found[number] = Cost(told[number] if seen.by_operators else one.flops, one.bytes, runs[number])
    return found


def kind_of_work(row: Row) -> Kind:
    if row["kind"] in ("memcpy", "memset"):
        return Kind(harmless=True, product=False)
    known = {"cpu_op": operator_kind, "kernel": kind_of}.get(row["kind"])
    return known(row["name"] or "") if known else Kind(harmless=False, product=False)


def as_formulas_see_it(module: Row, row: Row) -> tuple[Call, Tensors]:
    settings = json.loads(module["static_params"] or "{}")
    kwargs, types = dict(row["kwargs"] or ()), dict(row["kwarg_types"] or ())
    each = []
    for name, shapes in kwargs.items():
        listed = types.get(name) or []
        each += listed if len(listed) == len(shapes) else [""] * len(shapes)
    call = Call(
        class_name=module["class_name"],
        params={param["name"]: param["shape"] for param in module["params"]},
        settings=settings if isinstance(settings, dict) else {},
        inputs=row["inputs"],
        outputs=row["outputs"],
        kwargs=kwargs,
    )
    return call, Tensors([param["dtype"] for param in module["params"]], row["input_types"], row["output_types"], each)


def told_by_operators(
    plain: Plain, own: dict[int, list[Row]], runs: dict[int, int | None], unseen: set[int]
) -> dict[int, int | None]:
    """FLOPs that operators tell of the calls around them; None where they do not tell them."""
    operators = {row["range_id"]: row for row in plain.ranges if re.match(r"\S.*, op_id = \d+", row["text"] or "")}
    kinds = {number: operator(row["text"]) for number, row in operators.items()}
    chains = {number: chain_around(plain, operators, row) for number, row in operators.items()}
    covered = {number for number, chain in chains.items() if any(kinds[one].registered for one in chain.inside_call)}
    counted = {number for number, kind in kinds.items() if kind.registered} - covered
    containing = {one for number in counted for one in chains[number].operators}
    found: dict[int, int | None] = {}
    for number, chain in chains.items():
        kind, flops = kinds[number], kinds[number].flops if number in counted else 0
        doubtful = not (kind.harmless or kind.registered or number in covered or number in containing)
        so_far = found.get(chain.call, 0)
        found[chain.call] = None if so_far is None or doubtful or flops < 0 else so_far + flops
    found.pop(None, None)
    for call, flops in found.items():
        lacking = flops and not own[call] and runs[call] != 0 and plain.kernels and call not in unseen
        if lacking or any(launched_outside(operators, row) for row in own[call]):
            found[call] = None
    return found


def launched_outside(operators: dict[int, Row], row: Row) -> bool:
    """Whether work that may multiply was launched outside of all operators; replayed work where it was captured."""
    launched = row["range_id"] if row["capture_range_id"] is None else row["capture_range_id"]
    return launched not in operators and row["kind"] != "cpu_op" and not kind_of_work(row).harmless


class Chain(NamedTuple):
    """The innermost call around an operator, the operators between the two, and all operators around it."""

    call: int | None
    inside_call: list[int]
    operators: list[int]


def chain_around(plain: Plain, operators: dict[int, Row], row: Row) -> Chain:
    """What lies around an operator, step by step outwards."""
    outwards = [*operators.values(), *plain.calls]
    inside_call, numbers, call = [], [], None
    while (row := directly_around(outwards, row)) is not None:
        if "call_id" in row:
            call = row["call_id"] if call is None else call
            continue
        numbers.append(row["range_id"])
        inside_call += [row["range_id"]] if call is None else []
    return Chain(call, inside_call, numbers)


def directly_around(rows: list[Row], inner: Row) -> Row | None:
    """What began last of all on its thread that contains it; of the same extent calls come first."""

    def place(row: Row) -> tuple:
        return row["start_ns"], -row["end_ns"], "range_id" in row, row.get("call_id", row.get("range_id"))

    def thread(row: Row) -> tuple:
        return row.get("report"), row["pid"], row["tid"]

    empty = inner["start_ns"] == inner["end_ns"]
    outer = [
        row
        for row in rows
        if row["start_ns"] <= inner["start_ns"] <= inner["end_ns"] <= row["end_ns"] > row["start_ns"]
        and thread(row) == thread(inner)
        and (place(row) < place(inner) or (empty and row is not inner))
    ]
    return max(outer, key=place, default=None)


def whole_graphs(plain: Plain) -> dict[int, list[Row]]:
    """The graphs traced as a whole of each call that has any."""
    graphs = [row for row in plain.kernels if row["kind"] == "graph" and row["call_id"] is not None]
    return dict(grouped(graphs, lambda row: row["call_id"]))


def held_by(plain: Plain) -> dict[int, int]:
    """For each call that ran in graphs traced as a whole, the call that has them: the nearest around it, or itself."""
    graphs, calls = whole_graphs(plain), {call["call_id"]: call for call in plain.calls}
    found = {}
    for call in plain.calls:
        holder = call
        while holder is not None and holder["call_id"] not in graphs:
            holder = calls.get(holder["parent_call_id"])
        if holder is not None and call["phase"] == "capture":
            found[call["call_id"]] = holder["call_id"]
    return found


def replays_of_whole_graphs(plain: Plain) -> dict[int, int | None]:
    """How often each call ran in graphs traced as a whole; None below a call that was not captured itself."""
    held, graphs = held_by(plain), whole_graphs(plain)
    return {call: len(graphs[holder]) if holder in held else None for call, holder in held.items()}


def replays(plain: Plain, dataset: Dataset) -> dict[int, int | None]:
    """How often each call ran."""
    children = defaultdict(list)
    for call in plain.calls:
        children[call["parent_call_id"]].append(call)
    in_whole, whole = replays_of_whole_graphs(plain), whole_graphs(plain)
    of_graphs = [row for row in plain.kernels if of_graph(row) and row not in whole.get(row["call_id"], [])]
    again = grouped(of_graphs, lambda row: row["call_id"])
    updated = any(row["cause"] == "graph_updated" for row in dataset.manifest["coverage"])

    def counts(call: Row) -> set[int | None]:
        if call["phase"] != "capture":
            return set()
        nodes = often(again[call["call_id"]])
        if call["call_id"] in in_whole:
            return {None, *nodes} if nodes else {in_whole[call["call_id"]]}
        return nodes or {number for child in children[call["call_id"]] for number in counts(child)}

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
    held, graphs = held_by(plain), whole_graphs(plain)
    owner = {call["call_id"]: call["module_id"] for call in plain.calls}
    elsewhere = [(owner[call], owner[holder]) for call, holder in held.items() if call != holder]
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
        untold = {held.get(number) for number, one in cost.items() if one.of_all("flops") is None}
        unknown_ns = sum(total(graphs.get(call["call_id"], [])) for call in told if call["call_id"] in untold)
        mixed = any(call["call_id"] in held or call["call_id"] in graphs for call in own)
        all_mixed = any(inside(one, module) != inside(other, module) for one, other in elsewhere)
        yield {
            "path": module["path"],
            "runs": added(cost[call["call_id"]].runs for call in own),
            "self_ns": ns,
            "flops": flops,
            "bytes": size,
            "tflops_per_s": ratio(None if flops is None or mixed else flops / 1e3, ns),
            "gb_per_s": ratio(None if mixed else size, ns),
            "flops_per_byte": None if size is None else ratio(flops, size),
            "inclusive_ns": all_ns,
            "inclusive_flops": whole,
            "inclusive_tflops_per_s": ratio(None if whole is None or all_mixed else whole / 1e3, all_ns),
            "known_flops": sum(cost[call["call_id"]].of_all("flops") for call in told),
            "known_share": ratio(total(told, "gpu_self_time_ns") - unknown_ns, all_ns),
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
    inner = {call for call, holder in held_by(plain).items() if call != holder}
    return {call: (one, None if call in inner else whole) for call, (one, whole) in found.items()}


def of_shape(calls: list[Row], flops: dict[int, tuple[int | None, int | None]]) -> dict[str, Any]:
    """The columns of calls of one shape."""
    each = {flops[call["call_id"]][0] for call in calls}
    whole = added(flops[call["call_id"]][1] for call in calls)
    time = total(calls, "gpu_time_ns")
    return {
        "flops_per_call": each.pop() if len(each) == 1 else None,
        "tflops_per_s": ratio(None if whole is None else whole / 1e3, time),
    }
