"""Golden tests of marked steps: which ranges are iterations, of what kind, and which of those inside each other."""

import pytest

from tests.golden import Parse, expect
from tracekit.answers import phases
from tracekit.dataset.opening import Dataset

OURS = '{"Step": %d, "Name": "iteration", "Kind": "decode", "BatchSize": 2, "Tokens": 2}'


def test_an_iteration_that_two_programs_mark_is_one_step(parsed: Parse) -> None:
    dataset = parsed(f"""
        range  1    0 1000 {OURS % 0}
        range  1   10  800 execute_context_0(0)_generation_2(2)
        run    1  20  30 in-both
        run    1 900 910 in-ours
        range  1 2000 3000 {OURS % 1}
        range  1 2010 2800 execute_context_0(0)_generation_2(2)
    """)
    expect(dataset, "steps")("""
        step_id  name       kind    index  start_ns  end_ns  batch_size  tokens
        0        iteration  decode  0      0         1000    2           2
        1        iteration  decode  1      2000      3000    2           2
    """)
    expect(dataset, "kernels")("name     step_id\nin-ours  0\nin-both  0")
    [phase] = phases.frame(dataset).to_dict("records")
    assert (phase["steps"], phase["tokens"], phase["gpu_time_ns"]) == (2, 4, 20)


@pytest.mark.parametrize("outer", ["ProfilerStep#7", '{"Step": 7, "Name": "ProfilerStep#7"}'])
def test_the_more_telling_of_two_markers_says_what_the_step_is(parsed: Parse, outer: str) -> None:
    dataset = parsed(f"""
        range  1    0 1000 {outer}
        range  1   10  800 execute_context_0(0)_generation_2(2)
    """)
    expect(dataset, "steps")("""
        name            kind    index  start_ns  end_ns  batch_size  tokens
        ProfilerStep#7  decode  7      0         1000    2           2
    """)


def test_a_step_around_several_steps_is_none_and_is_counted(parsed: Parse) -> None:
    dataset = parsed("""
        range  1    0 1000 {"Step": 0, "Name": "request"}
        range  1   10  300 ProfilerStep#0
        range  1   20  200 step[EXTEND bs=2 toks=64]
        range  1  310  600 ProfilerStep#1
        range  1  320  500 step[DECODE bs=2]
        run    1 330 340 in-decode
        run    1  700  710 between
        range  2    0  900 ProfilerStep#5
    """)
    expect(dataset, "steps")("""
        name            kind     index  tid  start_ns  end_ns  batch_size  tokens
        ProfilerStep#5  -        5      2    0         900     -           -
        ProfilerStep#0  prefill  0      1    10        300     2           64
        ProfilerStep#1  decode   1      1    310       600     2           2
    """)
    expect(dataset, "kernels")("name       step_id\nbetween    -\nin-decode  2")
    rows = dataset.table("coverage").to_pylist()
    assert [row["count"] for row in rows if row["cause"] == "steps_unclear"] == [1]


def marked(dataset: Dataset) -> list[tuple[str, int]]:
    return [(row["name"], row["index"]) for row in dataset.table("steps", ["name", "index"]).to_pylist()]


@pytest.mark.parametrize(
    "text", ["training_step_{}", "iteration {}", "engine_step[{}]", "iter={}", "Iteration: {}", "train_step#{}"]
)
def test_ranges_of_iterations_are_the_steps_beside_calls_of_modules_too(parsed: Parse, text: str) -> None:
    """A loader, an optimizer, micro-batches and an epoch count, too, and some calls are in no iteration."""
    lines = ["range 1 0 99000 epoch 1", "range 1 98000 98050 {'Module': 'net'}"]
    for at in range(12):
        begin = 1000 * at
        lines += [
            f"range 1 {begin + 10} {begin + 90} load batch {at + 1}",
            f"range 1 {begin + 100} {begin + 900} {text.format(at + 17)}",
            f"range 1 {begin + 110} {begin + 200} micro_batch 0",
            f"range 1 {begin + 120} {begin + 190} {{'Module': 'net'}}",
            f"range 1 {begin + 210} {begin + 300} micro_batch 1",
            f"range 1 {begin + 220} {begin + 290} {{'Module': 'net'}}",
            f"range 1 {begin + 910} {begin + 990} optimizer step {at}",
        ]
    assert marked(parsed("\n".join(lines))) == [(text.format("*"), at + 17) for at in range(12)]


@pytest.mark.parametrize("text", ["optimizer step {0}", "{1} batch 32", "net step 7", "timestep {2}", "layer {0}"])
def test_ranges_that_count_no_iterations_of_a_model_make_no_steps_of_its_calls(parsed: Parse, text: str) -> None:
    """Ranges without the model inside, and texts whose number does not count."""
    lines = []
    for at in range(6):
        begin, inside = 1000 * at, not text.startswith("optimizer")
        lines.append(f"range 1 {begin + 100} {begin + 900} {text.format(at, 'ab'[at % 2], 981 - 7 * at * at)}")
        lines.append(f"range 1 {begin + 910 - 700 * inside} {begin + 990 - 700 * inside} {{'Module': 'net'}}")
    assert [name for name, _ in marked(parsed("\n".join(lines)))] == ["net"] * 6


def test_a_step_is_training_only_if_a_backward_pass_or_an_optimizer_ran_in_it(parsed: Parse) -> None:
    dataset = parsed("""
        range  1    0  900 ProfilerStep#0
        range  1   10  100 {'Module': 'net'}
        range  1 1000 1900 ProfilerStep#1
        range  1 1010 1100 {'Module': 'net'}
        range  9 1200 1300 autograd::engine::evaluate_function: MulBackward0
        range  1 2000 2900 ProfilerStep#2
        range  1 2010 2100 {'Module': 'net'}
        range  1 2200 2300 Optimizer.step#SGD.step
        range  1 3000 3900 ProfilerStep#3
        range  1 4000 4100 Optimizer.step#SGD.step
    """)
    kinds = [row["kind"] for row in dataset.table("steps", ["kind"]).to_pylist()]
    assert kinds == [None, "train", "train", None]
