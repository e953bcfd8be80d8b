"""Inverses and solutions of linear systems; names, parameters and results as in torch.linalg."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.tuning.sample_operands import factors, regular, triangle
from ..errors import BadType, BadValue
from ..problems.linalg_problem import LinalgProblem
from ..problems.memory_layout import broadcast_batch
from ..problems.result_tuples import InvEx, Lstsq, SolveEx
from .array_arguments import check_array
from .linalg_checks import Array, flag, matrix, no_check, number, problem, same_dtype, word
from .operation import operation

__all__ = ["inv", "inv_ex", "lstsq", "lu_solve", "solve", "solve_ex", "solve_triangular"]

LSTSQ_DRIVERS = ("gelsy", "gels", "gelsd", "gelss")


def _inv(where: str, A: Any, check: bool, out: Any) -> LinalgProblem:
    a = matrix(where, "A", A, square=True)
    return problem("linalg.inv", {"a": a}, {"check": check}, out, (a.shape[-2:], a.dtype))


@operation(
    "inv", module="backline.linalg", flops=lambda m, n, k: 2 * n**3, sample=regular, check="unique", powers=(0, -1, 0),
    bench=True,
)  # fmt: skip
def inv(A: Array, *, out: Array | None = None) -> LinalgProblem:
    """Inverse of a square matrix.

    Parameters
    ----------
    {square}
    {out_inverse}

    {returns_array}
        Shape (..., n, n).

    Raises
    ------
    LinAlgError
        A pivot is zero. NaN does not raise; it spreads. Neither does infinity: what comes of it, zeros or NaN, depends on the
        order in which a library eliminates.

    {lapack} `?getrf` and `?getri`, or `?gesv` against the identity. To solve, use `solve`: it is faster and more accurate.

    {examples}
    >>> backline.linalg.inv(np.array([[2.0, 1.0], [1.0, 1.0]]))
    array([[ 1., -1.],
           [-1.,  2.]])
    """
    return _inv("inv", A, True, out)


@operation("inv_ex", module="backline.linalg", results=InvEx)
def inv_ex(A: Array, *, check_errors: bool = False, out: tuple[Array, Array] | None = None) -> LinalgProblem:
    """`inv` that reports a zero pivot in `info` instead of raising.

    Parameters
    ----------
    A
        As for `inv`.
    {check_errors}
    out
        Arrays for the inverse and info (int32).

    Returns
    -------
    InvEx
        `inverse` (of no meaning where info is not 0) and `info`.

    {examples}
    >>> int(backline.linalg.inv_ex(np.zeros((2, 2))).info)
    1
    """
    return _inv("inv_ex", A, no_check("inv_ex", check_errors), out)


def _right_sides(
    where: str, a: Array, B: Any, left: bool, *, name: str = "A", vectors: bool = False
) -> tuple[Array, tuple[int, ...], int]:
    """Returns the right-hand sides, the batch shape, and how many they are; with `vectors` they may be those of torch's rule."""
    b = matrix(where, "B", B, rank=1 if vectors else 2)
    same_dtype(where, a, b)
    vector = vectors and _is_vector(a, b)
    if vector and not left:
        raise BadValue(
            f"{where}: left=False with vectors of shape {b.shape}", cause=_equation(a, b, False, vector),
            remedy="B[..., None, :] for row vectors",
        )  # fmt: skip
    core = b.ndim - 1 if vector else b.ndim - 2
    n, length = a.shape[-1], b.shape[-1 if vector or not left else -2]
    if length != n:
        shapes = f"{name} of shape {a.shape} and B of shape {b.shape} do not fit"
        cause = _equation(a, b, left, vector)
        raise BadValue(f"{where}: {f'{name} is {n} x {n}, B has length {length}' if vector else shapes}", cause=cause)
    batch = broadcast_batch(a.shape[:-2], b.shape[:core])
    if batch is None:
        raise BadValue(f"{where}: batches of {name} {a.shape} and B {b.shape} do not broadcast")
    return b, batch, 1 if vector else b.shape[-1 if left else -2]


def _is_vector(a: Array, b: Array) -> bool:
    """Tells, by torch's rule, whether B is a vector, or a batch of vectors: its shape is A's without the last axis."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])


def _equation(a: Array, b: Array, left: bool, vector: bool = False) -> str:
    """Says in torch's words which sizes do not fit, for either value of `left`."""
    sizes = f"{a.shape[-2]}x{a.shape[-1]} and {b.shape[-1] if vector else b.shape[-2]}x{1 if vector else b.shape[-1]}"
    return f"left={left}. Incompatible shapes of A and B for the equation {'AX' if left else 'XA'} = B ({sizes})"


def _solve(where: str, A: Any, B: Any, left: Any, check: bool, out: Any) -> LinalgProblem:
    a = matrix(where, "A", A, square=True)
    left = flag(where, "left", left)
    b, batch, k = _right_sides(where, a, B, left, vectors=True)
    vector = _is_vector(a, b)
    core = b.shape[-1:] if vector else b.shape[-2:]
    parameters = {"left": left, "vector": vector, "check": check}
    return problem("linalg.solve", {"a": a, "b": b}, parameters, out, (core, a.dtype), k=k, batch=batch)


@operation(
    "solve", module="backline.linalg", flops=lambda m, n, k: 2 * n**3 / 3 + 2 * n**2 * k, sample=regular, check="unique",
    powers=(0, -1, 1), sizes="{n}x{n} {n}x16", bench=True,
)  # fmt: skip
def solve(A: Array, B: Array, *, left: bool = True, out: Array | None = None) -> LinalgProblem:
    """Solution X of A X = B, or of X A = B.

    Parameters
    ----------
    {square}
    B
        Shape (..., n, k), or (..., k, n) where `left` is False; or a vector (n,), or a batch of vectors (..., n) whose shape is
        that of A without its last axis. Of A's dtype.
    {left}
    {out_solution}

    {returns_array}
        Of B's shape, its batch broadcast.

    {singular}

    {lapack} `?getrf` and `?getrs`.

    {examples}
    >>> backline.linalg.solve(np.diag([2.0, 4.0]), np.array([1.0, 1.0]))
    array([0.5 , 0.25])
    """
    return _solve("solve", A, B, left, True, out)


@operation("solve_ex", module="backline.linalg", results=SolveEx)
def solve_ex(
    A: Array, B: Array, *, left: bool = True, check_errors: bool = False, out: tuple[Array, Array] | None = None
) -> LinalgProblem:
    """`solve` that reports a zero pivot in `info` instead of raising.

    Parameters
    ----------
    A, B, left
        As for `solve`.
    {check_errors}
    out
        Arrays for the solution and info (int32).

    Returns
    -------
    SolveEx
        `result` and `info`.

    {examples}
    >>> int(backline.linalg.solve_ex(np.zeros((2, 2)), np.ones(2)).info)
    1
    """
    return _solve("solve_ex", A, B, left, no_check("solve_ex", check_errors), out)


@operation("lu_solve", module="backline.linalg", flops=lambda m, n, k: 2 * n**2 * k, sample=factors, check="unique")
def lu_solve(
    LU: Array, pivots: Array, B: Array, *, left: bool = True, adjoint: bool = False, out: Array | None = None
) -> LinalgProblem:
    """Solution by factors that `lu_factor` made.

    Parameters
    ----------
    LU, pivots
        As `lu_factor` returns them: (..., n, n) and (..., n) of int32.
    {right_sides}
    {left}
    adjoint
        Solve with the adjoint of A.
    {out_solution}

    {returns_array}
        Of B's shape, its batch broadcast.

    Raises
    ------
    BadValue
        Pivots out of range, or shapes that do not fit.

    {lapack} `?getrs`.

    {examples}
    >>> lu, pivots = backline.linalg.lu_factor(np.diag([2.0, 4.0]))
    >>> backline.linalg.lu_solve(lu, pivots, np.ones((2, 1))).ravel()
    array([0.5 , 0.25])
    """
    a = matrix("lu_solve", "LU", LU, square=True)
    p = check_array(pivots, "lu_solve: pivots")
    if p.dtype != np.int32:
        raise BadType(
            f"lu_solve: pivots should be a Tensor of scalar type int32, they have dtype {p.dtype}",
            remedy="int32, as lu_factor returns them",
        )
    if p.shape != a.shape[:-1]:
        raise BadValue(
            f"lu_solve: pivots of shape {p.shape} for LU of shape {a.shape}",
            cause="Number of pivots per batch should be same as the dimension of the matrix",
        )
    left = flag("lu_solve", "left", left)
    b, batch, k = _right_sides("lu_solve", a, B, left, name="LU")
    parameters = {"left": left, "adjoint": flag("lu_solve", "adjoint", adjoint)}
    operands = {"a": a, "p": p, "b": b}
    return problem("linalg.lu_solve", operands, parameters, out, (b.shape[-2:], a.dtype), k=k, batch=batch)


@operation(
    "solve_triangular", module="backline.linalg", flops=lambda m, n, k: n**2 * k, sample=triangle, check="unique",
    powers=(0, -1, 1), sizes="{n}x{n} {n}x{n}",
)  # fmt: skip
def solve_triangular(
    A: Array, B: Array, *, upper: bool, left: bool = True, unitriangular: bool = False, out: Array | None = None
) -> LinalgProblem:
    """Solution X of A X = B (or X A = B) with a triangular A.

    Parameters
    ----------
    A
        Shape (..., n, n); the other triangle is not read.
    {right_sides}
    upper
        Which triangle A is.
    {left}
    unitriangular
        Take the diagonal as ones without reading it.
    {out_solution}

    {returns_array}
        Of B's shape, its batch broadcast. A zero on the diagonal gives infinities or NaN, not an error.

    Notes
    -----
    BLAS `?trsm`.

    {examples}
    >>> backline.linalg.solve_triangular(np.array([[2.0, 0.0], [1.0, 1.0]]), np.ones((2, 1)), upper=False).ravel()
    array([0.5, 0.5])
    """
    a = matrix("solve_triangular", "A", A, square=True)
    left = flag("solve_triangular", "left", left)
    b, batch, k = _right_sides("solve_triangular", a, B, left)
    parameters = {
        "upper": flag("solve_triangular", "upper", upper), "left": left,
        "unitriangular": flag("solve_triangular", "unitriangular", unitriangular),
    }  # fmt: skip
    return problem("linalg.solve_triangular", {"a": a, "b": b}, parameters, out, (b.shape[-2:], a.dtype), k=k, batch=batch)


@operation(
    "lstsq", module="backline.linalg", results=Lstsq, flops=lambda m, n, k: 2 * m * n**2 - 2 * n**3 / 3 + 4 * m * n * k,
    check="unique", powers=(0, -1, 1), sizes="{n}x{n} {n}x{n}",
)  # fmt: skip
def lstsq(A: Array, B: Array, rcond: float | None = None, *, driver: str | None = None) -> LinalgProblem:
    """Least-squares solution of A X = B.

    Parameters
    ----------
    {rectangular}
    B
        Shape (..., m, k); or a vector (m,), or a batch of vectors of A's shape without its last axis.
    rcond
        Singular values below rcond times the largest count as zero. Default: machine epsilon times max(m, n).
    driver
        "gelsy" (QR with pivoting, the default), "gels" (QR, A of full rank), "gelsd" or "gelss" (SVD).

    Returns
    -------
    Lstsq
        `solution`; `residuals`, squared, of shape (..., k) with k = 1 for vectors, where m > n, A has full rank and the driver is
        not gelsy; `rank` unless the driver is gels; `singular_values` for gelsd and gelss. What is not computed is empty.

    Raises
    ------
    LinAlgError
        No full rank under "gels"; A or B not finite; no convergence.

    {examples}
    >>> backline.linalg.lstsq(np.array([[1.0], [1.0]]), np.array([1.0, 3.0])).solution
    array([2.])
    """
    a = matrix("lstsq", "A", A)
    b = matrix("lstsq", "B", B, rank=1)
    same_dtype("lstsq", a, b)
    if rcond is None:
        rcond = float(np.finfo(a.dtype).eps) * max(a.shape[-2:])
    else:
        rcond = number("lstsq", "rcond", rcond)
    if driver is not None:
        word("lstsq", "driver", driver, LSTSQ_DRIVERS, "parameter `driver` should be one of (gels, gelsy, gelsd, gelss)")
    vector = _is_vector(a, b)
    rows = -1 if vector else -2
    batch = broadcast_batch(a.shape[:-2], b.shape[:rows])
    fits = b.shape[rows] == a.shape[-2]
    if batch is None or not fits:
        raise BadValue(
            f"lstsq: A of shape {a.shape} and B of shape {b.shape} do not fit",
            cause="batches do not broadcast" if fits else f"input.size(-2) should match other.size({rows})",
        )
    parameters = {"rcond": rcond, "driver": driver, "vector": vector}
    return problem("linalg.lstsq", {"a": a, "b": b}, parameters, k=1 if vector else b.shape[-1], batch=batch)
