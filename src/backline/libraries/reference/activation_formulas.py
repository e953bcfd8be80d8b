"""Activations and their slopes, and elementary functions, for arrays of any `Space`.

NaN and infinity spread as the formulas say. Compiled kernels have the same formulas in C++: `elementwise_kernels` for CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from ...problems.neural_problem import ELEMENTARY, NeuralProblem
from .array_namespaces import Space

__all__ = ["ACTIVATIONS", "activation", "gradient"]

Array = Any

ROOT_HALF, ROOT_2_PI = math.sqrt(0.5), math.sqrt(2 * math.pi)
TANH_SCALE, TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715  # of Hendrycks and Gimpel, arXiv:1606.08415


def _sigmoid(f: Space, x: Array) -> Array:
    return f.piece("sigmoid", x)


def _gelu(f: Space, x: Array) -> Array:
    # erfc of the negative: 1 + erf would cancel where x is negative.
    return x * (0.5 * f.piece("erfc", -ROOT_HALF * x))


def _gelu_tanh(f: Space, x: Array) -> Array:
    # (1 + tanh u) / 2 is the sigmoid of 2 u, without the cancellation.
    return x * _sigmoid(f, 2 * TANH_SCALE * (x + TANH_CUBIC * x * x * x))


def _elementary(name: str, f: Space, x: Array) -> Array:
    return getattr(f.xp, name)(x)


ACTIVATIONS: dict[str, Callable[[Space, Array], Array]] = {
    "relu": lambda f, x: f.xp.maximum(x, 0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda f, x: x * _sigmoid(f, x),
    "tanh": lambda f, x: f.xp.tanh(x),
    "sigmoid": _sigmoid,
    **{name: partial(_elementary, name) for name in ELEMENTARY},
}


def _gelu_slope(f: Space, x: Array) -> Array:
    near = f.xp.clip(x, -100, 100)  # beyond, the density is 0, and 0 times infinity is not meant
    return 0.5 * f.piece("erfc", -ROOT_HALF * x) + near * f.xp.exp(-0.5 * near * near) / ROOT_2_PI


def _gelu_tanh_slope(f: Space, x: Array) -> Array:
    near = f.xp.clip(x, -100, 100)
    u = 2 * TANH_SCALE * (near + TANH_CUBIC * near * near * near)
    rise = 2 * TANH_SCALE * (1 + 3 * TANH_CUBIC * near * near)
    s = _sigmoid(f, u)
    return s + near * s * _sigmoid(f, -u) * rise


def _silu_slope(f: Space, x: Array) -> Array:
    near = f.xp.clip(x, -1000, 1000)  # beyond, the slope is 0 or 1, and 0 times infinity is not meant
    return _sigmoid(f, near) * (1 + near * _sigmoid(f, -near))


def _tanh_slope(f: Space, x: Array) -> Array:
    return 4 * _sigmoid(f, 2 * x) * _sigmoid(f, -2 * x)  # 1 - tanh(x) ** 2, without the cancellation


_SLOPES: dict[str, Callable[[Space, Array], Array]] = {
    "gelu": _gelu_slope,
    "gelu_tanh": _gelu_tanh_slope,
    "silu": _silu_slope,
    "tanh": _tanh_slope,
    "sigmoid": lambda f, x: _sigmoid(f, x) * _sigmoid(f, -x),
}


def _form(p: NeuralProblem) -> str:
    return "gelu_tanh" if p.parameter("approximate") == "tanh" else p.op.removesuffix("_grad")


def activation(f: Space, p: NeuralProblem, x: Array) -> Array:
    """Returns the activation that a Problem asks for."""
    return ACTIVATIONS[_form(p)](f, x)


def gradient(f: Space, p: NeuralProblem, x: Array, grad: Array) -> Array:
    """Returns the gradient with respect to the input of an activation."""
    if p.op == "relu_grad":
        return f.xp.where(x <= 0, 0, grad)  # a NaN lets the gradient through, as in torch
    return _SLOPES[_form(p)](f, x) * grad
