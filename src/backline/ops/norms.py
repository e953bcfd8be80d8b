"""Norms of vectors and matrices, and condition numbers; names and rules as in torch.linalg."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import BadAxis, BadType, BadValue
from ..problems.dtypes import HALVES
from ..switches.switch import show
from .array_arguments import dtype_of, functions, given, into, plain
from .axes import axes_of
from .composite import on_its_device
from .eigenvalues import spectrum_flops, svdvals
from .linalg_checks import FLOATS, Array, dtype_given, flag, matrices, number
from .linear_systems import inv_ex
from .norm_builders import condition_problem, matrix_problem, norm_problem, vector_problem
from .planned import planned
from .promote import recast

__all__ = ["cond", "matrix_norm", "norm", "vector_norm"]


@planned(vector_problem)
@on_its_device
def vector_norm(
    x: Array, ord: float = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None,
    out: Array | None = None,
) -> Array:  # fmt: skip
    """Norm of the elements along axes, as if they were one vector.

    Parameters
    ----------
    x
        Array of any shape.
    ord
        2, 1, 0 (number of elements that are not 0), inf, -inf, or any number p: the p-th root of the sum of |x|^p.
    dim
        Axis or axes; None and () take all.
    {keepdim}
    dtype
        Dtype that `x` is converted to first: of complex numbers for complex `x`, and not a narrower one. The result is real.
    {out}

    Returns
    -------
    scalar or ndarray
        Real. Powers are scaled, so that none overflows or vanishes on the way. float16 and bfloat16 are computed in float32 and
        rounded once.

    Raises
    ------
    BadValue
        An empty axis under inf, -inf or a negative ord, which have no value there.
    BadType
        Not an array of floating-point or complex numbers; a `dtype` that is none or narrower.

    Examples
    --------
    >>> import numpy as np, backline
    >>> float(backline.linalg.vector_norm(np.array([3.0, 4.0])))
    5.0
    """
    keepdim = flag("vector_norm", "keepdim", keepdim)
    a, narrow = _widened("vector_norm", "x", x, dtype)
    if narrow is not None:
        return into(out, "vector_norm", _narrowed(vector_norm(a, ord, dim, keepdim), narrow))
    if dtype is not None:
        return vector_norm(a, ord, dim, keepdim, out=out)
    p = _order("vector_norm", ord)
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        axes = tuple(range(a.ndim))
    else:
        axes = axes_of("vector_norm", "dim", dim, a.shape or (1,))  # a number has one axis here, as in torch
    xp = functions(a)
    with np.errstate(over="ignore"):
        size = xp.abs(a)
    if not a.ndim:
        size, axes, keepdim = size[None], (0,), False
    count = math.prod(size.shape[i] for i in axes)
    if count == 0 and (p < 0 or np.isinf(p)):
        raise BadValue(
            f"linalg.vector_norm cannot compute the {ord} norm on an empty vector",
            cause=f"x has shape {tuple(a.shape)}, and the largest or smallest of no elements is no number",
        )
    return into(out, "vector_norm", _power_norm(xp, size, p, axes, keepdim, count))


def _widened(where: str, name: str, value: Any, dtype: Any) -> tuple[Array, np.dtype[Any] | None]:
    """The array in the dtype that its norm is computed in, and the 16-bit one that this is rounded to, if any."""
    array = given(value, f"{where}: {name}")
    own = dtype_of(array)
    if own.name not in (*FLOATS, *HALVES):
        raise BadType(
            f"{where}: Expected a floating point or complex tensor as input, and {name} has dtype {own}",
            cause=f"norms take {', '.join((*HALVES, *FLOATS))}", remedy=f"{name}.astype(np.float64)",
        )  # fmt: skip
    wanted = own if dtype is None else _wanted(where, name, own, dtype)
    if wanted.name not in HALVES:
        return recast(array, wanted), None
    return recast(array, np.dtype(np.float32)), wanted


def _wanted(where: str, name: str, own: np.dtype[Any], dtype: Any) -> np.dtype[Any]:
    wanted = dtype_given(where, dtype, (*HALVES, *FLOATS))
    if (wanted.kind == "c") != (own.kind == "c"):
        kind = "complex" if own.kind == "c" else "real"
        raise BadType(f"{where}: dtype should be {kind} for {kind} inputs, but got {wanted}, and {name} has {own}")
    try:
        fits = np.promote_types(own, wanted) == wanted
    except TypeError:  # float16 and bfloat16: neither holds the other
        fits = False
    if not fits:
        raise BadType(
            f"{where}: {name} of dtype {own} should be convertible without narrowing to the specified dtype {wanted}",
            remedy=f"{name}.astype(...) first, or the norm's own dtype",
        )
    return wanted


def _narrowed(result: Any, dtype: np.dtype[Any]) -> Any:
    return plain(recast(functions(result).asarray(result), dtype))


def _power_norm(xp: Any, size: Array, p: float, axes: tuple[int, ...], keepdim: bool, count: int) -> Any:
    with np.errstate(all="ignore"):  # what overflows shows in the result
        if p == np.inf:
            return xp.max(size, axis=axes, keepdims=keepdim)
        if p == -np.inf:
            return xp.min(size, axis=axes, keepdims=keepdim)
        if p == 0:
            return plain(xp.sum(size != 0, axis=axes, keepdims=keepdim).astype(size.dtype))
        if p == 1 or count == 0:
            return xp.sum(size, axis=axes, keepdims=keepdim)
        result = _scaled_norm(xp, size, p, axes).astype(size.dtype)
    return result if keepdim else plain(xp.squeeze(result, axis=axes))


def _scaled_norm(xp: Any, size: Any, p: float, axes: tuple[int, ...]) -> Any:
    """The p-th root of a sum of powers that are at most 1, with its axes: what vanishes beside them counts for nothing."""
    # The largest power is that of the largest element, or with a negative order of the smallest.
    scale = (xp.max if p > 0 else xp.min)(size, axis=axes, keepdims=True)
    usable = xp.where((scale > 0) & xp.isfinite(scale), scale, 1).astype(size.dtype)
    if abs(p) >= 1:
        return usable * xp.sum((size / usable) ** p, axis=axes, keepdims=True) ** (1 / p)
    # A small power brings numbers together that are too far apart for a quotient, and the root is of a high degree: the scale
    # goes between its two halves, so that a norm within the range is found.
    root = xp.sum(size**p / usable**p, axis=axes, keepdims=True) ** (0.5 / p)
    return root * usable * root


def _order(where: str, ord: Any) -> float:
    order = number(where, "ord", ord)
    if math.isnan(order):
        raise BadValue(f"linalg.{where}: Order nan not supported", remedy="a number, inf or -inf")
    return order


def _matrix_order(where: str, ord: Any) -> Any:
    """The order of a norm of matrices: a word, or a float."""
    if isinstance(ord, str):
        if ord not in ("fro", "nuc"):
            raise _unknown_order(where, ord)
        return ord
    order = number(where, "ord", ord)
    if order not in (2, -2, 1, -1, np.inf, -np.inf):
        raise _unknown_order(where, f"{order:g}")
    return order


def _unknown_order(where: str, ord: str) -> BadValue:
    if where == "cond":
        return BadValue(f"linalg.cond got an invalid norm type: {ord}", remedy=_ORDERS)
    return BadValue(f"linalg.{where}: Order {ord} not supported", remedy=_ORDERS)


_ORDERS = "one of: 'fro', 'nuc', 2, -2, 1, -1, inf, -inf"


@planned(matrix_problem, "linalg.svdvals", flops=spectrum_flops)
@on_its_device
def matrix_norm(
    A: Array, ord: float | str = "fro", dim: tuple[int, int] = (-2, -1), keepdim: bool = False, *, dtype: Any = None,
    out: Array | None = None,
) -> Array:  # fmt: skip
    """Norm of matrices.

    Parameters
    ----------
    A
        Array of two dimensions or more.
    ord
        "fro"; "nuc", the sum of singular values; 2 and -2, the largest and smallest singular value; 1 and -1, the largest and
        smallest column sum; inf and -inf, those of rows.
    dim
        The two axes of the matrices.
    keepdim
        Keep them with size 1.
    dtype
        As for `vector_norm`.
    {out}

    Returns
    -------
    scalar or ndarray
        Real. float16 and bfloat16 have no norms of singular values but where `dtype` is a wider one.

    Raises
    ------
    BadValue
        An unknown `ord`, axes that are not there, or matrices that are empty along an axis whose smallest sum or value it takes.

    Examples
    --------
    >>> import numpy as np, backline
    >>> float(backline.linalg.matrix_norm(np.diag([3.0, 4.0])))
    5.0
    """
    a, narrow = _widened("matrix_norm", "A", A, dtype)
    if narrow is not None:
        if ord in ("nuc", 2, -2):
            raise BadType(
                f"matrix_norm: Low precision dtypes not supported for ord={ord!r}, and A has dtype {dtype_of(A)}",
                remedy="dtype=np.float32",
            )
        return into(out, "matrix_norm", _narrowed(matrix_norm(a, ord, dim, keepdim), narrow))
    a = matrices("matrix_norm", a)
    axes = axes_of("matrix_norm", "dim", dim, a.shape)
    if len(axes) != 2:
        raise BadValue(f"linalg.matrix_norm: dim must be a 2-tuple, not {show(dim)}", remedy="two different axes")
    keepdim = flag("matrix_norm", "keepdim", keepdim)
    ord = _matrix_order("matrix_norm", ord)
    if ord == "fro":
        return vector_norm(a, 2, axes, keepdim, out=out)
    xp = functions(a)
    reduced = axes if ord in (2, -2) else () if ord == "nuc" else axes[1:] if ord in (1, -1) else axes[:1]
    for axis in reduced:
        if a.shape[axis] == 0 and ord not in ("nuc", 2, 1, np.inf):
            raise BadAxis(
                f"matrix_norm: ord={ord} takes a smallest value. Expected reduction dim {axis} to have non-zero size.",
                cause=f"A has shape {tuple(a.shape)}",
            )
    if any(a.shape[axis] == 0 for axis in reduced):  # the largest of nothing: no norm is negative
        sizes = [1 if i in axes else n for i, n in enumerate(a.shape) if keepdim or i not in axes]
        return into(out, "matrix_norm", plain(xp.zeros(tuple(sizes), dtype=np.finfo(dtype_of(a)).dtype)))
    if ord in ("nuc", 2, -2):
        values = svdvals(xp.moveaxis(a, axes, (-2, -1)))
        result = values.sum(-1) if ord == "nuc" else values.max(-1) if ord == 2 else values.min(-1)
    else:
        summed, kept = axes if ord in (1, -1) else axes[::-1]
        with np.errstate(over="ignore"):
            sums = xp.sum(xp.abs(a), axis=summed, keepdims=True)
        result = xp.max(sums, axis=kept, keepdims=True) if ord in (1, np.inf) else xp.min(sums, axis=kept, keepdims=True)
        result = xp.squeeze(result, axis=axes)
    if keepdim:
        result = xp.expand_dims(result, axes)
    return into(out, "matrix_norm", plain(result))


@planned(norm_problem, "linalg.matrix_norm")
@on_its_device
def norm(
    A: Array, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Array | None = None
) -> Array:
    """`vector_norm` or `matrix_norm`, as torch.linalg.norm decides.

    Parameters
    ----------
    A
        Array.
    ord
        None: the 2-norm of all elements (or over `dim`). Otherwise a matrix norm for two axes, a vector norm for one.
    dim
        Axis or two axes; None takes the axes of a 1-D or 2-D array.
    {keepdim}
    dtype
        As for `vector_norm`.
    {out}

    Returns
    -------
    scalar or ndarray
        Real.

    Examples
    --------
    >>> import numpy as np, backline
    >>> float(backline.linalg.norm(np.ones((2, 2))))
    2.0
    """
    keepdim = flag("norm", "keepdim", keepdim)
    a = given(A, "norm: A")
    if isinstance(dim, (tuple, list)) and len(dim) not in (1, 2):
        raise BadValue(
            f"linalg.norm: If dim is specified, it must be of length 1 or 2. Got {show(list(dim))}",
            cause="a norm is one of vectors or of matrices", remedy="linalg.vector_norm, for any number of axes as one vector",
        )  # fmt: skip
    if ord is None:
        return vector_norm(a, 2, dim, keepdim, dtype=dtype, out=out)
    if dim is None and a.ndim not in (1, 2):
        raise BadValue(
            f"linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got {a.ndim}D.",
            cause=f"ord={show(ord)} is of vectors or of matrices", remedy="say which axes: dim=(-2, -1)",
        )  # fmt: skip
    axes = tuple(range(a.ndim)) if dim is None else axes_of("norm", "dim", dim, a.shape or (1,))
    if len(axes) == 2:
        return matrix_norm(a, ord, (axes[0], axes[1]), keepdim, dtype=dtype, out=out)
    if isinstance(ord, str):
        raise BadValue(
            f"linalg.norm: ord={ord!r} is a norm of matrices. The input must have at least 2 dimensions.",
            cause=f"A has shape {tuple(a.shape)}, dim={show(dim)}", remedy="a number for ord",
        )  # fmt: skip
    return vector_norm(a, ord, axes, keepdim, dtype=dtype, out=out)


@planned(condition_problem, "linalg.svdvals", "linalg.inv", flops=spectrum_flops)
@on_its_device
def cond(A: Array, p: float | str | None = None, *, out: Array | None = None) -> Array:
    """Condition number for inversion.

    Parameters
    ----------
    A
        Shape (..., m, n); square unless `p` is None, 2 or -2.
    p
        The norm: None or 2, -2, "fro", "nuc", 1, -1, inf, -inf.
    {out}

    Returns
    -------
    scalar or ndarray
        Real; infinite for a singular matrix, 0 for one without elements.

    Examples
    --------
    >>> import numpy as np, backline
    >>> float(backline.linalg.cond(np.diag([1.0, 4.0])))
    4.0
    """
    p = p if p is None else _matrix_order("cond", p)
    a = matrices("cond", A, square=p not in (None, 2, -2))
    if 0 in a.shape[-2:]:
        return into(out, "cond", plain(functions(a).zeros(a.shape[:-2], dtype=np.finfo(dtype_of(a)).dtype)))
    if p in (None, 2, -2):
        values = svdvals(a)
        with np.errstate(divide="ignore", invalid="ignore"):
            result = values[..., 0] / values[..., -1] if p != -2 else values[..., -1] / values[..., 0]
        return into(out, "cond", plain(result))
    xp = functions(a)
    if p == "nuc":
        values = svdvals(a)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            result = xp.sum(values, axis=-1) * xp.sum(1 / values, axis=-1)
        return into(out, "cond", plain(result))
    inverse, info = inv_ex(a)
    with np.errstate(invalid="ignore", over="ignore"):
        result = xp.asarray(matrix_norm(a, p)) * xp.asarray(matrix_norm(inverse, p))
    # The inverse of numbers near 0 leaves the range: infinity times 0 is no number, and the norm of such an inverse is infinite.
    lost = xp.isnan(result) & xp.all(xp.isfinite(a), axis=(-2, -1))
    return into(out, "cond", plain(xp.where((info != 0) | lost, np.inf, result).astype(result.dtype)))
