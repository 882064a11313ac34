"""FLOPs of the layers of torch.nn and of serving engines, from classes, shapes and settings."""

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from tracekit.flops.base import Call, Shape, Unknown, matched, whole

#: Classes of ``torch.nn`` and serving engines (vLLM, SGLang); ``Conv1D`` of Transformers is a Linear despite its name.
_LINEARS = frozenset(
    {
        *("Linear", "NonDynamicallyQuantizableLinear", "LazyLinear", "Conv1D", "Linear4bit", "Linear8bitLt"),
        *("ColumnParallelLinear", "MergedColumnParallelLinear", "MergedReplicatedLinear", "QKVParallelLinear"),
        *("ReplicatedLinear", "RowParallelLinear"),
    }
)
#: Packed weights: their dimensions are not those of the layer.
_PACKED = frozenset({"qweight", "weight_packed", "w_q"})
#: Parameters besides a weight that take no part in the product, by parts of their names.
_BESIDE = ("bias", "scale", "zero", "zp", "g_idx", "shape", "perm", "absmax")

_DIMENSIONS = 2
_LINEAR_UNCLEAR = Unknown("a Linear whose shapes do not fit its weight, or are not known")


def _linear(call: Call) -> int | Unknown | None:
    if call.class_name is not None and call.class_name not in _LINEARS:
        return None
    unclear = None if call.class_name is None else _LINEAR_UNCLEAR
    if (weight := _weight(call)) is None or len(call.given) != 1:
        return unclear
    given, returned = call.given[0], _result(call)
    if not given:
        return unclear
    out = _width(call, weight, given, returned)
    return unclear if out is None else 2 * prod(given) * out


def is_packed(call: Call) -> bool:
    """Whether its weight is quantised, so that the dtype of the product is not that of the weight."""
    return not _PACKED.isdisjoint(call.params) or call.class_name in ("Linear4bit", "Linear8bitLt")


def _weight(call: Call) -> Shape | None:
    large = [name for name in call.params if not any(word in name for word in _BESIDE)]
    return call.params[large[0]] if large == ["weight"] or set(large) & _PACKED else None


def _result(call: Call) -> Shape | None:
    """The shape of its result, or None; engines may also return a bias that is still to be added."""
    return None if not call.outputs or any(len(shape) != 1 for shape in call.outputs[1:]) else call.outputs[0]


def _width(call: Call, weight: Shape, given: Shape, returned: Shape | None) -> int | None:
    if returned is None:
        # The weight of torch.nn.Linear is [out, in]; other classes may have it the other way round.
        plain = call.class_name == "Linear" and len(weight) == _DIMENSIONS and not is_packed(call)
        return weight[0] if plain and weight[1] == given[-1] else None
    if len(returned) != len(given) or not matched(returned[:-1], given[:-1]):
        return None
    fits = len(weight) == _DIMENSIONS and sorted(weight) == sorted((given[-1], returned[-1]))
    return returned[-1] if fits or is_packed(call) else None


_SPATIAL = {f"{name}{n}d": n for name in ("Conv", "ConvTranspose") for n in (1, 2, 3)}
_CONVOLUTION_UNCLEAR = Unknown("a convolution whose shapes do not fit its weight, or are not known")


def _convolution(call: Call) -> int | Unknown | None:
    """``2 * positions * weight``: positions of the output or, transposed, of the input."""
    if (spatial := _SPATIAL.get(call.class_name or "")) is None:
        return None
    weight = call.params.get("weight", ())
    # A transposed convolution may be given the size of its output, which is no tensor.
    if len(weight) != spatial + 2 or len(call.given) != 1:
        return _CONVOLUTION_UNCLEAR
    given = call.given[0]
    if len(given) == spatial + 1:
        given = (1, *given)
    if len(given) != spatial + 2:
        return _CONVOLUTION_UNCLEAR
    transposed = (call.class_name or "").startswith("ConvTranspose")
    positions = (given[2:] if given[1] == weight[0] else None) if transposed else _positions(call, weight, given)
    return _CONVOLUTION_UNCLEAR if positions is None else 2 * given[0] * prod(positions) * prod(weight)


def _positions(call: Call, weight: Shape, given: Shape) -> Shape | None:
    if not weight[1] or given[1] % weight[1]:
        return None
    if not call.outputs:
        return _computed_positions(call, weight[2:], given[2:])
    returned = call.outputs[0]
    channels, *positions = returned[-len(given) + 1 :]
    fits = len(call.outputs) == 1 and len(returned) >= len(given) - 1 and channels == weight[0]
    return positions if fits else None


def _computed_positions(call: Call, filter_: Shape, given: Shape) -> Shape | None:
    """The spatial part of the output from padding, stride and dilation, where no marker records the output."""
    padding = call.settings.get("padding")
    if padding == "same":
        return given
    sides = [0] * len(given) if padding == "valid" else _each(padding, len(given))
    stride, dilation = (_each(call.settings.get(name), len(given)) for name in ("stride", "dilation"))
    if sides is None or stride is None or dilation is None or not all(stride):
        return None
    positions = [
        (size + 2 * side - apart * (width - 1) - 1) // step + 1
        for size, side, apart, width, step in zip(given, sides, dilation, filter_, stride, strict=True)
    ]
    return positions if min(positions) >= 0 else None


def _each(setting: object, dimensions: int) -> Sequence[int] | None:
    items = setting if isinstance(setting, list) else []
    numbers = [number for number in map(whole, items) if number is not None and number >= 0]
    return numbers if len(numbers) == len(items) == dimensions else None


_NAMES = ("query", "key", "value")
_BATCHED = 3
_ATTENTION_UNCLEAR = Unknown("a MultiheadAttention whose shapes do not fit its weights, or are not known")


class _Sizes(NamedTuple):
    """Sizes of its three tensors."""

    batch: int
    queries: int
    keys: int
    width: int
    key_width: int
    value_width: int


def _attention(call: Call) -> int | Unknown | None:
    """Three projections, queries by keys, weights by values, and the output's projection.

    On a CPU, the fused operator in the middle is not counted, as in ``flop_counter`` up to torch 2.13.
    """
    if call.class_name != "MultiheadAttention":
        return None
    if (sizes := _sizes(call)) is None or not _fit(call, sizes):
        return _ATTENTION_UNCLEAR
    batch, queries, keys, width, key_width, value_width = sizes
    projected = width * (2 * queries * width + keys * (key_width + value_width))
    attended = keys + ("bias_k" in call.params) + bool(call.settings.get("add_zero_attn"))
    between = 0 if _is_left_out(call) else 2 * queries * attended * width
    return 2 * batch * (projected + between)


def _is_left_out(call: Call) -> bool:
    """Whether torch does not count the attention itself, since it is fused: it is not where weights are returned."""
    return call.cpu_attention and len(call.outputs or ()) < len(("output", "weights"))


def _sizes(call: Call) -> _Sizes | None:
    tensors = list(call.inputs or ())[:_BATCHED]
    for name in _NAMES[len(tensors) :]:
        tensors += call.kwargs.get(name, ())
    if len(tensors) != _BATCHED or len({len(shape) for shape in tensors}) != 1:
        return None
    shapes = [shape for shape in (_batch_first(call, tensor) for tensor in tensors) if shape is not None]
    if len(shapes) != _BATCHED:
        return None
    query, key, value = shapes
    if not matched(key[:2], value[:2]) or query[0] != key[0]:
        return None
    return _Sizes(query[0], query[1], key[1], query[2], key[2], value[2])


def _batch_first(call: Call, shape: Shape) -> Shape | None:
    """The shape as ``[batch, length, width]``; None if it cannot be known."""
    if len(shape) == _BATCHED - 1:
        return (1, *shape)
    batch_first = call.settings.get("batch_first")
    if len(shape) != _BATCHED or (whole(batch_first) is None and not isinstance(batch_first, bool)):
        return None
    return shape if batch_first else (shape[1], shape[0], shape[2])


def _fit(call: Call, sizes: _Sizes) -> bool:
    """Whether the weights fit such tensors: classes of other packages have the same name."""
    weights, width = call.params, sizes.width
    if "in_proj_weight" in weights:
        same = width == sizes.key_width == sizes.value_width
        return same and matched(weights["in_proj_weight"], (3 * width, width))
    widths = zip(_NAMES, (width, sizes.key_width, sizes.value_width), strict=True)
    return all(matched(weights.get(f"{name[0]}_proj_weight", ()), (width, given)) for name, given in widths)


_RECURRENT = frozenset({"RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "Bilinear"})


def _recurrent(call: Call) -> Unknown | None:
    """Always unknown: cuDNN and oneDNN run a recurrent layer as one operator, which ``flop_counter`` does not know."""
    if call.class_name not in _RECURRENT:
        return None
    return Unknown(f"torch counts {call.class_name} differently per device, or not at all")


_EVERY_DIMENSION = """
AdaptiveAvgPool AdaptiveMaxPool AvgPool BatchNorm CircularPad ConstantPad Dropout FractionalMaxPool InstanceNorm
LPPool MaxPool MaxUnpool ReflectionPad ReplicationPad ZeroPad
""".split()  # noqa: SIM905 - a table of names
_EMBEDDINGS = frozenset({"Embedding", "EmbeddingBag", "VocabParallelEmbedding"})
#: By kind: activations; norms and dropout; shapes; distances and losses.
_OTHERS = """
CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish PReLU ReLU ReLU6
RReLU SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus Softshrink Softsign Tanh Tanhshrink Threshold
AlphaDropout CrossMapLRN2d Dropout FeatureAlphaDropout GroupNorm LayerNorm LocalResponseNorm RMSNorm SyncBatchNorm
ChannelShuffle Flatten Fold Identity PixelShuffle PixelUnshuffle Unflatten Unfold Upsample UpsamplingBilinear2d
UpsamplingNearest2d
BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss CosineSimilarity CrossEntropyLoss GaussianNLLLoss
HingeEmbeddingLoss HuberLoss KLDivLoss L1Loss MSELoss MarginRankingLoss MultiLabelMarginLoss
MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss NLLLoss2d PairwiseDistance PoissonNLLLoss SmoothL1Loss
SoftMarginLoss TripletMarginLoss TripletMarginWithDistanceLoss
""".split()  # noqa: SIM905 - a table of names
_WITHOUT_PRODUCTS = {*_EMBEDDINGS, *_OTHERS, *(f"{name}{n}d" for name in _EVERY_DIMENSION for n in (1, 2, 3))}


def _zero_flop_layer(call: Call) -> int | None:
    return 0 if call.class_name in _WITHOUT_PRODUCTS else None


def is_embedding(call: Call) -> bool:
    """Whether it reads only one row of its weight for every index."""
    return call.class_name in _EMBEDDINGS


#: The FLOPs of a call itself by layers of one kind, the reason why they are not known, or None for other layers.
FORMULAS: tuple[Callable[[Call], int | Unknown | None], ...] = (
    *(_linear, _convolution, _attention, _recurrent, _zero_flop_layer),
)
_LARGEST = 2**63 - 1


def flops_of(call: Call) -> int | Unknown | None:
    """The FLOPs of one run of a call itself, or why they are not known; None if no formula knows the class."""
    call = call.without_unknown_dimensions()
    for formula in FORMULAS:
        flops = formula(call)
        if isinstance(flops, int) and flops > _LARGEST:
            return Unknown("a number too large to be true")
        if flops is not None:
            return flops
    return None
