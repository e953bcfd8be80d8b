"""Elementary functions, activations, softmax and normalisation in NumPy alone: the reference, and what runs if nothing else can.

float32 and float64 are computed in float64 and rounded once. float16 and bfloat16 are computed in float32, their sums in
float64, and rounded once. Means and variances are taken in two passes. Arrays are worked on in blocks that stay in cache. NaN
and infinity spread as the formulas say, without warnings. A result has its axes in the same order in memory as the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...problems.neural_problem import ELEMENTARY, NeuralProblem
from ..base import Algorithm, Refusal
from . import activation_formulas, formulas, reference_pooling
from .array_namespaces import NUMPY

__all__ = ["DTYPES", "activate", "algorithms", "blocks", "plan"]

Array = Any

DTYPES = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("relu", "max_pool", "max_pool_indices")  # have these as well
BLOCK = 1 << 15  # elements at a time


def algorithms(p: NeuralProblem) -> Iterator[Algorithm | Refusal]:
    """NumPy's loops, on one thread and in one order."""
    more = p.dtype.kind in ("iu" if p.op in INTEGERS else "c" if p.op in ELEMENTARY else "")
    if p.dtype.name not in DTYPES and not more:
        yield Refusal("numpy", p.op, f"{p.op} is for {', '.join(DTYPES)}, not {p.dtype.name}")
    elif p.op not in OPERATIONS:
        yield Refusal("numpy", p.op, f"NumPy has no {p.op}", lacks=True)
    else:
        exact = p.op.startswith(("relu", "max_pool"))
        note = "computed in float64 and rounded" if p.dtype.name in ("float32", "complex64") and not exact else ""
        precision = "f64" if note else ""
        yield Algorithm(library="numpy", name="loops", precision=precision, level="threads", basis="construction", note=note)


def plan(p: NeuralProblem) -> Callable[..., Any]:
    """The function of the arrays of a call that computes a NeuralProblem."""
    compute = OPERATIONS[p.op]
    roles = [o.role for o in p.operands]

    def run(*arrays: Array) -> Any:
        with np.errstate(all="ignore"):  # as compiled libraries: what is not finite shows in the result
            return compute(p, **dict(zip(roles, arrays, strict=True)))

    return run


def reference_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype that references are computed in: float32 for 16-bit floats, otherwise float64 or complex128."""
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float32 if dtype.itemsize == 2 else np.float64)


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


def activate(name: str, x: Array, out: Array) -> Array:
    """Writes an activation of an array to another one of the same shape, or to the array itself; returns that.

    `name` is a key of `activation_formulas.ACTIVATIONS`, the arrays are of one of DTYPES.
    """
    function, dtype = activation_formulas.ACTIVATIONS[name], x.dtype if name == "relu" else reference_dtype(x.dtype)
    for part in blocks(x.shape):
        out[part] = function(NUMPY, x[part].astype(dtype, copy=False))
    return out


def activation(p: NeuralProblem, input: Array, out: Array | None = None) -> Array:
    form = "gelu_tanh" if p.parameter("approximate") == "tanh" else p.op
    return activate(form, input, _new(input) if out is None else out)


def activation_grad(p: NeuralProblem, input: Array, grad: Array) -> Array:
    result, dtype = _new(input), input.dtype if p.op == "relu_grad" else reference_dtype(input.dtype)
    for part in blocks(input.shape):
        x, g = (a[part].astype(dtype, copy=False) for a in (input, grad))
        result[part] = activation_formulas.gradient(NUMPY, p, x, g)
    return result


# Softmax -------------------------------------------------------------------------------------------------------------


def _along(compute: Callable[..., Array]) -> Callable[..., Array]:
    """A formula along an axis, on blocks that hold the whole of it."""

    def run(p: NeuralProblem, **given: Array) -> Array:
        arrays = [given[role] for role in ("input", "result", "grad") if role in given]
        result, dtype, axis = _new(arrays[0]), reference_dtype(arrays[0].dtype), p.parameter("axis")
        made, *arrays = (x if x.ndim else x.reshape(1) for x in (result, *arrays))
        if made.size:
            for part in blocks(made.shape, (axis,)):
                made[part] = compute(NUMPY, *(x[part].astype(dtype, copy=False) for x in arrays), axis)
        return result

    return run


softmax, log_softmax = _along(formulas.softmax), _along(formulas.log_softmax)
softmax_grad, log_softmax_grad = _along(formulas.softmax_grad), _along(formulas.log_softmax_grad)


# Normalisation -------------------------------------------------------------------------------------------------------


def _last(p: NeuralProblem, x: Array) -> tuple[int, ...]:
    return tuple(range(x.ndim - p.parameter("axes"), x.ndim))


def layer_norm(p: NeuralProblem, input: Array, weight: Array | None = None, bias: Array | None = None) -> Array:
    result, axes = _new(input), _last(p, input)
    if input.size == 0:
        return result
    weight, bias = (None if v is None else v.astype(np.float64, copy=False) for v in (weight, bias))
    for part in blocks(input.shape, axes):
        x = input[part].astype(np.float64, copy=False)
        mean, variance = formulas.moments(NUMPY, x, axes)
        y = formulas.normalised(NUMPY, x, mean, 1 / np.sqrt(variance + p.parameter("eps")), weight, bias)
        result[part] = y.astype(reference_dtype(input.dtype), copy=False)
    return result


def rms_norm(p: NeuralProblem, input: Array, weight: Array | None = None) -> Array:
    result, axes = _new(input), _last(p, input)
    if input.size == 0:
        return result
    weight = None if weight is None else weight.astype(np.float64, copy=False)
    for part in blocks(input.shape, axes):
        y = formulas.rms_normalised(NUMPY, input[part].astype(np.float64, copy=False), axes, p.parameter("eps"), weight)
        result[part] = y.astype(reference_dtype(input.dtype), copy=False)
    return result


def _over_channels(vector: Array | None, ndim: int) -> Array | None:
    return None if vector is None else vector.astype(np.float64, copy=False).reshape(-1, *[1] * (ndim - 2))


def batch_norm(
    p: NeuralProblem, input: Array, mean: Array, variance: Array, weight: Array | None = None, bias: Array | None = None
) -> Array:
    centre, spread, weight, bias = (_over_channels(v, input.ndim) for v in (mean, variance, weight, bias))
    assert centre is not None and spread is not None
    inverse = 1 / np.sqrt(spread + p.parameter("eps"))
    result, dtype = _new(input), reference_dtype(input.dtype)
    for part in blocks(input.shape, (1,)):
        y = formulas.normalised(NUMPY, input[part].astype(dtype, copy=False), centre, inverse, weight, bias)
        result[part] = y.astype(dtype, copy=False)
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


def batch_norm_train_grad(p: NeuralProblem, input: Array, grad: Array, weight: Array | None = None) -> tuple[Array, Array, Array]:
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
        result[part] = moved.astype(reference_dtype(input.dtype), copy=False)
    return result, by_weight.reshape(shape).astype(input.dtype), by_bias.reshape(shape).astype(input.dtype)


OPERATIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("relu", "gelu", "silu", "tanh", "sigmoid", *ELEMENTARY), activation),
    **dict.fromkeys(("relu_grad", "gelu_grad", "silu_grad", "tanh_grad", "sigmoid_grad"), activation_grad),
    "softmax": softmax, "log_softmax": log_softmax, "layer_norm": layer_norm, "rms_norm": rms_norm, "batch_norm": batch_norm,
    "batch_norm_train": batch_norm_train, "softmax_grad": softmax_grad, "log_softmax_grad": log_softmax_grad,
    "layer_norm_grad": layer_norm_grad, "batch_norm_train_grad": batch_norm_train_grad,
    **{name: getattr(reference_pooling, name) for name in reference_pooling.__all__},
}  # fmt: skip
