"""Sequence numbers of autograd: whose node it is that runs, and where that is not certain."""

from tests.golden import Parse, expect

NODE = "autograd::engine::evaluate_function:"
OF_RANGES = f"""
    range  1    0 100 Forward pass
    range  1   11  15 aten::linear, seq = 3, op_id = 1
    range  1   12  14 aten::addmm, seq = 3, op_id = 2
    run    1   12  13 addmm
    range  1   31  35 aten::mul, seq = 4, op_id = 3
    range  1   41  45 aten::argmax, seq = 5, op_id = 4
    run    1   42  43 of-no-node
    range  1  190 300 Backward pass
    range  1  210 219 {NODE} MulBackward0, seq = 4, op_id = 7
    run    1  212 213 of-mul
    range  2  220 229 {NODE} AddmmBackward0, seq = 3, op_id = 8
    range  2  221 228 aten::mm, op_id = 9
    run    2  222 223 of-addmm
    range  2  230 239 {NODE} LateBackward0, seq = 99, op_id = 10
    run    2  232 233 not-recorded
"""


def test_where_ranges_are_nodes_numbers_tell_phase_and_operator_in_the_range_that_is_open_or_waits(
    parsed: Parse,
) -> None:
    dataset = parsed(OF_RANGES)
    expect(dataset, "kernels")(f"""
        name          module                                           method           phase
        addmm         Forward pass.aten::linear.aten::addmm            range            forward
        of-no-node    Forward pass.aten::argmax                        range            -
        of-mul        Backward pass.aten::mul                          backward         backward
        of-addmm      Backward pass.aten::linear.aten::addmm.aten::mm  backward         backward
        not-recorded  Backward pass.{NODE} LateBackward0               autograd_thread  backward
    """)
    expect(dataset, "calls")(f"""
        module                                           phase     parent_call_id  gpu_time_ns
        Forward pass                                     -         -               20
        Forward pass.aten::linear                        -         0               10
        Forward pass.aten::linear.aten::addmm            -         1               10
        Forward pass.aten::mul                           -         0               0
        Forward pass.aten::argmax                        -         0               10
        Backward pass                                    -         -               30
        Backward pass.aten::mul                          backward  5               10
        Backward pass.aten::linear.aten::addmm           backward  5               10
        Backward pass.aten::linear.aten::addmm.aten::mm  backward  7               10
        Backward pass.{NODE} LateBackward0               -         5               10
    """)


def test_where_operators_are_nodes_an_evaluation_is_a_backward_call_of_the_operator_that_made_the_node(
    parsed: Parse,
) -> None:
    dataset = parsed(OF_RANGES, rows="operators")
    expect(dataset, "kernels")(f"""
        name          module                           method    phase
        addmm         aten::linear.aten::addmm         range     forward
        of-addmm      aten::linear.aten::addmm.aten::mm  backward  backward
        of-mul        aten::mul                        backward  backward
        of-no-node    aten::argmax                     range     -
        not-recorded  {NODE} LateBackward0             range     backward
    """)


def test_a_node_is_of_the_operator_that_surely_made_it(parsed: Parse) -> None:
    custom = f"{NODE} torch::autograd::CppNode<Lookup>"
    dataset = parsed(f"""
        range  1   10  20 {{'Module': 'a'}}   ## custom operators in C: not that of what ran before it
        range  1   11  19 fbgemm::lookup, seq = 3, op_id = 1
        range  1   12  13 aten::zero_, seq = 3, op_id = 2
        range  1   30  40 {{'Module': 'b'}}
        range  1   31  32 aten::detach, seq = 4, op_id = 3
        range  2   50  59 {custom}, seq = 4, op_id = 4
        run    2   52  53 of-nobody
        range  2   60  69 {custom}, seq = 3, op_id = 5
        run    2   62  63 of-lookup
        range  7/1 10  20 {{'Module': 'a'}}   ## what changes a view: CopySlices, and the view has a new node
        range  7/1 11  12 aten::mul_, seq = 3, op_id = 1
        range  7/1 13  14 aten::exp, seq = 6, op_id = 2
        range  7/1 15  16 aten::sub_, seq = 7, op_id = 3
        range  7/1 30  40 {{'Module': 'b'}}
        range  7/1 31  32 aten::sin, seq = 10, op_id = 4
        range  7/2 50  59 {NODE} AsStridedBackward0, seq = 9, op_id = 5
        run    7/2 52  53 of-view
        range  7/2 60  69 {NODE} torch::autograd::CopySlices, seq = 8, op_id = 6
        range  7/2 61  68 torch::autograd::CopySlices, seq = 8, op_id = 7
        run    7/2 62  63 copies
        range  7/2 64  67 SubBackward0, seq = 7, op_id = 8
        run    7/2 65  66 of-sub
        range  8/1 10  20 {{'Module': 'a'}}   ## the node of a function comes after those of its inputs
        range  8/1 11  12 Scale, seq = 3, op_id = 1
        range  8/1 30  40 {{'Module': 'b'}}
        range  8/1 31  32 aten::sin, seq = 5, op_id = 2
        range  8/2 50  59 {NODE} ScaleBackward, seq = 4, op_id = 3
        run    8/2 52  53 of-function
        range  9/1 10  14 {{'Module': 'a'}}   ## a thread whose numbers fall is another one with its id
        range  9/1 11  12 aten::mul, seq = 0, op_id = 1
        range  9/1 12  13 aten::exp, seq = 1, op_id = 2
        range  9/1 20  24 {{'Module': 'b'}}
        range  9/1 21  22 aten::mul, seq = 0, op_id = 3
        range  9/1 22  23 aten::sin, seq = 1, op_id = 4
        range  9/3 30  39 {NODE} MulBackward0, seq = 0, op_id = 5
        run    9/3 32  33 of-either
        range  9/3 40  49 {NODE} SinBackward0, seq = 1, op_id = 6
        run    9/3 42  43 of-sin
    """)
    expect(dataset, "kernels")("""
        name         module  method    cause
        of-function  a       backward  -
        of-lookup    a       backward  -
        copies       a       backward  -
        of-sub       a       backward  -
        of-sin       b       backward  -
        of-either    -       -         backward
        of-nobody    -       -         backward
        of-view      -       -         backward
    """)


def test_releases_without_evaluations_tell_the_number_at_the_function_of_a_node(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   10  20 {'Module': 'a'}
        range  1   11  12 t, seq=2
        range  1   12  14 addmm, seq=3
        range  1   30  40 {'Module': 'b'}
        range  1   32  34 relu, seq=4
        range  2   50  59 ReluBackward1, stashed seq=4
        run    2   52  53 of-b
        range  2   60  69 AddmmBackward, stashed seq=3
        range  2   62  67 mm, seq=0
        run    2   63  64 of-a
        range  2   70  79 TBackward, stashed seq=2
    """)
    expect(dataset, "kernels")("name  module  method  phase\nof-a  a  backward  backward\nof-b  b  backward  backward")
    expect(dataset, "calls")("module  phase\na  forward\na  backward\nb  forward\nb  backward")


def test_a_pass_ends_where_the_forward_pass_goes_on(parsed: Parse) -> None:
    dataset = parsed(f"""
        range  1   10  20 {{'Module': 'a'}}
        range  1   11  12 aten::mul, seq = 3, op_id = 1
        range  1   13  14 aten::exp, seq = 4, op_id = 2
        range  2   30  39 {NODE} ExpBackward0, seq = 4, op_id = 3
        range  2   40  49 {NODE} torch::autograd::AccumulateGrad, op_id = 4
        range  2   50  59 {NODE} MulBackward0, seq = 3, op_id = 5
        range  1   60  61 aten::ones_like, op_id = 6
        range  2   70  79 {NODE} ExpBackward0, seq = 4, op_id = 7
    """)
    expect(dataset, "calls")("""
        module  phase     occurrence  start_ns  end_ns
        a       forward   1           10        20
        a       backward  1           30        59
        a       backward  2           70        79
    """)
