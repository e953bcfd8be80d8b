"""Equations, inverses, determinants, powers and products of matrices, as numpy.linalg has them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import linalg
from .arguments import arrays, matrices, numbers, scalar, theirs
from .doc_texts import documented

__all__ = ["det", "inv", "lstsq", "matrix_power", "multi_dot", "pinv", "slogdet", "solve", "tensorinv", "tensorsolve"]

_UNTOLD: Any = object()


@documented
def solve(a: Any, b: Any) -> Any:
    """Solution of linear equations, as numpy.linalg.solve.

    {of_square_matrices}
    b : array_like
        A vector (n,), or matrices (..., n, k).

    Returns
    -------
    ndarray
        Shape of `b`, broadcast.

    {singular}

    {example}
    >>> np.linalg.solve(np.array([[2.0, 0.0], [0.0, 4.0]]), np.array([2.0, 4.0]))
    array([1., 1.])
    """
    given = numbers(a, b)
    if given is None:
        return theirs.solve(a, b)
    left, right = given
    vector = right.ndim == 1
    rows = right.shape[-1 if vector else -2] if right.ndim else -1
    if left.ndim < 2 or not left.size or not right.size or left.shape[-1] != left.shape[-2] or rows != left.shape[-1]:
        return theirs.solve(a, b)
    if vector and left.ndim == 2:
        return linalg.solve(left, right)
    if vector:
        right = right[:, None]
    # As many axes as the matrix has: fewer would be taken for a batch of vectors.
    right = right.reshape((1,) * (left.ndim - right.ndim) + right.shape)
    result = linalg.solve(left, right)
    return result[..., 0] if vector else result


@documented
def inv(a: Any) -> Any:
    """Inverse matrix, as numpy.linalg.inv.

    {of_square_matrices}

    Returns
    -------
    ndarray
        Shape (..., n, n).

    {singular}

    {example}
    >>> a = np.array([[2.0, 1.0], [0.0, 4.0]])
    >>> np.allclose(np.linalg.inv(a) @ a, np.eye(2))
    True
    """
    made = matrices(a, square=True)
    return theirs.inv(a) if made is None else linalg.inv(made)


@documented
def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = _UNTOLD) -> Any:
    """Pseudo-inverse, as numpy.linalg.pinv.

    {of_matrices}
    rcond, rtol : float, optional
        Singular values below it times the largest count as zero: 1e-15 unless told; ``rtol=None``: epsilon times max(m, n).
    hermitian : bool
        The matrix is Hermitian.

    Returns
    -------
    ndarray
        Shape (..., n, m).

    {no_convergence}

    {example}
    >>> np.linalg.pinv(np.diag([2.0, 0.0]))
    array([[0.5, 0. ],
           [0. , 0. ]])
    """
    told = {} if rtol is _UNTOLD else {"rtol": rtol}
    made = matrices(a, finite=True)
    both = rcond is not None and rtol is not _UNTOLD
    limit = 1e-15 if rcond is None and rtol is _UNTOLD else rcond if rcond is not None else rtol
    if made is None or both or not (limit is None or isinstance(limit, (int, float))):
        return theirs.pinv(a, rcond, hermitian, **told)
    return linalg.pinv(made, rtol=limit, hermitian=hermitian)


@documented
def lstsq(a: Any, b: Any, rcond: float | None = None) -> Any:
    """Least-squares solution, as numpy.linalg.lstsq.

    Parameters
    ----------
    a : array_like
        Shape (m, n).
    b : array_like
        Shape (m,) or (m, k).
    rcond : float, optional
        Singular values below it times the largest count as zero: epsilon times max(m, n) unless told, epsilon if it is -1.

    Returns
    -------
    tuple
        Solution, sums of squared residuals (empty without full rank, or if m <= n), rank, singular values.

    Raises
    ------
    numpy.linalg.LinAlgError
        Shapes that do not fit; no convergence.

    {example}
    >>> np.linalg.lstsq(np.array([[1.0], [1.0]]), np.array([1.0, 3.0]))[0]
    array([2.])
    """
    given = numbers(a, b)
    fits = given is not None and given[0].ndim == 2 and given[1].ndim in (1, 2) and given[0].shape[0] == given[1].shape[0]
    if not fits or given is None or not all(x.size and np.isfinite(x).all() for x in given):
        return theirs.lstsq(a, b, rcond)
    left, right = given
    vector = right.ndim == 1
    if rcond == -1:
        rcond = float(np.finfo(left.dtype).eps) / 2  # what LAPACK takes for the precision of the machine
    found = linalg.lstsq(left, right[:, None] if vector else right, rcond, driver="gelsd")
    rank = np.int32(found.rank)
    m, n = left.shape
    real = left.real.dtype
    residuals = found.residuals.astype(real) if rank == n and m > n else np.empty(0, real)
    return found.solution[:, 0] if vector else found.solution, residuals, rank, found.singular_values


@documented
def tensorinv(a: Any, ind: int = 2) -> Any:
    """Inverse of the map that `tensordot` with an array is, as numpy.linalg.tensorinv.

    Parameters
    ----------
    a : array_like
        An array whose first `ind` axes have together as many elements as the others.
    ind : int
        Number of axes.

    Returns
    -------
    ndarray
        Shape ``a.shape[ind:] + a.shape[:ind]``.

    {singular_map}

    {example}
    >>> np.linalg.tensorinv(np.eye(4).reshape(2, 2, 2, 2)).shape
    (2, 2, 2, 2)
    """
    given = numbers(a)
    if given is None or not isinstance(ind, int) or not 0 < ind < given[0].ndim or not given[0].size:
        return theirs.tensorinv(a, ind)
    if math.prod(given[0].shape[:ind]) ** 2 != given[0].size:
        return theirs.tensorinv(a, ind)
    return linalg.tensorinv(given[0], ind)


@documented
def tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    """Solution x of ``tensordot(a, x, x.ndim) == b``, as numpy.linalg.tensorsolve.

    Parameters
    ----------
    a, b : array_like
        Shapes ``b.shape + q`` and ``b.shape``.
    axes : sequence of int, optional
        Axes of `a` that are moved to its end first.

    Returns
    -------
    ndarray
        Shape q.

    {singular_map}

    {example}
    >>> np.linalg.tensorsolve(np.eye(4).reshape(2, 2, 2, 2), np.ones((2, 2)))
    array([[1., 1.],
           [1., 1.]])
    """
    given = numbers(a, b)
    if given is None or not all(x.size for x in given) or given[1].size ** 2 != given[0].size:
        return theirs.tensorsolve(a, b, axes)
    return linalg.tensorsolve(given[0], given[1], axes)


@documented
def det(a: Any) -> Any:
    """Determinant, as numpy.linalg.det.

    {of_square_matrices}

    Returns
    -------
    scalar or ndarray
        Shape (...).

    {not_square}

    {example}
    >>> float(np.linalg.det(np.array([[2.0, 0.0], [0.0, 4.0]])))
    8.0
    """
    made = matrices(a, square=True)
    return theirs.det(a) if made is None else scalar(linalg.det(made))


@documented
def slogdet(a: Any) -> Any:
    """Sign and logarithm of the determinant's absolute value, as numpy.linalg.slogdet.

    {of_square_matrices}

    Returns
    -------
    namedtuple
        `sign` and `logabsdet`, each of shape (...).

    {not_square}

    {example}
    >>> float(np.linalg.slogdet(np.eye(2)).logabsdet)
    0.0
    """
    made = matrices(a, square=True)
    return theirs.slogdet(a) if made is None else _scalars(linalg.slogdet(made))


def _scalars(results: Any) -> Any:
    return type(results)(*map(scalar, results))


@documented
def matrix_power(a: Any, n: int) -> Any:
    """Power of a square matrix, as numpy.linalg.matrix_power.

    Parameters
    ----------
    a : array_like
        Shape (..., n, n); of integers and 16-bit floats NumPy multiplies.
    n : int
        The exponent; a negative one raises the inverse.

    Returns
    -------
    ndarray
        Shape (..., n, n).

    Raises
    ------
    numpy.linalg.LinAlgError
        A matrix that is not square, or a singular one and a negative exponent.

    {example}
    >>> np.linalg.matrix_power(np.diag([2.0, 3.0]), 3)
    array([[ 8.,  0.],
           [ 0., 27.]])
    """
    made = matrices(a, square=True) if arrays(a) is not None else None
    if made is None or not isinstance(n, int) or isinstance(n, bool):
        return theirs.matrix_power(a, n)
    return linalg.matrix_power(made, n)


@documented
def multi_dot(arrays_: Any, /, *, out: Any = None) -> Any:
    """Product of several matrices, in the cheapest order: numpy.linalg.multi_dot.

    Parameters
    ----------
    arrays_ : sequence of array_like
        Matrices that fit; the first and the last may be vectors.
    out : ndarray, optional
        Where to write the result: NumPy multiplies then.

    Returns
    -------
    ndarray or scalar
        The product.

    Raises
    ------
    ValueError
        Fewer than two arrays.
    numpy.linalg.LinAlgError
        An array with more than two axes.

    {example}
    >>> np.linalg.multi_dot([np.eye(2), np.ones((2, 3)), np.ones(3)])
    array([3., 3.])
    """
    arrays_ = list(arrays_)
    given = arrays(*arrays_) if out is None and len(arrays_) > 1 else None
    if given is None or not all(x.ndim == 2 for x in given[1:-1]) or not all(x.ndim in (1, 2) for x in (given[0], given[-1])):
        return theirs.multi_dot(arrays_, out=out)
    return scalar(linalg.multi_dot(given))
