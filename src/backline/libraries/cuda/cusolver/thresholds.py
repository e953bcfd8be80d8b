"""Thresholds at which one linear-algebra algorithm for many matrices becomes faster than another, and the rules that use them.

Many small matrices want one call for all of them, few large ones a call for each. Where one turns better than the other was
measured by PyTorch's developers, whose newest rules these are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt
from types import MappingProxyType

__all__ = [
    "LIMITS", "Limits", "Version", "eigh_way", "lstsq_way", "lu_way", "older_lu_way", "qr_way", "solve_way", "svd_way",
    "trsm_way",
]  # fmt: skip

Version = tuple[int, ...] | None  # of cuSOLVER; None where its file does not tell


@dataclass(frozen=True, slots=True)
class Limits:
    """Every threshold of the rules, in one place. b is the number of matrices, which are m x n, k that of right-hand sides."""

    # Of two matrices each is factored by itself if n * n exceeds this times b.
    lu_two: MappingProxyType[str, int] = field(
        default_factory=lambda: MappingProxyType({"float32": 8400, "complex64": 8400, "float64": 2200, "complex128": 2200})
    )
    # So with more of them: a factor of b, and whether the integer square root of b is another.
    lu_many: MappingProxyType[str, tuple[int, bool]] = field(
        default_factory=lambda: MappingProxyType({
            "float32": (18600, False), "complex64": (18600, False), "float64": (16600, True), "complex128": (5200, True),
        })
    )  # fmt: skip
    lu_older: int = 512  # an older rule: each by itself from this many rows on
    # getrs_batch, getrs_size: where cuSOLVER is preferred: each by itself for at most so many matrices, of at least this size.
    getrs_batch: int = 2
    getrs_size: int = 64
    solve_square: int = 16  # as many right-hand sides as rows: all in one call up to this size, else two triangular solves
    # solve_tiny, solve_small, solve_middle: other numbers of right-hand sides: sizes up to which three different rules hold.
    solve_tiny: int = 8
    solve_small: int = 64
    solve_middle: int = 128
    solve_few: int = 2  # up to this many matrices each may be solved by itself
    # solve_small_sides, solve_small_any: small: right-hand sides up to which, and size up to which, few matrices are solved each
    # by itself.
    solve_small_sides: int = 64
    solve_small_any: int = 32
    # solve_small_batched, solve_middle_sides: right-hand sides up to which one call is better than triangular solves, small and
    # middle.
    solve_small_batched: int = 8
    solve_middle_sides: int = 2
    # trsm_batch, trsm_size: triangular solves: each by itself for at most so many matrices, of at least this size.
    trsm_batch: int = 8
    trsm_size: int = 64
    # qr_rows, qr_least, qr_divisor: all in one call up to so many rows, for at least so many matrices, and at least rows /
    # divisor.
    qr_rows: int = 256
    qr_least: int = 2
    qr_divisor: int = 16
    jacobi_batched: int = 32  # largest matrix for which the Jacobi methods take a batch in one call
    syevj: tuple[int, int] = (32, 512)  # smallest and largest float32 matrix whose eigenvalues the Jacobi method finds sooner
    # syev_batched, geev: versions of cuSOLVER from which there are these routines.
    syev_batched: tuple[int, int, int] = (11, 7, 1)
    geev: tuple[int, int, int] = (11, 7, 2)


LIMITS = Limits()


# --- the rules -----------------------------------------------------------------------------------------------------


def lu_way(m: int, n: int, b: int, dtype: str) -> str:
    """Returns the name of the routine that computes LU factors.

    >>> lu_way(100, 100, 2, "float32"), lu_way(130, 130, 2, "float32"), lu_way(3, 4, 1000, "float32")
    ('getrf_batched', 'getrf', 'getrf')
    """
    if m != n or b <= 1:
        return "getrf"
    if b == 2:
        return "getrf" if n * n > LIMITS.lu_two[dtype] * b else "getrf_batched"
    factor, root = LIMITS.lu_many[dtype]
    return "getrf" if n * n > factor * b * (isqrt(b) if root else 1) else "getrf_batched"


def older_lu_way(m: int, n: int, b: int) -> str:
    """Returns the name of the routine that an older rule chooses for LU factors; kept for comparison.

    >>> older_lu_way(512, 512, 100), older_lu_way(511, 511, 100)
    ('getrf', 'getrf_batched')
    """
    return "getrf" if m != n or b <= 1 or m >= LIMITS.lu_older else "getrf_batched"


def solve_way(n: int, k: int, b: int, adjoint: bool, preference: str) -> str:
    """Returns the routine that solves with LU factors: each matrix separately, all in one call, or as two triangular systems.

    >>> solve_way(16, 16, 1, False, "default"), solve_way(17, 17, 1, False, "default"), solve_way(64, 1, 1, False, "cusolver")
    ('getrs_batched', 'trsm', 'getrs')
    """
    at = LIMITS
    if preference == "cusolver":
        return "getrs" if b <= at.getrs_batch and n >= at.getrs_size else "getrs_batched"
    if n == k:
        return "getrs_batched" if n <= at.solve_square else "trsm"
    if n <= at.solve_tiny:
        return "getrs_batched"
    if n <= at.solve_small:
        if b <= at.solve_few and (k <= at.solve_small_sides or adjoint or n <= at.solve_small_any):
            return "getrs"
        return "getrs_batched" if k <= at.solve_small_batched else "trsm"
    if n <= at.solve_middle and k <= at.solve_middle_sides:
        return "getrs" if b <= at.solve_few else "getrs_batched"
    return "trsm"


def trsm_way(n: int, b: int) -> str:
    """Returns the name of the routine that solves triangular systems.

    >>> trsm_way(64, 8), trsm_way(64, 9), trsm_way(63, 1)
    ('trsm', 'trsm_batched', 'trsm_batched')
    """
    return "trsm" if b <= LIMITS.trsm_batch and n >= LIMITS.trsm_size else "trsm_batched"


def _many_for_qr(m: int, b: int) -> bool:
    return m <= LIMITS.qr_rows and b >= max(LIMITS.qr_least, m // LIMITS.qr_divisor)


def qr_way(m: int, b: int) -> str:
    """Returns the name of the routine that factors matrices of m rows into Q and R.

    >>> qr_way(256, 16), qr_way(256, 15), qr_way(257, 100)
    ('geqrf_batched', 'geqrf', 'geqrf')
    """
    return "geqrf_batched" if _many_for_qr(m, b) else "geqrf"


def lstsq_way(m: int, n: int, b: int) -> str:
    """Returns the name of the routine that least-squares problems are solved with.

    >>> lstsq_way(256, 100, 16), lstsq_way(100, 256, 16)
    ('gels_batched', 'geqrf')
    """
    return "gels_batched" if m >= n and _many_for_qr(m, b) else "geqrf"


def eigh_way(n: int, b: int, dtype: str, version: Version) -> str:
    """Returns the name of the routine that computes eigenvalues of symmetric and Hermitian matrices.

    >>> eigh_way(32, 2, "float64", (11, 7, 1)), eigh_way(32, 2, "float64", (11, 7, 0)), eigh_way(33, 2, "float64", None)
    ('syev_batched', 'syevj_batched', 'syevd')
    """
    if b > 1 and n <= LIMITS.jacobi_batched:
        return "syev_batched" if version is not None and version >= LIMITS.syev_batched else "syevj_batched"
    low, high = LIMITS.syevj
    return "syevj" if dtype == "float32" and low <= n <= high else "syevd"


def svd_way(m: int, n: int, b: int, driver: str | None) -> str:
    """Returns the name of the routine that computes singular values.

    >>> svd_way(32, 32, 2, None), svd_way(33, 32, 2, None), svd_way(32, 32, 2, "gesvd")
    ('gesvdj_batched', 'gesvdj', 'gesvd')
    """
    if driver in (None, "gesvdj"):
        return "gesvdj_batched" if b > 1 and max(m, n) <= LIMITS.jacobi_batched else "gesvdj"
    return driver
