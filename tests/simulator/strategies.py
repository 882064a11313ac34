"""Hypothesis strategies for plans. A failing plan shrinks to few features and sizes; the seed stays what it is."""

from hypothesis import strategies as st

from tests.nsight_tables import GENERATIONS
from tests.simulator.loops import LOOPS
from tests.simulator.plan import Faults, Oddities, Plan, capturing

SEEDS = st.integers(0, 2**32 - 1)
DIALECTS = st.sampled_from(("vllm", "vllm", "json", "compact"))
STEPS = st.sampled_from((None, "vllm", "sglang", "torch"))
EPOCHS = (0, 1_000_000, -60_000_000, -3_000, 60_111_430_336, 1_700_000_000_123_456_789)


def _either(names: str) -> dict[str, st.SearchStrategy[bool]]:
    """Switches that are on or off."""
    return dict.fromkeys(names.split(), st.booleans())


def _up_to(**most: int) -> dict[str, st.SearchStrategy[int]]:
    return {name: st.integers(1, number) for name, number in most.items()}


def _of(**choices: tuple[object, ...]) -> dict[str, st.SearchStrategy[object]]:
    return {name: st.sampled_from(values) for name, values in choices.items()}


ODDITIES = st.builds(
    Oddities,
    **_either("shuffled backtraces bystanders user_additions empty_tables"),
    registered_strings=st.sampled_from((0.0, 0.5, 1.0)),
    nameless_domains=st.booleans(),
)
FIRST_GRAPHS = (1, 2, 2, 1 << 22, 0x7FFF_FFFA, 0xFFFF_F000)
"""Also those whose nodes' ids no float can hold, and those whose nodes' ids are negative in SQLite."""
FAULTS = st.builds(
    Faults,
    **_of(lost_ranges=(0.0, 0.05, 0.4), lost_launches=(0.0, 0.2), lost_work=(0.0, 0.2), early_work=(0.0, 0.2)),
    **_either("late_start cut_off"),
)


def plans(*, faulty: bool = False) -> st.SearchStrategy[Plan]:
    """Any plan that captures no graphs; without ``faulty`` the file holds every answer that there is."""
    switches = _either(
        "same_model shared recursive plain_ranges spans empty_ranges outside_work orphans blocking_copies "
        "graph_replays graph_traces negative_ids same_pid"
    )
    return st.builds(
        Plan,
        seed=SEEDS,
        generation=st.sampled_from(GENERATIONS[::-1]),
        **_up_to(processes=3, threads=2, devices=2, streams=3, iterations=3, modules=14),
        actions=st.sampled_from((10, 40, 80)),
        dialect=DIALECTS,
        marker_domain=st.sampled_from((None, None, "layers")),
        outputs=st.booleans(),
        steps=STEPS,
        epoch_ns=st.sampled_from(EPOCHS),
        **switches,
        faults=FAULTS if faulty else st.just(Faults()),
        oddities=ODDITIES,
    )


def loops(*, faulty: bool = False) -> st.SearchStrategy[Plan]:
    """Any plan of a loop whose turns nobody marks."""
    several = tuple(loop for loop in LOOPS if loop not in ("stages", "replicas"))
    one_thread = st.fixed_dictionaries({"threads": st.just(1), "loop": st.sampled_from(LOOPS)})
    # Two threads with replicas, or passes through the same layers, would look like more replicas, or other passes.
    two_threads = st.fixed_dictionaries({"threads": st.just(2), "loop": st.sampled_from(several)})
    rest = st.fixed_dictionaries(
        {
            "seed": SEEDS,
            **_up_to(processes=2, devices=2),
            "iterations": st.integers(2, 5),
            "modules": st.integers(2, 10),
            "actions": st.sampled_from((40, 80)),
            **_either("outputs plain_ranges shared outside_work"),
            "epoch_ns": st.sampled_from(EPOCHS),
            "faults": FAULTS if faulty else st.just(Faults()),
            "oddities": ODDITIES,
        }
    )
    return st.builds(lambda who, what: Plan(**who, **what), one_thread | two_threads, rest)


SELDOM = st.sampled_from((False, False, False, True))
WHEN_NODES = st.sampled_from(("in_time", "late", "never"))
BATCHES = st.sampled_from((1, 1, 2, 3, 99))
"""After how many captures late node records are written."""
GRAPH_FAULTS = st.builds(
    Faults,
    **_of(lost_ranges=(0.0, 0.0, 0.2), lost_launches=(0.0, 0.0, 0.1), lost_work=(0.0, 0.2)),
    **dict.fromkeys(("late_start", "cut_off"), SELDOM),
    node_records=WHEN_NODES,
    node_batch=BATCHES,
    captured_before=SELDOM,
    lost_nodes=st.sampled_from((0.0, 0.0, 0.2)),
    skipped_capture_calls=SELDOM,
    capture_range=st.booleans(),
) | st.builds(Faults, node_records=WHEN_NODES, node_batch=BATCHES, captured_before=st.booleans())


def capturing_plans(*, faulty: bool = False) -> st.SearchStrategy[Plan]:
    """Any plan that captures graphs; without ``faulty`` the file holds every answer that there is."""
    faults = GRAPH_FAULTS if faulty else st.just(Faults())
    common = {
        "generation": st.sampled_from(GENERATIONS[::-1]),
        "first_graph": st.sampled_from(FIRST_GRAPHS),
        "graph_traces": SELDOM,
        "graph_extras": st.booleans(),
        "orphans": SELDOM,
        "faults": faults,
        "epoch_ns": st.sampled_from(EPOCHS),
        "same_model": st.booleans(),
    }
    few_features = st.builds(
        Plan,
        seed=SEEDS,
        **_up_to(processes=2, threads=3, streams=3, iterations=3),
        **_of(modules=(1, 3, 7, 10), actions=(6, 15, 40)),
        dialect=DIALECTS,
        outputs=st.booleans(),
        steps=st.sampled_from((None, "vllm", "torch")),
        **_either("shared recursive plain_ranges spans empty_ranges outside_work blocking_copies graph_replays"),
        graph_captures=st.integers(1, 4),
        **_either("piecewise graph_clones graph_updates negative_ids"),
        same_pid=st.sampled_from((False, False, True)),
        oddities=ODDITIES,
        **common,
    )
    many_features = st.builds(capturing, seed=SEEDS, actions=st.sampled_from((15, 30)), **common)
    return few_features | many_features


def plans_of_quiet_modules() -> st.SearchStrategy[Plan]:
    """Plans in which some modules take and give no tensors, and whose calls one or two sets of hooks mark."""
    return st.builds(
        Plan,
        seed=SEEDS,
        **_up_to(processes=2, threads=2),
        iterations=st.integers(2, 3),
        modules=st.integers(2, 12),
        **_of(actions=(40, 80), dialect=("vllm", "json"), steps=(None, "vllm")),
        **_either("plain_ranges empty_ranges outside_work shared"),
        **_of(no_tensors=(0.3, 0.7), hooks=(1, 1, 2)),
    )


def raising_plans() -> st.SearchStrategy[Plan]:
    """Plans whose forwards raise."""
    return st.builds(
        Plan,
        seed=SEEDS,
        **_up_to(processes=2, threads=2, iterations=4, modules=14),
        actions=st.sampled_from((10, 40, 80)),
        dialect=DIALECTS,
        marker_domain=st.sampled_from((None, None, "layers")),
        outputs=st.booleans(),
        steps=STEPS,
        epoch_ns=st.sampled_from((0, -60_000_000)),
        **_either("plain_ranges spans empty_ranges outside_work shared recursive"),
        graph_replays=SELDOM,
        raises=st.sampled_from((0.03, 0.1, 0.3)),
        ends_always=SELDOM,
    )
