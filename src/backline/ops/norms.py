"""Norms of vectors and matrices, and condition numbers; names and rules as in torch.linalg."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core
from ..errors import BadType, BadValue
from .bind import composed_of
from .checks import FLOATS, Array
from .kinds import dtype_of, functions, given, into, matrices, on_its_device, plain
from .solve import inv_ex
from .spectra import svdvals

__all__ = ["cond", "matrix_norm", "norm", "vector_norm"]

FLOAT32_MAX = float(np.finfo(np.float32).max)


@on_its_device
def vector_norm(
    x: Array, ord: float = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, out: Array | None = None
) -> Any:
    """Norm of the elements along axes, as if they were one vector.

    Parameters
    ----------
    x
        Array of any shape.
    ord
        2, 1, 0 (number of elements that are not 0), inf, -inf, or any number p: the p-th root of the sum of |x|^p.
    dim
        Axis or axes; None takes all.
    keepdim
        Keep the axes with size 1.
    out
        Array for the result.

    Returns
    -------
    scalar or ndarray
        Real. Scaled where squares would overflow or vanish.

    Raises
    ------
    BadValue
        An empty axis under inf, -inf or a negative ord, which have no value there.

    Examples
    --------
    >>> import numpy as np, backline
    >>> float(backline.linalg.vector_norm(np.array([3.0, 4.0])))
    5.0
    """
    whole = _whole_norm(x, keepdim) if dim is None and isinstance(ord, (int, float)) and ord == 2 else None
    if whole is not None:
        return into(out, "vector_norm", whole)
    a = given(x, "vector_norm: x")
    if dtype_of(a).name not in FLOATS:
        raise BadType(f"vector_norm: x has dtype {dtype_of(a)}", cause=f"norms take {', '.join(FLOATS)}")
    p = _order("vector_norm", ord)
    axes = tuple(range(a.ndim)) if dim is None else _axes("vector_norm", dim, a.ndim)
    xp = functions(a)
    size = xp.abs(a)
    if not axes:  # every element by itself
        size, axes, keepdim = size[..., None], (a.ndim,), False
    count = math.prod(size.shape[i] for i in axes)
    if count == 0 and (p < 0 or np.isinf(p)):
        raise BadValue(f"vector_norm: ord={ord} of an empty vector has no value")
    return into(out, "vector_norm", _power_norm(xp, size, p, axes, keepdim, count))


def _whole_norm(a: Any, keepdim: bool) -> Any:
    """The 2-norm of all elements in one reading; None where their squares might leave the range, or lie in memory with gaps."""
    total = _core.square_sum(a) if type(a) is np.ndarray else None
    if total is None:
        return None
    single = a.dtype.char in "fF"
    # Squares below the normal range vanish: none of them counts in a sum that is as large as this.
    if not (0.0 if single else a.size * 1e-290) < total < np.inf:
        return None
    root = math.sqrt(total)
    if single and root > FLOAT32_MAX:
        return None
    norm = np.float32(root) if single else np.float64(root)
    return np.full((1,) * a.ndim, norm) if keepdim else norm


def _power_norm(xp: Any, size: Array, p: float, axes: tuple[int, ...], keepdim: bool, count: int) -> Any:
    if p == np.inf:
        return xp.max(size, axis=axes, keepdims=keepdim)
    if p == -np.inf:
        return xp.min(size, axis=axes, keepdims=keepdim)
    if p == 0:
        return plain(xp.sum(size != 0, axis=axes, keepdims=keepdim).astype(size.dtype))
    if p == 1 or count == 0:
        return xp.sum(size, axis=axes, keepdims=keepdim)
    # The largest element scaled to 1, so that neither 1e200 nor 1e-200 leaves the range when raised to a power.
    scale = xp.max(size, axis=axes, keepdims=True)
    usable = xp.where((scale > 0) & xp.isfinite(scale), scale, 1).astype(size.dtype)
    with np.errstate(divide="ignore"):
        total = xp.sum((size / usable) ** p, axis=axes, keepdims=True)
        result = (usable * total ** (1 / p)).astype(size.dtype)
    return result if keepdim else plain(xp.squeeze(result, axis=axes))


def _order(where: str, ord: Any) -> float:
    if isinstance(ord, bool) or not isinstance(ord, (int, float, np.number)):
        raise BadType(f"{where}: ord is a number, not {ord!r}")
    return float(ord)


def _axes(where: str, dim: Any, ndim: int) -> tuple[int, ...]:
    try:
        given = (dim,) if isinstance(dim, (int, np.integer)) else tuple(dim)
    except TypeError:
        given = (dim,)
    found = []
    for axis in given:
        if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
            raise BadType(f"{where}: dim={dim!r}", cause="an axis is an int", remedy="an int, or a tuple of ints")
        if not -ndim <= axis < ndim:
            raise BadValue(f"{where}: axis {axis} of an array of {ndim} dimensions")
        found.append(int(axis) % ndim)
    if len(set(found)) < len(found):
        raise BadValue(f"{where}: axes {given} repeat")
    return tuple(found)


@composed_of("linalg.svdvals")
@on_its_device
def matrix_norm(
    A: Array, ord: float | str = "fro", dim: tuple[int, int] = (-2, -1), keepdim: bool = False, *, out: Array | None = None
) -> Any:
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
    out
        Array for the result.

    Returns
    -------
    scalar or ndarray
        Real.

    Raises
    ------
    BadValue
        An unknown `ord`, axes that are not there, or matrices that are empty along an axis whose largest or smallest it takes.

    Examples
    --------
    >>> import numpy as np, backline
    >>> float(backline.linalg.matrix_norm(np.diag([3.0, 4.0])))
    5.0
    """
    a = matrices("matrix_norm", A)
    axes = _axes("matrix_norm", dim, a.ndim)
    if len(axes) != 2:
        raise BadValue(f"matrix_norm: dim={dim}", remedy="two different axes")
    if ord == "fro":
        return vector_norm(a, 2, axes, keepdim, out=out)
    if ord not in ("nuc", 2, -2, 1, -1, np.inf, -np.inf):
        raise BadValue(f"matrix_norm: ord={ord!r}", remedy="one of: 'fro', 'nuc', 2, -2, 1, -1, inf, -inf")
    xp = functions(a)
    reduced = axes if ord in (2, -2) else () if ord == "nuc" else axes[1:] if ord in (1, -1) else axes[:1]
    if any(a.shape[i] == 0 for i in reduced):
        raise BadValue(f"matrix_norm: ord={ord} of matrices of shape {tuple(a.shape[i] for i in axes)} has no value")
    if ord in ("nuc", 2, -2):
        values = svdvals(xp.moveaxis(a, axes, (-2, -1)))
        result = values.sum(-1) if ord == "nuc" else values.max(-1) if ord == 2 else values.min(-1)
    else:
        summed, kept = axes if ord in (1, -1) else axes[::-1]
        sums = xp.sum(xp.abs(a), axis=summed, keepdims=True)
        result = xp.max(sums, axis=kept, keepdims=True) if ord in (1, np.inf) else xp.min(sums, axis=kept, keepdims=True)
        result = xp.squeeze(result, axis=axes)
    if keepdim:
        result = xp.expand_dims(result, axes)
    return into(out, "matrix_norm", plain(result))


@composed_of("linalg.matrix_norm")
@on_its_device
def norm(
    A: Array, ord: Any = None, dim: Any = None, keepdim: bool = False, *, out: Array | None = None
) -> Any:
    """`vector_norm` or `matrix_norm`, as torch.linalg.norm decides.

    Parameters
    ----------
    A
        Array.
    ord
        None: the 2-norm of all elements (or over `dim`). Otherwise a matrix norm for two axes, a vector norm for one.
    dim
        Axis or two axes; None takes the axes of a 1-D or 2-D array.
    keepdim
        Keep the axes with size 1.
    out
        Array for the result.

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
    whole = _whole_norm(A, keepdim) if dim is None and ord is None else None
    if whole is not None:
        return into(out, "norm", whole)
    a = given(A, "norm: A")
    if ord is None:
        return vector_norm(a, 2, dim, keepdim, out=out)
    if dim is None and a.ndim > 2:
        raise BadValue(f"norm: ord={ord!r} for {a.ndim} dimensions", remedy="say which axes: dim=(-2, -1)")
    axes = tuple(range(a.ndim)) if dim is None else _axes("norm", dim, a.ndim)
    if len(axes) == 2:
        return matrix_norm(a, ord, (axes[0], axes[1]), keepdim, out=out)
    return vector_norm(a, ord, axes, keepdim, out=out)


@composed_of("linalg.svdvals", "linalg.inv")
@on_its_device
def cond(A: Array, p: float | str | None = None, *, out: Array | None = None) -> Any:
    """Condition number for inversion.

    Parameters
    ----------
    A
        Shape (..., m, n); square unless `p` is None, 2 or -2.
    p
        The norm: None or 2, -2, "fro", "nuc", 1, -1, inf, -inf.
    out
        Array for the result.

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
    a = matrices("cond", A, square=p not in (None, 2, -2))
    if 0 in a.shape[-2:]:
        return into(out, "cond", plain(functions(a).zeros(a.shape[:-2], dtype=np.finfo(dtype_of(a)).dtype)))
    if p in (None, 2, -2):
        values = svdvals(a)
        with np.errstate(divide="ignore", invalid="ignore"):
            result = values[..., 0] / values[..., -1] if p != -2 else values[..., -1] / values[..., 0]
        return into(out, "cond", plain(result))
    inverse, info = inv_ex(a)
    xp = functions(a)
    with np.errstate(invalid="ignore"):
        result = xp.asarray(matrix_norm(a, p)) * xp.asarray(matrix_norm(inverse, p))
    return into(out, "cond", plain(xp.where(info != 0, np.inf, result).astype(result.dtype)))
