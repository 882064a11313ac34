"""Golden tests of phases: ranges that torch writes around backward passes, optimizers, data and compilation."""

import pytest

from tests.golden import Golden, Parse, expect
from tests.graphs.test_clone_chains import CAPTURE, NODES
from tests.trace_lines import repeated
from tracekit.markers.phases import phase_of

#: Two forward passes to one step of the optimizer; thread 2 is autograd's.
TRAINING = """
    range  1   0  20 enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    launch 1   5  10 #1
    memcpy 1  50  60 #1 8
    range  1 100 200 {'Module': 'Net', 'Inputs': [[2]]}
    run    1 120 125 forward
    range  2 220 260 autograd::engine::evaluate_function: MmBackward0, seq = 4, op_id = 7
    run    2 230 240 backward
    range  1 300 400 {'Module': 'Net', 'Inputs': [[2]]}
    run    1 320 325 forward
    run    2 430 440 unmarked
    range  1 500 600 Optimizer.step#AdamW.step
    run    1 510 520 step
    range  1 620 640 Optimizer.zero_grad#AdamW.zero_grad
    run    1 625 630 zero
"""


def test_a_step_goes_from_one_step_of_the_optimizer_to_the_next_and_has_the_work_of_all_threads(parsed: Parse) -> None:
    expect(parsed(repeated(TRAINING, 2)), "steps")("""
        name   kind   index  tid  start_ns  end_ns  compile_ns
        train  train  0      1    0         600     0
        train  train  1      1    600       1600    0
    """)
    expect(parsed(TRAINING), "kernels")("""
        name      phase      module  cause            step_id
        forward   forward    Net     -                0
        forward   forward    Net     -                0
        [CUDA memcpy Host-to-Device]  data  -  data_loading  0
        backward  backward   -       backward         0
        unmarked  -          -       outside_modules  0
        step      optimizer  -       optimizer        0
        zero      optimizer  -       optimizer        -
    """)


def test_a_thread_of_autograd_that_calls_a_module_again_works_for_the_step(parsed: Parse) -> None:
    again = "    range  2 225 255 {'Module': 'Net.layer', 'Inputs': [[2]]}\n"
    kernels = parsed(repeated(TRAINING + again, 2)).kernels(["name", "step_id"])
    assert kernels[kernels.name == "backward"].step_id.tolist() == [0, 1]


def test_optimizers_without_a_call_in_between_end_the_same_step(parsed: Parse) -> None:
    second = TRAINING + "    range 1 700 800 Optimizer.step#AdamW.step"
    assert parsed(repeated(second, 3)).steps().end_ns.tolist() == [800, 1800, 2800]


#: Two optimizers that take turns.
TUNING = """
    range  1 2100 2200 {'Module': 'Net', 'Inputs': [[2]]}
    range  1 2300 2400 Optimizer.step#SGD.step
    range  1 2450 2500 {'Module': 'Net', 'Inputs': [[2]]}
    range  1 2600 2700 Optimizer.step#Adam.step
"""


@pytest.mark.parametrize(("before", "times", "ends"), [(2, 3, [600, 1600, 2700, 3700, 4700]), (0, 1, [2700])])
def test_optimizers_that_take_turns_share_steps_and_later_ones_have_their_own(
    parsed: Parse, before: int, times: int, ends: list[int]
) -> None:
    assert parsed(repeated(TRAINING, before) + "\n" + repeated(TUNING, times)).steps().end_ns.tolist() == ends


def updated(lines: str = "") -> str:
    text = """
        range  1   20   40 enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
        range  1  100  200 {'Module': 'Net', 'Inputs': [[2]]}
        run    1  120  125 forward
        range  1  210  290 Backward 0
        run    1  220  230 backward
        run    1  350  360 update
    """
    changed = [f'range 1 {at}090 {at}090 {{"Training": "after update", "Number": 0}}' for at in (1, 2)]
    return "\n".join([repeated(text, 3), *changed, lines])


def test_without_an_optimizer_a_step_goes_from_one_change_of_the_parameters_to_the_next(parsed: Parse) -> None:
    """It begins with its data, before the call in which the change is seen."""
    dataset = parsed(updated())
    expect(dataset, "steps")("""
        name   kind   index  tid  start_ns  end_ns
        train  train  0      1    100       1020
        train  train  1      1    1020      2020
        train  train  2      1    2020      2290
        """)
    expect(dataset, "kernels")("""
        name      phase     cause            step_id
        forward   forward   -                0
        forward   forward   -                1
        forward   forward   -                2
        backward  backward  backward         0
        update    -         outside_modules  0
        backward  backward  backward         1
        update    -         outside_modules  1
        backward  backward  backward         2
        update    -         outside_modules  -
    """)


def test_evaluation_between_changes_of_the_parameters_is_in_no_step(parsed: Parse) -> None:
    evaluation = """
        range  1 1400 1500 {'Module': 'Net', 'Inputs': [[2]]}
        range  1 2085 2085 {"Training": "after evaluation"}
    """
    expect(parsed(updated(evaluation)), "steps")("""
        name   kind   start_ns  end_ns
        train  train  100       1020
        train  train  1020      1290
        train  train  2020      2290
    """)


def test_models_that_change_at_different_times_make_no_steps(parsed: Parse) -> None:
    dataset = parsed(updated('range 1 1095 1095 {"Training": "after update", "Number": 1}'))
    assert not len(dataset.steps())
    unclear = dataset.coverage().query("cause == 'steps_unclear'")
    assert unclear[["what", "count"]].to_numpy().tolist() == [["calls: losses", 3]]


@pytest.mark.parametrize(("after", "starts"), [((0, 1, 2), [0, 600, 1600]), ((1,), [0, 1300, 1600])])
def test_what_runs_without_gradients_in_every_step_is_part_of_it(
    parsed: Parse, after: tuple[int, ...], starts: list[int]
) -> None:
    """A teacher does; a model that runs so before one step alone is evaluated."""
    marks = "".join(f'\n    range 1 {at}290 {at}290 {{"Training": "after no_grad"}}' for at in after)
    assert parsed(repeated(TRAINING, 3) + marks).steps().start_ns.tolist() == starts


def test_what_runs_while_a_model_is_compiled_is_compilation_wherever_it_does_and_whatever_is_called(
    golden: Golden,
) -> None:
    golden("""
        range  1     0 900 {'Module': 'Net', 'Inputs': [[2]]}
        run    1    10  20 before
        range  1   100 500 dynamo
        range  1   110 490 _compile.compile_inner (dynamo_timed)
        range  1   120 400 aten::mm, op_id = 3
        run    1   150 160 autotuned
        range  1   600 650 TorchDynamo Cache Lookup
        run    1   610 620 after
        range  2   480 700 compile_file (dynamo_timed), op_id = 9
        range  8/1   0 900 dynamo
        range  8/1 100 500 {'Module': 'Net', 'Inputs': [[2]]}
        run    8/1 200 210 in-call
        range  8/1 600 700 Optimizer.zero_grad#AdamW.zero_grad
        run    8/1 670 680 in-phase
        => kernels
        name       phase    module  method  cause        step_id
        before     forward  Net     range   -            0
        after      forward  Net     range   -            0
        autotuned  compile  -       -       compilation  -
        in-call    compile  -       -       compilation  -
        in-phase   compile  -       -       compilation  -
    """)


def test_what_a_graph_replays_while_a_model_is_compiled_is_the_modules(parsed: Parse) -> None:
    replay = """
        range     1 200 260 dynamo
        launch    1 210 220 #7 cudaGraphLaunch_v10000
        kernel!11 1 300 310 #7 replayed
    """
    expect(parsed(CAPTURE + NODES + replay), "kernels")("name  module  method\nreplayed  top.a  graph_node")


def test_where_ranges_are_nodes_compiling_is_one_of_them(parsed: Parse) -> None:
    dataset = parsed("range 1 0 900 my step\nrange 1 100 500 dynamo\nrun 1 200 210 tuned")
    expect(dataset, "kernels")("name  phase  module  method\ntuned  compile  my step.dynamo  range")


def test_the_time_of_compilation_counts_once_on_all_threads(parsed: Parse) -> None:
    dataset = parsed("""
        range 1   0 600 {'Module': 'Net', 'Inputs': [[2]]}
        range 1 100 500 dynamo
        range 1 110 490 _compile.compile_inner (dynamo_timed)
        range 2 480 700 compile_file (dynamo_timed)
    """)
    assert dataset.steps().compile_ns.tolist() == [500]
    told = dataset.coverage().query("what == 'processes'")
    assert told[["cause", "count", "time_ns"]].to_numpy().tolist() == [["compilation", 1, 600]]


@pytest.mark.parametrize(
    "text",
    [
        *("Optimizer.step", "dynamo_timed", "TorchDynamo Cache Lookup"),
        *('{"Training": "for fun"}', '{"Optimizer": "SGD", "Number": "0"}'),
    ],
)
def test_texts_that_only_look_like_a_phase_tell_none(text: str) -> None:
    assert phase_of(text) is None
