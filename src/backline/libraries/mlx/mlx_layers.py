"""Activations, softmax, normalisation and pooling of MLX's arrays. Halves are computed in float32 and rounded once.

Gradients are not here: MLX differentiates the operations themselves, by ``mx.grad`` and ``mx.vjp``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from ...problems.neural_problem import NeuralProblem
from ..reference import formulas
from ..reference.array_namespaces import mlx_space
from ..reference.layer_formulas import FORMULAS, SHAPED, empty

__all__ = ["ACTIVATIONS", "EXPONENTIAL", "IMPRECISE", "function", "note", "refusal"]

Array = Any
Run = Callable[..., Any]

DTYPES = ("float16", "bfloat16", "float32", "float64")
TANH_SCALE, TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715  # of Hendrycks and Gimpel, arXiv:1606.08415
IMPRECISE = "MLX computes exponentials and the error function in single precision, those of float64 too"
EXPONENTIAL = (  # what they are in
    "gelu", "gelu_tanh", "silu", "sigmoid", "softmax", "log_softmax",
    *(f"{name}_grad" for name in ("gelu", "silu", "sigmoid", "tanh", "log_softmax")),
)  # fmt: skip


def refusal(p: NeuralProblem) -> str:
    """Why there is no such layer; empty where there is."""
    if p.op not in OPERATIONS:
        return f"there is no {p.op} for arrays of MLX"
    if p.dtype.name not in DTYPES:
        return f"{p.op} is for {', '.join(DTYPES)}, not {p.dtype.name}"
    if p.dtype.name == "float64" and p.op in EXPONENTIAL:
        return IMPRECISE
    return ""


def note(p: NeuralProblem) -> str:
    """What else a user should know."""
    exact = p.op == "gelu" and p.parameter("approximate") != "tanh"
    return "results near 0 of negative numbers have few digits: MLX has no erfc" if exact else ""


def function(p: NeuralProblem, mx: Any, metal: bool) -> Run:
    """The function of the arrays of a call."""
    compute = OPERATIONS[p.op]
    roles = [o.role for o in p.operands]
    halves = p.dtype.itemsize == 2

    def run(*arrays: Array) -> Any:
        given = dict(zip(roles, arrays, strict=True))
        dtype = next(given[role] for role in ("input", "result", "grad") if role in given).dtype
        if halves:
            given = {role: x.astype(mx.float32) for role, x in given.items()}
        result = compute(p, mx, **given)
        if isinstance(result, tuple):  # statistics of halves stay float32
            return (result[0].astype(dtype), *(v.astype(dtype) if p.op in SHAPED else v for v in result[1:]))
        return result.astype(dtype)

    return run


# Activations ---------------------------------------------------------------------------------------------------------


def _relu(x: Array, mx: Any) -> Array:
    return mx.maximum(x, 0.0)


def _gelu(x: Array, mx: Any) -> Array:
    return x * (0.5 * (1 + mx.erf(x * math.sqrt(0.5))))


def _gelu_tanh(x: Array, mx: Any) -> Array:
    # (1 + tanh u) / 2 is the sigmoid of 2 u, without the cancellation.
    return x * mx.sigmoid(2 * TANH_SCALE * (x + TANH_CUBIC * x * x * x))


def _silu(x: Array, mx: Any) -> Array:
    return x * mx.sigmoid(x)


def _tanh(x: Array, mx: Any) -> Array:
    return mx.tanh(x)


def _sigmoid(x: Array, mx: Any) -> Array:
    return mx.sigmoid(x)


ACTIVATIONS: dict[str, Callable[[Array, Any], Array]] = {
    "relu": _relu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "silu": _silu, "tanh": _tanh, "sigmoid": _sigmoid,
}  # fmt: skip


def _activation(name: str) -> Run:
    def compute(p: NeuralProblem, mx: Any, input: Array) -> Array:
        return ACTIVATIONS["gelu_tanh" if p.parameter("approximate") == "tanh" else name](input, mx)

    return compute


# Softmax -------------------------------------------------------------------------------------------------------------


def softmax(p: NeuralProblem, mx: Any, input: Array) -> Array:
    if not p.result:  # one element, and no axis
        return mx.softmax(input.reshape(1), axis=0, precise=True).reshape(())
    return mx.zeros(input.shape, input.dtype) if p.empty else mx.softmax(input, axis=p.parameter("axis"), precise=True)


def log_softmax(p: NeuralProblem, mx: Any, input: Array) -> Array:
    if p.empty:
        return mx.zeros(input.shape, input.dtype)
    if not p.result:
        return input - input  # 0, and NaN where there is no difference
    axis = p.parameter("axis")
    x = input - mx.max(input, axis=axis, keepdims=True)
    return x - mx.log(mx.sum(mx.exp(x), axis=axis, keepdims=True))


# Normalisation -------------------------------------------------------------------------------------------------------


def _moments(mx: Any, x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """What is left of the mean, and the biased variance."""
    centred = x - mx.mean(x, axis=axes, keepdims=True)
    return centred, mx.mean(centred * centred, axis=axes, keepdims=True)


def layer_norm(p: NeuralProblem, mx: Any, input: Array, weight: Array | None = None, bias: Array | None = None) -> Array:
    if p.empty:
        return input
    centred, variance = _moments(mx, input, tuple(range(input.ndim - p.parameter("axes"), input.ndim)))
    y = centred * mx.rsqrt(variance + p.parameter("eps"))
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _over_channels(vector: Array, ndim: int) -> Array:
    return vector.reshape(-1, *[1] * (ndim - 2))


def batch_norm(
    p: NeuralProblem, mx: Any, input: Array, mean: Array, variance: Array, weight: Array | None = None, bias: Array | None = None
) -> Array:
    if p.empty:
        return input
    y = (input - _over_channels(mean, input.ndim)) * mx.rsqrt(_over_channels(variance, input.ndim) + p.parameter("eps"))
    y = y if weight is None else y * _over_channels(weight, input.ndim)
    return y if bias is None else y + _over_channels(bias, input.ndim)


def batch_norm_train(p: NeuralProblem, mx: Any, input: Array, weight: Array | None = None, bias: Array | None = None) -> Any:
    channels = input.shape[1]
    if p.empty:
        nothing = mx.zeros((channels,), input.dtype)
        return input, nothing, nothing
    axes = (0, *range(2, input.ndim))
    mean = mx.mean(input, axis=axes)
    _, variance = _moments(mx, input, axes)
    variance = variance.reshape(channels)
    return batch_norm(p, mx, input, mean, variance, weight, bias), mean, variance


# Pooling -------------------------------------------------------------------------------------------------------------


def _pooled(p: NeuralProblem, mx: Any, x: Array, outside: float, join: Callable[[Array, Array], Array]) -> Array:
    """Every window joined to one element, one axis after the other."""
    for axis, kernel, stride, dilation, padding in formulas.geometry(p):
        if any(padding):
            x = mx.pad(x, [padding if i == axis else (0, 0) for i in range(x.ndim)], constant_values=outside)
        span = (p.result[axis] - 1) * stride + 1
        before = (slice(None),) * axis
        x = reduce(join, (x[(*before, slice(i * dilation, i * dilation + span, stride))] for i in range(kernel)))
    return x


def max_pool(p: NeuralProblem, mx: Any, input: Array) -> Array:
    return mx.zeros(p.result, input.dtype) if p.empty else _pooled(p, mx, input, -math.inf, mx.maximum)


def avg_pool(p: NeuralProblem, mx: Any, input: Array) -> Array:
    if p.empty:
        return mx.zeros(p.result, input.dtype)
    rank = len(p.parameter("kernel"))
    divisors = formulas.divisors(p, tuple(input.shape[-rank:]), p.result[-rank:])
    return _pooled(p, mx, input, 0.0, lambda a, b: a + b) / mx.array(np.asarray(divisors, np.float64), dtype=input.dtype)


def adaptive_avg_pool(p: NeuralProblem, mx: Any, input: Array) -> Array:
    if p.empty:
        return mx.zeros(p.result, input.dtype)
    output, x = p.parameter("output"), input
    for axis, points in enumerate(output, input.ndim - len(output)):
        before = (slice(None),) * axis
        parts = formulas.parts(input.shape[axis], points)
        x = mx.stack([mx.mean(x[(*before, part)], axis=axis) for part in parts], axis=axis)
    return x


# Gradients -----------------------------------------------------------------------------------------------------------


def _gelu_slope(x: Array, mx: Any) -> Array:
    near = mx.clip(x, -100, 100)  # beyond, the density is 0, and 0 times infinity is not meant
    return 0.5 * (1 + mx.erf(x * math.sqrt(0.5))) + near * mx.exp(-0.5 * near * near) / math.sqrt(2 * math.pi)


def _gelu_tanh_slope(x: Array, mx: Any) -> Array:
    near = mx.clip(x, -100, 100)
    u = 2 * TANH_SCALE * (near + TANH_CUBIC * near * near * near)
    rise = 2 * TANH_SCALE * (1 + 3 * TANH_CUBIC * near * near)
    return mx.sigmoid(u) + near * mx.sigmoid(u) * mx.sigmoid(-u) * rise


def _silu_slope(x: Array, mx: Any) -> Array:
    near = mx.clip(x, -1000, 1000)  # beyond, the slope is 0 or 1, and 0 times infinity is not meant
    return mx.sigmoid(near) * (1 + near * mx.sigmoid(-near))


def _tanh_slope(x: Array, mx: Any) -> Array:
    return 4 * mx.sigmoid(2 * x) * mx.sigmoid(-2 * x)  # 1 - tanh(x) ** 2, without the cancellation


def _sigmoid_slope(x: Array, mx: Any) -> Array:
    return mx.sigmoid(x) * mx.sigmoid(-x)


SLOPES: dict[str, Callable[[Array, Any], Array]] = {
    "gelu": _gelu_slope, "gelu_tanh": _gelu_tanh_slope, "silu": _silu_slope, "tanh": _tanh_slope, "sigmoid": _sigmoid_slope,
}  # fmt: skip


def _sloped(name: str) -> Run:
    def compute(p: NeuralProblem, mx: Any, input: Array, grad: Array) -> Array:
        return SLOPES["gelu_tanh" if p.parameter("approximate") == "tanh" else name](input, mx) * grad

    return compute


def relu_grad(p: NeuralProblem, mx: Any, input: Array, grad: Array) -> Array:
    return mx.where(input <= 0, 0.0, grad)  # a NaN lets the gradient through


def _formula(p: NeuralProblem, mx: Any, **given: Array) -> Any:
    f = mlx_space(mx)
    if p.empty or any(0 in o.shape for o in p.operands):
        return empty(p, f)()
    return FORMULAS[p.op](f, p, given)


OPERATIONS: dict[str, Run] = {
    **{name: _activation(name) for name in ("relu", "gelu", "silu", "tanh", "sigmoid")},
    "softmax": softmax, "log_softmax": log_softmax, "layer_norm": layer_norm, "batch_norm": batch_norm,
    "batch_norm_train": batch_norm_train, "max_pool": max_pool, "avg_pool": avg_pool, "avg_pool_divided": avg_pool,
    "adaptive_avg_pool": adaptive_avg_pool, "relu_grad": relu_grad,
    **{f"{name}_grad": _sloped(name) for name in ("gelu", "silu", "tanh", "sigmoid")},
    **{name: _formula for name in FORMULAS if name.endswith("_grad")},
}  # fmt: skip
