"""Each formula against torch's own count of the same call, on layers of any size, and on what no layer could be."""

import importlib
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.needs import require
from tracekit.flops.kernels import CPU_ATTENTIONS, Work, kind_of
from tracekit.flops.layers import FORMULAS, Call, Unknown, flops_of
from tracekit.flops.operators import operator

require("torch")
torch = importlib.import_module("torch")
nn = torch.nn

pytestmark = pytest.mark.torch
SIZE = st.integers(1, 5)


def counted(run: Any, *args: Any, **kwargs: Any) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run(*args, **kwargs)
    return counter.get_total_flops()


def marked_call(module: Any, *args: Any, out: bool = True, **kwargs: Any) -> Call:
    from tracekit.capture.marks import settings_of

    returned = module(*args, **kwargs)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    return Call(
        class_name=type(module).__name__,
        params={name: list(one.shape) for name, one in module.named_parameters(recurse=False)},
        settings=json.loads(json.dumps(settings_of(module))),
        inputs=[list(one.shape) for one in args],
        outputs=[list(one.shape) for one in outputs if one is not None] if out else None,
        kwargs={name: [list(one.shape)] for name, one in kwargs.items() if hasattr(one, "shape")},
    )


def call(class_name: str | None = None, **fields: Any) -> Call:
    nothing: dict[str, Any] = {"params": {}, "settings": {}, "inputs": None, "outputs": None, "kwargs": {}}
    return Call(class_name, **(nothing | fields))


@settings(deadline=None)
@given(rows=st.lists(st.integers(0, 4), max_size=3), width=SIZE, out=SIZE, bias=st.booleans(), tell=st.booleans())
def test_a_linear(rows: list[int], width: int, out: int, *, bias: bool, tell: bool) -> None:
    layer, x = nn.Linear(width, out, bias=bias), torch.zeros(*rows, width)
    assert flops_of(marked_call(layer, x, out=tell)) == counted(layer, x)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_a_convolution(data: st.DataObject) -> None:
    draw = data.draw
    dimensions, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    stride, dilation, width = (tuple(draw(st.integers(1, 3)) for _ in range(dimensions)) for _ in range(3))
    transposed = draw(st.booleans())
    ways = [st.integers(0, 2), st.just("valid")] + [st.just("same")] * (set(stride) == {1})
    padding = draw(st.integers(0, 1) if transposed else st.one_of(ways))
    kind = f"{'ConvTranspose' if transposed else 'Conv'}{dimensions}d"
    options = {"stride": stride, "dilation": dilation, "groups": groups, "padding": padding}
    channels = (groups * draw(st.integers(1, 2)) for _ in range(2))
    layer = getattr(nn, kind)(*channels, width, bias=draw(st.booleans()), **options)
    batch = draw(st.sampled_from([(), (1,), (2,)]))
    x = torch.zeros(*batch, layer.in_channels, *(draw(st.integers(7, 9)) for _ in range(dimensions)))
    assert flops_of(marked_call(layer, x)) == counted(layer, x)
    assert transposed or isinstance(flops_of(marked_call(layer, x, out=False)), Unknown)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_multihead_attention(data: st.DataObject) -> None:
    draw = data.draw
    heads = draw(st.integers(1, 3))
    width = heads * draw(st.integers(1, 3))
    kdim, vdim = draw(st.sampled_from([(None, None), (5, 7), (width, 4)]))
    flags = {name: draw(st.booleans()) for name in ("batch_first", "bias", "add_bias_kv", "add_zero_attn")}
    layer = nn.MultiheadAttention(width, heads, kdim=kdim, vdim=vdim, **flags)
    batch = draw(st.sampled_from([None, 1, 3]))

    def tensor(length: int, size: int) -> Any:
        shape = [length] if batch is None else [batch, length] if layer.batch_first else [length, batch]
        return torch.zeros(*shape, size)

    queries, keys = draw(SIZE), draw(SIZE)
    query, key, value = (tensor(queries, width), tensor(keys, kdim or width), tensor(keys, vdim or width))
    assert flops_of(marked_call(layer, query, key, value)) == counted(layer, query, key, value)
    assert flops_of(marked_call(layer, query, value=value, key=key)) == counted(layer, query, key, value)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.GELU(), (2, 3)),
        (nn.LayerNorm(3), (2, 3)),
        (nn.BatchNorm2d(3), (2, 3, 4, 4)),
        (nn.Softmax(-1), (2, 3)),
        (nn.MaxPool1d(2), (2, 3, 4)),
        (nn.PixelShuffle(2), (1, 4, 3, 3)),
        (nn.Unfold(2), (1, 2, 4, 4)),
        (nn.Upsample(scale_factor=2), (1, 2, 4)),
        (nn.LPPool1d(2, 2), (1, 2, 4)),
        (nn.PReLU(), (2, 3)),
    ],
)
def test_layers_without_products_cost_nothing(layer: Any, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    assert flops_of(marked_call(layer, x)) == counted(layer, x) == 0


def test_every_class_that_is_said_to_cost_nothing_is_one_of_torch_or_of_an_engine() -> None:
    others = {name for name in FORMULAS if name and flops_of(call(name)) == 0 and not hasattr(nn, name)}
    assert {name for name in others if name[-2:] not in ("1d", "2d", "3d")} == {"VocabParallelEmbedding"}


WEIGHT = {"weight": [6, 4]}
PACKED = {"qweight": [1, 6], "scales": [1, 6], "qzeros": [1, 1]}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"params": WEIGHT, "inputs": [[3, 4]], "outputs": [[3, 6]]}, 2 * 3 * 4 * 6),
        # fp8 weights are kept the other way round
        ({"params": {"weight": [4, 6], "weight_scale": [1]}, "inputs": [[3, 4]], "outputs": [[3, 6]]}, 2 * 3 * 4 * 6),
        ({"params": PACKED, "inputs": [[3, 8]], "outputs": [[3, 6]]}, 2 * 3 * 8 * 6),
        # a bias that is still to be added comes back beside the result
        ({"params": {**WEIGHT, "bias": [6]}, "inputs": [[3, 4]], "outputs": [[3, 6], [6]]}, 2 * 3 * 4 * 6),
        ({"params": WEIGHT, "inputs": [], "kwargs": {"input_": [[3, 4]]}, "outputs": [[3, 6]]}, 2 * 3 * 4 * 6),
        # an embedding, a norm, no output, other rows, two inputs, another weight beside
        ({"params": {"weight": [100, 6]}, "inputs": [[3]], "outputs": [[3, 6]]}, None),
        ({"params": {"weight": [4]}, "inputs": [[3, 4]], "outputs": [[3, 4]]}, None),
        ({"params": WEIGHT, "inputs": [[3, 4]]}, None),
        ({"params": WEIGHT, "inputs": [[3, 4]], "outputs": [[1, 6]]}, None),
        ({"params": WEIGHT, "inputs": [[3, 4], [3, 4]], "outputs": [[3, 6]]}, None),
        ({"params": {**WEIGHT, "lora_a": [4, 2]}, "inputs": [[3, 4]], "outputs": [[3, 6]]}, None),
        ({"params": WEIGHT, "inputs": [[3, 5]], "outputs": [[3, 6]]}, None),
        ({"params": WEIGHT, "inputs": [[]], "outputs": [[]]}, None),
        ({}, None),
    ],
)
def test_a_call_without_class_is_a_linear_only_if_its_shapes_leave_no_doubt(fields: dict, expected: int | None) -> None:
    assert flops_of(call(**fields)) == expected


@pytest.mark.parametrize("name", ["QKVParallelLinear", "RowParallelLinear", "ReplicatedLinear", "Conv1D"])
def test_linears_of_engines_are_known_by_class(name: str) -> None:
    known = call(name, params=WEIGHT, inputs=[[3, 4]], outputs=[[3, 6]])
    assert flops_of(known) == 2 * 3 * 4 * 6
    assert isinstance(flops_of(known._replace(outputs=None)), Unknown)
    assert isinstance(flops_of(known._replace(params={"base_weight": [6, 4]})), Unknown)


DIMS = st.lists(st.sampled_from([0, 1, 2, 3, 2**31, 2**62, 2**63 - 1]), max_size=6)
SHAPES = st.none() | st.lists(DIMS, max_size=4)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.sampled_from(["same", "valid", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=5,
)
CLASSES = [
    *(None, "Linear", "Linear4bit", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "MultiheadAttention", "LSTM"),
    *("ReLU", "Embedding", "?"),
]
PARAMS = ["weight", "bias", "qweight", "in_proj_weight", "q_proj_weight", "k_proj_weight", "bias_k"]
SETTINGS = ["stride", "padding", "dilation", "batch_first", "add_zero_attn"]


@settings(deadline=None, max_examples=400)
@given(
    st.builds(
        Call,
        st.sampled_from(CLASSES),
        st.dictionaries(st.sampled_from(PARAMS), DIMS, max_size=3),
        st.dictionaries(st.sampled_from(SETTINGS), ANYTHING, max_size=4),
        SHAPES,
        SHAPES,
        st.dictionaries(st.sampled_from(["query", "key", "value", "mask"]), st.lists(DIMS, max_size=2), max_size=3),
        st.booleans(),
    )
)
def test_no_marker_breaks_a_formula_or_makes_a_number_that_no_column_holds(described: Call) -> None:
    actual = flops_of(described)
    assert isinstance(actual, Unknown | None) or 0 <= actual < 2**63


def test_thousands_of_dimensions_are_no_linear() -> None:
    assert isinstance(flops_of(call("Linear", params=WEIGHT, inputs=[[2**62] * 10_000 + [4]])), Unknown)


def sizes(*tensors: Any) -> str:
    return str([list(one.shape) for one in tensors])


@settings(deadline=None)
@given(batch=SIZE, heads=SIZE, group=st.integers(1, 2), queries=SIZE, keys=SIZE, width=SIZE)
def test_operators_cost_what_torch_registers(
    batch: int, heads: int, group: int, queries: int, keys: int, width: int
) -> None:
    from torch.utils.flop_counter import flop_registry

    query = torch.zeros(batch, heads * group, queries, width)
    key, value = torch.zeros(batch, heads, keys, width), torch.zeros(batch, heads, keys, 3)
    grad = torch.zeros(batch, heads * group, queries, 3)
    left, right = query.flatten(0, 1), torch.zeros(batch * heads * group, width, 4)
    cases = {
        "mm": (left[0], right[0]),
        "addmm": (torch.zeros(4), left[0], right[0]),
        "bmm": (left, right),
        "baddbmm": (torch.zeros(1), left, right),
        "_scaled_dot_product_flash_attention": (query, key, value),
        "_scaled_dot_product_efficient_attention_backward": (grad, query, key, value),
    }
    for name, tensors in cases.items():
        expected = flop_registry[getattr(torch.ops.aten, name)](*tensors)
        actual = operator(f"aten::{name}, sizes = {sizes(*tensors)}")
        assert actual[:3] == (True, expected, False), name


def test_all_operators_that_torch_counts_are_known_here() -> None:
    from torch.utils.flop_counter import flop_registry

    from tracekit.flops.operators import _REGISTRY, FUSED

    named = {str(one).replace("aten.", "aten::") for one in flop_registry if str(one).startswith("aten")}
    assert named == set(_REGISTRY) - {*CPU_ATTENTIONS, *FUSED}
    assert operator(f"{CPU_ATTENTIONS[0]}, sizes = [[1, 2, 3, 4]]")[:3] == (True, 0, False)


@pytest.mark.parametrize(
    "text",
    [
        "aten::mm",
        "aten::mm, sizes = [[2, 3], [4, 5]]",
        "aten::mm, sizes = [[2, 3]]",
        "aten::mm, sizes = [[], []]",
        "aten::mm, sizes = [[9999999999999, 9999999999999], [9999999999999, 9999999999999]]",
        "aten::mm, sizes = [[[1]], [2]]",
        "aten::mm, sizes = [[[1], 2], [2, 3]]",
        "aten::mm, sizes = [",
        "aten::bmm, sizes = [[2, 3, 4], [3, 4, 5]]",
        "aten::mm, sizes = " + "[" * 4_000,
        "aten::convolution, sizes = [[1, 2, 3], [2, 2, 1], [], [], []]",
        "aten::_scaled_dot_product_flash_attention, sizes = [[1, 3, 4, 5], [1, 2, 4, 5], [1, 2, 4, 5]]",
        *("aten::_transformer_encoder_layer_fwd, sizes = [[3, 5, 16]]", "aten::_native_multi_head_attention"),
    ],
)
def test_an_operator_whose_sizes_do_not_tell_is_not_known(text: str) -> None:
    assert operator(text)[:3] == (True, -1, False)


#: Names by whether they are harmless.
OPERATORS = {
    True: (
        *("aten::sqrt", "aten::relu_", "aten::native_layer_norm", "AddmmBackward0", "aten::weight_norm"),
        *("aten::linalg_vector_norm", "aten::cummax", "aten::upsample_bilinear2d", "detach"),
        *("torch::autograd::AccumulateGrad",),
    ),
    False: (
        *("aten::mv", "aten::dot", "aten::mkldnn_rnn_layer", "aten::einsum", "aten::linalg_qr"),
        *("aten::_trilinear", "MyFunctionBackward"),
        *("vllm::unified_attention", "MyFunction", "aten::matmul"),
    ),
}


@pytest.mark.parametrize(("name", "harmless"), [(name, it) for it in OPERATORS for name in OPERATORS[it]])
def test_an_operator_is_harmless_only_where_it_is_known_to_be(name: str, *, harmless: bool) -> None:
    assert operator(name)[:3] == (False, 0, harmless)


#: Names by whether they are harmless and whether they are products.
KERNELS = {
    (True, False): (
        *("vectorized_elementwise_kernel", "unrolled_elementwise_kernel", "elementwise_kernel_with_index"),
        *("reduce_kernel", "CatArrayBatchedCopy_vectorized", "softmax_warp_forward"),
        *("triton_poi_fused_add_silu_0", "triton_red_fused__to_copy_add_mean_pow_1"),
        *("triton_per_fused_convert_element_type_2", "reshape_and_cache_flash_kernel", "rms_norm_kernel"),
    ),
    (False, True): (
        *("triton_red_fused_mm_3", "triton_per_fused_mv_sum_1", "triton_tem_fused_mm_4"),
        *("ampere_sgemm_128x64_tn", "nvjet_tst_192x192_64x4", "flash_fwd_splitkv_kernel"),
        *("conv_depthwise2d_forward_kernel", "splitKreduce_kernel"),
    ),
    (False, False): (*("Kernel", "kernel", "", "my_elementwise_kernel", "nvfuser_pointwise_f0_c1_r0_g4"),),
}


@pytest.mark.parametrize(("name", "verdict"), [(name, verdict) for verdict in KERNELS for name in KERNELS[verdict]])
def test_a_kernel_is_harmless_only_where_its_source_is_known(name: str, verdict: tuple[bool, bool]) -> None:
    assert (Work.UNLISTED not in kind_of(name), Work.PRODUCT in kind_of(name)) == verdict
