"""Linear layers: linear, with a fused residual and activation, and bilinear.

A product and a bias are a `MatmulProblem`, which every BLAS solves in one call. With a residual or an activation they are a
`LinearProblem`: one kernel where a library has such a thing, else the product and the rest in one plan.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..problems import Operand
from ..problems.linear_problem import LinearProblem
from ..problems.matmul_problem import MatmulProblem
from .array_arguments import cast, check_out, dtype_of, functions, given, one_kind
from .composite import composed_of, natively, on_its_device
from .layer_checks import FLOATS, MODULE, Array
from .linalg_checks import word
from .matrix_products import matmul
from .operation import operation

__all__ = ["ACTIVATIONS", "bilinear", "linear"]

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")


def _same_dtype(where: str, **arrays: Any) -> None:
    """Refuses what is not arrays of the first one's dtype; a bias or residual may be None."""
    first = ""
    one_kind(where, **arrays)
    for name, value in arrays.items():
        if value is None and name in ("bias", "residual"):
            continue
        array = given(value, f"{where}: {name}")
        first = first or name
        if array.dtype != arrays[first].dtype:
            raise BadType(
                f"{where}: {name} has dtype {dtype_of(array)}, {first} has {dtype_of(arrays[first])}",
                cause="a layer runs in one dtype, and an implicit conversion could cost more than the product",
                remedy=f"{name}.astype(np.{dtype_of(arrays[first]).name})",
            )


def _checked(where: str, input: Array, weight: Array, bias: Array | None) -> None:
    _same_dtype(where, input=input, weight=weight, bias=bias)
    if weight.ndim not in (1, 2):
        raise BadValue(f"{where}: weight must have shape (out, in) or (in,), it has {weight.shape}")
    if input.ndim < 1 or input.shape[-1] != weight.shape[-1]:
        raise BadValue(
            f"{where}: input of shape {input.shape} and weight of shape {weight.shape} do not fit",
            cause=f"the last axis of input must have the {weight.shape[-1]} elements that a row of weight has:"
            f" mat1 and mat2 shapes cannot be multiplied ({prod(input.shape[:-1])}x{input.shape[-1] if input.ndim else 1} and"
            f" {weight.shape[-1]}x{weight.shape[0] if weight.ndim == 2 else 1})",
        )
    if bias is not None and bias.shape != weight.shape[:-1]:
        raise BadValue(f"{where}: bias has shape {bias.shape}, for weight of shape {weight.shape} it must be {weight.shape[:-1]}")


def _joined(array: Array) -> tuple[int, int] | None:
    """Returns the number of rows and their stride of an array seen as one matrix with its last axis, or None if it is none."""
    rows, step = 1, 0
    for n, s in zip(reversed(array.shape[:-1]), reversed(array.strides[:-1]), strict=True):
        if n == 1:
            continue
        if rows == 1:
            step = s
        elif s != rows * step:
            return None
        rows *= n
    return rows, step


def _operand(role: str, array: Array, whole: bool) -> Operand:
    """Returns the array as one matrix, or as a batch of them."""
    joined = _joined(array)
    if whole and joined is not None:
        rows, step = joined
        return Operand(role, array.dtype, (rows, array.shape[-1]), (step, array.strides[-1]), array.flags.aligned)
    return Operand(role, array.dtype, array.shape, array.strides, array.flags.aligned)


@operation("linear", module=MODULE)
def linear(
    input: Array, weight: Array, bias: Array | None = None, *, activation: str | None = None, residual: Array | None = None,
    out: Array | None = None,
) -> MatmulProblem | LinearProblem:  # fmt: skip
    """``activation(input @ weight.T + bias + residual)``.

    Parameters
    ----------
    input
        Array of shape (..., in).
    weight
        Array of shape (out, in), or (in,) for a result without that axis, of the same dtype: one that `matmul` takes.
    bias
        Array of shape (out,), or () beside a weight of one dimension, or None.
    activation
        Applied to the result: None, "relu", "gelu", "gelu_tanh", "silu", "tanh" or "sigmoid".
    residual
        Array of the result's shape that is added before the activation, or None.
    out
        Array of the result's shape and dtype, any strides; may be `residual` itself.

    {returns_array}
        Shape (..., out), or (...) for a weight of one dimension.

    {raises}
        Not arrays of one dtype, shapes that do not fit, an unknown activation, an unfit or overlapping `out`; a residual or an
        activation of complex numbers or integers.

    Notes
    -----
    16-bit floats accumulate in float32 and round once, after the activation.

    {examples}
    >>> x, weight, bias = np.array([[1.0, 2.0]]), np.array([[1.0, 1.0], [-2.0, 0.0]]), np.array([0.5, 0.5])
    >>> backline.nn.functional.linear(x, weight, bias)
    array([[ 3.5, -1.5]])
    >>> backline.nn.functional.linear(x, weight, bias, activation="relu")
    array([[3.5, 0. ]])
    """
    _checked("linear", input, weight, bias)
    result = (*input.shape[:-1], *weight.shape[:-1])
    n, k = weight.shape if weight.ndim == 2 else (1, *weight.shape)
    extra = activation is not None or residual is not None
    if activation is not None:
        word("linear", "activation", activation, ACTIVATIONS)
    if extra and input.dtype.name not in FLOATS:
        raise BadType(
            f"linear: input has dtype {input.dtype}",
            cause=f"a residual or an activation is for {', '.join(FLOATS)}",
            remedy="the product alone, or x.astype(np.float32)",
        )
    _same_dtype("linear", input=input, residual=residual)
    if residual is not None and residual.shape != result:
        raise BadValue(f"linear: residual has shape {residual.shape}, the result has {result}")
    if out is not None:
        check_out(out, "linear: out", result, input.dtype)
    if weight.ndim == 1:  # one row, whose axis only the result lacks
        weight = weight[None, :]
        bias, residual, out = (a if a is None else a[..., None] for a in (bias, residual, out))
    tall = [a for a in (input, residual, out) if a is not None]
    whole = input.ndim < 3 or all(_joined(a) is not None for a in tall)
    a = _operand("a", input, whole)
    batch, m = a.shape[:-2], a.shape[-2]
    operands = [a, Operand("b", weight.dtype, (k, n), weight.strides[::-1], weight.flags.aligned)]
    if bias is not None:
        role = "bias" if extra else "c"
        operands.append(Operand(role, bias.dtype, (*batch, m, n), (0,) * (len(batch) + 1) + bias.strides, bias.flags.aligned))
    operands += [_operand(role, array, whole) for role, array in (("residual", residual), ("out", out)) if array is not None]
    if not extra:
        parameters: tuple[tuple[str, Any], ...] = (("alpha", 1), ("beta", 1)) if bias is not None else ()
        return MatmulProblem("matmul", tuple(operands), parameters, "matmul", m=m, n=n, k=k, batch=batch, result=result)
    parameters = () if activation is None else (("activation", activation),)
    return LinearProblem("linear", tuple(operands), parameters, "matmul", m=m, n=n, k=k, batch=batch, result=result)


@composed_of("matmul", module=MODULE)
@on_its_device
@natively
def bilinear(input1: Array, input2: Array, weight: Array, bias: Array | None = None) -> Array:
    """``sum over i, j of input1[..., i] * weight[o, i, j] * input2[..., j]``, plus bias.

    Parameters
    ----------
    input1, input2
        Arrays of shape (..., in1) and (..., in2), the same but for the last axis.
    weight
        Array of shape (out, in1, in2).
    bias
        Array of shape (out,), or None. All of one dtype.

    {returns_array}
        Shape (..., out).

    {one_dtype}

    Notes
    -----
    Two products: of `input1` and all matrices, then of each of the results and `input2`. The first one's result has ``out * in2``
    elements for each row; rows are taken in groups so that it stays within 8 MB, 256 MB on devices.

    {examples}
    >>> backline.nn.functional.bilinear(np.array([1.0, 2.0]), np.array([3.0]), np.ones((1, 2, 1)))
    array([9.])
    """
    _same_dtype("bilinear", input1=input1, input2=input2, weight=weight, bias=bias)
    if weight.ndim != 3:
        raise BadValue(f"bilinear: weight must have shape (out, in1, in2), it has {weight.shape}")
    outs, left, right = weight.shape
    for name, array, size in (("input1", input1, left), ("input2", input2, right)):
        if array.ndim < 1 or array.shape[-1] != size:
            raise BadValue(
                f"bilinear: {name} of shape {array.shape} and weight of shape {weight.shape} do not fit",
                cause=f"{name} size does not match weight size: expected {size}",
            )
    if input1.shape[:-1] != input2.shape[:-1]:
        shapes = f"{input1.shape} and {input2.shape}"
        raise BadValue(
            f"bilinear: input1 and input2 have shapes {shapes}, which differ before the last axis",
            cause="input batch dimensions do not match",
        )
    if bias is not None and bias.shape != (outs,):
        raise BadValue(
            f"bilinear: bias has shape {bias.shape}, for weight of shape {weight.shape} it must be {(outs,)}",
            cause="bias size does not match weight size",
        )
    xp, kind = functions(input1), dtype_of(input1)
    if 0 in (input1.size, input2.size, weight.size):
        zeros: Array = xp.zeros((*input1.shape[:-1], outs), dtype=input1.dtype)
        return zeros if bias is None else zeros + bias
    dtype = np.dtype(np.float32) if kind.itemsize == 2 and kind.kind in "fV" else kind
    rows = xp.ascontiguousarray(input1.reshape(-1, left), dtype)
    others = xp.ascontiguousarray(input2.reshape(-1, right), dtype)
    flat = xp.ascontiguousarray(weight.transpose(1, 0, 2), dtype).reshape(left, outs * right)
    parts = []
    at_once = _BYTES if isinstance(input1, np.ndarray) else _BYTES_DEVICE
    step = max(at_once // (outs * right * dtype.itemsize), 1)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        between = matmul(rows[part], flat).reshape(-1, outs, right)
        parts.append(matmul(between, others[part, :, None])[..., 0])
    result = parts[0] if len(parts) == 1 else xp.concatenate(parts)
    with np.errstate(all="ignore"):  # as BLAS: infinity and NaN show in the result
        if bias is not None:
            result = result + cast(bias, dtype)
        return cast(result.reshape(*input1.shape[:-1], outs), kind)


_BYTES = 8 << 20  # of the first product's result at a time: the size of a cache
_BYTES_DEVICE = 256 << 20  # a device is kept busy by larger ones
