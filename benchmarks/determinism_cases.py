"""One call of every kind of operation that Backline has, large enough to be shared among threads: for costs and for checks.

``cases(scale)`` gives them by name: what is called, as a function of arrays, and the arrays. With a scale below 1 they are
smaller, and most still large enough that threads share them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import backline
from backline import fft, linalg, nn, quantized
from backline.nn import functional, grad

__all__ = ["Case", "cases"]

Array = Any


class Case(NamedTuple):
    """A call: the function, the arrays that it is given, and the operation whose choice is told."""

    call: Callable[..., Any]
    arrays: tuple[Array, ...]


def cases(scale: float = 1.0, seed: int = 0) -> dict[str, Case]:
    """Returns the calls by name."""
    rng = np.random.default_rng(seed)

    def size(n: int) -> int:
        return max(int(n * scale), 8)

    def draw(*shape: int, dtype: Any = np.float32) -> Array:
        return rng.standard_normal(shape).astype(dtype)

    found: dict[str, Case] = {}

    def add(name: str, call: Callable[..., Any], *arrays: Array) -> None:
        found[name] = Case(call, arrays)

    _products(add, draw, size)
    _algebra(add, draw, size)
    _layers(add, draw, size)
    _attention(add, draw, size)
    _recurrent(add, draw, size)
    _transforms(add, draw, size)
    _quantized(add, draw, size)
    return found


def _products(add: Any, draw: Any, size: Any) -> None:
    n = size(1000)
    a, b, wide = draw(n, n), draw(n, n), draw(n, n, dtype=np.float64)
    add("mm", backline.mm, a, b)
    add("mm float64", backline.mm, wide, wide)
    add(
        "mm complex64",
        backline.mm,
        draw(n // 2, n // 2) + 1j * draw(n // 2, n // 2),
        draw(n // 2, n // 2) + 1j * draw(n // 2, n // 2),
    )
    add("mm float16", backline.mm, a.astype(np.float16), b.astype(np.float16))
    add("mm, long sums", backline.mm, draw(16, size(200_000)), draw(size(200_000), 16))
    add("addmm, transposed", lambda c, x, y: backline.addmm(c, x.T, y.T, beta=0.5), b, a, b)
    add("mv", backline.mv, draw(size(3000), size(3000)), draw(size(3000)))
    add("mv, long sums", backline.mv, draw(20, size(400_000)), draw(size(400_000)))
    add("dot", backline.dot, draw(size(1 << 21)), draw(size(1 << 21)))
    add("bmm", backline.bmm, draw(16, n // 4, n // 4), draw(16, n // 4, n // 4))
    add("bmm of two", backline.bmm, draw(2, n // 2, n // 2), draw(2, n // 2, n // 2))
    add("linear", lambda x, w, c: functional.linear(x, w, c, activation="gelu"), a, b, draw(n))
    add("linear_weight", grad.linear_weight, a, b)
    few, ends = n // 4, np.array([n // 8, n // 2, n // 2, n])
    add("grouped_mm", lambda x, w: functional.grouped_mm(x, w, offs=ends), draw(n, few), draw(4, few, few))
    add("einsum", lambda x, y, z: backline.einsum("ij,jk,kl->il", x, y, z), a, b, draw(n, n // 8))
    add("einsum, batch", lambda x, y: backline.einsum("bij,bjk->bik", x, y), draw(4, n // 4, n // 4), draw(4, n // 4, n // 4))


def _algebra(add: Any, draw: Any, size: Any) -> None:
    n, f64 = size(800), np.float64
    a, b = draw(n, n, dtype=f64) + n**0.5 * np.eye(n), draw(n, n, dtype=f64)
    spd = a @ a.T + n * np.eye(n)
    factor, (lu, pivots) = np.linalg.cholesky(spd), linalg.lu_factor(a)
    add("solve", linalg.solve, a, b)
    add("solve, one right side", linalg.solve, a, b[:, 0].copy())
    add("inv", linalg.inv, a)
    add("det", linalg.det, a)
    add("lu_factor", linalg.lu_factor, a)
    add("lu_solve", linalg.lu_solve, lu, pivots, b)
    add("cholesky", linalg.cholesky, spd)
    add("cholesky, upper", lambda x: linalg.cholesky(x, upper=True), spd)
    add("cholesky_solve", backline.cholesky_solve, b, factor)
    add("solve_triangular", lambda x, y: linalg.solve_triangular(x, y, upper=False), factor, b)
    add("qr", linalg.qr, draw(n, n // 2, dtype=f64))
    add("solve, batch", linalg.solve, draw(16, n // 8, n // 8) + n * np.eye(n // 8, dtype=np.float32), draw(16, n // 8, 3))
    add("lstsq", linalg.lstsq, draw(n, n // 4, dtype=f64), draw(n, 3, dtype=f64))
    few = size(400)
    small = draw(few, few, dtype=f64)
    add("eigh", linalg.eigh, small + small.T)
    add("eigvalsh", linalg.eigvalsh, small + small.T)
    add("eig", linalg.eig, small[: few // 2, : few // 2].copy())
    add("svd", linalg.svd, small)
    add("svdvals", linalg.svdvals, small)
    add("pinv", linalg.pinv, small)
    add("matrix_exp", linalg.matrix_exp, small / few)
    add("vector_norm", linalg.vector_norm, draw(size(1 << 21)))
    add("cdist", backline.cdist, draw(n, 64), draw(n, 64))


def _layers(add: Any, draw: Any, size: Any) -> None:
    side = size(56)
    images, kernel = draw(4, 64, side, side), draw(64, 64, 3, 3)
    error = draw(4, 64, side, side)
    add("conv2d", lambda x, w: functional.conv2d(x, w, padding=1), images, kernel)
    add("conv2d, one image", lambda x, w: functional.conv2d(x, w, padding=1), images[:1].copy(), kernel)
    add("conv2d_input", lambda w, g: grad.conv2d_input(images.shape, w, g, padding=1), kernel, error)
    add("conv2d_weight", lambda x, g: grad.conv2d_weight(x, kernel.shape, g, padding=1), images, error)
    add("conv2d, depthwise", lambda x, w: functional.conv2d(x, w, padding=1, groups=64), images, draw(64, 1, 3, 3))
    add("conv_transpose2d", lambda x, w: functional.conv_transpose2d(x, w, padding=1), images, kernel)
    add("conv1d", lambda x, w: functional.conv1d(x, w), draw(8, 64, size(1000)), draw(64, 64, 5))
    add("max_pool2d", lambda x: functional.max_pool2d(x, 2), images)
    rows, width = size(2000), size(1000)
    x, weight = draw(rows, width), draw(width)
    add("softmax", lambda x: functional.softmax(x, 1), x)
    add("softmax_input", lambda y, g: grad.softmax_input(y, g, 1), x, x)
    add("gelu", functional.gelu, x)
    add("layer_norm", lambda x, w: functional.layer_norm(x, (width,), w), x, weight)
    add("layer_norm_backward", lambda x, g, w: grad.layer_norm_backward(x, g, (width,), w), x, x, weight)
    add("rms_norm", lambda x, w: functional.rms_norm(x, (width,), w), x, weight)
    mean, variance = np.zeros(64, np.float32), np.ones(64, np.float32)
    add("batch_norm", lambda x, m, v: functional.batch_norm(x, m, v), images, mean, variance)
    # It updates the running statistics, which the next call is to find as they were.
    train = partial(functional.batch_norm, training=True)
    add("batch_norm, training", lambda x, m, v: train(x, m.copy(), v.copy()), images, mean, variance)
    add("batch_norm_backward", lambda x, g, w: grad.batch_norm_backward(x, g, w), images, error, draw(64))


def _attention(add: Any, draw: Any, size: Any) -> None:
    length = size(512)
    q = draw(2, 8, length, 64)
    add("attention", functional.scaled_dot_product_attention, q, q, q)
    add("attention, causal", lambda q: functional.scaled_dot_product_attention(q, q, q, is_causal=True), q)
    add("attention_backward", grad.scaled_dot_product_attention_backward, q, q, q, q)
    packed, ends = draw(3 * length, 8, 64), [0, length, 2 * length, 2 * length + length // 3, 3 * length]
    add("varlen_attn", lambda q: functional.varlen_attn(q, q, q, ends, is_causal=True), packed)
    add("varlen_attn_backward", lambda q: grad.varlen_attn_backward(q, q, q, q, ends), packed)
    x, w, out = draw(2, length, 256), draw(768, 256) / 16, draw(256, 256) / 16
    add("multi_head_attention", lambda x, w, o: functional.multi_head_attention(x, x, x, 4, w, None, o, None), x, w, out)


def _recurrent(add: Any, draw: Any, size: Any) -> None:
    steps, batch, wide = size(32), 32, size(256)
    x, state = draw(steps, batch, wide), draw(1, batch, wide)
    flags = (True, 1, 0.0, False, False, False)
    for name, gates in (("lstm", 4), ("gru", 3)):
        params = tuple(draw(gates * wide, wide) / wide**0.5 for _ in range(2)) + tuple(draw(gates * wide) for _ in range(2))
        hx = (state, state) if name == "lstm" else state
        add(name, partial(_forward, getattr(nn, name), hx, flags), x, *params)
        backward, grads = getattr(grad, f"{name}_backward"), (state, state) if name == "lstm" else (state,)
        add(f"{name}_backward", partial(_backward, backward, hx, grads, flags), x, *params)


def _forward(function: Any, hx: Any, flags: Any, x: Array, *params: Array) -> Any:
    return function(x, hx, params, *flags)


def _backward(function: Any, hx: Any, grads: Any, flags: Any, x: Array, *params: Array) -> Any:
    return function(x, hx, params, x, *grads, *flags)


def _transforms(add: Any, draw: Any, size: Any) -> None:
    n = size(1024)
    image = draw(n, n, dtype=np.float64)
    plane = image + 1j
    add("fft", fft.fft, draw(1 << 18, dtype=np.float64) + 0j)
    add("fft, batch", fft.fft, plane)
    add("fft, along columns", lambda x: fft.fft(x, dim=0), plane)
    add("fft2", fft.fft2, plane)
    add("rfft2", fft.rfft2, image)
    add("irfft2", fft.irfft2, plane)
    add("fft2 of real numbers", fft.fft2, image)
    add("fftn", fft.fftn, draw(n // 16, n // 16, n // 16) + 0j)
    add("dctn", fft.dctn, image)


def _quantized(add: Any, draw: Any, size: Any) -> None:
    n = size(512)
    x = quantized.quantize(draw(n, n), 0.05, 128, "uint8")
    packed = quantized.linear_prepack(quantized.quantize_weights(draw(n, n)))
    kernel = quantized.conv2d_prepack(quantized.quantize_weights(draw(64, 64, 3, 3)))
    images = quantized.quantize(draw(2, 64, size(40), size(40)), 0.05, 128, "uint8")
    add("quantized.linear", lambda: quantized.linear(x, packed, scale=0.5, zero_point=100).int_repr)
    add("quantized.linear_dynamic", lambda y: quantized.linear_dynamic(y, packed), draw(n, n))
    add("quantized.conv2d", lambda: quantized.conv2d(images, kernel, scale=0.5, zero_point=100).int_repr)
    short, one = (draw(n, n) * 50).clip(-128, 127).astype(np.int8), np.ones(1, np.float32)
    add("int_mm", quantized.int_mm, short, short)
    float8 = draw(n, n).astype(ml_dtypes.float8_e4m3fn)
    add("scaled_mm", lambda x: functional.scaled_mm(x, x, one, "TensorWise", one, "TensorWise"), float8)
