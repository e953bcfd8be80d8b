"""Fourier transforms of MLX's arrays, which are single precision only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...problems.fft_problem import FftProblem

__all__ = ["function", "refusal"]

Array = Any
DTYPES = ("float16", "bfloat16", "float32", "complex64")
# By sign of the exponent: the word for no factor, 1 / sqrt(n), 1 / n.
NORMS = {-1: ("backward", "ortho", "forward"), 1: ("forward", "ortho", "backward")}


def refusal(p: FftProblem) -> str:
    """Returns the reason why MLX does not support a transform, or an empty string."""
    if p.op == "fft.r2r":
        return "MLX has no cosine and sine transforms"
    if p.dtype.name not in DTYPES:
        return f"MLX transforms {', '.join(DTYPES)}: it would reduce {p.dtype.name} to single precision"
    return ""


def function(p: FftProblem, mx: Any, metal: bool) -> Callable[..., Array]:
    """The function of the input."""
    kind = p.normalisation
    # MLX normalises by the sign of its own function, and its real transforms have one sign each.
    sign = {"fft.r2c": -1, "fft.c2r": 1}.get(p.op, p.sign)
    name = {"fft.r2c": "rfftn", "fft.c2r": "irfftn"}.get(p.op, "fftn" if p.sign < 0 else "ifftn")
    norm = NORMS[sign][kind or 0]
    sizes, axes = list(p.lengths), list(p.axes)

    def run(input: Array) -> Array:
        if p.empty:
            return mx.zeros(p.result, mx.float32 if p.op == "fft.c2r" else mx.complex64)
        x = input.astype(mx.float32 if p.op == "fft.r2c" else mx.complex64)
        if p.op == "fft.c2r" and p.sign < 0:
            x = mx.conjugate(x)
        result = getattr(mx.fft, name)(x, s=sizes, axes=axes, norm=norm) if axes else x
        if p.op == "fft.r2c" and p.sign > 0:
            result = mx.conjugate(result)
        return result if kind is not None else result * p.scale

    return run
