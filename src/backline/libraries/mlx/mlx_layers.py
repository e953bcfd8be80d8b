"""Activations, softmax, normalisation and pooling of MLX's arrays. Halves are computed in float32 and rounded once.

Gradients are not here: MLX differentiates the operations themselves, by ``mx.grad`` and ``mx.vjp``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...problems.neural_problem import ELEMENTARY, NeuralProblem
from ..reference import activation_formulas
from ..reference.array_namespaces import mlx_space
from ..reference.layer_formulas import FORMULAS, SHAPED, empty

__all__ = ["EXPONENTIAL", "IMPRECISE", "activate", "finished", "function", "note", "refusal"]

Array = Any
Run = Callable[..., Any]

DTYPES = ("float16", "bfloat16", "float32", "float64")
IMPRECISE = "MLX computes exponentials, sines and the error function in single precision, those of float64 too"
EXPONENTIAL = (  # what they are in
    "gelu", "gelu_tanh", "silu", "sigmoid", "softmax", "log_softmax", "exp", "sin", "cos",
    *(f"{name}_grad" for name in ("gelu", "silu", "sigmoid", "tanh", "log_softmax")),
)  # fmt: skip


def refusal(p: NeuralProblem) -> str:
    """Returns the reason why a layer is not supported for MLX arrays, or an empty string."""
    if p.op not in OPERATIONS:
        return f"there is no {p.op} for arrays of MLX"
    if p.dtype.name not in DTYPES:
        return f"{p.op} is for {', '.join(DTYPES)}, not {p.dtype.name}"
    if p.dtype.name == "float64" and p.op in EXPONENTIAL:
        return IMPRECISE
    return ""


def note(p: NeuralProblem) -> str:
    """Returns a note for users on the accuracy of an operation, or an empty string."""
    if p.op == "exp":
        return "on the CPU stream infinite from about 88 on, and 0 below -87.7 (MLX 0.32)"
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


def activate(name: str, x: Array, mx: Any) -> Array:
    """Returns an activation of an array; a name of `activation_formulas.ACTIVATIONS`."""
    return activation_formulas.ACTIVATIONS[name](mlx_space(mx), x)


def finished(x: Array, added: list[Array], name: str | None, dtype: Any, halves: bool, mx: Any) -> Array:
    """Applies what follows the sums of a layer: addends and an activation, 16-bit floats in float32; then the dtype."""
    x = x.astype(mx.float32) if halves else x
    for each in added:
        x = x + each
    return (x if name is None else activate(name, x, mx)).astype(dtype)


def _softmax(p: NeuralProblem, mx: Any, input: Array) -> Array:
    if not p.result:  # one element, and no axis
        return mx.softmax(input.reshape(1), axis=0, precise=True).reshape(())
    return mx.zeros(input.shape, input.dtype) if p.empty else mx.softmax(input, axis=p.parameter("axis"), precise=True)


def _activation(p: NeuralProblem, mx: Any, input: Array) -> Array:
    return activation_formulas.activation(mlx_space(mx), p, input)


def _activation_grad(p: NeuralProblem, mx: Any, input: Array, grad: Array) -> Array:
    return activation_formulas.gradient(mlx_space(mx), p, input, grad)


def _formula(p: NeuralProblem, mx: Any, **given: Array) -> Any:
    f = mlx_space(mx)
    if p.empty or any(0 in o.shape for o in p.operands):
        return empty(p, f)()
    return FORMULAS[p.op](f, p, given)


_ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "sigmoid")  # that have gradients
OPERATIONS: dict[str, Run] = {
    **dict.fromkeys((*_ACTIVATIONS, *ELEMENTARY), _activation),
    **{f"{name}_grad": _activation_grad for name in _ACTIVATIONS},
    **dict.fromkeys(FORMULAS, _formula),
    "softmax": _softmax,
}
