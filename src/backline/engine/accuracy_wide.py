"""Layers, convolutions and transforms of float64 computed more precisely: the references of `accuracy_layers`.

Convolutions and linear layers are sums of products and computed in double-double arithmetic. Transforms, activations,
normalisation, pooling, attention and recurrent networks are computed by NumPy in `np.longdouble`, which has 11 bits more than
float64 on x86 and 60 more on other Linux systems. Where it has none more, where a Problem would take too long in it, and for
multi-head attention, which is made of other operations, the reference stays float64: errors below that format's own rounding
are then reported as that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..libraries.reference import layer_formulas
from ..libraries.reference.array_namespaces import Space
from ..problems import Problem, operand
from ..problems.conv_problem import ConvProblem
from ..problems.linear_problem import LinearProblem
from ..problems.multi_head_problem import MultiHeadProblem
from ..problems.neural_problem import ELEMENTARY, NeuralProblem
from .double_double import Pair, bilinear, paired, product

__all__ = [
    "EPS", "ProblemReference", "Wide", "affordable", "computed", "float64_results", "is_double", "may_hold", "wide_results",
]  # fmt: skip

Array = Any
Wide = tuple[list[Pair | None], float]  # results, and their own relative error where that may show

LONG = np.dtype(np.longdouble)
LONGER = float(np.finfo(LONG).eps) < 2.0**-60
SLICED = 3e8  # floating-point operations of a convolution that are repeated for each pair of slices,
LONG_FLOPS = {"fft": 4e8}  # and those that are done in longdouble, by family:
LONG_FLOPS_ELSE = 5e7  # products in longdouble have no BLAS.
LONG_BYTES = 4 << 20  # Operands and results of activations and the like
EPS = float(np.finfo(np.float64).eps)
WIDE = 64 << 20  # bytes that float64 copies and results may take


def is_double(problem: Problem) -> bool:
    return problem.dtype.name in ("float64", "complex128")


def may_hold(copies: int) -> bool:
    """Returns true if copies of operands and results of so many bytes may be held."""
    return copies <= WIDE


class ProblemReference:
    """The reference that results of a Problem on given operands are compared with, computed once.

    Parameters
    ----------
    problem, arrays
        The Problem and its operands.
    """

    problem: Any
    arrays: list[Array]
    backward = False  # whether solutions are judged by their backward error, where there is one

    def __init__(self, problem: Any, arrays: list[Array]) -> None:
        self.problem, self.arrays = problem, arrays
        self.double = is_double(problem)

    def error(self, parts: tuple[Array, ...]) -> float:
        """Returns the relative error of one result."""
        raise NotImplementedError


def computed(problem: Problem, arrays: list[Array], dtype: np.dtype[Any] | None = None) -> Any:
    """The results that NumPy computes in float64 (or another real dtype) from operands converted exactly."""
    from .. import libraries

    real = np.dtype(np.float64) if dtype is None else dtype
    operands, copies = [], []
    for o, array in zip(problem.operands, arrays, strict=True):
        if o.role.startswith("out"):
            continue
        if array.dtype.kind in "fc" or array.dtype.name == "bfloat16":
            wanted = np.dtype(real.char.upper()) if array.dtype.kind == "c" else real
            array = array.astype(np.promote_types(array.dtype, wanted) if array.dtype.kind in "fc" else wanted, copy=False)
        copies.append(array)
        operands.append(operand(o.role, array))
    parameters = tuple((name, value) for name, value in problem.parameters if name != "overwrite")
    wide: Any = replace(problem, operands=tuple(operands), parameters=parameters)
    if isinstance(problem, NeuralProblem) and real == LONG:
        return _layer(wide)(*copies)
    return libraries.get("numpy").prepare(wide, libraries.Algorithm(library="numpy", name="reference"))(
        *copies, **dict.fromkeys(wide.scalars, 0)
    )


def affordable(problem: Problem) -> bool:
    """Returns true where float64 is wide enough, or a reference wider than that can be had and is fast enough."""
    if not is_double(problem):
        return True
    if isinstance(problem, (ConvProblem, LinearProblem)):
        return problem.flops <= SLICED
    if not LONGER or isinstance(problem, MultiHeadProblem):
        return False
    if isinstance(problem, NeuralProblem):
        return problem.bytes <= LONG_BYTES
    return problem.flops <= LONG_FLOPS.get(problem.family, LONG_FLOPS_ELSE)


def wide_results(problem: Problem, arrays: list[Array]) -> Wide:
    """The results of a Problem, in float64 for narrower ones, else more precise where that can be had."""
    if not is_double(problem):
        return _parts(computed(problem, arrays)), float(np.finfo(LONG).eps) if problem.dtype.char in "gG" else 0.0
    if not affordable(problem):
        return float64_results(problem, arrays)
    if isinstance(problem, ConvProblem):
        return [_finished(problem, arrays, _convolution(problem, arrays))], 0.0
    if isinstance(problem, LinearProblem):
        operands = zip(problem.operands, arrays, strict=True)
        views = {o.role: np.lib.stride_tricks.as_strided(x, o.shape, o.strides) for o, x in operands}
        return [_finished(problem, [views[o.role] for o in problem.operands], product(views["a"], views["b"]))], 0.0
    found = computed(problem, arrays, LONG)
    given = [np.asarray(x) for x in (found if isinstance(found, tuple) else (found,)) if x is not None]
    return _parts(found), 0.0 if all(x.dtype.char in "gG" for x in given) else EPS


def float64_results(problem: Problem, arrays: list[Array]) -> Wide:
    """The results of a Problem in float64."""
    return _parts(computed(problem, arrays)), EPS


def _parts(result: Any) -> list[Pair | None]:
    return [None if x is None else paired(np.asarray(x)) for x in (result if isinstance(result, tuple) else (result,))]


# Sums of products ----------------------------------------------------------------------------------------------------


def _convolution(p: ConvProblem, arrays: list[Array]) -> Pair:
    given = [(o, x) for o, x in zip(p.operands, arrays, strict=True) if o.role in ("input", "weight", "grad")]
    plain = tuple((name, value) for name, value in p.parameters if name != "activation")

    def convolve(one: Array, other: Array) -> Array:
        operands = tuple(operand(o.role, x) for (o, _), x in zip(given, (one, other), strict=True))
        return computed(replace(p, operands=operands, parameters=plain), [one, other])

    return bilinear(convolve, given[0][1], given[1][1], p.summands)


def _finished(p: Any, arrays: list[Array], total: Pair) -> Pair:
    """Bias, residual and activation."""
    for o, x in zip(p.operands, arrays, strict=True):
        if o.role == "bias" and isinstance(p, ConvProblem):
            x = x.reshape(-1, *[1] * len(p.kernel))
        if o.role in ("bias", "residual"):
            total = total + Pair(np.broadcast_to(x, total.high.shape))
    name = p.parameter("activation")
    if not name:
        return total
    return paired(ACTIVATIONS[name](total.high.astype(LONG) + total.low))


# Formulas in longdouble ------------------------------------------------------------------------------------------------


def _layer(p: NeuralProblem) -> Callable[..., Any]:
    name = p.op
    if name in layer_formulas.FORMULAS:
        return layer_formulas.function(p, Space(np, LONG))
    base = name.removesuffix("_grad")
    if base == "gelu" and p.parameter("approximate") == "tanh":
        base = "gelu_tanh"
    if name.endswith("_grad"):
        slope = SLOPES[base]
        return lambda x, grad: slope(x) * grad
    return ACTIVATIONS[base]


def _erfc(x: Array) -> Array:
    """1 - erf(x): by a series of positive terms, far out by a continued fraction."""
    size = np.minimum(np.abs(x), LONG.type(110))
    value, near = np.empty_like(size), size <= 3
    y = size[near]
    term = total = y * 2 / np.sqrt(_pi()) * np.exp(-y * y)
    for n in range(1, 70):
        term = term * (2 * y * y / (2 * n + 1))
        total = total + term
    value[near] = 1 - total
    fraction = y = size[~near]
    for n in range(120, 0, -1):
        fraction = y + LONG.type(n) / 2 / fraction
    value[~near] = np.exp(-y * y) / (fraction * np.sqrt(_pi()))
    return np.where(x < 0, 2 - value, value)


def _pi() -> Any:
    return 4 * np.arctan(LONG.type(1))


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, LONG.type(1), e) / (1 + e)


def _gelu(x: Array) -> Array:
    return x * _erfc(-x * np.sqrt(LONG.type(0.5))) / 2


def _twice(x: Array) -> Array:
    """Twice the argument of the tangent in the approximation of gelu."""
    return 2 * np.sqrt(2 / _pi()) * (x + LONG.type(0.044715) * x * x * x)


def _gelu_slope(x: Array) -> Array:
    return _erfc(-x * np.sqrt(LONG.type(0.5))) / 2 + x * np.exp(-x * x / 2) / np.sqrt(2 * _pi())


def _gelu_tanh_slope(x: Array) -> Array:
    u = _twice(x)
    return _sigmoid(u) + x * _sigmoid(u) * _sigmoid(-u) * 2 * np.sqrt(2 / _pi()) * (1 + 3 * LONG.type(0.044715) * x * x)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0), "gelu": _gelu, "gelu_tanh": lambda x: x * _sigmoid(_twice(x)),
    "silu": lambda x: x * _sigmoid(x), "tanh": np.tanh, "sigmoid": _sigmoid,
    **{name: getattr(np, name) for name in ELEMENTARY},
}  # fmt: skip
SLOPES: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: (x > 0).astype(LONG), "gelu": _gelu_slope, "gelu_tanh": _gelu_tanh_slope,
    "silu": lambda x: _sigmoid(x) * (1 + x * _sigmoid(-x)), "tanh": lambda x: 4 * _sigmoid(2 * x) * _sigmoid(-2 * x),
    "sigmoid": lambda x: _sigmoid(x) * _sigmoid(-x),
}  # fmt: skip
