"""Golden tests of steps that nobody marks: a program's calls, and which of them are its iterations."""

from textwrap import dedent

import pytest

from tests.golden import Parse, check, losses
from tracekit.dataset.opening import Dataset


def loop(lines: str, times: int, *, every: int = 1000, begin: int = 0) -> str:
    moved_lines = []
    for time in range(times):
        for line in dedent(lines).strip().splitlines():
            kind, thread, start, end, *rest = line.split(None, 4)
            at = [str(int(one) + begin + time * every) for one in (start, end)]
            text = " ".join(rest).replace("#", f"#{begin + time}") if rest else ""
            moved_lines.append(f"{kind} {thread} {at[0]} {at[1]} {text}")
    return "\n".join(moved_lines)


def names(dataset: Dataset) -> list[str]:
    return dataset.table("steps", ["name"]).column("name").to_pylist()


def steps_of_kernels(dataset: Dataset) -> dict[str, list[int | None]]:
    step_ids: dict[str, list[int | None]] = {}
    rows = dataset.table("kernels", ["name", "step_id", "kernel_id"]).to_pylist()
    for row in sorted(rows, key=lambda row: row["kernel_id"]):
        step_ids.setdefault(row["name"], []).append(row["step_id"])
    return step_ids


SERVING = """
    range  1 100 200 {'Module': 'Llama', 'Inputs': [[2]]}
    range  1 110 150 {'Module': 'Llama.model', 'Inputs': [[2]]}
    launch 1 120 125 #1
    kernel 1 300 310 #1 model
    range  1 210 230 {'Module': 'Llama.logits_processor', 'Inputs': [[2]]}
    launch 1 215 220 #2
    kernel 1 310 320 #2 logits
    range  1 240 260 {'Module': 'Sampler', 'Inputs': [[2]]}
    launch 1 245 250 #3
    kernel 1 320 330 #3 sample
"""


def test_what_a_server_calls_beside_its_model_begins_no_step(parsed: Parse) -> None:
    dataset = parsed(loop(SERVING, 3))
    check(
        dataset,
        "steps",
        """
        step_id  name   kind  index  tid  start_ns  end_ns
        0        Llama  -     0      1    100       200
        1        Llama  -     1      1    1100      1200
        2        Llama  -     2      1    2100      2200
    """,
    )
    assert steps_of_kernels(dataset) == {"model": [0, 1, 2], "logits": [None] * 3, "sample": [None] * 3}
    assert losses(dataset) == {}


TRAINING = """
    range  1   0 100 {'Module': 'net', 'Inputs': [[8]]}
    range  1  10  40 {'Module': 'net.layers.0', 'Inputs': [[8]]}
    range  1  50  90 {'Module': 'net.layers.1', 'Inputs': [[8]]}
    range  1 110 120 {'Module': 'CrossEntropyLoss', 'Inputs': [[8]]}
    launch 1 112 115 #1
    kernel 1 500 510 #1 loss
    range  9 200 210 {'Module': 'net.layers.1', 'Inputs': [[8]]}
    launch 9 202 205 #2
    kernel 1 510 520 #2 computed-again
    range  9 220 230 {'Module': 'net.layers.0', 'Inputs': [[8]]}
    launch 1 300 305 #3
    kernel 1 520 530 #3 optimizer
"""


def test_a_loss_and_layers_that_are_computed_again_begin_no_step(parsed: Parse) -> None:
    dataset = parsed(loop(TRAINING, 3))
    assert names(dataset) == ["net"] * 3
    assert set(map(tuple, steps_of_kernels(dataset).values())) == {(None, None, None)}


@pytest.mark.parametrize("cut", ["net.layers.1", "net.head", "CrossEntropyLoss"])
def test_what_is_left_of_a_forward_that_began_before_the_recording_is_no_step(parsed: Parse, cut: str) -> None:
    rest = {
        "net.layers.1": "range 1 10 20 {'Module': 'net.layers.1'}\n",
        "net.head": "range 1 30 40 {'Module': 'net.head'}\n",
        "CrossEntropyLoss": "range 1 50 60 {'Module': 'CrossEntropyLoss'}\n",
    }
    left = [*rest][[*rest].index(cut) :]
    dataset = parsed("".join(rest[one] for one in left) + loop(TRAINING, 2, begin=1000))
    assert names(dataset) == ["net"] * 2


def test_a_recording_that_holds_but_the_rest_of_a_forward_has_no_steps_and_says_so(parsed: Parse) -> None:
    dataset = parsed("""
        range  1 10 20 {'Module': 'net.layers.1'}
        range  1 30 40 {'Module': 'net.layers.2'}
        range  1 50 60 {'Module': 'net.norm'}
        range  1 70 80 {'Module': 'lm_head'}
    """)
    assert names(dataset) == []
    assert losses(dataset) == {"steps_unclear": 4}


def test_a_stage_of_a_pipeline_passes_through_its_layers_in_each_step(parsed: Parse) -> None:
    """Of the first pass only the end was recorded, of the last one only the beginning."""
    forward = """
        range  1  10  20 {'Module': 'net.layers.4'}
        launch 1  21  22 #1
        kernel 1 500 510 #1 between
        range  1  30  40 {'Module': 'net.layers.10'}
        launch 1  31  32 #2
        kernel 1 510 520 #2 inside
        launch 1  50  55 #3
        kernel 1 520 530 #3 behind
        range  9 200 210 {'Module': 'net.layers.10'}
        range  9 220 230 {'Module': 'net.layers.4'}
    """
    cut = "range 1 0 5 {'Module': 'net.layers.10'}\n"
    end = "\nrange 1 9000 9010 {'Module': 'net.layers.4'}"
    dataset = parsed(cut + loop(forward, 2, begin=1000) + end)
    check(
        dataset,
        "steps",
        """
        step_id  name        index  tid  start_ns  end_ns
        0        net.layers  0      1    1010      1040
        1        net.layers  1      1    2010      2040
        2        net.layers  2      1    9000      9010
    """,
    )
    assert steps_of_kernels(dataset) == {"between": [0, 1], "inside": [0, 1], "behind": [None, None]}


def test_chunks_of_layers_that_run_by_turns_are_no_passes(parsed: Parse) -> None:
    """An interleaved schedule: two batches go through the first chunk before one goes through the second."""
    dataset = parsed(
        loop(
            """
            range 1  0 10 {'Module': 'net.layers.0'}
            range 1 20 30 {'Module': 'net.layers.0'}
            range 1 40 50 {'Module': 'net.layers.2'}
            range 1 60 70 {'Module': 'net.layers.2'}
            """,
            3,
        )
    )
    assert names(dataset) == []
    assert losses(dataset) == {"steps_unclear": 12}


@pytest.mark.parametrize(
    ("turns", "steps"),
    [
        ("draft draft draft target", "target"),
        ("D G D D", "G"),
        ("teacher student", "teacher"),
        ("encoder decoder", "encoder"),
    ],
)
def test_of_models_that_run_by_turns_one_leads_that_runs_once_in_each_turn(
    parsed: Parse, turns: str, steps: str
) -> None:
    lines = "\n".join(
        f"range 1 {at * 50} {at * 50 + 40} {{'Module': '{name}'}}" for at, name in enumerate(turns.split())
    )
    assert names(parsed(loop(lines, 3))) == [steps] * 3


@pytest.mark.parametrize(("parts", "expected"), [(0, []), (2, ["target"] * 3)])
def test_where_drafts_differ_in_number_the_much_larger_model_leads_or_none(
    parsed: Parse, parts: int, expected: list[str]
) -> None:
    at, lines = 0, []
    for drafts in (3, 1, 4):
        for name in ["draft"] * drafts + ["target"]:
            lines.append(f"range 1 {at} {at + 40} {{'Module': '{name}'}}")
            inside = range(parts) if name == "target" else ()
            lines += [f"range 1 {at + 5 + one} {at + 6 + one} {{'Module': 'target.fc{one}'}}" for one in inside]
            at += 50
    dataset = parsed("\n".join(lines))
    assert names(dataset) == expected
    assert losses(dataset) == ({} if expected else {"steps_unclear": 11})


def test_replicas_are_one_step(parsed: Parse) -> None:
    """As of DataParallel: each forward has new threads, and the main thread waits for them."""
    dataset = parsed("""
        range  11   0  50 {'Module': 'net'}
        range  12   5  60 {'Module': 'net'}
        launch 12  20  25 #1
        kernel 1  100 110 #1 replica
        launch 12  55  58 #2
        kernel 1  110 120 #2 after-the-first-has-ended
        range  1   70  80 {'Module': 'loss'}
        range  14 101 150 {'Module': 'net'}
        range  13 105 160 {'Module': 'net'}
        launch 14 110 115 #3
        kernel 1  200 210 #3 replica
        range  1  170 180 {'Module': 'loss'}
    """)
    check(
        dataset,
        "steps",
        """
        name  tid  start_ns  end_ns
        net   11   0         50
        net   13   105       160
    """,
    )
    assert steps_of_kernels(dataset) == {"replica": [0, 1], "after-the-first-has-ended": [None]}


def test_threads_that_call_one_model_by_turns_make_a_step_each(parsed: Parse) -> None:
    dataset = parsed("""
        range 1  0  50 {'Module': 'net'}
        range 2 50 100 {'Module': 'net'}
        range 1 110 150 {'Module': 'net'}
        range 3 160 200 {'Module': 'net'}
    """)
    assert names(dataset) == ["net"] * 4


def test_threads_that_each_run_a_loop_of_their_own_make_steps_of_their_own(parsed: Parse) -> None:
    body = "range {0} 0 50 {{'Module': 'net'}}\nrange {0} 60 70 {{'Module': 'loss'}}"
    both = loop(body.format(1), 2) + "\n" + loop(body.format(2), 2, begin=20)
    assert names(parsed(both)) == ["net"] * 4


def test_models_that_run_one_after_the_other_have_steps_each(parsed: Parse) -> None:
    first = loop("range 1 0 50 {'Module': 'small'}", 3)
    second = loop("range 1 0 50 {'Module': 'large'}", 2, begin=5000)
    assert names(parsed(f"{first}\n{second}")) == ["small"] * 3 + ["large"] * 2


def test_where_more_modules_run_by_turns_than_a_loop_has_models_there_are_no_steps(parsed: Parse) -> None:
    body = "\n".join(f"range 1 {at} {at + 5} {{'Module': 'part_{at}'}}" for at in range(0, 90, 10))
    dataset = parsed(loop(body, 2))
    assert names(dataset) == []
    assert losses(dataset) == {"steps_unclear": 18}


def test_parts_of_a_model_that_was_only_captured_lead_no_steps(parsed: Parse) -> None:
    """Nothing is left that could: calls in graph captures begin no iteration, nor do calls of parts of a model."""
    dataset = parsed("""
        launch 1   1   2  #1 cudaStreamBeginCapture_v10000
        range  1   5  50  {'Module': 'top'}
        range  1  10  40  {'Module': 'top.a'}
        launch 1  20  30  #2
        launch 1  60  70  #3 cudaStreamEndCapture_v10000
        range  1 100 140  {'Module': 'top.a'}
        launch 1 110 120  #4
        kernel 1 150 160  #4
    """)
    assert len(dataset.table("steps")) == 0
