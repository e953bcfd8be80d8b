"""The routines of cuSOLVER and cuBLAS that run an operation on dense matrices, for any Problem, as values.

`cusolver_rules` says which way is taken; here it becomes routines. Nothing here needs a device, and what runs decides nothing
more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....problems.linalg_problem import LinalgProblem
from ..common.gemm_layout import LARGEST
from .thresholds import LIMITS, Version, eigh_way, lstsq_way, lu_way, older_lu_way, qr_way, solve_way, svd_way, trsm_way

__all__ = ["DATA_TYPES", "LARGEST", "LETTER", "Alternative", "Recipe", "Step", "choose", "recipes", "refusals"]

LETTER = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
DATA_TYPES = {"float32": 0, "float64": 1, "complex64": 4, "complex128": 5}  # as CUDA numbers them


@dataclass(frozen=True, slots=True)
class Step:
    """One routine."""

    module: str  # "cusolverDn" or "cublas"
    routine: str  # its name in the binding
    each: bool  # whether it is called for each matrix; else once for all of them
    # The function that tells how much workspace it wants: on the device, and for some on the host as well. "" for none.
    workspace: str = ""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Routines to run instead, for a condition that is known only after the first ones ran."""

    when: str  # the result that calls for it
    steps: tuple[Step, ...]  # the routines
    what: str  # what they are given


@dataclass(frozen=True, slots=True)
class Recipe:
    """Description of a Plan."""

    ways: tuple[str, ...]  # what is done, in order: "getrf", then "trsm"
    steps: tuple[Step, ...]  # the routines that are called for it
    waits: str = ""  # why the call waits for the device, "" if it does not
    alternatives: tuple[Alternative, ...] = ()  # what may follow
    any_order: bool = False  # whether cuSOLVER may sum in any order, which is faster and gives other bits each time
    note: str = ""  # what else a user should know

    @property
    def name(self) -> str:
        """Of the Algorithm."""
        return "+".join(self.ways) + ("_any_order" if self.any_order else "")


_X = ("potrf", "getrf", "geqrf", "gesvd", "syevd", "geev", "syev_batched")  # for any type, with workspaces on both sides
_X_PLAIN = ("getrs", "potrs")  # for any type, without workspace
_BLAS = ("getrf_batched", "getrs_batched", "geqrf_batched", "gels_batched", "trsm", "trsm_batched")
_FAST_IN_ANY_ORDER = ("geqrf", "syevd", "gesvdj")  # what cuSOLVER's deterministic mode is about
# With integers of 32 bits for sizes and workspaces. (Those of cuBLAS that solve triangles have a form with 64 bits.)
NARROW = (
    "potrf_batched", "getrf_batched", "getrs_batched", "geqrf_batched", "gels_batched", "orgqr", "ormqr", "syevj",
    "syevj_batched", "gesvdj", "gesvdj_batched", "gesvda",
)  # fmt: skip
ONE_WORKSPACE = ("syevj_batched", "gesvdj_batched", "gesvda")


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
    """Returns the name of a routine, which for some routines is different for complex matrices."""
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


def too_many(p: LinalgProblem, way: str) -> int:
    """Returns the elements that a routine with 32-bit integers would have to count for a Problem; 0 if it can, or none is called.

    Of one matrix, the largest that is read or written; of all of them where one workspace is for the whole batch.
    """
    if way not in NARROW:
        return 0
    rows, columns = max(p.m, p.n), max(min(p.m, p.n), p.k)
    if p.parameter("mode") == "complete" or (p.op == "linalg.svd" and p.parameter("full_matrices", True)):
        columns = max(rows, columns)
    elements: int = rows * columns * (p.items if way in ONE_WORKSPACE else 1)
    return elements if elements > LARGEST else 0


def refusals(p: LinalgProblem, version: Version = None, preference: str = "default") -> Iterator[tuple[str, str]]:
    """Lists what cuSOLVER does not support of a Problem: algorithm ("" for all) and reason."""
    if p.dtype.name not in LETTER:
        yield "", f"it has no linear algebra of {p.dtype.name}"
        return
    if max(p.m, p.n, p.k, p.items) > LARGEST:
        yield "", f"sizes past {LARGEST} are more than its routines count to"
        return
    for name in dict.fromkeys(way for ways in _ways(p, version, preference) for way in ways):
        count = too_many(p, name)
        if count:
            yield name, f"it counts elements with 32 bits, and {count} are more"
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

    `preference` is what `preferred_linalg_library` reads: "cusolver" has its own rule for solving with factors.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.problems import operand
    >>> a = operand("a", np.empty((5, 3, 3)))
    >>> problem = LinalgProblem("linalg.cholesky", (a,), (("check", True),), m=3, n=3, batch=(5,))
    >>> [recipe.name for recipe in recipes(problem)], next(recipes(problem)).steps[0].routine
    (['potrf_batched', 'potrf'], 'dpotrf_batched')
    """
    if any(not name or name == "geev" or name == p.parameter("driver") for name, _ in refusals(p, version, preference)):
        return
    if p.empty:
        yield Recipe(("empty",), ())
        return
    for ways in dict.fromkeys(_ways(p, version, preference)):
        if any(too_many(p, way) for way in ways):
            continue
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
