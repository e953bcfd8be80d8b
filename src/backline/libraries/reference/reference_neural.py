"""Activations, softmax and normalisation in NumPy alone: the reference results, and what runs where no other library can.

float32 and float64 are computed in float64 and rounded once. float16 and bfloat16 are computed in float32, their sums in
float64, and rounded once. Means and variances are taken in two passes. Arrays are worked on in blocks that stay in cache. NaN
and infinity spread as the formulas say, without warnings. A result has its axes in the same order in memory as the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...problems.neural_problem import NeuralProblem
from ..base import Algorithm, PythonPlan, Refusal
from ..blas.compiled_loops import COMPILED, compiled_algorithms, prepare_compiled
from . import formulas, reference_pooling
from .array_namespaces import NUMPY
from .error_function import erfc

__all__ = ["DTYPES", "activate", "algorithms", "blocks", "plan", "prepare"]

Array = Any

DTYPES = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("relu", "max_pool", "max_pool_indices")  # have these as well
BLOCK = 1 << 15  # elements at a time
ROOT_HALF, ROOT_2_PI = math.sqrt(0.5), math.sqrt(2 * math.pi)
TANH_SCALE, TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715  # of Hendrycks and Gimpel, arXiv:1606.08415


def algorithms(p: NeuralProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Compiled loops where there are some, and NumPy's own, on one thread and in one order."""
    if p.dtype.name not in DTYPES and not (p.op in INTEGERS and p.dtype.kind in "iu"):
        yield Refusal("numpy", p.op, f"{p.op} is for {', '.join(DTYPES)}, not {p.dtype.name}")
    elif p.op not in OPERATIONS:
        yield Refusal("numpy", p.op, f"NumPy has no {p.op}")
    else:
        yield from compiled_algorithms(p, threads)
        note = "computed in float64 and rounded" if p.dtype == np.float32 and not p.op.startswith(("relu", "max_pool")) else ""
        yield Algorithm(library="numpy", name="loops", level="threads", basis="construction", note=note)


def plan(p: NeuralProblem) -> Callable[..., Any]:
    """The function of the arrays of a call that computes a NeuralProblem."""
    compute = OPERATIONS[p.op]
    roles = [o.role for o in p.operands]

    def run(*arrays: Array) -> Any:
        with np.errstate(all="ignore"):  # as compiled libraries: what is not finite shows in the result
            return compute(p, **dict(zip(roles, arrays, strict=True)))

    return run


def prepare(p: NeuralProblem, algorithm: Algorithm) -> Any:
    """The plan of what `algorithms` listed."""
    return prepare_compiled(p, algorithm) if algorithm.name == COMPILED else PythonPlan(plan(p))


def working(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that an operation on this one is computed in."""
    return np.dtype(np.float32 if dtype.itemsize == 2 else np.float64)


def _new(like: Array, dtype: Any = None) -> Array:
    return np.empty_like(like, dtype=dtype, order="K", subok=False)


def blocks(shape: tuple[int, ...], whole: tuple[int, ...] = ()) -> Iterator[tuple[slice, ...]]:
    """Cut an array into pieces of about BLOCK elements, along one axis that is not in `whole`; every piece is an index.

    Examples
    --------
    >>> [index[0] for index in blocks((3, 20000))]
    [slice(None, None, None), slice(None, None, None)]
    >>> [index[1] for index in blocks((3, 20000))]
    [slice(0, 10922, None), slice(10922, 20000, None)]
    """
    size = math.prod(shape)
    axes = [i for i in range(len(shape)) if i not in whole]
    if size <= BLOCK or not axes:
        yield (slice(None),) * len(shape)
        return
    axis = max(axes, key=lambda i: shape[i])
    step = max(BLOCK * shape[axis] // size, 1)
    for start in range(0, shape[axis], step):
        part = [slice(None)] * len(shape)
        part[axis] = slice(start, min(start + step, shape[axis]))
        yield tuple(part)


def _sum(x: Array, axes: tuple[int, ...]) -> Array:
    return np.sum(x, axis=axes, dtype=np.float64, keepdims=True)


# Activations ---------------------------------------------------------------------------------------------------------


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))  # never above 1: nothing overflows
    return np.where(x >= 0, x.dtype.type(1), e) / (1 + e)


def _gelu(x: Array) -> Array:
    # erfc of the negative: 1 + erf would cancel where x is negative.
    return x * (0.5 * erfc(-ROOT_HALF * x)).astype(x.dtype, copy=False)


def _gelu_tanh(x: Array) -> Array:
    # (1 + tanh u) / 2 is the sigmoid of 2 u, without the cancellation.
    return x * _sigmoid(2 * TANH_SCALE * (x + TANH_CUBIC * x * x * x))


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def _relu(x: Array) -> Array:
    return np.maximum(x, x.dtype.type(0))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": _relu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "silu": _silu, "tanh": np.tanh, "sigmoid": _sigmoid,
}  # fmt: skip


def activate(name: str, x: Array, out: Array) -> Array:
    """Write an activation of an array to another one of the same shape, or to the array itself; returns that.

    Parameters
    ----------
    name
        A key of ACTIVATIONS.
    x, out
        Arrays of one of DTYPES.
    """
    function, dtype = ACTIVATIONS[name], x.dtype if name == "relu" else working(x.dtype)
    for part in blocks(x.shape):
        out[part] = function(x[part].astype(dtype, copy=False))
    return out


def _named(name: str) -> Callable[..., Array]:
    def compute(p: NeuralProblem, input: Array) -> Array:
        return activate(name, input, _new(input))

    return compute


def gelu(p: NeuralProblem, input: Array) -> Array:
    return activate("gelu_tanh" if p.parameter("approximate") == "tanh" else "gelu", input, _new(input))


def _gelu_slope(x: Array) -> Array:
    near = np.clip(x, -100, 100)  # beyond, the density is 0, and 0 times infinity is not meant
    return 0.5 * erfc(-ROOT_HALF * x) + near * np.exp(-0.5 * near * near) / ROOT_2_PI


def _gelu_tanh_slope(x: Array) -> Array:
    near = np.clip(x, -100, 100)
    u = 2 * TANH_SCALE * (near + TANH_CUBIC * near**3)
    rise = 2 * TANH_SCALE * (1 + 3 * TANH_CUBIC * near * near)
    return _sigmoid(u) + near * _sigmoid(u) * _sigmoid(-u) * rise


def _silu_slope(x: Array) -> Array:
    near = np.clip(x, -1000, 1000)  # beyond, the slope is 0 or 1, and 0 times infinity is not meant
    return _sigmoid(near) * (1 + near * _sigmoid(-near))


def _tanh_slope(x: Array) -> Array:
    return 4 * _sigmoid(2 * x) * _sigmoid(-2 * x)  # 1 - tanh(x) ** 2, without the cancellation


def _sigmoid_slope(x: Array) -> Array:
    return _sigmoid(x) * _sigmoid(-x)


def _sloped(slope: Callable[[Array], Array]) -> Callable[..., Array]:
    """The gradient of an activation, from its slope."""

    def compute(p: NeuralProblem, input: Array, grad: Array) -> Array:
        result, dtype = _new(input), working(input.dtype)
        for part in blocks(input.shape):
            result[part] = (slope(input[part].astype(dtype, copy=False)) * grad[part]).astype(dtype, copy=False)
        return result

    return compute


def gelu_grad(p: NeuralProblem, input: Array, grad: Array) -> Array:
    slope = _gelu_tanh_slope if p.parameter("approximate") == "tanh" else _gelu_slope
    return _sloped(slope)(p, input, grad)


def relu_grad(p: NeuralProblem, input: Array, grad: Array) -> Array:
    result = _new(input)
    result[...] = np.where(input <= 0, result.dtype.type(0), grad)  # a NaN lets the gradient through, as in torch
    return result


# Softmax -------------------------------------------------------------------------------------------------------------


def _along(compute: Callable[..., Array]) -> Callable[..., Array]:
    """A formula along an axis, on blocks that hold the whole of it."""

    def run(p: NeuralProblem, **given: Array) -> Array:
        arrays = [given[role] for role in ("input", "result", "grad") if role in given]
        result, dtype, axis = _new(arrays[0]), working(arrays[0].dtype), p.parameter("axis")
        made, *arrays = (x if x.ndim else x.reshape(1) for x in (result, *arrays))
        if made.size:
            for part in blocks(made.shape, (axis,)):
                made[part] = compute(NUMPY, *(x[part].astype(dtype, copy=False) for x in arrays), axis)
        return result

    return run


softmax, log_softmax = _along(formulas.softmax), _along(formulas.log_softmax)
softmax_grad, log_softmax_grad = _along(formulas.softmax_grad), _along(formulas.log_softmax_grad)


# Normalisation -------------------------------------------------------------------------------------------------------


def _normalised(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array]:
    """(x - mean) / sqrt(variance + eps) in float64, and what was divided by, inverted."""
    count = math.prod(x.shape[i] for i in axes)
    centred = x - _sum(x, axes) / count
    inverse = 1 / np.sqrt(_sum(centred * centred, axes) / count + eps)
    centred *= inverse
    return centred, inverse


def _last(p: NeuralProblem, x: Array) -> tuple[int, ...]:
    return tuple(range(x.ndim - p.parameter("axes"), x.ndim))


def layer_norm(p: NeuralProblem, input: Array, weight: Array | None = None, bias: Array | None = None) -> Array:
    result, dtype, axes = _new(input), working(input.dtype), _last(p, input)
    if input.size == 0:
        return result
    for part in blocks(input.shape, axes):
        y, _ = _normalised(input[part].astype(dtype, copy=False), axes, p.parameter("eps"))
        result[part] = _scaled(y, weight, bias).astype(dtype, copy=False)
    return result


def _scaled(y: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        y = y * weight.astype(np.float64, copy=False)
    return y if bias is None else y + bias.astype(np.float64, copy=False)


def _over_channels(vector: Array | None, ndim: int) -> Array | None:
    return None if vector is None else vector.astype(np.float64, copy=False).reshape(-1, *[1] * (ndim - 2))


def batch_norm(
    p: NeuralProblem, input: Array, mean: Array, variance: Array, weight: Array | None = None, bias: Array | None = None
) -> Array:
    centre, spread, weight, bias = (_over_channels(v, input.ndim) for v in (mean, variance, weight, bias))
    assert centre is not None and spread is not None
    inverse = 1 / np.sqrt(spread + p.parameter("eps"))
    result, dtype = _new(input), working(input.dtype)
    for part in blocks(input.shape, (1,)):
        y = (input[part].astype(dtype, copy=False) - centre) * inverse
        result[part] = _scaled(y, weight, bias).astype(dtype, copy=False)
    return result


def _batch_axes(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _statistics(x: Array) -> tuple[Array, Array]:
    """Mean and biased variance of every channel, in float64, with the axes of the input."""
    axes, count = _batch_axes(x), max(x.size // max(x.shape[1], 1), 1)
    mean = _sum(x, axes) / count
    square = np.zeros_like(mean)
    for part in blocks(x.shape, (1,)):
        centred = x[part].astype(np.float64, copy=False) - mean
        centred *= centred
        square += _sum(centred, axes)
    return mean, square / count


def batch_norm_train(
    p: NeuralProblem, input: Array, weight: Array | None = None, bias: Array | None = None
) -> tuple[Array, Array, Array]:
    mean, variance = (v.reshape(-1) for v in _statistics(input))
    result = batch_norm(p, input, mean, variance, weight, bias)
    kept = np.float32 if input.dtype.itemsize == 2 else input.dtype
    return result, mean.astype(kept), variance.astype(kept)


def layer_norm_grad(p: NeuralProblem, input: Array, grad: Array, weight: Array | None = None) -> tuple[Array, Array, Array]:
    axes = _last(p, input)
    lead = tuple(range(input.ndim - len(axes)))
    wide = None if weight is None else weight.astype(np.float64, copy=False)
    return _norm_grad(p, input, grad, wide, axes, lead)


def batch_norm_train_grad(
    p: NeuralProblem, input: Array, grad: Array, weight: Array | None = None
) -> tuple[Array, Array, Array]:
    axes = _batch_axes(input)
    return _norm_grad(p, input, grad, _over_channels(weight, input.ndim), axes, axes)


def _norm_grad(
    p: NeuralProblem, input: Array, grad: Array, weight: Array | None, axes: tuple[int, ...], summed: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """Gradients of input, weight and bias, where `axes` are averaged over and the parameters repeated along `summed`."""
    result = _new(input)
    shape = tuple(n for i, n in enumerate(input.shape) if i not in summed)
    if input.size == 0:
        return result, np.zeros(shape, input.dtype), np.zeros(shape, input.dtype)
    by_weight = np.zeros([1 if i in summed else n for i, n in enumerate(input.shape)])
    by_bias = np.zeros_like(by_weight)
    for part in blocks(input.shape, axes):
        here = tuple(slice(None) if i in summed else s for i, s in enumerate(part))
        x, g = input[part].astype(np.float64, copy=False), grad[part].astype(np.float64, copy=False)
        scale = None if weight is None else weight[part[1:2]] if axes[0] == 0 else weight
        moved, more_weight, more_bias = formulas.norm_grad(NUMPY, x, g, scale, axes, summed, p.parameter("eps"))
        by_weight[here] += more_weight
        by_bias[here] += more_bias
        result[part] = moved.astype(working(input.dtype), copy=False)
    return result, by_weight.reshape(shape).astype(input.dtype), by_bias.reshape(shape).astype(input.dtype)


OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: _named(name) for name in ("relu", "silu", "tanh", "sigmoid")},
    "gelu": gelu, "softmax": softmax, "log_softmax": log_softmax, "layer_norm": layer_norm, "batch_norm": batch_norm,
    "batch_norm_train": batch_norm_train, "relu_grad": relu_grad, "gelu_grad": gelu_grad, "silu_grad": _sloped(_silu_slope),
    "tanh_grad": _sloped(_tanh_slope), "sigmoid_grad": _sloped(_sigmoid_slope), "softmax_grad": softmax_grad,
    "log_softmax_grad": log_softmax_grad, "layer_norm_grad": layer_norm_grad, "batch_norm_train_grad": batch_norm_train_grad,
    **{name: getattr(reference_pooling, name) for name in reference_pooling.__all__},
}  # fmt: skip
