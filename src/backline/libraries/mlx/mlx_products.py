"""Products and linear layers of MLX's arrays. Every function takes the Problem and ``mlx.core``, so nothing is imported here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...problems import Operand
from ...problems.dtypes import HALVES
from ...problems.einsum_problem import EinsumProblem
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MatmulProblem
from ...problems.memory_layout import contiguous_strides
from ..reference import reference_einsum
from .mlx_layers import EXPONENTIAL, IMPRECISE, finished

__all__ = ["DTYPES", "as_operand", "elements", "elements_refusal", "linear", "matmul", "note", "refusal"]

Array = Any
Run = Callable[..., Array]

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64")


def refusal(p: MatmulProblem | LinearProblem) -> str:
    """Returns the reason why MLX does not support a product, or an empty string."""
    if p.dtype.name not in DTYPES:
        return f"MLX multiplies matrices of {', '.join(DTYPES)}, not of {p.dtype.name}"
    if p.dtype.name == "float64" and p.parameter("activation") in EXPONENTIAL:
        return IMPRECISE
    if p.packed:
        return "there are no packed weights for arrays of MLX"
    return ""


def note(p: LinearProblem) -> str:
    """Returns a note for users on the rounding of a linear layer, or an empty string."""
    return "on Metal halves are rounded after the product too" if p.halves else ""


def as_operand(array: Array, o: Operand) -> Array:
    """An array of the call as the matrix, or batch of matrices, that its operand describes.

    Arrays of MLX count as dense, so that strides tell apart what is transposed, repeated or only shaped another way.
    """
    shape, size = tuple(array.shape), o.dtype.itemsize
    if o.role in ("c", "bias"):
        return array  # broadcast by what is done with it
    turned = len(shape) == 2 and o.shape == shape[::-1] and o.strides == contiguous_strides(shape, size)[::-1]
    if turned and o.strides != contiguous_strides(o.shape, size):
        return array.T
    return array if o.shape == shape else array.reshape(o.shape)


def matmul(p: MatmulProblem, mx: Any, metal: bool) -> Run:
    """``beta * C + alpha * A @ B``."""
    index = {o.role: i for i, o in enumerate(p.operands)}

    def run(*arrays: Array) -> Array:
        a, b = (as_operand(arrays[index[role]], p.operands[index[role]]) for role in "ab")
        c = arrays[index["c"]] if p.beta != 0 else None
        return _product(p, mx, a, b, c, metal).reshape(p.result)

    return run


def _product(p: MatmulProblem, mx: Any, a: Array, b: Array, c: Array | None, metal: bool) -> Array:
    dtype = a.dtype
    if p.parameter("conj"):
        a = mx.conjugate(a)
    shape = (*p.batch, p.m, p.n)
    if p.empty or p.alpha == 0:  # as in BLAS: then A and B do not matter, whatever is in them
        product = mx.zeros(shape, dtype)
        return product if c is None else (product + _times(c, p.beta, mx)).astype(dtype)
    real = not isinstance(p.alpha, complex) and not isinstance(p.beta, complex)
    if c is not None and metal and real and p.dtype.name != "complex64":
        return mx.addmm(c, a, b, alpha=float(p.alpha), beta=float(p.beta))
    if p.dtype.name in HALVES and (c is not None or p.alpha != 1):  # rounded once
        a, b, c = a.astype(mx.float32), b.astype(mx.float32), None if c is None else c.astype(mx.float32)
    product = _times(mx.matmul(a, b), p.alpha, mx)
    product = product if c is None else product + _times(c, p.beta, mx)
    return mx.broadcast_to(product, shape).astype(dtype)


def _times(array: Array, factor: Any, mx: Any) -> Array:
    return array if factor == 1 else array * mx.array(factor, dtype=array.dtype)


def linear(p: LinearProblem, mx: Any, metal: bool) -> Run:
    """``activation(A @ B + bias + residual)``; halves in float32 on the CPU stream, where nothing is lost by that."""
    roles = [o.role for o in p.operands]

    def run(*arrays: Array) -> Array:
        given = {role: as_operand(x, o) for role, x, o in zip(roles, arrays, p.operands, strict=True)}
        dtype = given["a"].dtype
        if p.halves and not metal:
            given = {role: x.astype(mx.float32) for role, x in given.items()}
        a, b = given["a"], given["b"]
        x = mx.zeros((*p.batch, p.m, p.n), a.dtype) if p.empty else mx.matmul(a, b)
        added = [given[role] for role in ("bias", "residual") if role in given]
        return finished(x, added, p.parameter("activation"), dtype, p.halves, mx).reshape(p.result)

    return run


def elements_refusal(p: EinsumProblem) -> str:
    """Returns the reason why an einsum step is not a supported sum over axes or elementwise product, or an empty string."""
    kind = reference_einsum.kind_of(p)
    if kind == "einsum":
        return "it is no sum over axes and no product of elements"
    if p.dtype.name not in DTYPES or (kind == "sum" and p.dtype.name in HALVES):
        return f"MLX has no {kind} of {p.dtype.name} here"
    return ""


def elements(p: EinsumProblem, mx: Any, metal: bool) -> Run:
    """A sum over axes, or a product of elements."""
    looks, axes = reference_einsum.views(p)
    if len(looks) == 2:
        return lambda x, y: looks[0](x) * looks[1](y)
    return lambda x: mx.sum(looks[0](x), axis=axes)
