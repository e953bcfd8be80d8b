"""Linear algebra made of the operations that libraries have: determinants, ranks, pseudo-inverses, powers, P L U."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..libraries.array_kinds import kind_of
from ..problems import Problem
from ..problems.op_registry import operations
from ..problems.result_tuples import LU, Slogdet
from .array_arguments import cast, dtype_of, functions, given, into, one_kind, plain
from .composite import natively, on_its_device
from .eigenvalues import eigh, eigvalsh, spectrum_flops, svd, svdvals
from .factorizations import lu_factor_ex
from .linalg_checks import Array, flag, is_matrix, matrices, number, problem
from .linear_systems import inv
from .matrix_products import matmul
from .planned import planned

__all__ = ["det", "lu", "matrix_power", "matrix_rank", "pinv", "slogdet"]


POWER_SIZE, POWERS = 64, 1 << 10  # matrices so small have their powers in one plan, up to this one


# The Problems of calls that libraries have a plan for ------------------------------------------------------------------


def _problem(op: str, A: Array, parameters: dict[str, Any]) -> Problem:
    return problem(op, {"a": A}, parameters)


def _det_problem(A: Any) -> Problem | None:
    return _problem("linalg.det", A, {}) if is_matrix(A, square=True) else None


def _slogdet_problem(A: Any) -> Problem | None:
    return _problem("linalg.slogdet", A, {}) if is_matrix(A, square=True) else None


def _lu_problem(A: Any, *, pivot: Any = True) -> Problem | None:
    return _problem("linalg.lu", A, {}) if is_matrix(A) and pivot is True else None


def _rank_problem(A: Any, *, atol: Any = None, rtol: Any = None, hermitian: Any = False) -> Problem | None:
    return _with_tolerance("linalg.matrix_rank", A, atol, rtol, hermitian)


def _pinv_problem(A: Any, *, atol: Any = None, rtol: Any = None, hermitian: Any = False) -> Problem | None:
    return _with_tolerance("linalg.pinv", A, atol, rtol, hermitian)


def _with_tolerance(op: str, A: Any, atol: Any, rtol: Any, hermitian: Any) -> Problem | None:
    legal = hermitian is False and all(x is None or (type(x) in (int, float) and abs(x) < 2**53) for x in (atol, rtol))
    return _problem(op, A, {"atol": atol, "rtol": rtol}) if legal and is_matrix(A) else None


def _power_problem(A: Any, n: Any) -> Problem | None:
    if type(n) is not int or not is_matrix(A, square=True):
        return None
    if n == -1:
        inverse: Problem = operations["linalg.inv"].build(A)
        return inverse
    if A.ndim > 2 or not 1 < n <= POWERS or A.shape[0] > POWER_SIZE:
        return None
    return _problem("linalg.matrix_power", A, {"n": n})


def _lu_flops(m: int, n: int, k: int) -> float:
    return m * n**2 - n**3 / 3


def _vectors_flops(m: int, n: int, k: int) -> float:
    return 14 * m * n**2 + 8 * n**3


def _power_flops(m: int, n: int, k: int) -> float:
    return 4.0 * n**3


# The operations --------------------------------------------------------------------------------------------------------


def _diagonal_and_parity(A: Array) -> tuple[Array, Array]:
    """Diagonal of U, and +1 or -1 by the number of row interchanges."""
    factors = lu_factor_ex(A)
    xp = functions(A)
    swaps = xp.sum(factors.pivots != xp.arange(1, A.shape[-1] + 1), axis=-1)
    diagonal = xp.diagonal(factors.LU, axis1=A.ndim - 2, axis2=A.ndim - 1)
    return diagonal, (1 - 2 * (swaps % 2)).astype(A.dtype)


@planned(_det_problem, "linalg.lu_factor", flops=_lu_flops)
@on_its_device
def det(A: Array, *, out: Array | None = None) -> Array:
    """Determinant.

    Parameters
    ----------
    {square}
    {out}

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
    a = matrices("det", A, square=True)
    diagonal, parity = _diagonal_and_parity(a)
    return into(out, "det", plain((functions(a).prod(diagonal, axis=-1) * parity).astype(a.dtype)))


@planned(_slogdet_problem, "linalg.lu_factor", flops=_lu_flops)
@on_its_device
def slogdet(A: Array) -> Slogdet:
    """Sign and logarithm of the absolute value of the determinant.

    Parameters
    ----------
    {square}

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
    a = matrices("slogdet", A, square=True)
    diagonal, parity = _diagonal_and_parity(a)
    xp = functions(a)
    size = xp.abs(diagonal)
    with np.errstate(divide="ignore", invalid="ignore"):
        phases = xp.where(size == 0, 0, diagonal / size)
        logarithm = xp.sum(xp.log(size), axis=-1)
    sign = (xp.prod(phases, axis=-1) * parity).astype(a.dtype)
    return Slogdet(plain(sign), plain(xp.where(sign == 0, -np.inf, logarithm).astype(size.dtype)))


@planned(_lu_problem, "linalg.lu_factor", flops=_lu_flops)
@on_its_device
@natively
def lu(A: Array, *, pivot: bool = True) -> LU:
    """Factors P, L, U with A = P L U.

    Parameters
    ----------
    {rectangular}
    {pivot}

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
    a = matrices("lu", A)
    factors = lu_factor_ex(a, pivot=pivot)
    xp = functions(a)
    m, n = a.shape[-2:]
    k = min(m, n)
    lower = xp.tril(factors.LU[..., :, :k], -1) + xp.eye(m, k, dtype=a.dtype)
    upper = xp.triu(factors.LU[..., :k, :])
    order = _rows(xp, factors.pivots, m)
    permutation = (order[..., None, :] == xp.arange(m)[:, None]).astype(a.dtype)
    return LU(permutation, lower, upper)


def _rows(xp: Any, pivots: Any, m: int) -> Any:
    """The row that each row comes from, after interchanges that are counted from 1."""
    batch, kind = tuple(pivots.shape[:-1]), kind_of(pivots)
    if kind is None:
        order = np.empty((*batch, m), np.intp)
        for item in np.ndindex(*batch):
            rows = np.arange(m)
            for i, j in enumerate(pivots[item] - 1):
                rows[i], rows[j] = rows[j], rows[i]
            order[item] = rows
        return order
    if 0 in (*batch, m):
        return xp.zeros((*batch, m), dtype=np.int32)
    if kind.package == "cupy":
        from ..libraries.cuda.cusolver.row_interchanges import permutation

        whole = xp.ascontiguousarray(pivots).reshape(-1, pivots.shape[-1])
        return permutation(whole, m, backwards=False).reshape(*batch, m)
    places = xp.arange(m)
    order = xp.broadcast_to(places, (*batch, m))
    for i in range(pivots.shape[-1]):  # one after the other, and still without waiting for any
        j = pivots[..., i : i + 1] - 1
        other = xp.take_along_axis(order, j, axis=-1)
        order = xp.where(places == i, other, xp.where(places == j, order[..., i : i + 1], order))
    return order


def _one_tolerance(where: str, name: str, value: Any, a: Array) -> Any:
    """A tolerance that was given: None, a float, or an array of real numbers that broadcasts over the batch of A."""
    if value is None:
        return None
    if not isinstance(value, np.ndarray) and kind_of(value) is None:
        return number(where, name, value)
    if dtype_of(given(value, f"{where}: {name}")).kind not in "iuf":
        dtype = dtype_of(value)
        cause = f"{name} tensor of complex type is not supported" if dtype.kind == "c" else ""
        raise BadType(f"{where}: {name} has dtype {dtype}", cause=cause, remedy="real numbers")
    batch = tuple(a.shape[:-2])
    shape = tuple(value.shape)
    if len(shape) > len(batch) or any(n not in (1, m) for n, m in zip(shape[::-1], batch[::-1], strict=False)):
        raise BadValue(f"{where}: {name} of shape {shape} does not broadcast over the batch {batch} of A", remedy="a number")
    return value


def _tolerance(where: str, a: Array, largest: Array, atol: Any, rtol: Any) -> Array:
    """Largest value that counts as zero: max(atol, rtol * largest), with torch's default for rtol."""
    one_kind(where, A=a, atol=atol, rtol=rtol)
    atol, rtol = _one_tolerance(where, "atol", atol, a), _one_tolerance(where, "rtol", rtol, a)
    xp = functions(a)
    if rtol is None:
        epsilon = max(a.shape[-2:]) * float(np.finfo(dtype_of(a)).eps)
        if kind_of(atol) is not None:  # what it holds stays on its device
            rtol = xp.where(xp.any(atol > 0), 0.0, epsilon)
        else:
            rtol = 0.0 if atol is not None and np.any(np.asarray(atol) > 0) else epsilon
    limit: Array = xp.maximum(0.0 if atol is None else atol, rtol * largest)
    return limit


@planned(_rank_problem, "linalg.svdvals", flops=spectrum_flops)
@on_its_device
def matrix_rank(
    A: Array, *, atol: Any = None, rtol: Any = None, hermitian: bool = False, out: Array | None = None
) -> Array:
    """Number of singular values above max(atol, rtol * largest).

    Parameters
    ----------
    {rectangular}
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
    a = matrices("matrix_rank", A, square=flag("matrix_rank", "hermitian", hermitian))
    if 0 in a.shape[-2:]:
        return into(out, "matrix_rank", plain(functions(a).zeros(a.shape[:-2], dtype=np.int64)))
    xp = functions(a)
    values = xp.abs(eigvalsh(a)) if hermitian else svdvals(a)
    limit = _tolerance("matrix_rank", a, values.max(-1), atol, rtol)
    return into(out, "matrix_rank", plain(cast(xp.asarray(xp.sum(values > limit[..., None], axis=-1)), np.int64)))


@planned(_pinv_problem, "linalg.svd", "matmul", flops=_vectors_flops)
@on_its_device
def pinv(A: Array, *, atol: Any = None, rtol: Any = None, hermitian: bool = False, out: Array | None = None) -> Array:
    """Moore-Penrose pseudo-inverse.

    Parameters
    ----------
    {rectangular}
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
    a = matrices("pinv", A, square=flag("pinv", "hermitian", hermitian))
    if 0 in a.shape[-2:]:
        empty: Array = into(out, "pinv", functions(a).zeros((*a.shape[:-2], a.shape[-1], a.shape[-2]), dtype=a.dtype))
        return empty
    xp = functions(a)
    if hermitian:
        values, vectors = eigh(a)
        size, left, right = xp.abs(values), vectors, xp.conjugate(vectors).swapaxes(-1, -2)
    else:
        u, values, vh = svd(a, full_matrices=False)
        size, left, right = values, xp.conjugate(vh).swapaxes(-1, -2), xp.conjugate(u).swapaxes(-1, -2)
    limit = _tolerance("pinv", a, size.max(-1), atol, rtol)
    kept = size > limit[..., None]
    inverse = xp.where(kept, 1 / xp.where(kept, values, 1), 0)
    scaled = left * inverse[..., None, :].astype(a.dtype)
    result: Array = matmul(scaled, right) if out is None else matmul(scaled, right, out=out)
    return result


@planned(_power_problem, "matmul", "linalg.inv", flops=_power_flops)
@on_its_device
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
    a = matrices("matrix_power", A, square=True)
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise BadType(f"matrix_power: n is an int, not {type(n).__name__}")
    if n == 0:
        xp = functions(a)
        identity: Array = into(out, "matrix_power", xp.zeros(a.shape, dtype=a.dtype) + xp.eye(a.shape[-1], dtype=a.dtype))
        return identity
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
    power: Array = into(out, "matrix_power", functions(a).array(a) if result is a else result)
    return power
