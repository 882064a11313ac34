"""Forward, backward, recomputation and optimizer side by side, beside the trace that they answer for."""

from tests.answers.golden import check
from tests.command import command
from tests.golden import Parse, expect_frame
from tracekit.aggregates.phase_times import COLUMNS, outside, phase_times
from tracekit.dataset.opening import Dataset

#: A training step: the layer is recomputed in the backward pass, in which an optimizer of its own takes a step, too.
TRAINING = """
    range  1    0   20  enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    launch 1    5   10  #1
    memcpy 1   10   17  #1 8
    range  1  100  200  {"Module": "top", "Class": "Net", "Inputs": [[2, 3]]}
    launch 1  102  104  #2
    kernel 1  110  113  #2 norm
    range  1  110  150  {"Module": "top.0", "Class": "Layer", "Inputs": [[2, 3]]}
    launch 1  120  130  #3
    kernel 1  130  140  #3 gemm
    range  1  160  190  {"Module": "top.1", "Class": "Layer", "Inputs": [[2, 3]]}
    launch 1  165  170  #4
    kernel 1  170  180  #4 gemm
    range  1  210  220  loss
    launch 1  212  214  #5
    kernel 1  220  221  #5 loss
    range  2  300  500  {"Module": "top", "Class": "Net", "Phase": "backward"}
    range  2  310  350  {"Module": "top.1", "Class": "Layer", "Phase": "backward"}
    launch 2  320  330  #6
    kernel 1  330  350  #6 gemm_backward
    range  2  360  480  {"Module": "top.0", "Class": "Layer", "Phase": "backward"}
    range  2  370  400  {"Module": "top.0", "Class": "Layer", "Inputs": [[2, 3]], "Phase": "recompute"}
    launch 2  375  380  #7
    kernel 1  380  391  #7 gemm
    launch 2  410  420  #8
    kernel 1  420  442  #8 gemm_backward
    range  2  450  470  Optimizer.step#SGD.step
    launch 2  455  460  #9
    kernel 1  460  465  #9 sgd
    range  2  510  530  autograd::engine::evaluate_function: torch::autograd::AccumulateGrad
    launch 2  515  520  #10
    kernel 1  520  524  #10 add
    range  1  600  700  Optimizer.step#SGD.step
    launch 1  610  620  #11
    kernel 1  620  650  #11 sgd
"""


def test_times_of_modules_by_phase_are_their_own(parsed: Parse) -> None:
    times = phase_times(parsed(TRAINING))
    own = [times[name].tolist() for name in COLUMNS]
    assert own == [[3, 10, 10], [0, 22, 20], [0, 11, 0], [0, 5, 0], [0, 0, 0]]


PHASES = "forward_ns  backward_ns  recompute_ns  optimizer_ns  other_ns"


def test_answers_have_times_by_phase(parsed: Parse) -> None:
    check(
        parsed,
        f"""{TRAINING}
      modules:
        path   calls  self_ns  subtree_ns  {PHASES}
        top    2      3        81          23  42  11  5  0
        top.0  3      48       48          10  22  11  5  0
        top.1  2      30       30          10  20  0   0  0
      tree: a line of folded layers has the phases of all
        label  subtree_ns  {PHASES}
        top    81          23  42  11  5  0
        0 … 1  78          20  42  11  5  0
      shapes: calls of a shape have the phases of the work in them
        path   phase      calls  gpu_time_ns  {PHASES}
        top    backward   1      47           0   42  0   5  0
        top.0  backward   1      27           0   22  0   5  0
        top    forward    1      23           23  0   0   0  0
        top.1  backward   1      20           0   20  0   0  0
        top.0  recompute  1      11           0   0   11  0  0
        top.0  forward    1      10           10  0   0   0  0
        top.1  forward    1      10           10  0   0   0  0
    """,
    )


def test_work_outside_modules_has_its_cause_and_phase(parsed: Parse) -> None:
    expect_frame(outside(parsed(TRAINING)))(f"""
        cause            kernels  self_ns  {PHASES}         share
        optimizer        1        30       0  0  0   30  0  0.2439
        data_loading     1        7        0  0  0   0   7  0.05691
        backward         1        4        0  4  0   0   0  0.03252
        outside_modules  1        1        0  0  0   0   1  0.00813
    """)


FORWARD = """
    range  1  100  200  {"Module": "top", "Class": "Net", "Inputs": [[2, 3]]}
    launch 1  102  104  #2
    kernel 1  110  113  #2 norm
    launch 1  210  220  #3
    kernel 1  220  223  #3 sampling
"""


def shown(name: str, dataset: Dataset, *args: str) -> list[str]:
    lines = command("show", name, dataset.folder, *args).out.splitlines()
    return [" ".join(line.split()) for line in lines if line.strip()]


def test_the_tree_of_a_training_has_columns_of_phases_and_rows_of_work_outside(parsed: Parse) -> None:
    dataset = parsed(TRAINING)
    lines = shown("tree", dataset)
    assert lines[:1] + lines[2:] == [
        "module subtree forward backward recompute optimizer GPU share",
        "top Net 81 ns 23 ns 42 ns 11 ns 5 ns 65.9 %",
        "0 … 1 2 x 78 ns 20 ns 42 ns 11 ns 5 ns 63.4 %",
        "(optimizer) 30 ns 30 ns 24.4 %",
        "(data_loading) 7 ns 5.7 %",
        "(backward) 4 ns 4 ns 3.3 %",
        "(outside_modules) 1 ns 0.8 %",
    ]
    assert not any("(" in line for line in shown("tree", dataset, "--path", "top"))
    assert sum("(" in line for line in shown("tree", dataset, "--min-share", "5%")) == 2
    assert not any("(" in line for line in shown("tree", dataset, "--top", "1"))


def test_a_recording_of_forward_passes_alone_shows_no_phases(parsed: Parse) -> None:
    dataset = parsed(FORWARD)
    assert shown("tree", dataset)[0] == "module calls self subtree GPU share"
    for name in ("tree", "modules", "classes", "shapes"):
        words = " ".join(shown(name, dataset)).split()
        assert not {"forward_ns,", "backward", "optimizer", "other", "(outside_modules)"} & set(words)
        assert set(COLUMNS) < set(command("show", name, dataset.folder, "--csv").out.splitlines()[0].split(","))
