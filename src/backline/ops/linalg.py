"""Linear algebra with torch.linalg's names, parameters and results, on NumPy arrays of float32, float64, complex64, complex128.

Matrices are the last two axes; what comes before is a batch. Results come in the memory order that costs nothing (factors and
solutions often column-major): their values and shapes are what counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadType, BadValue, LinAlgError
from ..problems import Operand, operand
from ..problems.layout import broadcast_batch
from ..problems.linalg import LinalgProblem
from .bind import check_array, check_out, operation

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cholesky_inverse", "cholesky_solve", "eig", "eigh", "eigvals", "eigvalsh", "inv",
    "inv_ex", "lstsq", "lu_factor", "lu_factor_ex", "lu_solve", "qr", "solve", "solve_ex", "solve_triangular", "svd", "svdvals",
]  # fmt: skip

Array = np.ndarray[Any, Any]
FLOATS = ("float32", "float64", "complex64", "complex128")
SVD_DRIVERS = ("gesdd", "gesvd")
LSTSQ_DRIVERS = ("gelsy", "gels", "gelsd", "gelss")


def _matrix(where: str, name: str, value: Any, *, square: bool = False, rank: int = 2) -> Array:
    array = check_array(value, f"{where}: {name}")
    if array.dtype.name not in FLOATS:
        raise BadType(
            f"{where}: {name} has dtype {array.dtype}", cause=f"linear algebra takes {', '.join(FLOATS)}", remedy="x.astype(np.float64)"
        )
    if array.ndim < rank:
        raise BadValue(f"{where}: {name} must have {rank} dimensions or more, it has shape {array.shape}")
    if square and array.shape[-1] != array.shape[-2]:
        raise BadValue(f"{where}: {name} must be a square matrix or a batch of them, it has shape {array.shape}")
    return array


def _same_dtype(where: str, a: Array, b: Array) -> None:
    if a.dtype != b.dtype:
        raise BadType(f"{where}: dtypes {a.dtype} and {b.dtype} differ", remedy=f"b.astype(np.{a.dtype.name})")


def _flag(where: str, name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise BadType(f"{where}: {name} is True or False, not {value!r}")
    return bool(value)


def _word(where: str, name: str, value: Any, legal: tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise BadType(f"{where}: {name} is a str, not {type(value).__name__}")
    if value not in legal:
        raise BadValue(f"{where}: {name}={value!r}", remedy=f"one of: {', '.join(map(repr, legal))}")
    return value


def _problem(
    op: str,
    arrays: dict[str, Array],
    batch: tuple[int, ...],
    sizes: tuple[int, int, int],
    parameters: dict[str, Any],
    out: Any = None,
    results: tuple[tuple[tuple[int, ...], Any], ...] = (),
) -> LinalgProblem:
    """The Problem; `results` are core shape and dtype of each result, against which `out` is checked."""
    where = op.removeprefix("linalg.")
    operands: list[Operand] = [operand(role, a) for role, a in arrays.items()]
    if out is not None:
        many = len(results) > 1
        given = out if many else (out,)
        if many and (not isinstance(out, tuple) or len(out) != len(results)):
            raise BadType(f"{where}: out is a tuple of {len(results)} arrays")
        for i, (array, (core, dtype)) in enumerate(zip(given, results, strict=True)):
            check_out(array, f"{where}: out" + (f"[{i}]" if many else ""), (*batch, *core), np.dtype(dtype))
            operands.append(operand(f"out{i}", array))
    kept = tuple(sorted((k, v) for k, v in parameters.items()))
    m, n, k = sizes
    return LinalgProblem(op, tuple(operands), kept, "linalg", m=m, n=n, k=k, batch=batch)


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(dtype.char.lower())


def _complex(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.result_type(dtype, np.complex64)


# Factorisations -----------------------------------------------------------------------------------------------------


def _cholesky(where: str, A: Any, upper: bool, check: bool, out: Any) -> LinalgProblem:
    a = _matrix(where, "A", A, square=True)
    n = a.shape[-1]
    results: tuple[Any, ...] = (((n, n), a.dtype),)
    if not check:
        results += (((), np.int32),)
    parameters = {"upper": _flag(where, "upper", upper), "check": check}
    return _problem("linalg.cholesky", {"a": a}, a.shape[:-2], (n, n, 0), parameters, out, results)


@operation("cholesky", module="backline.linalg")
def cholesky(A: Array, *, upper: bool = False, out: Array | None = None) -> LinalgProblem:
    """Cholesky factor of a symmetric or Hermitian positive definite matrix.

    Parameters
    ----------
    A
        Shape (..., n, n). Only the triangle that `upper` names is read.
    upper
        Return the upper factor U with A = U^H U instead of the lower L with A = L L^H.
    out
        Array for the factor.

    Returns
    -------
    ndarray
        Shape (..., n, n), zeros in the other triangle.

    Raises
    ------
    LinAlgError
        Not positive definite, or not finite.

    Notes
    -----
    LAPACK `?potrf`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 0.],
           [1., 2.]])
    """
    return _cholesky("cholesky", A, upper, True, out)


@operation("cholesky_ex", module="backline.linalg")
def cholesky_ex(
    A: Array, *, upper: bool = False, check_errors: bool = False, out: tuple[Array, Array] | None = None
) -> LinalgProblem:
    """`cholesky` that reports failure in `info` instead of raising.

    Parameters
    ----------
    A, upper
        As for `cholesky`.
    check_errors
        Not supported with a reported info: must be False. Use `cholesky` to have errors raised.
    out
        Arrays for the factor and for info (int32).

    Returns
    -------
    CholeskyEx
        `L` and `info`: 0, or the order of the first leading minor that is not positive definite.

    Examples
    --------
    >>> import numpy as np, backline
    >>> int(backline.linalg.cholesky_ex(-np.eye(2)).info)
    1
    """
    _no_check("cholesky_ex", check_errors)
    return _cholesky("cholesky_ex", A, upper, False, out)


def _no_check(where: str, check_errors: Any) -> None:
    if _flag(where, "check_errors", check_errors):
        raise BadValue(
            f"{where}: check_errors=True", cause="info would always be 0", remedy=f"{where.removesuffix('_ex')}, which raises"
        )


def _lu_factor(where: str, A: Any, pivot: Any, check: bool, out: Any) -> LinalgProblem:
    a = _matrix(where, "A", A)
    if not _flag(where, "pivot", pivot):
        raise BadValue(f"{where}: pivot=False", cause="no CPU library has LU without pivoting", remedy="pivot=True")
    m, n = a.shape[-2:]
    results: tuple[Any, ...] = (((m, n), a.dtype), ((min(m, n),), np.int32))
    if not check:
        results += (((), np.int32),)
    return _problem("linalg.lu_factor", {"a": a}, a.shape[:-2], (m, n, 0), {"check": check}, out, results)


@operation("lu_factor", module="backline.linalg")
def lu_factor(A: Array, *, pivot: bool = True, out: tuple[Array, Array] | None = None) -> LinalgProblem:
    """LU factors with partial pivoting, both in one matrix.

    Parameters
    ----------
    A
        Shape (..., m, n).
    pivot
        Must be True.
    out
        Arrays for the factors and the pivots (int32).

    Returns
    -------
    LUFactor
        `LU`, the unit lower factor below the diagonal and the upper one from it up; `pivots`, the row interchanges, from 1.

    Raises
    ------
    LinAlgError
        A pivot is zero: the factors could not be used to solve.

    Notes
    -----
    LAPACK `?getrf`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]])).pivots
    array([2, 2], dtype=int32)
    """
    return _lu_factor("lu_factor", A, pivot, True, out)


@operation("lu_factor_ex", module="backline.linalg")
def lu_factor_ex(
    A: Array, *, pivot: bool = True, check_errors: bool = False, out: tuple[Array, Array, Array] | None = None
) -> LinalgProblem:
    """`lu_factor` that reports a zero pivot in `info` instead of raising.

    Parameters
    ----------
    A, pivot
        As for `lu_factor`.
    check_errors
        Must be False.
    out
        Arrays for the factors, the pivots and info (int32).

    Returns
    -------
    LUFactorEx
        `LU`, `pivots`, `info`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> int(backline.linalg.lu_factor_ex(np.zeros((2, 2))).info)
    1
    """
    _no_check("lu_factor_ex", check_errors)
    return _lu_factor("lu_factor_ex", A, pivot, False, out)


@operation("qr", module="backline.linalg")
def qr(A: Array, mode: str = "reduced", *, out: tuple[Array, Array] | None = None) -> LinalgProblem:
    """QR factors.

    Parameters
    ----------
    A
        Shape (..., m, n).
    mode
        "reduced": Q (m, k), R (k, n), k = min(m, n); "complete": Q (m, m), R (m, n); "r": R alone, Q is empty.
    out
        Arrays for Q and R (not for mode "r").

    Returns
    -------
    QR
        `Q`, `R`. The signs of R's diagonal are LAPACK's: they may be negative.

    Notes
    -----
    LAPACK `?geqrf` and `?orgqr` or `?ungqr`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> q, r = backline.linalg.qr(np.ones((3, 2)))
    >>> q.shape, r.shape
    ((3, 2), (2, 2))
    """
    a = _matrix("qr", "A", A)
    _word("qr", "mode", mode, ("reduced", "complete", "r"))
    m, n = a.shape[-2:]
    if mode == "r" and out is not None:
        raise BadValue("qr: out with mode='r'", cause="there is one result only", remedy="mode='reduced'")
    k = m if mode == "complete" else min(m, n)
    results = (((m, k), a.dtype), ((k, n), a.dtype))
    return _problem("linalg.qr", {"a": a}, a.shape[:-2], (m, n, 0), {"mode": mode}, out, results)


# Solving ------------------------------------------------------------------------------------------------------------


def _inv(where: str, A: Any, check: bool, out: Any) -> LinalgProblem:
    a = _matrix(where, "A", A, square=True)
    n = a.shape[-1]
    results: tuple[Any, ...] = (((n, n), a.dtype),)
    if not check:
        results += (((), np.int32),)
    return _problem("linalg.inv", {"a": a}, a.shape[:-2], (n, n, 0), {"check": check}, out, results)


@operation("inv", module="backline.linalg")
def inv(A: Array, *, out: Array | None = None) -> LinalgProblem:
    """Inverse of a square matrix.

    Parameters
    ----------
    A
        Shape (..., n, n).
    out
        Array for the inverse.

    Returns
    -------
    ndarray
        Shape (..., n, n).

    Raises
    ------
    LinAlgError
        A pivot is zero. NaN does not raise; it spreads.

    Notes
    -----
    LAPACK `?getrf` and `?getri`, or `?gesv` against the identity. To solve, use `solve`: it is faster and more accurate.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.inv(np.array([[2.0, 1.0], [1.0, 1.0]]))
    array([[ 1., -1.],
           [-1.,  2.]])
    """
    return _inv("inv", A, True, out)


@operation("inv_ex", module="backline.linalg")
def inv_ex(A: Array, *, check_errors: bool = False, out: tuple[Array, Array] | None = None) -> LinalgProblem:
    """`inv` that reports a zero pivot in `info` instead of raising.

    Parameters
    ----------
    A
        As for `inv`.
    check_errors
        Must be False.
    out
        Arrays for the inverse and info (int32).

    Returns
    -------
    InvEx
        `inverse` (of no meaning where info is not 0) and `info`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> int(backline.linalg.inv_ex(np.zeros((2, 2))).info)
    1
    """
    _no_check("inv_ex", check_errors)
    return _inv("inv_ex", A, False, out)


def _right_sides(where: str, a: Array, B: Any, left: bool) -> tuple[Array, bool, tuple[int, ...], int]:
    """The right-hand sides: array, whether they are vectors, batch shape, how many."""
    b = _matrix(where, "B", B, rank=1)
    _same_dtype(where, a, b)
    n = a.shape[-1]
    # torch's rule: B is a vector, or a batch of vectors where its shape is that of A without the last axis.
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    if vector:
        if not left:
            raise BadValue(f"{where}: left=False with vectors of shape {b.shape}", remedy="B[..., None, :] for row vectors")
        if b.shape[-1] != n:
            raise BadValue(f"{where}: A is {n} x {n}, B has length {b.shape[-1]}")
        batch = broadcast_batch(a.shape[:-2], b.shape[:-1])
        k = 1
    else:
        if b.ndim < 2 or b.shape[-2 if left else -1] != n:
            raise BadValue(f"{where}: A of shape {a.shape} and B of shape {b.shape} do not fit", cause=f"left={left}")
        batch = broadcast_batch(a.shape[:-2], b.shape[:-2])
        k = b.shape[-1 if left else -2]
    if batch is None:
        raise BadValue(f"{where}: batches of A {a.shape} and B {b.shape} do not broadcast")
    return b, vector, batch, k


def _solve(where: str, A: Any, B: Any, left: Any, check: bool, out: Any) -> LinalgProblem:
    a = _matrix(where, "A", A, square=True)
    left = _flag(where, "left", left)
    b, vector, batch, k = _right_sides(where, a, B, left)
    n = a.shape[-1]
    core = (n,) if vector else (n, k) if left else (k, n)
    results: tuple[Any, ...] = ((core, a.dtype),)
    if not check:
        results += (((), np.int32),)
    parameters = {"left": left, "vector": vector, "check": check}
    return _problem("linalg.solve", {"a": a, "b": b}, batch, (n, n, k), parameters, out, results)


@operation("solve", module="backline.linalg")
def solve(A: Array, B: Array, *, left: bool = True, out: Array | None = None) -> LinalgProblem:
    """Solution X of A X = B, or of X A = B.

    Parameters
    ----------
    A
        Shape (..., n, n).
    B
        Shape (..., n, k), or (..., k, n) where `left` is False; or a vector (n,), or a batch of vectors (..., n) whose shape is
        that of A without its last axis. Of A's dtype.
    left
        Which side A stands on.
    out
        Array for the solution.

    Returns
    -------
    ndarray
        Of B's shape, its batch broadcast.

    Raises
    ------
    LinAlgError
        A is singular.

    Notes
    -----
    LAPACK `?getrf` and `?getrs`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.solve(np.diag([2.0, 4.0]), np.array([1.0, 1.0]))
    array([0.5 , 0.25])
    """
    return _solve("solve", A, B, left, True, out)


@operation("solve_ex", module="backline.linalg")
def solve_ex(
    A: Array, B: Array, *, left: bool = True, check_errors: bool = False, out: tuple[Array, Array] | None = None
) -> LinalgProblem:
    """`solve` that reports a zero pivot in `info` instead of raising.

    Parameters
    ----------
    A, B, left
        As for `solve`.
    check_errors
        Must be False.
    out
        Arrays for the solution and info (int32).

    Returns
    -------
    SolveEx
        `result` and `info`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> int(backline.linalg.solve_ex(np.zeros((2, 2)), np.ones(2)).info)
    1
    """
    _no_check("solve_ex", check_errors)
    return _solve("solve_ex", A, B, left, False, out)


@operation("lu_solve", module="backline.linalg")
def lu_solve(
    LU: Array, pivots: Array, B: Array, *, left: bool = True, adjoint: bool = False, out: Array | None = None
) -> LinalgProblem:
    """Solution by factors that `lu_factor` made.

    Parameters
    ----------
    LU, pivots
        As `lu_factor` returns them: (..., n, n) and (..., n) of int32.
    B
        Shape (..., n, k), or (..., k, n) where `left` is False.
    left
        Which side A stands on.
    adjoint
        Solve with the adjoint of A.
    out
        Array for the solution.

    Returns
    -------
    ndarray
        Of B's shape, its batch broadcast.

    Raises
    ------
    BadValue
        Pivots out of range, or shapes that do not fit.

    Notes
    -----
    LAPACK `?getrs`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> lu, pivots = backline.linalg.lu_factor(np.diag([2.0, 4.0]))
    >>> backline.linalg.lu_solve(lu, pivots, np.ones((2, 1))).ravel()
    array([0.5 , 0.25])
    """
    a = _matrix("lu_solve", "LU", LU, square=True)
    p = check_array(pivots, "lu_solve: pivots")
    n = a.shape[-1]
    if p.dtype != np.int32:
        raise BadType(f"lu_solve: pivots have dtype {p.dtype}", remedy="int32, as lu_factor returns them")
    if p.shape != a.shape[:-1]:
        raise BadValue(f"lu_solve: pivots of shape {p.shape} for LU of shape {a.shape}")
    left = _flag("lu_solve", "left", left)
    b = _matrix("lu_solve", "B", B)
    _same_dtype("lu_solve", a, b)
    if b.shape[-2 if left else -1] != n:
        raise BadValue(f"lu_solve: LU of shape {a.shape} and B of shape {b.shape} do not fit", cause=f"left={left}")
    batch = broadcast_batch(a.shape[:-2], b.shape[:-2])
    if batch is None:
        raise BadValue(f"lu_solve: batches of LU {a.shape} and B {b.shape} do not broadcast")
    k = b.shape[-1 if left else -2]
    parameters = {"left": left, "adjoint": _flag("lu_solve", "adjoint", adjoint)}
    return _problem(
        "linalg.lu_solve", {"a": a, "p": p, "b": b}, batch, (n, n, k), parameters, out, ((b.shape[-2:], a.dtype),)
    )  # fmt: skip


@operation("solve_triangular", module="backline.linalg")
def solve_triangular(
    A: Array, B: Array, *, upper: bool, left: bool = True, unitriangular: bool = False, out: Array | None = None
) -> LinalgProblem:
    """Solution X of A X = B (or X A = B) with a triangular A.

    Parameters
    ----------
    A
        Shape (..., n, n); the other triangle is not read.
    B
        Shape (..., n, k), or (..., k, n) where `left` is False.
    upper
        Which triangle A is.
    left
        Which side A stands on.
    unitriangular
        Take the diagonal as ones without reading it.
    out
        Array for the solution.

    Returns
    -------
    ndarray
        Of B's shape, its batch broadcast. A zero on the diagonal gives infinities or NaN, not an error.

    Notes
    -----
    BLAS `?trsm`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.solve_triangular(np.array([[2.0, 0.0], [1.0, 1.0]]), np.ones((2, 1)), upper=False).ravel()
    array([0.5, 0.5])
    """
    a = _matrix("solve_triangular", "A", A, square=True)
    b = _matrix("solve_triangular", "B", B)
    _same_dtype("solve_triangular", a, b)
    left = _flag("solve_triangular", "left", left)
    n = a.shape[-1]
    batch = broadcast_batch(a.shape[:-2], b.shape[:-2])
    if b.shape[-2 if left else -1] != n or batch is None:
        raise BadValue(f"solve_triangular: A of shape {a.shape} and B of shape {b.shape} do not fit", cause=f"left={left}")
    parameters = {
        "upper": _flag("solve_triangular", "upper", upper), "left": left,
        "unitriangular": _flag("solve_triangular", "unitriangular", unitriangular),
    }  # fmt: skip
    k = b.shape[-1 if left else -2]
    return _problem(
        "linalg.solve_triangular", {"a": a, "b": b}, batch, (n, n, k), parameters, out, ((b.shape[-2:], a.dtype),)
    )  # fmt: skip


@operation("cholesky_solve")
def cholesky_solve(B: Array, L: Array, upper: bool = False, *, out: Array | None = None) -> LinalgProblem:
    """Solution of A X = B by the Cholesky factor of A.

    Parameters
    ----------
    B
        Shape (..., n, k).
    L
        Factor of shape (..., n, n), as `linalg.cholesky` returns it.
    upper
        Whether it is the upper one.
    out
        Array for the solution.

    Returns
    -------
    ndarray
        Shape (..., n, k).

    Notes
    -----
    LAPACK `?potrs`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.cholesky_solve(np.ones((2, 1)), np.diag([2.0, 1.0])).ravel()
    array([0.25, 1.  ])
    """
    a = _matrix("cholesky_solve", "L", L, square=True)
    b = _matrix("cholesky_solve", "B", B)
    _same_dtype("cholesky_solve", a, b)
    batch = broadcast_batch(a.shape[:-2], b.shape[:-2])
    if b.shape[-2] != a.shape[-1] or batch is None:
        raise BadValue(f"cholesky_solve: L of shape {a.shape} and B of shape {b.shape} do not fit")
    n, k = b.shape[-2:]
    parameters = {"upper": _flag("cholesky_solve", "upper", upper)}
    return _problem("cholesky_solve", {"b": b, "a": a}, batch, (n, n, k), parameters, out, (((n, k), a.dtype),))


@operation("cholesky_inverse")
def cholesky_inverse(L: Array, upper: bool = False, *, out: Array | None = None) -> LinalgProblem:
    """Inverse of A by its Cholesky factor.

    Parameters
    ----------
    L
        Factor of shape (..., n, n).
    upper
        Whether it is the upper one.
    out
        Array for the inverse.

    Returns
    -------
    ndarray
        Shape (..., n, n), both triangles.

    Raises
    ------
    LinAlgError
        A zero on the diagonal.

    Notes
    -----
    LAPACK `?potri`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.cholesky_inverse(np.array([[2.0, 0.0], [1.0, 1.0]]))
    array([[ 0.5, -0.5],
           [-0.5,  1. ]])
    """
    a = _matrix("cholesky_inverse", "L", L, square=True)
    n = a.shape[-1]
    parameters = {"upper": _flag("cholesky_inverse", "upper", upper)}
    return _problem("cholesky_inverse", {"a": a}, a.shape[:-2], (n, n, 0), parameters, out, (((n, n), a.dtype),))


@operation("lstsq", module="backline.linalg")
def lstsq(A: Array, B: Array, rcond: float | None = None, *, driver: str | None = None) -> LinalgProblem:
    """Least-squares solution of A X = B.

    Parameters
    ----------
    A
        Shape (..., m, n).
    B
        Shape (..., m, k); or a vector (m,), or a batch of vectors of A's shape without its last axis.
    rcond
        Singular values below rcond times the largest count as zero. Default: machine epsilon times max(m, n).
    driver
        "gelsy" (QR with pivoting, the default), "gels" (QR, A of full rank), "gelsd" or "gelss" (SVD).

    Returns
    -------
    Lstsq
        `solution`; `residuals`, squared, where m > n, A has full rank and the driver is not gelsy; `rank` unless the driver is
        gels; `singular_values` for gelsd and gelss. What is not computed is empty.

    Raises
    ------
    LinAlgError
        No full rank under "gels"; A or B not finite; no convergence.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.lstsq(np.array([[1.0], [1.0]]), np.array([1.0, 3.0])).solution
    array([2.])
    """
    a = _matrix("lstsq", "A", A)
    b = _matrix("lstsq", "B", B, rank=1)
    _same_dtype("lstsq", a, b)
    if rcond is None:
        rcond = float(np.finfo(a.dtype).eps) * max(a.shape[-2:])
    elif isinstance(rcond, bool) or not isinstance(rcond, (int, float, np.number)):
        raise BadType(f"lstsq: rcond is a number or None, not {type(rcond).__name__}")
    if driver is not None:
        _word("lstsq", "driver", driver, LSTSQ_DRIVERS)
    m, n = a.shape[-2:]
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    batch = broadcast_batch(a.shape[:-2], b.shape[:-1] if vector else b.shape[:-2])
    if batch is None or b.shape[-1 if vector else -2] != m:
        raise BadValue(f"lstsq: A of shape {a.shape} and B of shape {b.shape} do not fit")
    k = 1 if vector else b.shape[-1]
    parameters = {"rcond": float(rcond), "driver": driver, "vector": vector}
    return _problem("linalg.lstsq", {"a": a, "b": b}, batch, (m, n, k), parameters)


# Eigenvalues and singular values ------------------------------------------------------------------------------------


@operation("eigh", module="backline.linalg")
def eigh(A: Array, UPLO: str = "L", *, out: tuple[Array, Array] | None = None) -> LinalgProblem:
    """Eigenvalues and eigenvectors of a symmetric or Hermitian matrix.

    Parameters
    ----------
    A
        Shape (..., n, n); only one triangle is read.
    UPLO
        Which: "L" or "U".
    out
        Arrays for the values (real) and vectors.

    Returns
    -------
    Eigh
        `eigenvalues` (..., n), ascending; `eigenvectors` (..., n, n), as columns, each up to a factor of modulus 1.

    Raises
    ------
    LinAlgError
        Not finite, or no convergence.

    Notes
    -----
    LAPACK `?syevd` or `?heevd`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.eigh(np.diag([2.0, 1.0])).eigenvalues
    array([1., 2.])
    """
    return _symmetric("eigh", A, UPLO, True, out)


@operation("eigvalsh", module="backline.linalg")
def eigvalsh(A: Array, UPLO: str = "L", *, out: Array | None = None) -> LinalgProblem:
    """Eigenvalues of a symmetric or Hermitian matrix.

    Parameters
    ----------
    A, UPLO
        As for `eigh`.
    out
        Array for the values (real).

    Returns
    -------
    ndarray
        Shape (..., n), ascending.

    Raises
    ------
    LinAlgError
        Not finite, or no convergence.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.eigvalsh(np.diag([2.0, 1.0]))
    array([1., 2.])
    """
    return _symmetric("eigvalsh", A, UPLO, False, out)


def _symmetric(where: str, A: Any, UPLO: Any, vectors: bool, out: Any) -> LinalgProblem:
    a = _matrix(where, "A", A, square=True)
    n = a.shape[-1]
    _word(where, "UPLO", UPLO, ("L", "U"))
    results: tuple[Any, ...] = (((n,), _real(a.dtype)),)
    if vectors:
        results += (((n, n), a.dtype),)
    return _problem(f"linalg.{where}", {"a": a}, a.shape[:-2], (n, n, 0), {"UPLO": UPLO}, out, results)


@operation("eig", module="backline.linalg")
def eig(A: Array) -> LinalgProblem:
    """Eigenvalues and right eigenvectors of a square matrix.

    Parameters
    ----------
    A
        Shape (..., n, n).

    Returns
    -------
    Eig
        `eigenvalues` (..., n) and `eigenvectors` (..., n, n), complex, in LAPACK's order.

    Raises
    ------
    LinAlgError
        Not finite, or no convergence.

    Notes
    -----
    LAPACK `?geev`.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.eig(np.diag([1.0, 2.0])).eigenvalues
    array([1.+0.j, 2.+0.j])
    """
    a = _matrix("eig", "A", A, square=True)
    n = a.shape[-1]
    return _problem("linalg.eig", {"a": a}, a.shape[:-2], (n, n, 0), {})


@operation("eigvals", module="backline.linalg")
def eigvals(A: Array) -> LinalgProblem:
    """Eigenvalues of a square matrix.

    Parameters
    ----------
    A
        Shape (..., n, n).

    Returns
    -------
    ndarray
        Shape (..., n), complex.

    Raises
    ------
    LinAlgError
        Not finite, or no convergence.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.eigvals(np.diag([1.0, 2.0]))
    array([1.+0.j, 2.+0.j])
    """
    a = _matrix("eigvals", "A", A, square=True)
    n = a.shape[-1]
    return _problem("linalg.eigvals", {"a": a}, a.shape[:-2], (n, n, 0), {})


@operation("svd", module="backline.linalg")
def svd(
    A: Array, full_matrices: bool = True, *, driver: str | None = None, out: tuple[Array, Array, Array] | None = None
) -> LinalgProblem:
    """Singular value decomposition, A = U diag(S) Vh.

    Parameters
    ----------
    A
        Shape (..., m, n).
    full_matrices
        U (m, m) and Vh (n, n); else U (m, k) and Vh (k, n), k = min(m, n).
    driver
        "gesdd" (divide and conquer) or "gesvd" (QR iterations). None: the fastest; where gesdd does not converge, gesvd is
        tried. gesvdj and gesvda exist on CUDA only.
    out
        Arrays for U, S and Vh.

    Returns
    -------
    SVD
        `U`, `S` (descending, real), `Vh`.

    Raises
    ------
    LinAlgError
        Not finite, or no convergence.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.svd(np.diag([1.0, 2.0])).S
    array([2., 1.])
    """
    a = _matrix("svd", "A", A)
    m, n = a.shape[-2:]
    full = _flag("svd", "full_matrices", full_matrices)
    k = min(m, n)
    results = (((m, m if full else k), a.dtype), ((k,), _real(a.dtype)), ((n if full else k, n), a.dtype))
    parameters = {"full_matrices": full, "driver": _svd_driver("svd", driver)}
    return _problem("linalg.svd", {"a": a}, a.shape[:-2], (m, n, 0), parameters, out, results)


@operation("svdvals", module="backline.linalg")
def svdvals(A: Array, *, driver: str | None = None, out: Array | None = None) -> LinalgProblem:
    """Singular values.

    Parameters
    ----------
    A
        Shape (..., m, n).
    driver
        As for `svd`.
    out
        Array for the values.

    Returns
    -------
    ndarray
        Shape (..., min(m, n)), descending, real.

    Raises
    ------
    LinAlgError
        Not finite, or no convergence.

    Examples
    --------
    >>> import numpy as np, backline
    >>> backline.linalg.svdvals(np.diag([1.0, 2.0]))
    array([2., 1.])
    """
    a = _matrix("svdvals", "A", A)
    m, n = a.shape[-2:]
    parameters = {"driver": _svd_driver("svdvals", driver)}
    return _problem("linalg.svdvals", {"a": a}, a.shape[:-2], (m, n, 0), parameters, out, (((min(m, n),), _real(a.dtype)),))


def _svd_driver(where: str, driver: Any) -> str | None:
    if driver is None:
        return None
    if driver in ("gesvdj", "gesvda"):
        raise BadValue(f"{where}: driver={driver!r}", cause="cuSOLVER has it, on CUDA arrays only", remedy="gesdd, gesvd or None")
    return _word(where, "driver", driver, SVD_DRIVERS)
