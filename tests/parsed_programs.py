"""Simulated programs, parsed: what tracekit says of a program beside what truly happened.

Tests that draw the same plans (one seed for all) share the parsed reports. A failing plan stands in Hypothesis'
output: ``simulate(Plan(...))`` runs it again.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

import tracekit
from tests.simulator import Plan, RangeKey, TrueWork, Truth, simulate, truth_of, write_report

Rows = list[dict]
TABLES = ("modules", "calls", "kernels", "kernel_modules", "ranges", "steps", "coverage")


class Parsed(NamedTuple):
    plan: Plan
    truth: Truth
    tables: dict[str, Rows]

    def keys(self, table: str, key: str) -> dict[int | None, tuple | None]:
        return {None: None} | {row[key]: place(row) for row in self.tables[table]}


@lru_cache(maxsize=256)
def parsed(plan: Plan) -> Parsed:
    run = simulate(plan)
    with TemporaryDirectory() as folder:
        report = write_report(run, Path(folder) / "report.sqlite")
        out = Path(folder) / "out"
        tracekit.parse(report, out, rows="modules")
        tables = {name: pq.read_table(out / f"{name}.parquet").to_pylist() for name in TABLES}
        return Parsed(plan, truth_of(run), tables)


def of_plans(
    plans: st.SearchStrategy[Plan], number: int, chance: int = 20
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Runs a test over ``number`` plans: the same ones for every test with the same plans and ``chance``."""
    tried = settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: tried(seed(chance)(given(plan=plans)(test)))


def over_programs(
    plans: st.SearchStrategy[Plan], number: int
) -> Callable[[Callable[[Parsed], None]], Callable[[], None]]:
    """Runs a test over ``number`` programs and what tracekit says of them."""

    def decorate(test: Callable[[Parsed], None]) -> Callable[[], None]:
        @of_plans(plans, number)
        def over_plans(plan: Plan) -> None:
            test(parsed(plan))

        over_plans.__name__ = over_plans.__qualname__ = test.__name__
        return over_plans

    return decorate


def same(found: Iterable, expected: Iterable) -> None:
    found, expected = Counter(found), Counter(expected)
    absent, surplus = list((expected - found).items())[:5], list((found - expected).items())[:5]
    assert (absent, surplus) == ([], []), f"\nexpected, not found: {absent}\nfound, not expected: {surplus}"


def place(row: dict) -> tuple:
    return row["pid"], row["tid"], row["start_ns"], row["end_ns"]


def placed(key: RangeKey | None) -> tuple | None:
    return None if key is None else tuple(key[:4])


def piece(row: dict) -> tuple:
    return tuple(row[name] for name in ("kind", "start_ns", "end_ns", "device", "stream", "pid", "correlation_id"))


def true_piece(true: TrueWork) -> tuple:
    work, place = true.work, true.work.on
    return (work.kind, work.start_ns, work.end_ns, place.device, place.number, place.process.pid, work.correlation)


def shapes(listed: Iterable | None) -> tuple:
    return tuple(tuple(shape) for shape in listed or ())


def bare(api_call: str | None) -> str | None:
    return api_call and re.sub(r"_v\d+$", "", api_call)
