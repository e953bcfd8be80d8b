"""Eigenvalues and singular values; names, parameters and results as in torch.linalg."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.tuning.sample_operands import hermitian
from ..errors import BadType, BadValue
from ..problems.linalg_problem import LinalgProblem
from ..problems.result_tuples import SVD, Eig, Eigh
from . import device_dispatch
from .linalg_checks import Array, flag, matrix, problem, word
from .operation import operation

__all__ = ["eig", "eigh", "eigvals", "eigvalsh", "spectrum_flops", "svd", "svdvals"]

SVD_DRIVERS = ("gesdd", "gesvd")


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(dtype.char.lower())


def spectrum_flops(m: int, n: int, k: int) -> float:
    """Returns the floating-point operations that singular values without vectors take."""
    return 4 * m * n**2 - 4 * n**3 / 3


@operation(
    "eigh", module="backline.linalg", results=Eigh, flops=lambda m, n, k: 9 * n**3, sample=hermitian, powers=(0, 1, 0),
    bench=True,
)  # fmt: skip
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

    {no_convergence}

    {lapack} `?syevd` or `?heevd`.

    {examples}
    >>> backline.linalg.eigh(np.diag([2.0, 1.0])).eigenvalues
    array([1., 2.])
    """
    return _symmetric("eigh", A, UPLO, True, out)


@operation(
    "eigvalsh", module="backline.linalg", flops=lambda m, n, k: 4 * n**3 / 3, sample=hermitian, check="values",
    powers=(0, 1, 0),
)  # fmt: skip
def eigvalsh(A: Array, UPLO: str = "L", *, out: Array | None = None) -> LinalgProblem:
    """Eigenvalues of a symmetric or Hermitian matrix.

    Parameters
    ----------
    A, UPLO
        As for `eigh`.
    out
        Array for the values (real).

    {returns_array}
        Shape (..., n), ascending.

    {no_convergence}

    {examples}
    >>> backline.linalg.eigvalsh(np.diag([2.0, 1.0]))
    array([1., 2.])
    """
    return _symmetric("eigvalsh", A, UPLO, False, out)


def _symmetric(where: str, A: Any, UPLO: Any, vectors: bool, out: Any) -> LinalgProblem:
    a = matrix(where, "A", A, square=True)
    n = a.shape[-1]
    if not isinstance(UPLO, str):
        raise BadType(f"{where}: UPLO is a str, not {type(UPLO).__name__}")
    half = UPLO.upper()
    if half not in ("L", "U"):
        raise BadValue(f"{where}: Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    results = ((n,), _real(a.dtype)), ((n, n), a.dtype)
    return problem(f"linalg.{where}", {"a": a}, {"UPLO": half}, out, *results[: 1 + vectors])


@operation("eig", module="backline.linalg", results=Eig, flops=lambda m, n, k: 25 * n**3, powers=(0, 1, 0))
def eig(A: Array) -> LinalgProblem:
    """Eigenvalues and right eigenvectors of a square matrix.

    Parameters
    ----------
    {square}

    Returns
    -------
    Eig
        `eigenvalues` (..., n) and `eigenvectors` (..., n, n), complex, in LAPACK's order.

    {no_convergence}

    {lapack} `?geev`.

    {examples}
    >>> backline.linalg.eig(np.diag([1.0, 2.0])).eigenvalues
    array([1.+0.j, 2.+0.j])
    """
    return problem("linalg.eig", {"a": matrix("eig", "A", A, square=True)}, {})


@operation("eigvals", module="backline.linalg", flops=lambda m, n, k: 10 * n**3, check="values", powers=(0, 1, 0))
def eigvals(A: Array) -> LinalgProblem:
    """Eigenvalues of a square matrix.

    Parameters
    ----------
    {square}

    {returns_array}
        Shape (..., n), complex.

    {no_convergence}

    {examples}
    >>> backline.linalg.eigvals(np.diag([1.0, 2.0]))
    array([1.+0.j, 2.+0.j])
    """
    return problem("linalg.eigvals", {"a": matrix("eigvals", "A", A, square=True)}, {})


@operation(
    "svd", module="backline.linalg", results=SVD, flops=lambda m, n, k: 14 * m * n**2 + 8 * n**3, powers=(1, 1, 0), bench=True,
)  # fmt: skip
def svd(
    A: Array, full_matrices: bool = True, *, driver: str | None = None, out: tuple[Array, Array, Array] | None = None
) -> LinalgProblem:
    """Singular value decomposition, A = U diag(S) Vh.

    Parameters
    ----------
    {rectangular}
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

    {no_convergence}

    {examples}
    >>> backline.linalg.svd(np.diag([1.0, 2.0])).S
    array([2., 1.])
    """
    a = matrix("svd", "A", A)
    m, n = a.shape[-2:]
    full = flag("svd", "full_matrices", full_matrices)
    k = min(m, n)
    results = (((m, m if full else k), a.dtype), ((k,), _real(a.dtype)), ((n if full else k, n), a.dtype))
    parameters = {"full_matrices": full, "driver": _svd_driver("svd", driver)}
    return problem("linalg.svd", {"a": a}, parameters, out, *results)


@operation(
    "svdvals", module="backline.linalg", flops=spectrum_flops, check="values", powers=(0, 1, 0),
    bench=True,
)  # fmt: skip
def svdvals(A: Array, *, driver: str | None = None, out: Array | None = None) -> LinalgProblem:
    """Singular values.

    Parameters
    ----------
    {rectangular}
    driver
        As for `svd`.
    out
        Array for the values.

    {returns_array}
        Shape (..., min(m, n)), descending, real.

    {no_convergence}

    {examples}
    >>> backline.linalg.svdvals(np.diag([1.0, 2.0]))
    array([2., 1.])
    """
    a = matrix("svdvals", "A", A)
    parameters = {"driver": _svd_driver("svdvals", driver)}
    return problem("linalg.svdvals", {"a": a}, parameters, out, ((min(a.shape[-2:]),), _real(a.dtype)))


def _svd_driver(where: str, driver: Any) -> str | None:
    if driver is None:
        return None
    if isinstance(driver, str) and driver in ("gesvdj", "gesvda"):
        if device_dispatch.device().startswith("cuda"):
            return str(driver)
        raise BadValue(f"{where}: driver={driver!r}", cause="cuSOLVER has it, on CUDA arrays only", remedy="gesdd, gesvd or None")
    return word(where, "driver", driver, SVD_DRIVERS)
