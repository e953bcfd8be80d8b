"""Linear algebra made of the operations that libraries have: determinants, norms, ranks, pseudo-inverses, powers, P L U."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..problems.results import LU, Slogdet
from .bind import check_array, check_out, composed_of
from .linalg import FLOATS, Array, eigvalsh, eigh, inv, lu_factor_ex, svd, svdvals
from .matmul import matmul, multi_dot

__all__ = ["cond", "det", "lu", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv", "slogdet", "vector_norm"]


def _matrices(where: str, A: Any, *, square: bool = False) -> Array:
    array = check_array(A, f"{where}: A")
    if array.dtype.name not in FLOATS:
        raise BadType(f"{where}: A has dtype {array.dtype}", cause=f"linear algebra takes {', '.join(FLOATS)}")
    if array.ndim < 2 or (square and array.shape[-1] != array.shape[-2]):
        kind = "a square matrix" if square else "a matrix"
        raise BadValue(f"{where}: A must be {kind} or a batch of them, it has shape {array.shape}")
    return array


def _into(out: Any, where: str, result: Any) -> Any:
    if out is None:
        return result
    check_out(out, f"{where}: out", np.shape(result), np.asarray(result).dtype)
    out[...] = result
    return out


def _diagonal_and_parity(A: Array) -> tuple[Array, Array]:
    """Diagonal of U, and +1 or -1 by the number of row interchanges."""
    factors = lu_factor_ex(A)
    n = A.shape[-1]
    swaps = np.sum(factors.pivots != np.arange(1, n + 1), axis=-1)
    return np.diagonal(factors.LU, axis1=-2, axis2=-1), np.where(swaps % 2, -1.0, 1.0)


@composed_of("linalg.lu_factor")
def det(A: Array, *, out: Array | None = None) -> Any:
    """Determinant.

    Parameters
    ----------
    A
        Shape (..., n, n).
    out
        Array for the result.

    Returns
    -------
    scalar or ndarray
        Shape (...). A singular matrix has 0, an empty one 1.

    Notes
    -----
    The product of the pivots of LU: it overflows long before `slogdet` does.

    Examples
    --------
    >>> import numpy as np, backline
    >>> float(backline.linalg.det(np.diag([2.0, 3.0])))
    6.0
    """
    a = _matrices("det", A, square=True)
    diagonal, parity = _diagonal_and_parity(a)
    return _into(out, "det", (np.prod(diagonal, axis=-1) * parity).astype(a.dtype)[()])


@composed_of("linalg.lu_factor")
def slogdet(A: Array) -> Slogdet:
    """Sign and logarithm of the absolute value of the determinant.

    Parameters
    ----------
    A
        Shape (..., n, n).

    Returns
    -------
    Slogdet
        `sign` (a number of modulus 1, or 0) and `logabsdet` (real; -inf for a singular matrix).

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.slogdet(np.diag([1e200, -1e200, 1e200])).sign.item()
    -1.0
    """
    a = _matrices("slogdet", A, square=True)
    diagonal, parity = _diagonal_and_parity(a)
    size = np.abs(diagonal)
    with np.errstate(divide="ignore", invalid="ignore"):
        phases = np.where(size == 0, 0, diagonal / size)
        logarithm = np.sum(np.log(size), axis=-1)
    sign = (np.prod(phases, axis=-1) * parity).astype(a.dtype)
    return Slogdet(sign[()], np.where(sign == 0, -np.inf, logarithm).astype(size.dtype)[()])


@composed_of("linalg.lu_factor")
def lu(A: Array, *, pivot: bool = True) -> LU:
    """Factors P, L, U with A = P L U.

    Parameters
    ----------
    A
        Shape (..., m, n).
    pivot
        Must be True.

    Returns
    -------
    LU
        `P` (..., m, m), `L` (..., m, k) with ones on the diagonal, `U` (..., k, n), k = min(m, n).

    Examples
    --------
    >>> import numpy as np, backline
    >>> p, l, u = backline.linalg.lu(np.array([[0.0, 1.0], [2.0, 0.0]]))
    >>> (p @ l @ u).tolist()
    [[0.0, 1.0], [2.0, 0.0]]
    """
    a = _matrices("lu", A)
    factors = lu_factor_ex(a, pivot=pivot)
    m, n = a.shape[-2:]
    k = min(m, n)
    lower = np.tril(factors.LU[..., :, :k], -1)
    lower[..., range(k), range(k)] = 1
    upper = np.triu(factors.LU[..., :k, :])
    batch = a.shape[:-2]
    order = np.empty((*batch, m), np.intp)
    for item in np.ndindex(*batch):
        rows = np.arange(m)
        for i, j in enumerate(factors.pivots[item] - 1):
            rows[i], rows[j] = rows[j], rows[i]
        order[item] = rows
    permutation = np.zeros((*batch, m, m), a.dtype)
    np.put_along_axis(permutation, order[..., None, :], 1, axis=-2)
    return LU(permutation, lower, upper)


# Norms --------------------------------------------------------------------------------------------------------------


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
    a = check_array(x, "vector_norm: x")
    if a.dtype.name not in FLOATS:
        raise BadType(f"vector_norm: x has dtype {a.dtype}", cause=f"norms take {', '.join(FLOATS)}")
    p = _order("vector_norm", ord)
    axes = tuple(range(a.ndim)) if dim is None else _axes("vector_norm", dim, a.ndim)
    size = np.abs(a)
    count = int(np.prod([a.shape[i] for i in axes], dtype=np.int64))
    if count == 0 and (p < 0 or np.isinf(p)):
        raise BadValue(f"vector_norm: ord={ord} of an empty vector has no value")
    return _into(out, "vector_norm", _power_norm(size, p, axes, keepdim, count))


def _power_norm(size: Array, p: float, axes: tuple[int, ...], keepdim: bool, count: int) -> Any:
    if p == np.inf:
        return np.max(size, axis=axes, keepdims=keepdim)
    if p == -np.inf:
        return np.min(size, axis=axes, keepdims=keepdim)
    if p == 0:
        return np.sum(size != 0, axis=axes, keepdims=keepdim).astype(size.dtype)[()]
    if p == 1:
        return np.sum(size, axis=axes, keepdims=keepdim)
    if count == 0:
        return np.sum(size, axis=axes, keepdims=keepdim)
    # The largest element scaled to 1, so that neither 1e200 nor 1e-200 leaves the range when raised to a power.
    scale = np.max(size, axis=axes, keepdims=True)
    usable = np.where((scale > 0) & np.isfinite(scale), scale, 1).astype(size.dtype)
    with np.errstate(divide="ignore"):
        total = np.sum((size / usable) ** size.dtype.type(p), axis=axes, keepdims=True)
        result = (usable * total ** size.dtype.type(1 / p)).astype(size.dtype)
    return result if keepdim else np.squeeze(result, axis=axes)[()]


def _order(where: str, ord: Any) -> float:
    if isinstance(ord, bool) or not isinstance(ord, (int, float, np.number)):
        raise BadType(f"{where}: ord is a number, not {ord!r}")
    return float(ord)


def _axes(where: str, dim: Any, ndim: int) -> tuple[int, ...]:
    given = (dim,) if isinstance(dim, (int, np.integer)) else tuple(dim)
    found = []
    for axis in given:
        if not -ndim <= axis < ndim:
            raise BadValue(f"{where}: axis {axis} of an array of {ndim} dimensions")
        found.append(int(axis) % ndim)
    if len(set(found)) < len(found):
        raise BadValue(f"{where}: axes {given} repeat")
    return tuple(found)


@composed_of("linalg.svdvals")
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

    Examples
    --------
    >>> import numpy as np, backline
    >>> float(backline.linalg.matrix_norm(np.diag([3.0, 4.0])))
    5.0
    """
    a = _matrices("matrix_norm", A)
    axes = _axes("matrix_norm", dim, a.ndim)
    if len(axes) != 2:
        raise BadValue(f"matrix_norm: dim={dim}", remedy="two different axes")
    if ord == "fro":
        return vector_norm(a, 2, axes, keepdim, out=out)
    if ord not in ("nuc", 2, -2, 1, -1, np.inf, -np.inf):
        raise BadValue(f"matrix_norm: ord={ord!r}", remedy="one of: 'fro', 'nuc', 2, -2, 1, -1, inf, -inf")
    if ord in ("nuc", 2, -2):
        values = svdvals(np.moveaxis(a, axes, (-2, -1)))
        result = values.sum(-1) if ord == "nuc" else values.max(-1) if ord == 2 else values.min(-1)
    else:
        summed, kept = axes if ord in (1, -1) else axes[::-1]
        sums = np.sum(np.abs(a), axis=summed, keepdims=True)
        result = np.max(sums, axis=kept, keepdims=True) if ord in (1, np.inf) else np.min(sums, axis=kept, keepdims=True)
        result = np.squeeze(result, axis=axes)
    if keepdim:
        result = np.expand_dims(result, axes)
    return _into(out, "matrix_norm", result[()])


@composed_of("linalg.matrix_norm")
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
    a = check_array(A, "norm: A")
    if ord is None:
        return vector_norm(a, 2, dim, keepdim, out=out)
    if dim is None and a.ndim > 2:
        raise BadValue(f"norm: ord={ord!r} for {a.ndim} dimensions", remedy="say which axes: dim=(-2, -1)")
    axes = tuple(range(a.ndim)) if dim is None else _axes("norm", dim, a.ndim)
    if len(axes) == 2:
        return matrix_norm(a, ord, (axes[0], axes[1]), keepdim, out=out)
    return vector_norm(a, ord, axes, keepdim, out=out)


@composed_of("linalg.svdvals", "linalg.inv")
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
        Real; infinite for a singular matrix.

    Examples
    --------
    >>> import numpy as np, backline
    >>> float(backline.linalg.cond(np.diag([1.0, 4.0])))
    4.0
    """
    a = _matrices("cond", A, square=p not in (None, 2, -2))
    if p in (None, 2, -2):
        values = svdvals(a)
        with np.errstate(divide="ignore", invalid="ignore"):
            result = values[..., 0] / values[..., -1] if p != -2 else values[..., -1] / values[..., 0]
        return _into(out, "cond", result[()])
    from .linalg import inv_ex

    inverse, info = inv_ex(a)
    with np.errstate(invalid="ignore"):
        result = np.asarray(matrix_norm(a, p)) * np.asarray(matrix_norm(inverse, p))
    return _into(out, "cond", np.where(info != 0, np.inf, result).astype(result.dtype)[()])


# Ranks, pseudo-inverses, powers -------------------------------------------------------------------------------------


def _tolerance(where: str, a: Array, largest: Array, atol: Any, rtol: Any) -> Array:
    """Largest value that counts as zero: max(atol, rtol * largest), with torch's default for rtol."""
    for name, value in (("atol", atol), ("rtol", rtol)):
        if value is not None and not isinstance(value, (int, float, np.number, np.ndarray)):
            raise BadType(f"{where}: {name} is a number, an array or None, not {type(value).__name__}")
    if rtol is None:
        given = atol is not None and np.any(np.asarray(atol) > 0)
        rtol = 0.0 if given else max(a.shape[-2:]) * np.finfo(a.dtype).eps
    return np.maximum(np.asarray(0.0 if atol is None else atol), np.asarray(rtol) * largest)


@composed_of("linalg.svdvals")
def matrix_rank(
    A: Array, *, atol: Any = None, rtol: Any = None, hermitian: bool = False, out: Array | None = None
) -> Any:
    """Number of singular values above max(atol, rtol * largest).

    Parameters
    ----------
    A
        Shape (..., m, n).
    atol, rtol
        Absolute and relative tolerance; by default 0 and epsilon * max(m, n). Arrays broadcast over the batch.
    hermitian
        A is symmetric or Hermitian: eigenvalues are computed, which is faster.
    out
        Array of int64.

    Returns
    -------
    scalar or ndarray
        int64, shape (...).

    Examples
    --------
    >>> import numpy as np, backline
    >>> int(backline.linalg.matrix_rank(np.diag([1.0, 0.0])))
    1
    """
    a = _matrices("matrix_rank", A, square=hermitian)
    if 0 in a.shape[-2:]:
        return _into(out, "matrix_rank", np.zeros(a.shape[:-2], np.int64)[()])
    values = np.abs(eigvalsh(a)) if hermitian else svdvals(a)
    limit = _tolerance("matrix_rank", a, values.max(-1), atol, rtol)
    return _into(out, "matrix_rank", np.sum(values > limit[..., None], axis=-1, dtype=np.int64)[()])


@composed_of("linalg.svd", "matmul")
def pinv(A: Array, *, atol: Any = None, rtol: Any = None, hermitian: bool = False, out: Array | None = None) -> Array:
    """Moore-Penrose pseudo-inverse.

    Parameters
    ----------
    A
        Shape (..., m, n).
    atol, rtol
        As for `matrix_rank`: smaller singular values count as zero.
    hermitian
        A is symmetric or Hermitian.
    out
        Array of shape (..., n, m).

    Returns
    -------
    ndarray
        Shape (..., n, m).

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.pinv(np.diag([2.0, 0.0]))
    array([[0.5, 0. ],
           [0. , 0. ]])
    """
    a = _matrices("pinv", A, square=hermitian)
    if 0 in a.shape[-2:]:
        return _into(out, "pinv", np.zeros((*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype))  # type: ignore[no-any-return]
    if hermitian:
        values, vectors = eigh(a)
        size, left, right = np.abs(values), vectors, vectors.conj().swapaxes(-1, -2)
    else:
        u, values, vh = svd(a, full_matrices=False)
        size, left, right = values, vh.conj().swapaxes(-1, -2), u.conj().swapaxes(-1, -2)
    limit = _tolerance("pinv", a, size.max(-1), atol, rtol)
    kept = size > limit[..., None]
    inverse = np.zeros_like(values)
    np.divide(1, values, out=inverse, where=kept)
    scaled = left * inverse[..., None, :].astype(a.dtype)
    result: Array = matmul(scaled, right) if out is None else matmul(scaled, right, out=out)
    return result


@composed_of("matmul", "linalg.inv")
def matrix_power(A: Array, n: int, *, out: Array | None = None) -> Array:
    """A multiplied by itself n times; its inverse for negative n.

    Parameters
    ----------
    A
        Shape (..., m, m).
    n
        Any int; 0 gives the identity.
    out
        Array of A's shape.

    Returns
    -------
    ndarray
        Shape (..., m, m).

    Raises
    ------
    LinAlgError
        n is negative and A is singular.

    Notes
    -----
    Repeated squaring: at most 2 log2(n) products.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.matrix_power(np.diag([2.0, 3.0]), 3).diagonal()
    array([ 8., 27.])
    """
    a = _matrices("matrix_power", A, square=True)
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise BadType(f"matrix_power: n is an int, not {type(n).__name__}")
    if n == 0:
        return _into(out, "matrix_power", np.broadcast_to(np.eye(a.shape[-1], dtype=a.dtype), a.shape).copy())  # type: ignore[no-any-return]
    square: Array = inv(a) if n < 0 else a
    result: Array | None = None
    left = abs(int(n))
    while left:
        if left & 1:
            result = square if result is None else matmul(result, square)
        left >>= 1
        if left:
            square = matmul(square, square)
    assert result is not None
    return _into(out, "matrix_power", result.copy() if result is a else result)  # type: ignore[no-any-return]
