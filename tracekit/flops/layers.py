"""FLOPs of the layers of torch.nn and of serving engines, from classes, shapes and settings."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple

Shape = Sequence[int]


class Call(NamedTuple):
    """A call, as its markers describe it. A dimension that is not known is None.

    Attributes:
        class_name: Class of the module, or None.
        params: Shapes of its own parameters by name.
        settings: Other arguments that the module was built with, under the names in vLLM's markers.
        inputs: Shapes of positional tensors, or None.
        outputs: Shapes of results, or None.
        kwargs: Shapes of keyword tensors by name.
        cpu_attention: Whether attention ran as the fused operator of CPUs, which ``flop_counter`` does not count.
    """

    class_name: str | None
    params: Mapping[str, Shape]
    settings: Mapping[str, object]
    inputs: Sequence[Shape] | None
    outputs: Sequence[Shape] | None
    kwargs: Mapping[str, Sequence[Shape]]
    cpu_attention: bool = False

    @property
    def given(self) -> list[Shape]:
        """Shapes of all input tensors, positional ones first."""
        return [*(self.inputs or ()), *(shape for shapes in self.kwargs.values() for shape in shapes)]

    def without_unknown_dimensions(self) -> "Call":
        """The same call without its inputs, outputs or parameters if a dimension of any of them is not known.

        All inputs are dropped, not just one: the rest might be taken for all of them.
        """
        call = self
        if not all(map(is_known, self.given)):
            call = call._replace(inputs=None, kwargs={})
        if not all(map(is_known, self.outputs or ())):
            call = call._replace(outputs=None)
        if not all(map(is_known, self.params.values())):
            call = call._replace(params={})
        return call


class Unknown(NamedTuple):
    """The reason why the FLOPs of a call are not known, for people to read."""

    reason: str


def is_known(shape: Sequence[int | None] | None) -> bool:
    """Whether all dimensions of a shape are known; not so where the shape itself is None."""
    return shape is not None and None not in shape


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


def _linear(call: Call) -> int | None:
    if (weight := _weight(call)) is None or len(call.given) != 1 or not call.given[0]:
        return None
    given = call.given[0]
    out = _width(call, weight, given)
    return None if out is None else 2 * prod(given) * out


def is_packed(call: Call) -> bool:
    """Whether its weight is quantised, so that the dtype of the product is not that of the weight."""
    return not _PACKED.isdisjoint(call.params) or call.class_name in ("Linear4bit", "Linear8bitLt")


def _weight(call: Call) -> Shape | None:
    large = [name for name in call.params if not any(word in name for word in _BESIDE)]
    return call.params[large[0]] if large == ["weight"] or set(large) & _PACKED else None


def _width(call: Call, weight: Shape, given: Shape) -> int | None:
    # Engines may also return a bias that is still to be added.
    if not call.outputs or any(len(shape) != 1 for shape in call.outputs[1:]):
        # The weight of torch.nn.Linear is [out, in]; other classes may have it the other way round.
        plain = call.class_name == "Linear" and len(weight) == _DIMENSIONS and not is_packed(call)
        return weight[0] if plain and weight[1] == given[-1] else None
    returned = call.outputs[0]
    if len(returned) != len(given) or list(returned[:-1]) != list(given[:-1]):
        return None
    fits = len(weight) == _DIMENSIONS and sorted(weight) == sorted((given[-1], returned[-1]))
    return returned[-1] if fits or is_packed(call) else None


_SPATIAL = {f"{name}{n}d": n for name in ("Conv", "ConvTranspose") for n in (1, 2, 3)}


def _convolution(call: Call) -> int | None:
    """``2 * batch * positions * weight``: positions of the output or, transposed, of the input."""
    class_name = call.class_name or ""
    spatial, weight = _SPATIAL[class_name], call.params.get("weight", ())
    # A transposed convolution may be given the size of its output, which is no tensor.
    if len(weight) != spatial + 2 or len(call.given) != 1:
        return None
    given = (1, *call.given[0]) if len(call.given[0]) == spatial + 1 else call.given[0]
    if len(given) != spatial + 2:
        return None
    if class_name.startswith("ConvTranspose"):
        positions = given[2:] if given[1] == weight[0] else None
    else:
        positions = _positions(call, weight, given)
    return None if positions is None else 2 * given[0] * prod(positions) * prod(weight)


def _positions(call: Call, weight: Shape, given: Shape) -> Shape | None:
    if not weight[1] or given[1] % weight[1] or not call.outputs:
        return None
    returned = call.outputs[0]
    channels, *positions = returned[-len(given) + 1 :]
    fits = len(call.outputs) == 1 and len(returned) >= len(given) - 1 and channels == weight[0]
    return positions if fits else None


_NAMES = ("query", "key", "value")
_BATCHED = 3


def _attention(call: Call) -> int | None:
    """Three projections, queries by keys, weights by values, and the output's projection.

    On a CPU, the fused operator in the middle is not counted, as in ``flop_counter`` up to torch 2.13; it does not run
    where weights are returned.
    """
    if (tensors := _query_key_value(call)) is None:
        return None
    (batch, queries, width), (_, keys, key_width), (_, _, value_width) = tensors
    if not _fit(call, width, key_width, value_width):
        return None
    projected = width * (2 * queries * width + keys * (key_width + value_width))
    attended = keys + ("bias_k" in call.params) + bool(call.settings.get("add_zero_attn"))
    is_fused = call.cpu_attention and len(call.outputs or ()) < len(("output", "weights"))
    return 2 * batch * (projected + (0 if is_fused else 2 * queries * attended * width))


def _query_key_value(call: Call) -> list[Shape] | None:
    """The shapes of its three tensors as ``[batch, length, width]``; None where they cannot be known."""
    tensors = list(call.inputs or ())[:_BATCHED]
    for name in _NAMES[len(tensors) :]:
        tensors += call.kwargs.get(name, ())
    shapes = [shape for shape in (_batch_first(call, tensor) for tensor in tensors) if shape is not None]
    if not len(shapes) == len(tensors) == _BATCHED or len({len(shape) for shape in tensors}) != 1:
        return None
    query, key, value = shapes
    return shapes if list(key[:2]) == list(value[:2]) and query[0] == key[0] else None


def _batch_first(call: Call, shape: Shape) -> Shape | None:
    """The shape as ``[batch, length, width]``; None if it cannot be known."""
    if len(shape) == _BATCHED - 1:
        return (1, *shape)
    batch_first = call.settings.get("batch_first")
    if len(shape) != _BATCHED or not isinstance(batch_first, int):
        return None
    return shape if batch_first else (shape[1], shape[0], shape[2])


def _fit(call: Call, width: int, key_width: int, value_width: int) -> bool:
    """Whether the weights fit such tensors: classes of other packages have the same name."""
    if "in_proj_weight" in call.params:
        return width == key_width == value_width and list(call.params["in_proj_weight"]) == [3 * width, width]
    widths = {"q_proj_weight": width, "k_proj_weight": key_width, "v_proj_weight": value_width}
    return all(list(call.params.get(name, ())) == [width, given] for name, given in widths.items())


#: cuDNN and oneDNN run a recurrent layer as one operator, which ``flop_counter`` does not know.
_RECURRENT = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "Bilinear")

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


def is_embedding(call: Call) -> bool:
    """Whether it reads only one row of its weight for every index."""
    return call.class_name in _EMBEDDINGS


_UNFIT = "whose shapes do not fit its weight, or are not known"
_UNFIT_ATTENTION = Unknown("a MultiheadAttention whose shapes do not fit its weights, or are not known")
#: By class: the formula for one run of a call itself, None where shapes do not fit; and why FLOPs are not known then.
FORMULAS: Mapping[str | None, tuple[Callable[[Call], int | None], Unknown | None]] = {
    None: (_linear, None),
    **dict.fromkeys(_LINEARS, (_linear, Unknown(f"a Linear {_UNFIT}"))),
    **dict.fromkeys(_SPATIAL, (_convolution, Unknown(f"a convolution {_UNFIT}"))),
    "MultiheadAttention": (_attention, _UNFIT_ATTENTION),
    **{
        name: (lambda _: None, Unknown(f"torch counts {name} differently per device, or not at all"))
        for name in _RECURRENT
    },
    **dict.fromkeys(_WITHOUT_PRODUCTS, (lambda _: 0, None)),
}
_LARGEST = 2**63 - 1


def flops_of(call: Call) -> int | Unknown | None:
    """The FLOPs of one run of a call itself, or why they are not known; None if no formula knows the class."""
    if call.class_name not in FORMULAS:
        return None
    formula, unclear = FORMULAS[call.class_name]
    flops = formula(call.without_unknown_dimensions())
    if flops is None:
        return unclear
    return flops if flops <= _LARGEST else Unknown("a number too large to be true")
