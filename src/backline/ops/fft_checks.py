"""Argument checks of the Fourier transforms, and the Problems that they build."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..problems import operand
from ..problems.fft_problem import FftProblem
from ..problems.symbolic_values import reciprocal
from ..switches.switch import show
from .array_arguments import check_array, check_out
from .axes import axes_of, axis_of
from .linalg_checks import enough_memory, flag, whole, word

__all__ = ["MODULE", "Array", "Sizes", "as_input", "cosine", "fourier"]

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...] | list[int] | int | None
MODULE = "backline.fft"
NORMS = ("backward", "ortho", "forward")


def as_input(where: str, value: Any, *, real: bool = False) -> Array:
    """Returns the value if it is an array of numbers; with `real`, not of complex ones."""
    array = check_array(value, f"{where}: input")
    if real and array.dtype.kind == "c":
        raise BadType(
            f"{where}: input has dtype {array.dtype}",
            cause=f"{where} expects a real{'-valued' if where.endswith(('n', '2')) else ''} input tensor",
            remedy="x.real, or fft for complex x",
        )
    return array


def _numbers(where: str, name: str, value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(whole(where, name, v) for v in values)


def _axes(where: str, array: Array, sizes: tuple[int, ...] | None, dim: Any) -> tuple[int, ...]:
    if dim is None:
        if sizes is not None and len(sizes) > array.ndim:
            raise BadValue(
                f"{where}: s={sizes} has {len(sizes)} sizes, and input of shape {array.shape} has {array.ndim} dimensions",
                cause=f"Got shape with {len(sizes)} values but input tensor only has {array.ndim} dimensions.",
            )
        return tuple(range(array.ndim - (array.ndim if sizes is None else len(sizes)), array.ndim))
    axes = axes_of(where, "dim", dim, array.shape)
    if sizes is not None and len(sizes) != len(axes):
        raise BadValue(
            f"{where}: s={sizes} has {len(sizes)} sizes, dim={dim!r} has {len(axes)} axes",
            cause="dim and shape arguments must have the same length",
            remedy="one for each",
        )
    return axes


def _axes_and_sizes(where: str, array: Array, s: Any, dim: Any, one: bool) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Returns the axes and the sizes of a call; with `one`, of a function of one dimension."""
    if one:
        return (axis_of(where, "dim", dim, array.shape),), None if s is None else (whole(where, "n", s),)
    sizes = None if s is None else _numbers(where, "s", s)
    return _axes(where, array, sizes, dim), sizes


def _lengths(
    where: str, array: Array, axes: tuple[int, ...], sizes: tuple[int, ...] | None, half: bool, one: bool
) -> tuple[int, ...]:
    """Returns the points along each axis; with `half`, the last axis of the input holds n // 2 + 1 of n."""
    lengths = []
    for i, axis in enumerate(axes):
        there, size = array.shape[axis], -1
        if sizes is not None:
            size = sizes[i]
            if size < 1 and (one or size != -1):  # -1 among several: as the input has it
                raise BadValue(
                    f"{where}: {f'n={show(size)}' if one else f's={show(sizes)}'}",
                    cause=f"Invalid number of data points ({show(size)}) specified", remedy="1 or more",
                )  # fmt: skip
        if size == -1:
            size = 2 * (there - 1) if half and i == len(axes) - 1 else there
            if size < 1:
                raise BadValue(
                    f"{where}: input of shape {array.shape} has {there} element{'' if there == 1 else 's'} along axis {axis}",
                    cause=f"the transform would have {max(size, 0)} points. Invalid number of data points ({size}) specified",
                    remedy=f"another axis, or the size of the transform by {'n' if one else 's'}",
                )
        lengths.append(size)
    return tuple(lengths)


def _scale(sign: int, norm: str | None, period: int) -> Any:
    if norm == "ortho":
        return reciprocal(period, root=True)
    divided = norm == "forward" if sign < 0 else norm in (None, "backward")
    return reciprocal(period) if divided else 1.0


def _checked_norm(where: str, norm: Any) -> str | None:
    return None if norm is None else word(where, "norm", norm, NORMS, f'Invalid normalization mode: "{norm}"')


def fourier(
    where: str, op: str, sign: int, input: Any, s: Any, dim: Any, norm: Any, out: Any, overwrite: Any, *, one: bool = False
) -> FftProblem:
    """Returns the Problem of a Fourier transform: `op` is "c2c", "r2c" or "c2r"; with `one`, along one axis, and `s` is its n."""
    array = as_input(where, input, real=op == "r2c")
    norm = _checked_norm(where, norm)
    axes, sizes = _axes_and_sizes(where, array, s, dim, one)
    if not axes and op != "c2c":
        cause = f"{where} must transform at least one axis; dim={dim!r}, input has shape {array.shape}"
        raise BadValue(f"{where}: there is no axis to transform", cause=cause)
    lengths = _lengths(where, array, axes, sizes, op == "c2r", one)
    return _transform(where, f"fft.{op}", array, out, overwrite, (), axes, lengths, sign, norm)


def cosine(
    where: str, input: Any, type: Any, s: Any, dim: Any, norm: Any, orthogonalize: Any, out: Any, overwrite: Any,
    *, one: bool = False,
) -> FftProblem:  # fmt: skip
    """Returns the Problem of a cosine or sine transform; `where` is one of dct, idct, dst, idst, and these with an n."""
    array = as_input(where, input)
    norm = _checked_norm(where, norm)
    number = whole(where, "type", type)
    if number not in (1, 2, 3, 4):
        raise BadValue(f"{where}: type={number}", remedy="1, 2, 3 or 4")
    axes, sizes = _axes_and_sizes(where, array, s, dim, one)
    if not axes:
        cause = f"{where} must transform at least one axis; dim={dim!r}, input has shape {array.shape}"
        raise BadValue(f"{where}: there is no axis to transform", cause=cause)
    lengths = _lengths(where, array, axes, sizes, False, one)
    inverse = where.startswith("i")
    name = where.removeprefix("i")[:3]
    if inverse:
        number = {2: 3, 3: 2}.get(number, number)
    if name == "dct" and number == 1 and min(lengths) < 2:
        raise BadValue(f"{where}: {min(lengths)} point along an axis", cause="type 1 has two ends", remedy="2 or more, or type 2")
    ortho = norm == "ortho" if orthogonalize is None else flag(where, "orthogonalize", orthogonalize)
    parameters = (("kind", f"{name}{number}"), ("ortho", ortho))
    return _transform(where, "fft.r2r", array, out, overwrite, parameters, axes, lengths, 1 if inverse else -1, norm)


def _transform(
    where: str, op: str, array: Array, out: Any, overwrite: Any, parameters: tuple[tuple[str, Any], ...], axes: tuple[int, ...],
    lengths: tuple[int, ...], sign: int, norm: str | None,
) -> FftProblem:  # fmt: skip
    shape = list(array.shape)
    for axis, n in zip(axes, lengths, strict=True):
        shape[axis] = n
    if op == "fft.r2c":
        shape[axes[-1]] = lengths[-1] // 2 + 1
    result = tuple(shape)
    if flag(where, "overwrite_input", overwrite) and array.flags.writeable:
        parameters += (("overwrite", True),)
    operands = [operand("input", array)]
    plan = FftProblem(op, tuple(operands), parameters, "fft", axes=axes, lengths=lengths, sign=sign, result=result)
    enough_memory(where, result, plan.result_dtype, lambda: f"s={lengths}" if len(axes) > 1 else f"n={lengths[0] if axes else 1}")
    if out is not None:
        operands.append(operand("out", check_out(out, f"{where}: out", result, plan.result_dtype)))
    # The direction of a cosine transform is in its kind and scale.
    return FftProblem(
        op, tuple(operands), parameters, "fft",
        axes=axes, lengths=lengths, sign=-1 if op == "fft.r2r" else sign, scale=_scale(sign, norm, plan.period), result=result,
    )  # fmt: skip
