"""Gradients of the operations of `nn.functional`, as functions of what those were given."""

from __future__ import annotations

from ..ops.activations_grad import (
    gelu_input,
    log_softmax_input,
    relu_input,
    sigmoid_input,
    silu_input,
    softmax_input,
    tanh_input,
)
from ..ops.convolution_grad import (
    conv1d_input,
    conv1d_weight,
    conv2d_input,
    conv2d_weight,
    conv3d_input,
    conv3d_weight,
    conv_transpose1d_input,
    conv_transpose1d_weight,
    conv_transpose2d_input,
    conv_transpose2d_weight,
    conv_transpose3d_input,
    conv_transpose3d_weight,
)
from ..ops.dot_product_attention_grad import AttentionGrads, scaled_dot_product_attention_backward
from ..ops.linear_layers_grad import linear_bias, linear_input, linear_weight
from ..ops.normalization_grad import NormGrads, batch_norm_backward, layer_norm_backward
from ..ops.pooling_grad import (
    adaptive_avg_pool1d_input,
    adaptive_avg_pool2d_input,
    adaptive_avg_pool3d_input,
    avg_pool1d_input,
    avg_pool2d_input,
    avg_pool3d_input,
    max_pool1d_input,
    max_pool2d_input,
    max_pool3d_input,
)
from ..ops.recurrent_grad import RnnGrads, StateGrads, gru_backward, lstm_backward, rnn_relu_backward, rnn_tanh_backward
from ..ops.varlen_attention import varlen_attn_backward

__all__ = [
    "AttentionGrads", "NormGrads", "RnnGrads", "StateGrads", "adaptive_avg_pool1d_input", "adaptive_avg_pool2d_input",
    "adaptive_avg_pool3d_input",
    "avg_pool1d_input", "avg_pool2d_input", "avg_pool3d_input", "batch_norm_backward", "conv1d_input", "conv1d_weight",
    "conv2d_input", "conv2d_weight", "conv3d_input", "conv3d_weight", "conv_transpose1d_input",
    "conv_transpose1d_weight", "conv_transpose2d_input", "conv_transpose2d_weight", "conv_transpose3d_input",
    "conv_transpose3d_weight", "gelu_input", "gru_backward", "layer_norm_backward",
    "linear_bias", "linear_input", "linear_weight", "log_softmax_input", "lstm_backward", "max_pool1d_input", "max_pool2d_input",
    "max_pool3d_input", "relu_input", "rnn_relu_backward", "rnn_tanh_backward",
    "scaled_dot_product_attention_backward", "sigmoid_input",
    "silu_input", "softmax_input", "tanh_input", "varlen_attn_backward",
]  # fmt: skip
