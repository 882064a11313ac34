"""Settings of torch's layers: the arguments a layer was built with, under the names that vLLM's markers use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONVOLUTION = {
    "in_chan": "in_channels",
    "out_chan": "out_channels",
    "filter_dim": "kernel_size",
    "stride": "stride",
    "padding": "padding",
    "dilation": "dilation",
    "transposed": "transposed",
    "output_padding": "output_padding",
    "groups": "groups",
    "padding_mode": "padding_mode",
}
_POOL = {"filter_dim": "kernel_size", "stride": "stride", "padding": "padding"}
_RECURRENT = (
    "input_size",
    "hidden_size",
    "num_layers",
    "bias",
    "batch_first",
    "dropout",
    "bidirectional",
    "proj_size",
)
_ATTENTION = (
    "embed_dim",
    "num_heads",
    "head_dim",
    "dropout",
    "batch_first",
    "add_zero_attn",
    "kdim",
    "vdim",
)
_NORM = {"num_features": "num_features", "epsilon": "eps", "momentum": "momentum"}


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


#: Settings by type of layer: name in the marker → attribute. The first match counts.
_SETTINGS: tuple[tuple[tuple[type[nn.Module], ...], Mapping[str, str]], ...] = (
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), _CONVOLUTION),
    ((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _CONVOLUTION),
    ((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), {**_POOL, **_same("dilation", "ceil_mode")}),
    ((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), {**_POOL, **_same("ceil_mode", "count_include_pad")}),
    ((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), _same("output_size")),
    ((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), _same("output_size")),
    ((nn.Linear,), _same("in_features", "out_features")),
    ((nn.Bilinear,), _same("in1_features", "in2_features", "out_features")),
    ((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm), _NORM),
    ((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _NORM),
    ((nn.GroupNorm,), {**_same("num_groups", "num_channels"), "epsilon": "eps"}),
    ((nn.LayerNorm, nn.RMSNorm), {**_same("normalized_shape", "elementwise_affine"), "epsilon": "eps"}),
    ((nn.ReLU,), {"in_place": "inplace"}),
    ((nn.Dropout,), {"p": "p", "in_place": "inplace"}),
    ((nn.Embedding,), _same("num_embeddings", "embedding_dim", "padding_idx")),
    ((nn.Upsample,), _same("scale_factor", "size", "mode", "align_corners")),
    ((nn.LSTM, nn.GRU, nn.RNN), _same(*_RECURRENT)),
    ((nn.MultiheadAttention,), _same(*_ATTENTION)),
)

#: In these layers, a single number applies to every dimension of the layer.
_BY_DIMENSION: dict[int, tuple[type[nn.Module], ...]] = {
    1: (nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d),
    2: (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    3: (nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d),
}
_PER_DIMENSION = {"filter_dim", "stride", "padding", "dilation", "output_size"}


def settings_of(module: nn.Module) -> dict[str, object]:
    """The settings of a layer; empty for other modules."""
    names = next((names for types, names in _SETTINGS if isinstance(module, types)), {})
    dimensions = next((n for n, types in _BY_DIMENSION.items() if isinstance(module, types)), 0)
    values = {name: getattr(module, attribute, None) for name, attribute in names.items()}
    return {
        name: [item] * dimensions if dimensions and name in _PER_DIMENSION and isinstance(item, int) else item
        for name, item in values.items()
    }
