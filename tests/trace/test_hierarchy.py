"""Golden tests of the hierarchy: where modules stand, whatever their markers say."""

from tests.golden import Golden, Parse, expect


def test_a_module_called_at_several_shapes_is_one_module_of_many_calls(parsed: Parse) -> None:
    dataset = parsed("""
        range  1   0  10 {'Module': 'top', 'TrainableParams': {'w': [4, 2]}, 'Inputs': [[8, 2]]}
        range  1  20  30 {'Module': 'top', 'TrainableParams': {'w': [4, 2]}, 'Inputs': [[1, 2]], 'mask': [[1]]}
        range  1  40  50 {'Module': 'top', 'TrainableParams': {'w': [4, 2]}, 'Inputs': [[8, 2]]}
    """)
    expect(dataset, "calls")("""
        call_id  module  occurrence  phase    start_ns  inputs    kwargs
        0        top     1           forward  0         [[8, 2]]  []
        1        top     2           forward  20        [[1, 2]]  [('mask', [[1]])]
        2        top     3           forward  40        [[8, 2]]  []
    """)
    expect(dataset, "modules")("path  params\ntop  [{'name': 'w', 'shape': [4, 2], 'dtype': None}]")


def test_a_root_without_a_name_gets_one_and_its_modules_stand_below(golden: Golden) -> None:
    golden("""
        range  1   0 100 {'Module': ''}
        range  1  10  50 {'Module': 'layers.0'}
        range  1  20  40 {'Module': 'layers.0.mlp'}
        => modules
        path                 name    alias_of
        (root)               (root)  -
        (root).layers        layers  -
        (root).layers.0      0       -
        (root).layers.0.mlp  mlp     -
    """)


def test_a_compiled_region_stands_below_its_caller_under_its_class(golden: Golden) -> None:
    golden("""
        range  1   0 100 {'Module': 'top.model', 'Inputs': [[8]]}
        range  1  10  50 Torch Compiled Module (input):LlamaModel
        run    1  20  25 triton
        range  1  52  53 Torch Compiled Module (output):LlamaModel
        range  1  60  90 Torch Compiled Module (input):LlamaModel
        range  1  70  75 {'Module': 'top.model.layers.0.attn'}
        range  1  80  85 {'Module': 'top.model.layers.1.attn'}
        => modules
        path                                class_name  alias_of
        top                                 -           -
        top.model                           -           -
        top.model.LlamaModel                LlamaModel  -
        top.model.LlamaModel.layers         -           -
        top.model.LlamaModel.layers.0       -           -
        top.model.LlamaModel.layers.0.attn  -           top.model.layers.0.attn
        top.model.LlamaModel.layers.1       -           -
        top.model.LlamaModel.layers.1.attn  -           top.model.layers.1.attn
    """)


def test_siblings_stand_in_the_order_of_their_first_calls_on_any_thread(golden: Golden) -> None:
    golden("""
        range  1/1   0 900 {'Module': 'top'}
        range  1/1 500 600 {'Module': 'top.late'}
        range  1/2 300 400 {'Module': 'top.middle'}
        range  2/1 100 200 {'Module': 'top.early'}
        range  2/1 700 800 {'Module': 'first'}
        range  2/1  -9  -5 {'Module': 'first.below'}
        => modules
        module_id  path
        0          first
        1          first.below
        2          top
        3          top.early
        4          top.middle
        5          top.late
    """)


def test_numbered_layers_of_stages_stand_by_their_numbers_and_those_of_one_process_as_it_calls_them(
    parsed: Parse,
) -> None:
    """The recording may begin while a later stage is at work."""
    stages = parsed("""
        range  1/1 500 600 {'Module': 'top.layers.0'}
        range  1/1 700 800 {'Module': 'top.layers.1'}
        range  2/1 100 200 {'Module': 'top.layers.2'}
        range  2/1 300 400 {'Module': 'top.layers.10'}
    """)
    assert stages.modules().name.tolist() == ["top", "layers", "0", "1", "2", "10"]
    backwards = parsed("range 1 10 20 {'Module': 'up.2'}\nrange 1 30 40 {'Module': 'up.1'}")
    assert backwards.modules().name.tolist() == ["up", "2", "1"]
