"""Which routines of cuSOLVER and cuBLAS run an operation on dense matrices, for any Problem, as values.

Many small matrices want one call for all of them, few large ones a call for each. Where one turns better than the other was
measured by PyTorch's developers, whose newest rules these are. Nothing here needs a device, and what runs decides nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isqrt
from types import MappingProxyType

from ...problems.linalg import LinalgProblem

__all__ = [
    "DATA_TYPES", "LETTER", "LIMITS", "Alternative", "Limits", "Recipe", "Step", "Version", "choose", "eigh_way", "lstsq_way",
    "lu_way", "older_lu_way", "qr_way", "recipes", "refusals", "solve_way", "svd_way", "trsm_way",
]  # fmt: skip

Version = tuple[int, ...] | None  # of cuSOLVER; None where its file does not tell

LETTER = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
DATA_TYPES = {"float32": 0, "float64": 1, "complex64": 4, "complex128": 5}  # as CUDA numbers them
LARGEST = 2**31 - 1  # of a size, for the routines with the usual integers


@dataclass(frozen=True, slots=True)
class Limits:
    """Every threshold of the rules, in one place. b is the number of matrices, which are m x n, k that of right-hand sides.

    Attributes
    ----------
    lu_two
        Of two matrices each is factored by itself if n * n exceeds this times b.
    lu_many
        So with more of them: a factor of b, and whether the integer square root of b is another.
    lu_older
        An older rule: each by itself from this many rows on.
    getrs_batch, getrs_size
        Where cuSOLVER is preferred: each by itself for at most so many matrices, of at least this size.
    solve_square
        As many right-hand sides as rows: all in one call up to this size, else two triangular solves.
    solve_tiny, solve_small, solve_middle
        Other numbers of right-hand sides: sizes up to which three different rules hold.
    solve_few
        Up to this many matrices each may be solved by itself.
    solve_small_sides, solve_small_any
        Small: right-hand sides up to which, and size up to which, few matrices are solved each by itself.
    solve_small_batched, solve_middle_sides
        Right-hand sides up to which one call is better than triangular solves, small and middle.
    trsm_batch, trsm_size
        Triangular solves: each by itself for at most so many matrices, of at least this size.
    qr_rows, qr_least, qr_divisor
        All in one call up to so many rows, for at least so many matrices, and at least rows / divisor.
    jacobi_batched
        Largest matrix for which the Jacobi methods take a batch in one call.
    syevj
        Smallest and largest float32 matrix whose eigenvalues the Jacobi method finds sooner.
    syev_batched, geev
        Versions of cuSOLVER from which there are these routines.
    """

    lu_two: MappingProxyType[str, int] = field(
        default_factory=lambda: MappingProxyType({"float32": 8400, "complex64": 8400, "float64": 2200, "complex128": 2200})
    )
    lu_many: MappingProxyType[str, tuple[int, bool]] = field(
        default_factory=lambda: MappingProxyType({
            "float32": (18600, False), "complex64": (18600, False), "float64": (16600, True), "complex128": (5200, True),
        })
    )  # fmt: skip
    lu_older: int = 512
    getrs_batch: int = 2
    getrs_size: int = 64
    solve_square: int = 16
    solve_tiny: int = 8
    solve_small: int = 64
    solve_middle: int = 128
    solve_few: int = 2
    solve_small_sides: int = 64
    solve_small_any: int = 32
    solve_small_batched: int = 8
    solve_middle_sides: int = 2
    trsm_batch: int = 8
    trsm_size: int = 64
    qr_rows: int = 256
    qr_least: int = 2
    qr_divisor: int = 16
    jacobi_batched: int = 32
    syevj: tuple[int, int] = (32, 512)
    syev_batched: tuple[int, int, int] = (11, 7, 1)
    geev: tuple[int, int, int] = (11, 7, 2)


LIMITS = Limits()


# --- the rules -----------------------------------------------------------------------------------------------------


def lu_way(m: int, n: int, b: int, dtype: str) -> str:
    """How LU factors are computed.

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
    """How an older rule computed them; kept to be compared with.

    >>> older_lu_way(512, 512, 100), older_lu_way(511, 511, 100)
    ('getrf', 'getrf_batched')
    """
    return "getrf" if m != n or b <= 1 or m >= LIMITS.lu_older else "getrf_batched"


def solve_way(n: int, k: int, b: int, adjoint: bool, preference: str) -> str:
    """How a system is solved with LU factors: each matrix by itself, all in one call, or as two triangular systems.

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
    """How triangular systems are solved.

    >>> trsm_way(64, 8), trsm_way(64, 9), trsm_way(63, 1)
    ('trsm', 'trsm_batched', 'trsm_batched')
    """
    return "trsm" if b <= LIMITS.trsm_batch and n >= LIMITS.trsm_size else "trsm_batched"


def _many_for_qr(m: int, b: int) -> bool:
    return m <= LIMITS.qr_rows and b >= max(LIMITS.qr_least, m // LIMITS.qr_divisor)


def qr_way(m: int, b: int) -> str:
    """How matrices of m rows are factored into Q and R.

    >>> qr_way(256, 16), qr_way(256, 15), qr_way(257, 100)
    ('geqrf_batched', 'geqrf', 'geqrf')
    """
    return "geqrf_batched" if _many_for_qr(m, b) else "geqrf"


def lstsq_way(m: int, n: int, b: int) -> str:
    """How least-squares problems are solved.

    >>> lstsq_way(256, 100, 16), lstsq_way(100, 256, 16)
    ('gels_batched', 'geqrf')
    """
    return "gels_batched" if m >= n and _many_for_qr(m, b) else "geqrf"


def eigh_way(n: int, b: int, dtype: str, version: Version) -> str:
    """How eigenvalues of symmetric and Hermitian matrices are computed.

    >>> eigh_way(32, 2, "float64", (11, 7, 1)), eigh_way(32, 2, "float64", (11, 7, 0)), eigh_way(33, 2, "float64", None)
    ('syev_batched', 'syevj_batched', 'syevd')
    """
    if b > 1 and n <= LIMITS.jacobi_batched:
        return "syev_batched" if version is not None and version >= LIMITS.syev_batched else "syevj_batched"
    low, high = LIMITS.syevj
    return "syevj" if dtype == "float32" and low <= n <= high else "syevd"


def svd_way(m: int, n: int, b: int, driver: str | None) -> str:
    """How singular values are computed.

    >>> svd_way(32, 32, 2, None), svd_way(33, 32, 2, None), svd_way(32, 32, 2, "gesvd")
    ('gesvdj_batched', 'gesvdj', 'gesvd')
    """
    if driver in (None, "gesvdj"):
        return "gesvdj_batched" if b > 1 and max(m, n) <= LIMITS.jacobi_batched else "gesvdj"
    return driver


# --- recipes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One routine.

    Attributes
    ----------
    module
        "cusolverDn" or "cublas".
    routine
        Its name in the binding.
    each
        Whether it is called for each matrix; else once for all of them.
    workspace
        The function that tells how much workspace it wants: on the device, and for some on the host as well. "" for none.
    """

    module: str
    routine: str
    each: bool
    workspace: str = ""


@dataclass(frozen=True, slots=True)
class Alternative:
    """What is done instead, for what shows only when it ran.

    Attributes
    ----------
    when
        The result that calls for it.
    steps
        The routines.
    what
        What they are given.
    """

    when: str
    steps: tuple[Step, ...]
    what: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a Plan does.

    Attributes
    ----------
    ways
        What is done, in order: "getrf", then "trsm".
    steps
        The routines that are called for it.
    waits
        Why the call waits for the device, "" if it does not.
    alternatives
        What may follow.
    any_order
        Whether cuSOLVER may sum in any order, which is faster and gives other bits each time.
    note
        What else a user should know.
    """

    ways: tuple[str, ...]
    steps: tuple[Step, ...]
    waits: str = ""
    alternatives: tuple[Alternative, ...] = ()
    any_order: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        """Of the Algorithm."""
        return "+".join(self.ways) + ("_any_order" if self.any_order else "")


_X = ("potrf", "getrf", "geqrf", "gesvd", "syevd", "geev", "syev_batched")  # for any type, with workspaces on both sides
_X_PLAIN = ("getrs", "potrs")  # for any type, without workspace
_BLAS = ("getrf_batched", "getrs_batched", "geqrf_batched", "gels_batched", "trsm", "trsm_batched")
_FAST_IN_ANY_ORDER = ("geqrf", "syevd", "gesvdj")  # what cuSOLVER's deterministic mode is about


def _steps(way: str, dtype: str) -> tuple[Step, ...]:
    t = LETTER[dtype]
    each = not way.endswith("_batched")
    if way in _X:
        return (Step("cusolverDn", f"x{way}", each, f"x{way}_buffer_size"),)
    if way in _X_PLAIN:
        return (Step("cusolverDn", f"x{way}", True),)
    if way in _BLAS:
        return (Step("cublas", f"{t}{way}", each),)
    if way == "potrf_batched":
        return (Step("cusolverDn", f"{t}{way}", False),)
    if way == "gesvda":
        return (Step("cusolverDn", f"{t}gesvda_strided_batched", False, f"{t}gesvda_strided_batched_buffer_size"),)
    name = f"{t}{_own_name(way, dtype)}"
    return (Step("cusolverDn", name, each, f"{name}_buffer_size"),)


def _own_name(way: str, dtype: str) -> str:
    """What a routine is called for complex matrices, where that is something else."""
    if dtype.startswith("complex"):
        for real, complex_ in (("syevj", "heevj"), ("orgqr", "ungqr"), ("ormqr", "unmqr")):
            if way.startswith(real):
                return way.replace(real, complex_)
    return way


MAY_RAISE = "info is read back, because the call may raise"
CONVERGES = "info is read back, because the method may not converge"
BAD_PIVOTS = "whether the pivots are rows is read back, because others would reach memory of somebody else"

_WAITS = {
    "linalg.eigh": CONVERGES, "linalg.eigvalsh": CONVERGES, "linalg.eig": CONVERGES, "linalg.eigvals": CONVERGES,
    "linalg.svd": CONVERGES, "linalg.svdvals": CONVERGES, "linalg.lstsq": MAY_RAISE, "cholesky_inverse": MAY_RAISE,
    "linalg.lu_solve": BAD_PIVOTS,
}  # fmt: skip
_CHECKED = ("linalg.cholesky", "linalg.lu_factor", "linalg.inv", "linalg.solve")


def _recipe(p: LinalgProblem, *ways: str, any_order: bool = False, note: str = "") -> Recipe:
    dtype = p.dtype.name
    waits = _WAITS.get(p.op, MAY_RAISE if p.op in _CHECKED and p.parameter("check", True) else "")
    alternatives: tuple[Alternative, ...] = ()
    if ways[0].startswith("gesvdj"):
        rerun = "gesvdj did not converge for some of the matrices"
        alternatives = (Alternative(rerun, _steps("gesvd", dtype), "those matrices alone, from the start"),)
    return Recipe(ways, tuple(s for way in ways for s in _steps(way, dtype)), waits, alternatives, any_order, note)


def refusals(p: LinalgProblem, version: Version = None) -> Iterator[tuple[str, str]]:
    """What cuSOLVER cannot do of a Problem: algorithm ("" for all) and reason."""
    if p.dtype.name not in LETTER:
        yield "", f"it has no linear algebra of {p.dtype.name}"
        return
    if max(p.m, p.n, p.k, p.items) > LARGEST:
        yield "", f"sizes past {LARGEST} are more than its routines count to"
        return
    driver = p.parameter("driver")
    if p.op in ("linalg.svd", "linalg.svdvals"):
        if driver not in (None, "gesvdj", "gesvd", "gesvda"):
            yield "", f"the call asks for driver={driver!r}; it has gesvdj, gesvd and gesvda"
        elif driver == "gesvda" and p.parameter("full_matrices", False) and p.m != p.n:
            yield "gesvda", "it gives min(m, n) vectors, and full_matrices asks for more"
    if p.op == "linalg.lstsq" and driver not in (None, "gels"):
        yield "", f"the call asks for driver={driver!r}; it has gels"
    if p.op in ("linalg.eig", "linalg.eigvals") and version is not None and version < LIMITS.geev:
        yield "geev", f"it takes cuSOLVER {'.'.join(map(str, LIMITS.geev))}, this is {'.'.join(map(str, version))}"


def recipes(p: LinalgProblem, version: Version = None, preference: str = "default") -> Iterator[Recipe]:
    """The recipes for a Problem, that of the rules first; the others are there to be compared with.

    Parameters
    ----------
    p
        The Problem.
    version
        Of cuSOLVER.
    preference
        What `preferred_linalg_library` reads: "cusolver" has its own rule for solving with factors.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.problems import operand
    >>> a = operand("a", np.empty((5, 3, 3)))
    >>> problem = LinalgProblem("linalg.cholesky", (a,), (("check", True),), m=3, n=3, batch=(5,))
    >>> [recipe.name for recipe in recipes(problem)], next(recipes(problem)).steps[0].routine
    (['potrf_batched', 'potrf'], 'dpotrf_batched')
    """
    if any(not name or name == "geev" or name == p.parameter("driver") for name, _ in refusals(p, version)):
        return
    if p.empty:
        yield Recipe(("empty",), ())
        return
    for ways in dict.fromkeys(_ways(p, version, preference)):
        note = ""
        if p.op == "linalg.lu_factor" and ways != (lu_way(p.m, p.n, p.items, p.dtype.name),):
            note = "what an older rule takes" if ways == (older_lu_way(p.m, p.n, p.items),) else ""
        if p.op == "linalg.lstsq":
            note = "takes A to be of full rank, and raises where a diagonal element of R is zero"
        if ways[0] == "gesvda":
            note = "an approximation, for tall matrices of low rank"
        yield _recipe(p, *ways, note=note)
        if any(way in _FAST_IN_ANY_ORDER for way in ways):
            yield _recipe(p, *ways, any_order=True, note=note)


def _ways(p: LinalgProblem, version: Version, preference: str) -> Iterator[tuple[str, ...]]:
    """Every way, that of the rules first; some come twice."""
    m, n, k, b, dtype = p.m, p.n, p.k, p.items, p.dtype.name
    op = p.op.removeprefix("linalg.")
    triangular = (trsm_way(n, b), "trsm" if b > 1 else "trsm_batched")
    if op == "cholesky":
        yield ("potrf_batched" if b > 1 else "potrf",)
        yield ("potrf",)
    elif op in ("cholesky_solve", "cholesky_inverse"):
        if b == 1:
            yield ("potrs",)
        yield from ((way, way) for way in triangular)
    elif op == "lu_factor":
        yield from ((way,) for way in _both(lu_way(m, n, b, dtype), m == n and b > 1))
    elif op in ("lu_solve", "solve", "inv"):
        k = n if op == "inv" else k
        factor = () if op == "lu_solve" else (lu_way(n, n, b, dtype),)
        first = solve_way(n, k, b, bool(p.parameter("adjoint", False)), preference)
        for way in (first, "getrs", "getrs_batched", "trsm"):
            yield (*factor, way) if way != "trsm" else (*factor, triangular[0], triangular[0])
    elif op == "solve_triangular":
        yield from ((way,) for way in triangular)
    elif op == "qr":
        last = () if p.parameter("mode") == "r" else ("orgqr",)
        first = qr_way(m, b)
        yield (first, *last)
        yield ("geqrf", *last)
    elif op == "lstsq":
        if lstsq_way(m, n, b) == "gels_batched":
            yield ("gels_batched",)
        size = min(m, n)
        yield ("geqrf", "ormqr", trsm_way(size, b)) if m >= n else ("geqrf", trsm_way(size, b), "ormqr")
    elif op in ("eigh", "eigvalsh"):
        yield (eigh_way(n, b, dtype, version),)
        yield ("syevd",)
    elif op in ("eig", "eigvals"):
        yield ("geev",)
    elif op in ("svd", "svdvals"):
        driver = p.parameter("driver")
        yield (svd_way(m, n, b, driver),)
        if driver in (None, "gesvdj"):
            yield ("gesvdj",)
        if driver is None:
            yield ("gesvd",)


def _both(first: str, batched: bool) -> tuple[str, ...]:
    other = "getrf" if first == "getrf_batched" else "getrf_batched"
    return (first, other) if batched else (first,)


def choose(p: LinalgProblem, name: str, version: Version = None, preference: str = "default") -> Recipe:
    """The recipe with an Algorithm's name."""
    return next(recipe for recipe in recipes(p, version, preference) if recipe.name == name)
