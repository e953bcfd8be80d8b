"""Activations, softmax, normalisations, dropout, and their gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.special

from backline.problems.neural_problem import ELEMENTARY

from ..arrays import FORMATS, Array, Draw, wide
from ..call import Call, generates
from ..check import Wrong, like, near
from .conv import _layout

DTYPES = ("float32",) * 4 + ("float16", "bfloat16", "float64", "float64")


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(np.isnan(x), x, np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


def _erfc(x: Array) -> Array:
    return scipy.special.erfc(x.astype(np.float64)).astype(x.dtype)


def _limits(x: Array, y: Array, low: Any) -> Array:
    """Returns what formulas that multiply zero and infinity say at the ends."""
    return np.where(x == np.inf, x, np.where(x == -np.inf, low, y))


def _gelu(x: Array) -> Array:
    return _limits(x, 0.5 * x * _erfc(-x / np.sqrt(x.dtype.type(2))), np.nan)


def _inner(x: Array) -> Array:
    return np.sqrt(8 / np.arccos(x.dtype.type(-1))) * (x + x.dtype.type(0.044715) * x**3)


FORMULAS: dict[str, Any] = {
    "relu": lambda x: np.where(np.isnan(x), x, np.maximum(x, 0)),
    "gelu": _gelu,
    "gelu_tanh": lambda x: _limits(x, x * _sigmoid(_inner(x)), np.nan),
    "silu": lambda x: _limits(x, x * _sigmoid(x), np.nan),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
}


def _gelu_slope(x: Array) -> Array:
    return 0.5 * _erfc(-x / np.sqrt(x.dtype.type(2))) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.arccos(x.dtype.type(-1)))


def _gelu_tanh_slope(x: Array) -> Array:
    s = _sigmoid(_inner(x))
    return s + x * s * (1 - s) * np.sqrt(8 / np.arccos(x.dtype.type(-1))) * (1 + 3 * x.dtype.type(0.044715) * x * x)


SLOPES: dict[str, Any] = {
    "relu": lambda x: np.where(x > 0, 1.0, 0.0),
    "gelu": _gelu_slope,
    "gelu_tanh": _gelu_tanh_slope,
    "silu": lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "tanh": lambda x: 1 / np.cosh(np.clip(x, -5000, 5000)) ** 2,
    "sigmoid": lambda x: _sigmoid(x) * (1 - _sigmoid(x)),
}
ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "sigmoid")


def _approximate(draw: Draw, op: str) -> tuple[str, dict[str, Any]]:
    name = op.rpartition(".")[2].removesuffix("_input")
    if name == "gelu" and draw.chance(0.5):
        return "gelu_tanh", {"approximate": "tanh"}
    return name, {}


@generates("activations", *(f"nn.functional.{a}" for a in ACTIVATIONS), weight=2)
def activation(draw: Draw, op: str) -> Call:
    name, kwargs = _approximate(draw, op)
    dtype = draw.choice(DTYPES)
    x = _layout(draw, draw.fill(draw.shape(draw.whole(0, 4), 65, 2000), dtype))
    f = FORMATS[dtype]
    with np.errstate(all="ignore"):
        reference = np.asarray(FORMULAS[name](wide(x)))
        # Far out gelu is the end of a function that falls faster than any power: units of 8 are what it is told apart by.
        units = np.maximum(np.abs(reference), 0 if name == "relu" else 8)
        bound = 0 if name == "relu" else 4 * f.eps * units + 2 * f.tiny
        bound = np.where(np.isfinite(reference), bound, 0)
    ends = "any" if name in ("gelu", "gelu_tanh", "silu") else "same"
    if ends == "any":  # minus infinity times zero
        low = np.asarray(wide(x) == -np.inf)
        reference = np.where(low, 0, reference)
        bound = np.where(low, np.inf, bound)
    return Call(op, (x,), kwargs, lambda result: near(result, reference, bound, x.dtype))


@generates("elementary", *ELEMENTARY, weight=2)
def elementary(draw: Draw, op: str) -> Call:
    dtype = draw.choice(DTYPES)
    shape = draw.shape(draw.whole(0, 4), 65, 2000)
    x = _layout(draw, draw.fill(shape, dtype))
    f = FORMATS[dtype]
    with np.errstate(all="ignore"):
        reference = np.asarray(getattr(np, op)(wide(x)))
        reference = np.where(np.isinf(reference.astype(x.dtype).astype(reference.dtype)), np.copysign(np.inf, reference), reference)
        bound = np.where(np.isfinite(reference), 4 * f.eps * np.abs(reference) + 2 * f.tiny, 0)
    out = draw.out(x.shape, x.dtype) if x.ndim and draw.chance(0.3) and not draw.plain.out else None
    return Call(op, (x,), {} if out is None else {"out": out}, lambda result: near(result, reference, bound, x.dtype), out=out)


@generates("activations", *(f"nn.grad.{a}_input" for a in ACTIVATIONS), weight=2)
def slopes(draw: Draw, op: str) -> Call:
    name, kwargs = _approximate(draw, op)
    dtype = draw.choice(DTYPES)
    if draw.values in ("special", "huge"):
        draw.values = "normal"
    shape = draw.shape(draw.whole(0, 4), 65, 2000)
    x, g = _layout(draw, draw.fill(shape, dtype)), _layout(draw, draw.fill(shape, dtype))
    f = FORMATS[dtype]
    with np.errstate(all="ignore"):
        reference = np.asarray(wide(g) * SLOPES[name](wide(x)))
        bound = f.eps * np.maximum(4 * np.abs(reference), 0 if name == "relu" else 32 * np.abs(wide(g))) + 4 * f.tiny
    return Call(op, (x, g), kwargs, lambda result: near(result, reference, bound, x.dtype))


def _soft(draw: Draw) -> tuple[Array, str, int]:
    dtype = draw.choice(DTYPES)
    rank = draw.whole(1, 4)
    shape = list(draw.shape(rank, 65, 3000, 0.005))
    axis = draw.whole(-rank, rank - 1)
    if rank == 1 and draw.chance(0.1) and not draw.plain.size:
        shape[0] = draw.whole(100, 3000)
    return _layout(draw, draw.fill(tuple(shape), dtype)), dtype, axis


@generates("softmax", "nn.functional.softmax", "nn.functional.log_softmax", weight=4)
def softmax(draw: Draw, op: str) -> Call:
    x, dtype, axis = _soft(draw)
    if not x.shape[axis]:
        x = _layout(draw, draw.fill((2, 0, 3), dtype))
        axis = 1
    logarithm = "log" in op
    f = FORMATS[dtype]
    with np.errstate(all="ignore"):
        w = wide(x)
        top = np.max(w, axis, keepdims=True, initial=-np.inf)
        d = w - top
        e = np.exp(d)
        total = e.sum(axis, keepdims=True)
        n = x.shape[axis]
        # The difference to the largest element is rounded, to as many units as it is large.
        shift = f.accumulate * (np.minimum(np.abs(d), 1000 if dtype != "float64" else 3000) + n + 16)
        if logarithm:
            reference = d - np.log(total)
            bound = f.accumulate * (np.abs(d) * 2 + n + 16) + f.eps * np.abs(reference) * 2 + 4 * f.tiny
        else:
            reference = e / total
            bound = reference * (4 * shift + f.eps) + 4 * f.tiny
        lost = ~np.isfinite(top)
        bound = np.where(lost, 0, np.where(np.isfinite(bound), bound, 0))
        # The largest finite numbers' differences may leave the range.
        bound = np.where(np.isfinite(d) & (np.abs(d) > f.largest / 2), np.inf, bound)
        reference = np.where(lost, np.nan, reference)

    def check(result: Any) -> None:
        near(result, reference, bound, x.dtype)
        if logarithm and (np.asarray(result).astype(np.float64) > 0).any():
            raise Wrong("sign", f"a logarithm of a probability is {np.max(result)}")

    return Call(op, (x, axis), {}, check)


@generates("softmax", "nn.grad.softmax_input", "nn.grad.log_softmax_input", weight=2)
def softmax_gradient(draw: Draw, op: str) -> Call:
    draw.values = draw.choice(("normal", "zeros", "whole"))
    x, dtype, axis = _soft(draw)
    f = FORMATS[dtype]
    logarithm = "log" in op
    with np.errstate(all="ignore"):
        w = wide(x)
        d = w - np.max(w, axis, keepdims=True, initial=-1e300)
        y = np.exp(d) / np.exp(d).sum(axis, keepdims=True)
        given = (np.log(y) if logarithm else y).astype(x.dtype)
        out = _layout(draw, given)
        g = _layout(draw, draw.fill(x.shape, dtype))
        o, gw, n = wide(out), wide(g), x.shape[axis]
        if logarithm:
            total, size = gw.sum(axis, keepdims=True), np.abs(gw).sum(axis, keepdims=True)
            reference = gw - np.exp(o) * total
            bound = f.accumulate * (n + 16) * np.exp(o) * size * (1 + np.abs(o)) + 2 * f.eps * (np.abs(gw) + np.abs(reference))
        else:
            total, size = (gw * o).sum(axis, keepdims=True), np.abs(gw * o).sum(axis, keepdims=True)
            reference = o * (gw - total)
            bound = f.accumulate * (n + 16) * o * (size + np.abs(gw)) + f.eps * np.abs(reference) * 2
        bound = bound + 8 * f.tiny
    return Call(op, (out, g, axis), {}, lambda result: near(result, reference, bound, x.dtype))


class Normal:
    """A normalisation in wide arithmetic, with the sizes of its errors.

    The mean is off by `n` roundings of the mean absolute value; the variance by as many of the mean square, for libraries that
    subtract the square of the mean.
    """

    def __init__(self, x: Array, axes: tuple[int, ...], eps: float, dtype: str) -> None:
        f = FORMATS[dtype]
        n = math.prod(x.shape[a] for a in axes)
        with np.errstate(all="ignore"):
            w = wide(x)
            self.mean = w.mean(axes, keepdims=True)
            self.centred = w - self.mean
            self.variance = (self.centred**2).mean(axes, keepdims=True)
            self.root = np.sqrt(self.variance + eps)
            self.z = self.centred / self.root
            u = f.accumulate * (n + 16)
            square = (w * w).mean(axes, keepdims=True)
            shift = u * np.abs(w).mean(axes, keepdims=True) + f.accumulate * np.abs(w)
            self.relative = u * square / (self.variance + eps)
            self.error = shift / self.root + np.abs(self.z) * self.relative
            self.n, self.eps, self.u, self.f = n, eps, u, f
            # Where the error of the variance is of its own size, nothing can be said.
            self.lost = np.broadcast_to((self.relative > 0.05) | ~np.isfinite(self.relative), x.shape)


def _parameter(draw: Draw, shape: tuple[int, ...], dtype: str) -> Array | None:
    if draw.chance(0.3):
        return None
    beside = "float32" if dtype in ("float16", "bfloat16") and draw.single else dtype  # type: ignore[attr-defined]  # drawn once for a case
    return draw.array(shape, beside, "normal")


def _norm_case(draw: Draw, op: str) -> tuple[Array, str, tuple[int, ...], tuple[int, ...], float]:
    if draw.values in ("special", "huge", "tiny"):
        draw.values = "normal"
    draw.single = draw.chance(0.5)  # type: ignore[attr-defined]  # drawn once for a case
    dtype = draw.choice(DTYPES)
    eps = draw.choice((1e-5, 1e-5, 1e-3, 1.0))
    if "layer" in op or "rms" in op:
        shape = draw.shape(draw.whole(1, 4), 65, 3000, 0.005)
        count = draw.whole(1, len(shape))
        axes = tuple(range(len(shape) - count, len(shape)))
        parameters = shape[len(shape) - count :]
    else:
        rank = draw.choice((0, 1, 2, 2, 3))
        shape = (draw.size(9, 0) + 1, draw.size(33, 0), *draw.shape(rank, 9, 400, 0))
        axes = tuple(i for i in range(len(shape)) if i != 1)
        parameters = (shape[1],)
    x = draw.fill(shape, dtype)
    if draw.chance(0.15):
        with np.errstate(all="ignore"):
            x = (x + np.array(draw.choice((5, 30))).astype(x.dtype)).astype(x.dtype)
    return _layout(draw, x), dtype, axes, parameters, eps


@generates("normalisation", "nn.functional.layer_norm", weight=4)
def layer_norm(draw: Draw, op: str) -> Call:
    x, dtype, axes, shape, eps = _norm_case(draw, op)
    w, b = _parameter(draw, shape, dtype), _parameter(draw, shape, dtype)
    reference, bound = _scaled(Normal(x, axes, eps, dtype), w, b, (1,) * (x.ndim - len(shape)) + shape, dtype)
    given: Any = shape[0] if len(shape) == 1 and draw.chance(0.5) else shape
    return Call(op, (x, given, w, b, eps), {}, lambda result: near(result, reference, bound, x.dtype))


@generates("normalisation", "nn.functional.rms_norm", weight=3)
def rms_norm(draw: Draw, op: str) -> Call:
    x, dtype, axes, shape, eps = _norm_case(draw, op)
    w = _parameter(draw, shape, dtype)
    f, n = FORMATS[dtype], math.prod(shape)
    with np.errstate(all="ignore"):
        reference = wide(x) / np.sqrt((wide(x) ** 2).mean(axes, keepdims=True) + eps)
        reference = reference if w is None else reference * wide(w).reshape((1,) * (x.ndim - len(shape)) + shape)
        bound = (f.accumulate * (n + 32) + 2 * f.eps) * np.abs(reference) + 8 * f.tiny
    given: Any = shape[0] if len(shape) == 1 and draw.chance(0.5) else shape
    return Call(op, (x, given, w, eps), {}, lambda result: near(result, reference, bound, x.dtype))


def _scaled(n: Normal, w: Array | None, b: Array | None, shape: tuple[int, ...], dtype: str) -> tuple[Array, Array]:
    f = FORMATS[dtype]
    with np.errstate(all="ignore"):
        reference, error = n.z, n.error
        size = np.abs(reference)
        if w is not None:
            scale = wide(w).reshape(shape)
            reference, error, size = reference * scale, error * np.abs(scale), size * np.abs(scale)
        if b is not None:
            reference, size = reference + wide(b).reshape(shape), size + np.abs(wide(b).reshape(shape))
        bound = 4 * error + 8 * f.accumulate * size + f.eps * np.abs(reference) + 8 * f.tiny
        return reference, np.where(n.lost, np.inf, bound)


@generates("normalisation", "nn.functional.batch_norm", weight=4)
def batch_norm(draw: Draw, op: str) -> Call:
    x, dtype, axes, shape, eps = _norm_case(draw, op)
    w, b = _parameter(draw, shape, dtype), _parameter(draw, shape, dtype)
    along = (1, -1) + (1,) * (x.ndim - 2)
    f = FORMATS[dtype]
    training = draw.chance(0.5) and x.size > x.shape[1]
    held = "float32" if dtype in ("float16", "bfloat16") and draw.single else dtype  # type: ignore[attr-defined]  # drawn once for a case
    mean, variance = draw.array(shape, held, "normal"), np.abs(draw.array(shape, held, "normal"))
    if not training:
        with np.errstate(all="ignore"):
            factor = 1 / np.sqrt(wide(variance) + eps)
            factor = factor * (wide(w) if w is not None else 1)
            offset = -wide(mean) * factor
            a, c = wide(x) * factor.reshape(along), offset.reshape(along)
            reference = a + c
            size = np.abs(a) + np.abs(c)
            if b is not None:
                reference, size = reference + wide(b).reshape(along), size + np.abs(wide(b).reshape(along))
            bound = 16 * f.accumulate * size + f.eps * np.abs(reference) + 8 * f.tiny
        return Call(op, (x, mean, variance, w, b, False, 0.1, eps), {}, lambda result: near(result, reference, bound, x.dtype))
    n = Normal(x, axes, eps, dtype)
    reference, bound = _scaled(n, w, b, along and tuple(-1 if i == 1 else 1 for i in range(x.ndim)), dtype)
    mean, variance = np.array(mean), np.array(variance)
    before = mean.copy(), variance.copy()

    def run(x: Array, mean: Array, variance: Array, *more: Any) -> Any:
        import backline.nn.functional as F

        mean[...], variance[...] = before
        return F.batch_norm(x, mean, variance, *more)

    def check(result: Any) -> None:
        near(result, reference, bound, x.dtype)
        g = FORMATS[held]
        with np.errstate(all="ignore"):
            m = 0.75 * wide(before[0]) + 0.25 * n.mean.ravel()
            v = 0.75 * wide(before[1]) + 0.25 * n.variance.ravel() * n.n / (n.n - 1)
            size = np.abs(wide(x)).mean(axes)
            near(mean, m, n.u * size + 4 * g.eps * (np.abs(m) + np.abs(wide(before[0]))) + g.tiny * 4, mean.dtype, "running_mean")
            square = (wide(x) ** 2).mean(axes) * 2
            near(variance, v, n.u * square + 4 * g.eps * (np.abs(v) + np.abs(wide(before[1]))) + g.tiny * 4, variance.dtype, "running_var")

    call = Call(op, (x, mean, variance, w, b, True, 0.25, eps), {}, check)
    call.function = run
    return call


@generates("normalisation", "nn.grad.layer_norm_backward", "nn.grad.batch_norm_backward", weight=3)
def gradients(draw: Draw, op: str) -> Call:
    x, dtype, axes, shape, eps = _norm_case(draw, op)
    if "batch" in op and x.size == x.shape[1]:
        x = _layout(draw, draw.fill((2, *x.shape[1:]), dtype))
    layer = "layer" in op
    along = (1,) * (x.ndim - len(shape)) + shape if layer else tuple(-1 if i == 1 else 1 for i in range(x.ndim))
    w = _parameter(draw, shape, dtype)
    g = _layout(draw, draw.fill(x.shape, dtype, "normal"))
    n = Normal(x, axes, eps, dtype)
    f = FORMATS[dtype]
    rest = tuple(i for i in range(x.ndim) if i not in axes) if layer else axes
    with np.errstate(all="ignore"):
        gw = wide(g)
        gs = gw * (wide(w).reshape(along) if w is not None else 1)
        centre, project = gs.mean(axes, keepdims=True), (gs * n.z).mean(axes, keepdims=True)
        reference = (gs - centre - n.z * project) / n.root
        big = np.max(np.abs(gs), axes, keepdims=True, initial=0) / n.root
        z = np.max(np.abs(n.z), axes, keepdims=True, initial=0) + 1
        error = np.max(n.error, axes, keepdims=True, initial=0) + n.u + n.relative
        bound = 8 * big * (z * error * 2 + n.relative + 8 * f.accumulate * z * z) + 2 * f.eps * np.abs(reference) + 16 * f.tiny
        bound = np.where(n.lost, np.inf, bound)
        count = math.prod(x.shape[i] for i in rest)
        u = f.accumulate * (count + 16)
        dw, db = (gw * n.z).sum(rest), gw.sum(rest)
        lost = n.lost.any() if layer else n.lost.any(rest)
        dw_bound = (np.abs(gw) * n.error * 4).sum(rest) + 2 * u * np.abs(gw * n.z).sum(rest) + 2 * f.eps * np.abs(dw) + 16 * f.tiny
        dw_bound = np.where(lost, np.inf, dw_bound)
        db_bound = 2 * u * np.abs(gw).sum(rest) + 2 * f.eps * np.abs(db) + 16 * f.tiny

    def check(result: Any) -> None:
        first, weight, bias = result
        near(first, reference, bound, x.dtype, "input")
        near(weight, dw.reshape(shape), dw_bound.reshape(shape), x.dtype, "weight")
        near(bias, db.reshape(shape), db_bound.reshape(shape), x.dtype, "bias")

    args: tuple[Any, ...] = (x, g, shape, w, eps) if layer else (x, g, w, eps)
    return Call(op, args, {}, check)


@generates("activations", "nn.functional.dropout")
def dropout(draw: Draw, op: str) -> Call:
    dtype = draw.choice(DTYPES)
    x = _layout(draw, draw.fill(draw.shape(draw.whole(0, 3), 33, 1000), dtype, "normal"))
    p, seed = draw.choice((0.0, 0.3, 0.5, 1.0)), draw.whole(0, 1000)
    f = FORMATS[dtype]

    def check(result: Any) -> None:
        got = like(result, x.shape, x.dtype)
        kept = np.random.default_rng(seed).random(x.shape) >= p
        reference = wide(x) * (kept / (1 - p) if p < 1 else 0)
        near(got, np.asarray(reference), f.eps * 2 * np.abs(reference) + f.tiny, x.dtype)

    return Call(op, (x, p), {"seed": seed}, check)
