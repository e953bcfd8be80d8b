"""The operations of the programs with Backline, on NumPy's arrays. Weights are packed, as they stay the same."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import backline
from backline import linalg, quantized
from backline.nn import functional

xp = np
matmul, einsum, cholesky_solve, distances = backline.matmul, backline.einsum, backline.cholesky_solve, backline.cdist
solve, slogdet, cholesky, eigh = linalg.solve, linalg.slogdet, linalg.cholesky, linalg.eigh
norm = linalg.norm
attention = functional.scaled_dot_product_attention


def array(x: Any, kind: str = "") -> Any:
    """Returns the data as this side computes with them, converted where a dtype is named."""
    return x.astype(ml_dtypes.bfloat16) if kind == "bfloat16" else x


def numpy(x: Any) -> Any:
    """Returns a result as an array of NumPy's, for comparisons."""
    return x.astype(np.float32) if getattr(x, "dtype", None) == ml_dtypes.bfloat16 else np.asarray(x)


def exp_(x: Any) -> Any:
    """Replaces numbers by their exponentials, in place."""
    return backline.exp(x, out=x)


def log_(x: Any) -> Any:
    """Replaces numbers by their natural logarithms, in place."""
    return backline.log(x, out=x)


def take(x: Any, indices: Any, axis: int) -> Any:
    return np.take(x, indices, axis)


def svd(a: Any) -> Any:
    return linalg.svd(a, full_matrices=False)


def solve_triangular(factor: Any, b: Any) -> Any:
    return linalg.solve_triangular(factor, b, upper=False)


def power_spectra(signal: Any, window: Any, hop: int) -> Any:
    """Returns the squared magnitudes of the spectrum of each frame of a signal, one row a frame."""
    return backline.stft(signal, len(window), hop, window=window, center=False, power=2).T


def cosines(length: int) -> Any:
    """Returns a function that computes the cosine transform of each row of `length` numbers."""
    return lambda x: backline.fft.dct(x, norm="ortho")


# Layers -----------------------------------------------------------------------------------------------------------------


def linear(weight: Any, bias: Any, kind: str, activation: str | None = None) -> Any:
    """Returns a layer, ``layer(x, residual=None)``. A layer of int8 quantizes its input by the range of that input."""
    if kind == "int8":
        return _dynamic(weight, bias, activation)
    layer = functional.prepack_linear(array(weight, kind), array(bias, kind), activation=activation)
    return layer


def _dynamic(weight: Any, bias: Any, activation: str | None) -> Any:
    packed = quantized.linear_prepack(quantized.quantize_weights(weight), bias)

    def layer(x: Any, residual: Any = None) -> Any:
        y = quantized.linear_dynamic(x, packed)
        if activation == "gelu":
            y = functional.gelu(y)
        return y if residual is None else y + residual

    return layer


def layer_norm(weight: Any, bias: Any, kind: str) -> Any:
    w, b = array(weight, kind), array(bias, kind)
    return lambda x: functional.layer_norm(x, len(w), w, b)


def conv2d_relu(weight: Any, bias: Any, kind: str) -> Any:
    padding = weight.shape[-1] // 2
    return functional.prepack_conv2d(array(weight, kind), array(bias, kind), padding=padding, activation="relu")


def max_pool(x: Any) -> Any:
    """Returns the largest of each 2x2 points."""
    return functional.max_pool2d(x, 2)


def mean_points(x: Any) -> Any:
    return functional.adaptive_avg_pool2d(x, 1).reshape(x.shape[:2])


# int8: arrays of integers beside their scale; zero stands for zero --------------------------------------------------------


def quantize(x: Any, scale: float) -> Any:
    return quantized.quantize(x, scale)


def dequantize(x: Any, scale: float) -> Any:
    return quantized.dequantize(x)


def quantized_conv2d_relu(weight: Any, bias: Any, scale: float, result_scale: float) -> Any:
    packed = quantized.conv2d_prepack(quantized.quantize_weights(weight), bias, padding=weight.shape[-1] // 2)
    return lambda x: quantized.conv2d(x, packed, result_scale, 0)  # what is below the zero point becomes it: relu


def quantized_max_pool(x: Any) -> Any:
    return quantized.QArray(functional.max_pool2d(x.int_repr, 2), x.scale, x.zero_point)
