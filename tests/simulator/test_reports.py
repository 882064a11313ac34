"""The simulator's own tests: its truth against a slow search over the file, its files against the schema."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, seed, settings

from tests.needs import SHARED
from tests.plain_reading import File, is_call, place_of
from tests.simulator import GENERATIONS, Faults, eventful, simulate, truth_of, write_report
from tests.simulator.strategies import capturing_plans, plans

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulator import Plan

FEW = settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
REFERENCE = SHARED / "reference" / "nsys_tables_by_version.json"
LISTED_AS = {"2020.3": "0.old-a", "2.9.1": "3.0.0"}
"""Whose list in the reference to compare with: 2.9.1's is mixed with columns that users added."""


def recorded(plan: Plan, folder: Path) -> tuple[File, object]:
    run = simulate(plan)
    path = folder / f"{abs(hash(plan))}.sqlite"
    path.unlink(missing_ok=True)
    return File(write_report(run, path)), truth_of(run)


@FEW
@seed(1)
@given(plan=plans() | plans(faulty=True))
def test_truth_agrees_with_a_search_over_the_file(tmp_path_factory, plan) -> None:
    file, truth = recorded(plan, tmp_path_factory.getbasetemp())
    expected = {}
    for row in file.work():
        launch = file.launch_of(row)
        around = file.around(launch["globalTid"], launch["start"], launch["end"]) if launch else []
        calls = [one for one in around if is_call(one)]
        replayed = row.get("graphNodeId") is not None or "graphExecId" in row
        place = place_of(calls, plan.dialect)
        key = (
            row["start"],
            row["end"],
            row["deviceId"],
            row["streamId"],
            row["globalPid"] >> 24 & 0xFFFFFF,
            row["correlationId"],
        )
        assert key not in expected or plan.same_pid
        expected.setdefault(key, []).append(
            (
                None if replayed else place,
                around[-1][:3] if around else None,
                launch and launch["start"],
            )
        )
    found = {}
    for one in truth.work:
        key = (one.start_ns, one.end_ns, one.device, one.stream, one.pid, one.correlation)
        innermost = one.range and (one.range.start_ns, one.range.end_ns, one.range.text)
        found.setdefault(key, []).append((one.module, innermost, one.launch_start_ns))
        assert (one.module is None) == bool(one.causes)
    assert {key: sorted(map(repr, said)) for key, said in found.items()} == {
        key: sorted(map(repr, said)) for key, said in expected.items()
    }


@FEW
@seed(2)
@given(plan=plans() | plans(faulty=True) | capturing_plans(faulty=True))
def test_gpu_projection_agrees_with_a_search_over_the_file(tmp_path_factory, plan) -> None:
    file, truth = recorded(plan, tmp_path_factory.getbasetemp())
    work = {}
    for row in filter(file.launch_of, file.work()):
        work.setdefault((row["globalPid"], row["correlationId"]), []).append(row)
    expected = []
    for one in [*file.push_pop, *file.start_end]:
        inside = [
            work[key]
            for key, launch in file.launches.items()
            if key in work
            and launch["globalTid"] == one.thread
            and one.same_thread
            and one.start <= launch["start"]
            and launch["end"] <= one.end
        ]
        rows = [row for rows in inside for row in rows]
        first, last = (
            min((row["start"] for row in rows), default=None),
            max((row["end"] for row in rows), default=None),
        )
        expected.append((one.start, one.end, one.text, first, last, len(inside)))
    found = [
        (
            one.key.start_ns,
            one.key.end_ns,
            one.key.text,
            one.gpu_start_ns,
            one.gpu_end_ns,
            one.gpu_op_count,
        )
        for one in truth.ranges
    ]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


@FEW
@seed(3)
@given(plan=plans() | plans(faulty=True) | capturing_plans(faulty=True))
def test_the_file_says_who_is_inside_whom(tmp_path_factory, plan) -> None:
    file, truth = recorded(plan, tmp_path_factory.getbasetemp())
    assert len({(one.thread, one.start, one.end) for one in file.push_pop}) == len(file.push_pop)
    parents = []
    for one in file.push_pop:
        around = file.around(one.thread, one.start, one.end)
        assert all(a.start <= b.start and b.end <= a.end for a, b in pairwise(around))
        parents.append((one[:3], around[-2][:3] if len(around) > 1 else None))
    found = [
        (tuple(one.key[2:]), one.parent and tuple(one.parent[2:])) for one in truth.ranges if one.kind == "push_pop"
    ]
    assert sorted(found, key=repr) == sorted(parents, key=repr)


@pytest.mark.parametrize("version", GENERATIONS)
def test_a_file_has_the_columns_of_its_generation(tmp_path, version) -> None:
    file, _ = recorded(eventful(3, generation=version), tmp_path)
    kernel = set(file.rows("CUPTI_ACTIVITY_KIND_KERNEL")[0])
    assert ("mangledName" in kernel, "greenContextId" in kernel, "graphId" in kernel) == (
        version != "2020.3",
        version in {"3.7.2", "3.16.1", "3.25.0"},
        version == "3.25.0",
    )
    assert bool(file.rows("PROCESSES")) == (version != "2020.3")
    assert bool(file.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE")) == (version in {"3.16.1", "3.25.0"})
    versions = file.rows("EXPORT_META_DATA") or file.rows("META_DATA_EXPORT")
    said = [row["value"] for row in versions if row["name"] == "EXPORT_SCHEMA_VERSION"]
    assert said == ([] if version == "2020.3" else [version])


@pytest.mark.traces
@pytest.mark.parametrize("version", GENERATIONS)
def test_the_columns_of_a_generation_are_those_of_real_files(version) -> None:
    from tests.simulator.generations import generation

    real = json.loads(REFERENCE.read_text())[LISTED_AS.get(version, version)]
    ours = generation(version).tables
    late = {"sharedMemoryLimitConfig"} if version == "2020.3" else set()
    assert {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"} <= ours.keys() & real.keys()
    for table in ours.keys() & real.keys():
        assert list(ours[table]) == [name for name in real[table] if name not in late], table


def test_one_plan_gives_one_program(tmp_path) -> None:
    first, second = (recorded(eventful(5, faults=Faults(lost_ranges=0.1)), tmp_path)[1] for _ in range(2))
    assert first == second


def test_an_eventful_plan_has_everything_in_it() -> None:
    runs = [simulate(eventful(number)) for number in range(8)]
    truths = [truth_of(run) for run in runs]
    calls = [call for truth in truths for call in truth.calls]
    work = [piece for truth in truths for piece in truth.work]
    ranges = [one for run in runs for one in run.ranges]
    launches = [launch for run in runs for launch in run.launches]
    assert {one.kind for one in work} == {"kernel", "memcpy", "memset", "graph"}
    causes = {cause for one in work for cause in one.causes}
    assert causes == {
        "graph_unmapped",
        "graph_not_expanded",
        "managed_memory",
        "no_launch",
        "outside_modules",
    }
    assert any(call.alias_of for call in calls)
    assert any(".cell0.cell0.cell0" in call.path for call in calls)
    assert any(one.end_thread for one in ranges)
    assert any(one.start_ns == one.end_ns for one in ranges)
    assert any(one.parent and one.parent.start_ns == one.start_ns for one in ranges)
    assert any(one.parent and one.parent.end_ns == one.end_ns and one.end_ns > one.start_ns for one in ranges)
    assert any(one.inside and one.inside.start_ns == one.start_ns for one in launches)
    assert any(one.inside and one.inside.end_ns == one.end_ns for one in launches)
    assert any(piece.launch.end_ns < piece.start_ns for run in runs for piece in run.work if piece.launch)


def test_threads_that_are_cut_off_leave_open_ranges() -> None:
    plan = eventful(0, faults=Faults(cut_off=True))
    truths = [truth_of(simulate(eventful(number, faults=plan.faults))) for number in range(8)]
    open_ones = [one for truth in truths for one in truth.ranges if one.open]
    assert {one.kind for one in open_ones} == {"push_pop", "start_end"}
    assert any(one.gpu_op_count for one in open_ones)
