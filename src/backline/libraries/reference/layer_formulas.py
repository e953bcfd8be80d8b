"""The layers that are formulas, as functions of arrays by their roles: for libraries that compute with a `Space`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...problems.dtypes import compute_dtype
from ...problems.neural_problem import NeuralProblem
from . import formulas
from .array_namespaces import Space

__all__ = ["FORMULAS", "SHAPED", "empty", "function"]

Array = Any
Run = Callable[..., Any]


def _softmax(compute: Run) -> Run:
    def run(f: Space, p: NeuralProblem, x: dict[str, Array]) -> Array:
        arrays = [x[role] for role in ("input", "result", "grad") if role in x]
        if p.result:
            return compute(f, *arrays, p.parameter("axis"))
        return compute(f, *(a.reshape(1) for a in arrays), 0).reshape(())  # one element, and no axis

    return run


def _over_channels(x: dict[str, Array], role: str, ndim: int) -> Array | None:
    return x[role].reshape(-1, *[1] * (ndim - 2)) if role in x else None


def _layer_norm(f: Space, p: NeuralProblem, x: dict[str, Array]) -> Array:
    axes = tuple(range(len(p.result) - p.parameter("axes"), len(p.result)))
    mean, variance = formulas.moments(f, x["input"], axes)
    return formulas.normalised(f, x["input"], mean, 1 / f.xp.sqrt(variance + p.parameter("eps")), x.get("weight"), x.get("bias"))


def _rms_norm(f: Space, p: NeuralProblem, x: dict[str, Array]) -> Array:
    axes = tuple(range(len(p.result) - p.parameter("axes"), len(p.result)))
    return formulas.rms_normalised(f, x["input"], axes, p.parameter("eps"), x.get("weight"))


def _layer_norm_grad(f: Space, p: NeuralProblem, x: dict[str, Array]) -> Any:
    rank = len(p.result) - p.parameter("axes")
    axes, lead = tuple(range(rank, len(p.result))), tuple(range(rank))
    moved, *rest = formulas.norm_grad(f, x["input"], x["grad"], x.get("weight"), axes, lead, p.parameter("eps"))
    return moved, *(v.reshape(p.result[rank:]) for v in rest)


def _batch_norm(f: Space, p: NeuralProblem, x: dict[str, Array]) -> Array:
    n = len(p.result)
    mean, variance, weight, bias = (_over_channels(x, role, n) for role in ("mean", "variance", "weight", "bias"))
    return formulas.normalised(f, x["input"], mean, 1 / f.xp.sqrt(variance + p.parameter("eps")), weight, bias)


def _batch_axes(p: NeuralProblem) -> tuple[int, ...]:
    return (0, *range(2, len(p.result)))


def _batch_norm_train(f: Space, p: NeuralProblem, x: dict[str, Array]) -> Any:
    n = len(p.result)
    mean, variance = formulas.moments(f, x["input"], _batch_axes(p))
    weight, bias = (_over_channels(x, role, n) for role in ("weight", "bias"))
    y = formulas.normalised(f, x["input"], mean, 1 / f.xp.sqrt(variance + p.parameter("eps")), weight, bias)
    return y, mean.reshape(-1), variance.reshape(-1)


def _batch_norm_train_grad(f: Space, p: NeuralProblem, x: dict[str, Array]) -> Any:
    axes = _batch_axes(p)
    weight = _over_channels(x, "weight", len(p.result))
    moved, *rest = formulas.norm_grad(f, x["input"], x["grad"], weight, axes, axes, p.parameter("eps"))
    return moved, *(v.reshape(-1) for v in rest)


def _pool(compute: Run) -> Run:
    def run(f: Space, p: NeuralProblem, x: dict[str, Array]) -> Array:
        return compute(f, p, *(x[role] for role in ("input", "grad") if role in x))

    return run


def _max_pool(f: Space, p: NeuralProblem, x: dict[str, Array]) -> Array:
    # Windows of one element are the input itself, or a view of it, which a caller could write to.
    return formulas.max_pool(f, p, x["input"].copy() if f.writes and math.prod(p.parameter("kernel")) == 1 else x["input"])


FORMULAS: dict[str, Run] = {
    **{name: _softmax(getattr(formulas, name)) for name in ("softmax", "log_softmax", "softmax_grad", "log_softmax_grad")},
    "layer_norm": _layer_norm, "rms_norm": _rms_norm, "layer_norm_grad": _layer_norm_grad, "batch_norm": _batch_norm,
    "batch_norm_train": _batch_norm_train, "batch_norm_train_grad": _batch_norm_train_grad, "max_pool": _max_pool,
    **{name: _pool(getattr(formulas, name)) for name in ("max_pool_grad", "avg_pool", "avg_pool_grad", "adaptive_avg_pool",
                                                         "adaptive_avg_pool_grad")},
    "avg_pool_divided": _pool(formulas.avg_pool), "avg_pool_divided_grad": _pool(formulas.avg_pool_grad),
}  # fmt: skip
SHAPED = ("layer_norm_grad", "batch_norm_train_grad")  # their parameters' gradients have the input's dtype


def function(p: NeuralProblem, f: Space) -> Run:
    """The function of the arrays of a call that runs a formula in a Space, for arrays of any kind."""
    compute, roles, wide = FORMULAS[p.op], [o.role for o in p.operands], compute_dtype(p.dtype)
    like = next(i for i, role in enumerate(roles) if role in ("input", "result", "grad"))
    if f.kept is not None and p.op.startswith("avg_pool"):
        formulas.keep_divisor(f, p, f.dtypes(wide))

    def run(*arrays: Array) -> Any:
        given = {role: f.cast(x, wide) for role, x in zip(roles, arrays, strict=True)}
        made = compute(f, p, given)
        first, *rest = made if isinstance(made, tuple) else (made,)
        first = f.like(f.cast(first, p.dtype), arrays[like])
        if not rest:
            return first
        # Statistics of halves stay float32.
        return (first, *(f.cast(v, p.dtype) if p.op in SHAPED else v for v in rest))

    return run


def empty(p: NeuralProblem, f: Space) -> Run:
    """Returns the function for arrays without elements: zeros of the shapes."""
    shapes = [p.result]
    if p.op == "layer_norm_grad":
        shapes += [p.result[len(p.result) - p.parameter("axes") :]] * 2
    elif p.op in ("batch_norm_train", "batch_norm_train_grad"):
        shapes += [p.result[1:2]] * 2
    elif p.op == "max_pool_indices":
        shapes += [p.result]
    rest = np.dtype(np.int64) if p.op == "max_pool_indices" else p.dtype if p.op in SHAPED else compute_dtype(p.dtype)

    def run(*arrays: Array) -> Any:
        made = tuple(f.zeros(shape, rest if i else p.dtype) for i, shape in enumerate(shapes))
        return made if len(made) > 1 else made[0]

    return run
