"""Operators of torch and PyProf: what their texts tell, and which of them launched each kernel."""

import pytest

from tests.golden import Golden, Parse, expect
from tracekit.trace.decoding import decode
from tracekit.trace.operators import Operator, operators_of


def read(text: str) -> tuple[str, object, int] | None:
    operators = operators_of([text], decode([text]))
    row, number = int(operators.of_text[0]), int(operators.number[0])
    return (*operators.distinct[row][:2], number) if row >= 0 else None


@pytest.mark.parametrize(
    ("text", "name", "inputs", "number"),
    [
        ("aten::addmm", "aten::addmm", None, -1),
        ("aten::addmm, seq = -1, op_id = 3", "aten::addmm", None, -1),
        ("aten::copy_, op_id = 990350", "aten::copy_", None, -1),
        ("aten::mm, seq = 4, op_id = 7, sizes = [[8, 2], [4]], input_op_ids = [(6,0)]", "aten::mm", ((8, 2), (4,)), 4),
        ("AddBackward0, seq = 118", "AddBackward0", None, 118),
        ("autograd::engine::evaluate_function: Mm0, seq = 7", "autograd::engine::evaluate_function: Mm0", None, 7),
        ("Optimizer.step#SGD.step", "Optimizer.step#SGD.step", None, -1),
        ("AllToAll4D, seq = 45440, op_id = 8", "AllToAll4D", None, 45440),
        ("aten::addmm, seq = 99999999999999999999", "aten::addmm", None, -1),
        # Cut off, or more than can be read.
        ("aten::mm, seq = 4, sizes = [[8, 16", "aten::mm", None, 4),
        ("aten::mm, sizes = [[8, 16], [-3]]", "aten::mm", None, -1),
        (
            "{'mod': 'torch', 'op': 'norm', 'args': [{'name': '', 'type': 'tensor', 'shape': (8, 2), 'dtype': ''}]}",
            "torch.norm",
            ((8, 2),),
            -1,
        ),
    ],
)
def test_the_text_of_an_operator_tells_name_shapes_and_number(
    text: str, name: str, inputs: object, number: int
) -> None:
    assert read(text) == (name, inputs, number)


@pytest.mark.parametrize(
    ("text", "inputs", "types"),
    [
        ('aten::mm, seq = 4, sizes = [[8], []], types = ["float32", ""]', ((8,), ()), ("float32", "")),
        ('aten::mm, sizes = [[8], []], types = ["float32", 3]', ((8,), ()), None),
        ('aten::mm, sizes = [[8], []], types = ["float32"', None, None),
    ],
)
def test_the_text_of_an_operator_may_tell_dtypes(text: str, inputs: object, types: object) -> None:
    assert operators_of([text], decode([text])).distinct == [Operator("aten::mm", inputs, types)]


@pytest.mark.parametrize(
    "text",
    [
        *("Backward pass", "computing softmax", "cub::DeviceReduce::Sum", "Backward", "", "forward, step 3"),
        *("prefill, seq = 512, bs = 4", "warm up, op_id = 3 of 4"),
        *("prefill, seq=512", "batch, sizes = [3, 4]", "{'Module': 'top', 'note': ', seq = 4'}", "layer, seq = first"),
        *("{'traceMarker': ['train.py:3']}", "iteration 17, op_id = 5", "FSDP::pre_forward (blocks.3), op_id = 8"),
    ],
)
def test_other_texts_are_no_operators(text: str) -> None:
    assert read(text) is None


def test_releases_before_1_3_write_no_blanks_around_the_number() -> None:
    texts = "addmm, seq=12", "AddmmBackward, stashed seq=12"
    operators = operators_of(texts, decode(texts))
    assert [operators.distinct[row].name for row in operators.of_text[:-1]] == ["addmm", "AddmmBackward"]
    assert operators.number[:-1].tolist() == [12, 12]


def test_labels_of_a_user_that_torch_numbers_are_plain_ranges(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0  100 my iteration 4, op_id = 1
        range  1  10   90 aten::mm, op_id = 2
        run    1  20   30 gemm
        range  1 200  300 my iteration 5, op_id = 3
        run    1 220  230 copy
        """)
    expect(dataset, "modules")("path  kind\nmy iteration *  range\nmy iteration *.aten::mm  operator")
    expect(dataset, "kernels")("""
        name  op        step_id
        copy  -         1
        gemm  aten::mm  0
    """)


EAGER = """
    range  1   0 1000 {'Module': 'top'}
    range  1  10  500 aten::linear, seq = 3, op_id = 1, sizes = [[2, 4], [8, 4], [8]]
    range  1  20  200 aten::addmm, seq = 3, op_id = 2, sizes = [[8], [2, 4], [4, 8], [], []]
    run    1  50   60 gemm
    run    1 300  310 bias
    range  1 600  700 aten::relu
    range  1 610  690 my own range
    run    1 620  630 relu
    run    1 800  810 other
    range  2   0 900 autograd::engine::evaluate_function: AddmmBackward0, seq = 3, op_id = 9
    run    2 100  110 backward
"""


@pytest.mark.parametrize("by", ["modules", "ranges", "operators"])
def test_work_has_the_innermost_operator_around_its_launch_whatever_the_hierarchy_is(parsed: Parse, by: str) -> None:
    dataset = parsed(EAGER, rows=by)
    kernels = dataset.table("kernels", ["name", "op", "op_shapes", "op_seq"]).to_pylist()
    assert sorted(map(tuple, map(dict.values, kernels)), key=str) == [
        ("backward", "autograd::engine::evaluate_function: AddmmBackward0", None, 3),
        ("bias", "aten::linear", "[[2, 4], [8, 4], [8]]", 3),
        ("gemm", "aten::addmm", "[[8], [2, 4], [4, 8], [], []]", 3),
        ("other", None, None, None),
        ("relu", "aten::relu", None, None),
    ]
    markers = dataset.table("ranges", ["marker"]).column("marker").to_pylist()
    assert markers == ["module", "operator", "operator", "operator", None, "operator"]


def test_replayed_work_has_the_operator_of_its_graph_capture(golden: Golden) -> None:
    golden("""
        range     1   0  100 aten::mm, seq = 1, op_id = 1, sizes = [[2, 2], [2, 2]]
        launch    1  10   20 #1 cudaLaunchKernel
        node!9    1  15   15
        range     1 200  300 aten::replay, op_id = 2
        launch    1 210  220 #2 cudaGraphLaunch
        kernel!10 1 230  240 #2 gemm
        node!10   1 110  110 9
        kernel!77 1 240  250 #2 unknown
        => kernels
        name     op        op_shapes         op_seq
        gemm     aten::mm  [[2, 2], [2, 2]]  1
        unknown  -         -                 -
    """)


def test_operators_on_a_cpu_name_themselves(golden: Golden) -> None:
    golden("""
        range 1  0 100 {'Module': 'top'}
        range 1 10  50 aten::mm, seq = 7, op_id = 1, sizes = [[2, 4], [4, 8]]
        op    1 10  50 aten::mm
        op    1 20  30 aten::resize_
        op    1 60  70 aten::relu
        => kernels
        name           op             op_shapes         op_seq
        aten::mm       aten::mm       [[2, 4], [4, 8]]  7
        aten::resize_  aten::resize_  -                 -
        aten::relu     aten::relu     -                 -
    """)


def test_an_operator_that_never_ended_launches_nothing_for_certain(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0    - aten::mm, seq = 7
        run    1  10   20 gemm
    """)
    expect(dataset, "kernels")("name  op\ngemm  -")


@pytest.mark.parametrize("by", ["ranges", "operators"])
def test_operators_inside_leave_the_phase_of_a_backward_node(parsed: Parse, by: str) -> None:
    lines = """
        range  1   0  100 autograd::engine::evaluate_function: MmBackward0, op_id = 5
        range  1  10   90 aten::mm, op_id = 2
        run    1  20   30 gemm
        range  1 200  300 aten::add, op_id = 9
        run    1 210  220 add
    """
    expect(parsed(lines, rows=by), "kernels")("""
        name  op         phase
        gemm  aten::mm   backward
        add   aten::add  -
    """)


PYPROF = """
    range  1   0  500 {'traceMarker': ['/home/me/run.py:9', '/home/me/net.py:20', 'C:\\\\torch\\\\linear.py:50']}
    range  1  10  490 {'mod': 'torch', 'op': 'linear', 'args': [{'name': '', 'type': 'tensor', 'shape': (8, 2)}]}
    range  1  20  480 {'traceMarker': ['/home/me/run.py:9', '/home/me/net.py:20', 'C:\\\\torch\\\\linear.py:50', \
'/x/pyprof/nvtx/nvmarker.py:95', '/x/functional.py:7']}
    range  1  30  470 {'mod': 'torch', 'op': 'matmul', 'args': []}
    range  1  40  460 mm, seq = 5
    run    1  50   60 gemm
    run    1 484  486 bias
    range  1 600  700 {'traceMarker': ['/home/me/run.py:9', '/home/me/net.py:21']}
    range  1 610  690 {'mod': 'LSTM', 'strRepr': '200, 200'}
    run    1 620  630 rnn
"""


def test_lines_of_call_stacks_are_nodes_each_inside_the_one_that_called_it(parsed: Parse) -> None:
    dataset = parsed(PYPROF)
    stack = "run.py:9.net.py:20.linear.py:50"
    expect(dataset, "modules")(f"""
        depth  path                                                        name             kind
        0      run.py:9                                                    run.py:9         range
        1      run.py:9.net.py:20                                          net.py:20        range
        2      {stack}                                                     linear.py:50     range
        3      {stack}.torch.linear                                        torch.linear     operator
        4      {stack}.torch.linear.functional.py:7                        functional.py:7  range
        5      {stack}.torch.linear.functional.py:7.torch.matmul           torch.matmul     operator
        6      {stack}.torch.linear.functional.py:7.torch.matmul.mm        mm               operator
        1      run.py:9.net.py:21                                          net.py:21        range
        2      run.py:9.net.py:21.LSTM(200, 200)                           LSTM(200, 200)   operator
    """)
    expect(dataset, "kernels")(f"""
        name  module                                                op              op_shapes  op_seq
        bias  {stack}.torch.linear                                  torch.linear    [[8, 2]]   -
        gemm  {stack}.torch.linear.functional.py:7.torch.matmul.mm  mm              -          5
        rnn   run.py:9.net.py:21.LSTM(200, 200)                     LSTM(200, 200)  -          -
    """)
    assert dataset.manifest["hierarchy"]["by"] == "operators"


def test_files_of_one_name_are_told_apart_by_their_folders(parsed: Parse) -> None:
    dataset = parsed(r"""
        range  1   0 100 {'traceMarker': ['/me/train.py:9', '/me/models/net/__init__.py:20']}
        range  1 200 300 {'traceMarker': ['/me/train.py:9', '/me/data/net/__init__.py:20']}
        range  1 400 500 {'traceMarker': ['C:\\me\\other.py:9', '/me/data/net/__init__.py:21']}
    """)
    expect(dataset, "modules")("""
        path                                     name
        train.py:9                               train.py:9
        train.py:9.models/net/__init__.py:20     models/net/__init__.py:20
        train.py:9.data/net/__init__.py:20       data/net/__init__.py:20
        other.py:9                               other.py:9
        other.py:9.data/net/__init__.py:21       data/net/__init__.py:21
    """)
    assert {*dataset.table("calls", ["phase"])["phase"].to_pylist()} == {None}
