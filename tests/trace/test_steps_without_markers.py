"""Golden tests of steps that nobody marks: a program's calls, and which of them are its iterations."""

import pytest

from tests.golden import Golden, Parse, expect, losses
from tests.trace_lines import repeated
from tracekit.dataset.opening import Dataset


def names(dataset: Dataset) -> list[str]:
    return dataset.table("steps", ["name"]).column("name").to_pylist()


def steps_of_kernels(dataset: Dataset) -> dict[str, list[int | None]]:
    rows = dataset.table("kernels", ["name", "step_id", "kernel_id"]).sort_by("kernel_id").to_pylist()
    return {row["name"]: [one["step_id"] for one in rows if one["name"] == row["name"]] for row in rows}


SERVING = """
    range  1 100 200 {'Module': 'Llama', 'Inputs': [[2]]}
    range  1 110 150 {'Module': 'Llama.model', 'Inputs': [[2]]}
    run    1 120 125 model
    range  1 210 230 {'Module': 'Llama.logits_processor', 'Inputs': [[2]]}
    run    1 215 220 logits
    range  1 240 260 {'Module': 'Sampler', 'Inputs': [[2]]}
    run    1 245 250 sample
"""


def test_a_step_lasts_until_the_last_of_what_a_server_calls_by_turns(parsed: Parse) -> None:
    dataset = parsed(repeated(SERVING, 3))
    expect(dataset, "steps")("""
        step_id  name                                      kind  index  tid  start_ns  end_ns
        0        Llama + Llama.logits_processor + Sampler  -     0      1    100       260
        1        Llama + Llama.logits_processor + Sampler  -     1      1    1100      1260
        2        Llama + Llama.logits_processor + Sampler  -     2      1    2100      2260
    """)
    assert steps_of_kernels(dataset) == {"model": [0, 1, 2], "logits": [0, 1, 2], "sample": [0, 1, 2]}
    assert losses(dataset) == {}


TRAINING = """
    range  1   0 100 {'Module': 'net', 'Inputs': [[8]]}
    range  1  10  40 {'Module': 'net.layers.0', 'Inputs': [[8]]}
    range  1  50  90 {'Module': 'net.layers.1', 'Inputs': [[8]]}
    range  1 110 120 {'Module': 'CrossEntropyLoss', 'Inputs': [[8]]}
    run    1 112 115 loss
    range  9 200 210 {'Module': 'net.layers.1', 'Inputs': [[8]]}
    run    9 202 205 computed-again
    range  9 220 230 {'Module': 'net.layers.0', 'Inputs': [[8]]}
    run    1 300 305 optimizer
"""


def test_layers_that_are_computed_again_begin_no_step(parsed: Parse) -> None:
    dataset = parsed(repeated(TRAINING, 3))
    assert names(dataset) == ["net + CrossEntropyLoss"] * 3
    again, rest = [None] * 3, [None] * 3
    assert steps_of_kernels(dataset) == {"loss": [0, 1, 2], "computed-again": again, "optimizer": rest}


CUT = ("net.layers.1", "net.layers.2", "net.norm", "CrossEntropyLoss")


@pytest.mark.parametrize("first", range(len(CUT)))
def test_what_is_left_of_a_forward_that_began_before_the_recording_is_no_step(parsed: Parse, first: int) -> None:
    left = "".join(f"range 1 {10 * at} {10 * at + 5} {{'Module': '{CUT[at]}'}}\n" for at in range(first, len(CUT)))
    assert names(parsed(left + repeated(TRAINING, 2, begin=1000))) == ["net + CrossEntropyLoss"] * 2
    alone = parsed(left)
    if not first:
        assert (names(alone), losses(alone)) == ([], {"steps_unclear": len(CUT)})


def test_a_stage_of_a_pipeline_passes_through_its_layers_in_each_step(parsed: Parse) -> None:
    """Of the first pass only the end was recorded."""
    forward = """
        range  1  10  20 {'Module': 'net.layers.4'}
        run    1  21  22 between
        range  1  30  40 {'Module': 'net.layers.10'}
        run    1  31  32 inside
        run    1  50  55 behind
        range  9 200 210 {'Module': 'net.layers.10'}
        range  9 220 230 {'Module': 'net.layers.4'}
    """
    cut = "range 1 0 5 {'Module': 'net.layers.10'}\n"
    dataset = parsed(cut + repeated(forward, 2, begin=1000))
    expect(dataset, "steps")("""
        step_id  name        index  tid  start_ns  end_ns
        0        net.layers  0      1    1010      1040
        1        net.layers  1      1    2010      2040
    """)
    assert steps_of_kernels(dataset) == {"between": [0, 1], "inside": [0, 1], "behind": [None, None]}


def test_chunks_of_layers_that_run_by_turns_are_one_step_together(parsed: Parse) -> None:
    """An interleaved schedule: two batches go through the first chunk before one goes through the second."""
    layers = "\n".join(f"range 1 {20 * at} {20 * at + 10} {{'Module': 'net.layers.{at // 2}'}}" for at in range(4))
    assert spans(parsed(repeated(layers, 3))) == [70] * 3


def in_turns(*turns: str, pause: int = 60, begin: int = 0) -> str:
    """Calls of models: those of each turn soon after each other, ``V*4`` four times."""
    at, lines = begin, []
    for turn in turns:
        for word in turn.split():
            name, _, times = word.partition("*")
            for _ in range(int(times or 1)):
                lines.append(f"range 1 {at} {at + 40} {{'Module': '{name}'}}")
                at += 50
        at += pause
    return "\n".join(lines)


def spans(dataset: Dataset) -> list[int]:
    return [row["end_ns"] - row["start_ns"] for row in dataset.table("steps").to_pylist()]


@pytest.mark.parametrize(
    ("turns", "calls"),
    [
        (["draft*3 target"] * 3, [4, 4, 4]),
        (["draft*3 target", "draft target", "draft*4 target"], [4, 2, 5]),
        (["draft*2 target", "draft target"] * 2, [3, 2, 3, 2]),
        (["D G D*2"] * 3, [4, 4, 4]),
        (["G D*2 G D"] * 4, [5] * 4),
        (["teacher student"] * 4, [2] * 4),
        (["encoder decoder*3", "encoder decoder*7", "encoder decoder*2"], [4, 8, 3]),
        (["text V*4 decoder"] * 6, [6] * 6),
        (["text V*4 decoder", "text V*4 decoder", "text V*6 decoder"], [6, 6, 8]),
        (["text V*4 decoder"] * 3 + ["text V*2"], [6, 6, 6]),  # the last one was cut off
        (["tables", "text V*4 decoder", "text V*5 decoder"], [6, 7]),
        (["tables", "net*5"], [1] * 5),
        (["net loss", "net loss", "net", "net loss"], [2, 2, 1, 2]),  # one of them validates
        (["decoder"] + ["text V*4 decoder"] * 3, [6, 6, 6]),  # the first one began before the recording
        (["draft target"] * 4 + ["target"], [2] * 3),  # its last turn has no draft, or a draft was lost
        ([" ".join(f"part_{number}" for number in range(9))] * 2, [9, 9]),
    ],
)
def test_models_that_take_turns_are_one_step_together(parsed: Parse, turns: list[str], calls: list[int]) -> None:
    assert spans(parsed(in_turns(*turns))) == [50 * count - 10 for count in calls]


@pytest.mark.parametrize(
    "turns",
    [
        ["text V*4 decoder"],
        ["V*2"] + ["text V*4 decoder"] * 3,
        ["a b", "b a", "a*2 b*3 a c", "c a"],
        ["text V decoder", "V text decoder", "text decoder V"],
        ["net loss", "net loss", "net loss*2", "net loss", "net loss"],
    ],
)
def test_models_that_take_no_turns_make_no_steps_and_are_counted(parsed: Parse, turns: list[str]) -> None:
    dataset = parsed(in_turns(*turns, pause=0))
    assert names(dataset) == []
    assert losses(dataset)["steps_unclear"] > 0


def test_models_of_several_threads_that_take_turns_are_one_step(parsed: Parse) -> None:
    decoder = "range 2 50 90 {'Module': 'decoder'}\nrange 2 95 99 {'Module': 'decoder'}"
    dataset = parsed(repeated(f"range 1 0 40 {{'Module': 'encoder'}}\n{decoder}", 3))
    assert spans(dataset) == [99] * 3
    assert losses(dataset) == {}


def test_replicas_are_one_step(golden: Golden) -> None:
    """As of DataParallel: each forward has new threads, and the main thread waits for them."""
    dataset = golden("""
        range  11   0  50 {'Module': 'net'}
        range  12   5  60 {'Module': 'net'}
        run    12  20  25 replica
        run    12  55  58 after-the-first-has-ended
        range  1   70  80 {'Module': 'loss'}
        range  14 101 150 {'Module': 'net'}
        range  13 105 160 {'Module': 'net'}
        run    14 110 115 replica
        range  1  170 180 {'Module': 'loss'}
        => steps
        name        tid  start_ns  end_ns
        net + loss  11   0         80
        net + loss  13   105       180
    """)
    assert steps_of_kernels(dataset) == {"replica": [0, 1], "after-the-first-has-ended": [0]}


def test_threads_that_call_one_model_by_turns_or_have_loops_of_their_own_make_steps_each(parsed: Parse) -> None:
    turns = (1, 0), (2, 50), (1, 110), (3, 160)
    calls = (f"range {thread} {at} {at + 50} {{'Module': 'net'}}" for thread, at in turns)
    assert names(parsed("\n".join(calls))) == ["net"] * 4
    body = "range {0} 0 50 {{'Module': 'net'}}\nrange {0} 60 70 {{'Module': 'loss'}}"
    both = repeated(body.format(1), 2) + "\n" + repeated(body.format(2), 2, begin=20)
    assert names(parsed(both)) == ["net + loss"] * 4


def test_models_that_run_one_after_the_other_have_steps_each(parsed: Parse) -> None:
    first = repeated("range 1 0 50 {'Module': 'small'}", 3)
    second = repeated("range 1 0 50 {'Module': 'large'}", 2, begin=5000)
    assert names(parsed(f"{first}\n{second}")) == ["small"] * 3 + ["large"] * 2


def test_parts_of_a_model_that_was_only_captured_lead_no_steps(parsed: Parse) -> None:
    """Nothing is left that could: calls in graph captures begin no iteration, nor do calls of parts of a model."""
    dataset = parsed("""
        launch 1   1   2  #1 cudaStreamBeginCapture_v10000
        range  1   5  50  {'Module': 'top'}
        range  1  10  40  {'Module': 'top.a'}
        launch 1  20  30  #2
        launch 1  60  70  #3 cudaStreamEndCapture_v10000
        range  1 100 140  {'Module': 'top.a'}
        run    1 110 120
    """)
    assert len(dataset.table("steps")) == 0


def test_a_graph_capture_of_nothing_is_one(parsed: Parse) -> None:
    dataset = parsed("""
        launch 1   1   2 #1 cudaStreamBeginCapture_v10000
        range  1   5  50 {'Module': 'top'}
        launch 1  60  70 #2 cudaStreamEndCapture_v10000
        range  1 100 140 {'Module': 'top'}
    """)
    expect(dataset, "calls")("phase  step_id\ncapture  -\nforward  0")
