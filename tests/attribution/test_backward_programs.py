"""Random training programs: no launch of a backward pass is given to another module, and nearly all are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.attribution.backward_programs import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from tracekit.dataset.opening import Dataset

#: Threads that run forward, and the one that runs backward.
ONE, BESIDE, SEVERAL = (1, 1), (1, 9), (3, 9)


def backward_work(program: Program, parsed: Callable[..., Dataset]) -> tuple[pd.DataFrame, Dataset]:
    dataset = parsed(program.run())
    work = dataset.kernels(["name", "module", "method", "phase", "call_id", "launch_start_ns"])
    work = work.astype({"name": str, "module": object, "method": object, "phase": object})
    work = work[work.name.isin(program.truth)]
    return work.assign(truth=work.name.map(program.truth)), dataset


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("threads", "engine"), [ONE, BESIDE, SEVERAL], ids=["one", "beside", "several"])
def test_no_launch_of_a_node_is_given_to_another_module_than_the_one_that_made_it(
    seed: int, threads: int, engine: int, parsed: Callable[..., Dataset]
) -> None:
    program = Program(seed, threads, engine)
    work, dataset = backward_work(program, parsed)
    known = work[work.module.notna()]
    assert (known.module == known.truth).all()
    assert set(known.method) <= {"backward"}
    assert set(known.phase) <= {"backward"}
    if (threads, engine) == ONE:
        assert program.clear <= set(known.name)
    calls = dataset.table("calls").to_pandas().astype({"module": object, "phase": object}).set_index("call_id")
    own = calls.loc[known.call_id]
    assert list(own.module) == list(known.module)
    assert set(own.phase) <= {"backward"}
    assert (own.start_ns.to_numpy() <= known.launch_start_ns.to_numpy()).all()
    assert (own.end_ns.to_numpy() > known.launch_start_ns.to_numpy()).all()
    inside = calls[(calls.phase == "backward") & calls.parent_call_id.notna()]
    outer = calls.module.reindex(inside.parent_call_id).to_numpy()
    assert [path.rpartition(".")[0] for path in inside.module] == list(outer)
    assert calls[calls.phase == "backward"].kernel_self_count.sum() == len(known)
