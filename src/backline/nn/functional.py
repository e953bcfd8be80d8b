"""Neural-network operations on arrays, with the names and parameters of torch.nn.functional."""

from __future__ import annotations

from ..ops.activations import dropout, gelu, log_softmax, relu, sigmoid, silu, softmax, tanh
from ..ops.convolution import conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d
from ..ops.ctc import ctc_loss
from ..ops.dot_product_attention import AttentionLSE, scaled_dot_product_attention
from ..ops.grouped_products import grouped_mm
from ..ops.linear_layers import bilinear, linear
from ..ops.multi_head_attention import MultiHeadAttention, multi_head_attention, multi_head_attention_forward
from ..ops.normalization import batch_norm, layer_norm, rms_norm
from ..ops.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from ..ops.prepacked import (
    prepack_conv1d,
    prepack_conv2d,
    prepack_conv3d,
    prepack_conv_transpose1d,
    prepack_conv_transpose2d,
    prepack_conv_transpose3d,
    prepack_linear,
)
from ..ops.scaled_products import ScalingType, scaled_mm
from ..ops.varlen_attention import varlen_attn

__all__ = [
    "AttentionLSE",
    "MultiHeadAttention",
    "ScalingType",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "bilinear",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "ctc_loss",
    "dropout",
    "gelu",
    "grouped_mm",
    "layer_norm",
    "linear",
    "log_softmax",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "multi_head_attention",
    "multi_head_attention_forward",
    "prepack_conv1d",
    "prepack_conv2d",
    "prepack_conv3d",
    "prepack_conv_transpose1d",
    "prepack_conv_transpose2d",
    "prepack_conv_transpose3d",
    "prepack_linear",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "scaled_mm",
    "sigmoid",
    "silu",
    "softmax",
    "tanh",
    "varlen_attn",
]  # fmt: skip
