"""Layers of ``torch.nn`` that multiply no matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracekit.flops.base import Call

_EVERY_DIMENSION = (
    "AdaptiveAvgPool",
    "AdaptiveMaxPool",
    "AvgPool",
    "BatchNorm",
    "CircularPad",
    "ConstantPad",
    "Dropout",
    "FractionalMaxPool",
    "InstanceNorm",
    "LPPool",
    "MaxPool",
    "MaxUnpool",
    "ReflectionPad",
    "ReplicationPad",
    "ZeroPad",
)
_EMBEDDINGS = frozenset({"Embedding", "EmbeddingBag", "VocabParallelEmbedding"})
_CLASSES = (
    _EMBEDDINGS
    | {f"{name}{n}d" for name in _EVERY_DIMENSION for n in (1, 2, 3)}
    | {
        # activations
        "CELU",
        "ELU",
        "GELU",
        "GLU",
        "Hardshrink",
        "Hardsigmoid",
        "Hardswish",
        "Hardtanh",
        "LeakyReLU",
        "LogSigmoid",
        "LogSoftmax",
        "Mish",
        "PReLU",
        "ReLU",
        "ReLU6",
        "RReLU",
        "SELU",
        "SiLU",
        "Sigmoid",
        "Softmax",
        "Softmax2d",
        "Softmin",
        "Softplus",
        "Softshrink",
        "Softsign",
        "Tanh",
        "Tanhshrink",
        "Threshold",
        # norms and dropout
        "AlphaDropout",
        "CrossMapLRN2d",
        "Dropout",
        "FeatureAlphaDropout",
        "GroupNorm",
        "LayerNorm",
        "LocalResponseNorm",
        "RMSNorm",
        "SyncBatchNorm",
        # shapes
        "ChannelShuffle",
        "Flatten",
        "Fold",
        "Identity",
        "PixelShuffle",
        "PixelUnshuffle",
        "Unflatten",
        "Unfold",
        "Upsample",
        "UpsamplingBilinear2d",
        "UpsamplingNearest2d",
        # distances and losses
        "BCELoss",
        "BCEWithLogitsLoss",
        "CTCLoss",
        "CosineEmbeddingLoss",
        "CosineSimilarity",
        "CrossEntropyLoss",
        "GaussianNLLLoss",
        "HingeEmbeddingLoss",
        "HuberLoss",
        "KLDivLoss",
        "L1Loss",
        "MSELoss",
        "MarginRankingLoss",
        "MultiLabelMarginLoss",
        "MultiLabelSoftMarginLoss",
        "MultiMarginLoss",
        "NLLLoss",
        "NLLLoss2d",
        "PairwiseDistance",
        "PoissonNLLLoss",
        "SmoothL1Loss",
        "SoftMarginLoss",
        "TripletMarginLoss",
        "TripletMarginWithDistanceLoss",
    }
)


def flops(call: Call) -> int | None:
    """0 for these layers."""
    return 0 if call.class_name in _CLASSES else None


def is_embedding(call: Call) -> bool:
    """Whether it reads only one row of its weight for every index."""
    return call.class_name in _EMBEDDINGS
