"""The operations of the programs with PyTorch, on its tensors, as its own documentation recommends them for inference on CPUs."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch

warnings.filterwarnings("ignore", message=".*quantize", category=UserWarning)
torch.set_grad_enabled(False)

xp = torch
matmul, einsum = torch.matmul, torch.einsum
solve, slogdet, cholesky, eigh = torch.linalg.solve, torch.linalg.slogdet, torch.linalg.cholesky, torch.linalg.eigh
norm = torch.linalg.norm
distances = torch.cdist
attention = torch.nn.functional.scaled_dot_product_attention


def array(x: Any, kind: str = "") -> Any:
    """Returns the data as this side computes with them, converted where a dtype is named."""
    tensor = torch.from_numpy(x)
    return tensor.bfloat16() if kind == "bfloat16" else tensor


def numpy(x: Any) -> Any:
    """Returns a result as an array of NumPy's, for comparisons."""
    if not isinstance(x, torch.Tensor):
        return np.asarray(x)
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()


def exp_(x: Any) -> Any:
    """Replaces numbers by their exponentials, in place."""
    return x.exp_()


def log_(x: Any) -> Any:
    """Replaces numbers by their natural logarithms, in place."""
    return x.log_()


def take(x: Any, indices: Any, axis: int) -> Any:
    return torch.index_select(x, axis, indices)


def svd(a: Any) -> Any:
    return torch.linalg.svd(a, full_matrices=False)


def cholesky_solve(b: Any, factor: Any) -> Any:
    return torch.cholesky_solve(b, factor)


def solve_triangular(factor: Any, b: Any) -> Any:
    return torch.linalg.solve_triangular(factor, b, upper=False)


def power_spectra(signal: Any, window: Any, hop: int) -> Any:
    """Returns the squared magnitudes of the spectrum of each frame of a signal, one row a frame."""
    found = torch.stft(signal, len(window), hop, window=window, center=False, return_complex=True).T
    return found.real**2 + found.imag**2


def cosines(length: int) -> Any:
    """Returns a function that computes the cosine transform of each row of `length` numbers, by a product: PyTorch has none."""
    waves = np.cos(np.pi / length * np.outer(np.arange(length) + 0.5, np.arange(length))) * math.sqrt(2 / length)
    waves[:, 0] /= math.sqrt(2)
    basis = torch.from_numpy(waves.astype(np.float32))
    return lambda x: x @ basis


# Layers -----------------------------------------------------------------------------------------------------------------


def linear(weight: Any, bias: Any, kind: str, activation: str | None = None) -> Any:
    """Returns a layer, ``layer(x, residual=None)``. A layer of int8 quantizes its input by the range of that input."""
    if kind == "int8":
        packed = torch.ops.quantized.linear_prepack(_weights(weight), torch.from_numpy(bias))
        apply, weights = torch.ops.quantized.linear_dynamic, (packed,)
    else:
        apply, weights = torch.nn.functional.linear, (array(weight, kind), array(bias, kind))

    def layer(x: Any, residual: Any = None) -> Any:
        y = apply(x, *weights)
        if activation == "gelu":
            y = torch.nn.functional.gelu(y)
        return y if residual is None else y.add_(residual)

    return layer


def layer_norm(weight: Any, bias: Any, kind: str) -> Any:
    w, b = array(weight, kind), array(bias, kind)
    return lambda x: torch.nn.functional.layer_norm(x, w.shape, w, b)


def conv2d_relu(weight: Any, bias: Any, kind: str) -> Any:
    w, b = array(weight, kind).contiguous(memory_format=torch.channels_last), array(bias, kind)
    return lambda x: torch.nn.functional.conv2d(x, w, b, padding=w.shape[-1] // 2).relu_()


def max_pool(x: Any) -> Any:
    """Returns the largest of each 2x2 points."""
    return torch.nn.functional.max_pool2d(x, 2)


def mean_points(x: Any) -> Any:
    return torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)


# int8: arrays of integers beside their scale; zero stands for zero --------------------------------------------------------


def _weights(weight: Any) -> Any:
    """Returns weights as integers, with one scale for each output."""
    scales = torch.from_numpy((np.abs(weight).reshape(len(weight), -1).max(axis=1) / 127).astype(np.float64))
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    return torch.quantize_per_channel(torch.from_numpy(weight), scales, zeros, 0, torch.qint8)


def quantize(x: Any, scale: float) -> Any:
    return torch.quantize_per_tensor(x, scale, 0, torch.quint8)


def dequantize(x: Any, scale: float) -> Any:
    return x.dequantize()


def quantized_conv2d_relu(weight: Any, bias: Any, scale: float, result_scale: float) -> Any:
    border = [weight.shape[-1] // 2] * 2
    packed = torch.ops.quantized.conv2d_prepack(_weights(weight), torch.from_numpy(bias), [1, 1], border, [1, 1], 1)
    return lambda x: torch.ops.quantized.conv2d_relu(x, packed, result_scale, 0)


quantized_max_pool = max_pool
