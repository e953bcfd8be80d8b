"""The operations of the programs in plain NumPy and SciPy.

NumPy has no fast products of bfloat16 or int8. Arrays of bfloat16 are widened to float32 for a product, and its result is
rounded; integers are multiplied as float32, which holds their sums. Weights are widened once.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import scipy.fft
import scipy.linalg
import scipy.spatial.distance
import scipy.special
from numpy.lib.stride_tricks import sliding_window_view

xp = np
matmul = np.matmul
solve, slogdet, cholesky, eigh = np.linalg.solve, np.linalg.slogdet, np.linalg.cholesky, np.linalg.eigh
norm = np.linalg.norm
distances = scipy.spatial.distance.cdist


def array(x: Any, kind: str = "") -> Any:
    """Returns the data as this side computes with them, converted where a dtype is named."""
    return x.astype(ml_dtypes.bfloat16) if kind == "bfloat16" else x


def numpy(x: Any) -> Any:
    """Returns a result as an array of NumPy's, for comparisons."""
    return x.astype(np.float32) if getattr(x, "dtype", None) == ml_dtypes.bfloat16 else np.asarray(x)


def exp_(x: Any) -> Any:
    """Replaces numbers by their exponentials, in place."""
    return np.exp(x, out=x)


def log_(x: Any) -> Any:
    """Replaces numbers by their natural logarithms, in place."""
    return np.log(x, out=x)


def einsum(equation: str, *operands: Any) -> Any:
    """Contracts with large intermediate results: by default none is larger than an operand, and the programs take minutes."""
    return np.einsum(equation, *operands, optimize=("greedy", 1 << 28))


def take(x: Any, indices: Any, axis: int) -> Any:
    return np.take(x, indices, axis)


def svd(a: Any) -> Any:
    return np.linalg.svd(a, full_matrices=False)


def cholesky_solve(b: Any, factor: Any) -> Any:
    return scipy.linalg.cho_solve((factor, True), b)


def solve_triangular(factor: Any, b: Any) -> Any:
    return scipy.linalg.solve_triangular(factor, b, lower=True)


def power_spectra(signal: Any, window: Any, hop: int) -> Any:
    """Returns the squared magnitudes of the spectrum of each frame of a signal, one row a frame."""
    found = scipy.fft.rfft(sliding_window_view(signal, len(window))[::hop] * window)
    return found.real**2 + found.imag**2


def cosines(length: int) -> Any:
    """Returns a function that computes the cosine transform of each row of `length` numbers."""
    return lambda x: scipy.fft.dct(x, norm="ortho")


# Layers -----------------------------------------------------------------------------------------------------------------


def _wide(x: Any) -> Any:
    return x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x


def _rounded(x: Any, kind: str) -> Any:
    return x.astype(ml_dtypes.bfloat16) if kind == "bfloat16" else x


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + scipy.special.erf(x * np.float32(2**-0.5)))


def linear(weight: Any, bias: Any, kind: str, activation: str | None = None) -> Any:
    """Returns a layer, ``layer(x, residual=None)``. A layer of int8 quantizes its input by the range of that input."""
    if kind == "int8":
        return _dynamic(weight, bias, activation)
    w, b = _wide(array(weight, kind)).T, _wide(array(bias, kind))

    def layer(x: Any, residual: Any = None) -> Any:
        y = _wide(x) @ w
        y += b
        if activation == "gelu":
            y = _gelu(y)
        if residual is not None:
            y += _wide(residual)
        return _rounded(y, kind)

    return layer


def _integers(weight: Any) -> tuple[Any, Any]:
    """Returns weights as integers in float32, and one scale for each output."""
    scales = np.abs(weight).reshape(len(weight), -1).max(axis=1) / np.float32(127)
    return np.rint(weight / scales.reshape(-1, *(1,) * (weight.ndim - 1))), scales


def _dynamic(weight: Any, bias: Any, activation: str | None) -> Any:
    integers, scales = _integers(weight)
    w = integers.T

    def layer(x: Any, residual: Any = None) -> Any:
        low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
        step = (high - low) / 255 or 1.0
        zero = round(-low / step)
        q = np.clip(np.rint(x * np.float32(1 / step)) + zero, 0, 255) - zero
        y = (q @ w) * (scales * np.float32(step)) + bias
        if activation == "gelu":
            y = _gelu(y)
        return y if residual is None else y + residual

    return layer


def layer_norm(weight: Any, bias: Any, kind: str) -> Any:
    def layer(x: Any) -> Any:
        wide = _wide(x)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        return _rounded(centred / np.sqrt(variance + np.float32(1e-5)) * weight + bias, kind)

    return layer


def attention(q: Any, k: Any, v: Any) -> Any:
    kind = "bfloat16" if q.dtype == ml_dtypes.bfloat16 else ""
    scores = _wide(q) @ _wide(k).swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return _rounded(weights @ _wide(v), kind)


def _sums(x: Any, weight: Any) -> Any:
    """Computes a convolution with a border of zeros; the channels of its result are the last axis."""
    border = weight.shape[-1] // 2
    padded = np.pad(x, ((0, 0), (0, 0), (border, border), (border, border)))
    windows = sliding_window_view(padded, weight.shape[2:], axis=(2, 3))
    return np.tensordot(windows, weight, axes=((1, 4, 5), (1, 2, 3)))


def conv2d_relu(weight: Any, bias: Any, kind: str) -> Any:
    w, b = _wide(array(weight, kind)), _wide(array(bias, kind))

    def layer(x: Any) -> Any:
        y = _sums(_wide(x), w)
        y += b
        return _rounded(np.maximum(y, 0, out=y), kind).transpose(0, 3, 1, 2)

    return layer


def max_pool(x: Any) -> Any:
    """Returns the largest of each 2x2 points."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))


def mean_points(x: Any) -> Any:
    return _rounded(_wide(x).mean(axis=(2, 3)), "bfloat16" if x.dtype == ml_dtypes.bfloat16 else "")


# int8: arrays of integers beside their scale; zero stands for zero --------------------------------------------------------


def quantize(x: Any, scale: float) -> Any:
    return np.clip(np.rint(x * np.float32(1 / scale)), 0, 255)


def dequantize(x: Any, scale: float) -> Any:
    return x * np.float32(scale)


def quantized_conv2d_relu(weight: Any, bias: Any, scale: float, result_scale: float) -> Any:
    integers, scales = _integers(weight)
    factors, units = scales * np.float32(scale / result_scale), np.rint(bias / (scales * np.float32(scale)))

    def layer(x: Any) -> Any:
        y = _sums(x, integers)
        y += units
        y *= factors
        return np.clip(np.rint(y, out=y), 0, 255, out=y).transpose(0, 3, 1, 2)

    return layer


quantized_max_pool = max_pool
