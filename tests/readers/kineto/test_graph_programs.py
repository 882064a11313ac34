"""Programs at random that capture and replay graphs, profiled apart: no kernel gets a module not its own."""

from random import Random

import pytest
from hypothesis import given, settings, strategies as st

import tracekit
from tests.readers.kineto.graph_programs import Program


@settings(max_examples=20)
@given(rng=st.randoms(use_true_random=False))
def test_no_replayed_kernel_gets_the_module_of_another(tmp_path_factory: pytest.TempPathFactory, rng: Random) -> None:
    program = Program(rng)
    program.run()
    folder = tmp_path_factory.mktemp("traces")
    report, captures = program.write(folder)
    dataset = tracekit.parse(report, folder / "out", rows="modules", graph_captures=captures)
    rows = dataset.table("kernels", ["start_ns", "module", "cause"]).to_pylist()
    events = [*program.replay, *(row for rows in program.captures for row in rows if not captures)]
    first = min(int(row["ts"]) for row in events) * 1000
    found = {int(row["start_ns"]) + first: row["module"] for row in rows}
    assert found.keys() == program.truth.keys()
    wrong = {at: (module, program.truth[at]) for at, module in found.items() if module not in (None, program.truth[at])}
    assert not wrong
    if program.whole:
        assert None not in found.values()
