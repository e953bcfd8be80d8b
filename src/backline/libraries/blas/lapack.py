"""Dense linear algebra through LAPACK's Fortran interface, for every library that has it: what there is, and what its infos mean.

Results come in the order that costs nothing: strides say which. The steps are in
`lapack_solving`, `lapack_indefinite`, `lapack_spectra` and `lapack_results`.

References: LAPACK Users' Guide, third edition; the argument lists are those of the reference implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ...errors import BadValue, LinAlgError
from ...native import thread_team
from ...problems import operand
from ...problems.linalg_problem import LinalgProblem, not_definite, not_finite, singular
from ...problems.names import name_of
from .. import fixed_order
from ..base import ONE_SHAPE, Algorithm, Refusal
from .cblas import LETTER, THREAD_FLOPS, BlasTraits
from .lapack_indefinite import Indefinite, checked_pivots, plain_pivots, zero_blocks
from .lapack_parts import IN_PARTS
from .lapack_results import INVERSE_NORMS, Results
from .lapack_steps import NOT_FINITE, NOT_IN_RANGE, SPLIT, routine_name

__all__ = ["linalg_algorithms", "prepare_linalg"]

# Below this many operations one factorisation gains nothing by threads: its panels are too narrow to share (LU of 150 x 150).
SHARED_FLOPS = 2e6
# The same for LU on a pool beside the one that the rest of the library runs on: the two take turns at each block, and wait for
# each other spinning. On two cores of AMD's and of Intel's that cost 20 to 75 ms a call, up to 70 times the time of one thread at
# 256 x 256, and 2 to 6 times at 1024 x 1024.
TWO_POOLS_FLOPS = 4e9

# Operation -> algorithms, each with the LAPACK functions it calls ({t} the type's letter, {h} ge or he style names below).
ROUTINES: dict[str, dict[str, tuple[str, ...]]] = {
    "linalg.cholesky": {"potrf": ("{t}potrf",)},
    "linalg.lu_factor": {"getrf": ("{t}getrf",)},
    "linalg.lu_solve": {"getrs": ("{t}getrs",)},
    "linalg.inv": {"getri": ("{t}getrf", "{t}getri"), "gesv": ("{t}gesv",)},
    "linalg.solve": {"getrs": ("{t}getrf", "{t}getrs")},
    "linalg.qr": {"geqrf": ("{t}geqrf", "{q}gqr")},
    "linalg.eigh": {"syevd": ("{s}evd",)},
    "linalg.eigvalsh": {"syevd": ("{s}evd",), "syev": ("{s}ev",)},
    "linalg.eig": {"geev": ("{t}geev",)},
    "linalg.eigvals": {"geev": ("{t}geev",)},
    "linalg.svd": {"gesdd": ("{t}gesdd",), "gesvd": ("{t}gesvd",)},
    "linalg.svdvals": {"gesdd": ("{t}gesdd",), "gesvd": ("{t}gesvd",)},
    "linalg.lstsq": {d: ("{t}" + d,) for d in ("gelsy", "gels", "gelsd", "gelss")},
    "linalg.ldl_factor": {"sytrf": ("{t}sytrf",), "hetrf": ("{t}hetrf",)},
    "linalg.ldl_solve": {"sytrs": ("{t}sytrs",), "hetrs": ("{t}hetrs",)},
    "linalg.householder_product": {"orgqr": ("{q}gqr",)},
    "cholesky_solve": {"potrs": ("{t}potrs",)},
    "cholesky_inverse": {"potri": ("{t}potri",)},
    "linalg.solve_triangular": {"trsm": ()},
    **{f"linalg.{name}": {"getrf": ("{t}getrf",)} for name in ("det", "slogdet", "lu")},
    "linalg.matrix_power": {"gemm": ()},
    "linalg.multi_dot": {"gemm": ()},
    "linalg.matrix_exp": {"gemm": ()},
}
OF_SPECTRA = tuple(f"linalg.{name}" for name in ("matrix_rank", "cond", "matrix_norm", "pinv"))
ROUTINES.update(dict.fromkeys(OF_SPECTRA, ROUTINES["linalg.svdvals"]))

ITERATIVE = (*OF_SPECTRA, *(f"linalg.{name}" for name in ("eigh", "eigvalsh", "eig", "eigvals", "svd", "svdvals", "lstsq")))
ITERATION = 2e4  # operations that a small matrix takes as long as, beside its own
LEAST_IN_PARTS = 2e6  # operations of a matrix whose blocks threads share
LEAST_SPLIT = 1e7  # of one whose LU they share where bits may differ
LEAST_IN_PANELS, MOST_IN_PANELS = 512, 64  # rows and right-hand sides of systems that are solved panel by panel


LU_INSIDE = tuple(f"linalg.{name}" for name in ("lu_factor", "solve", "inv", "det", "slogdet", "lu"))


def _routines(problem: LinalgProblem) -> dict[str, tuple[str, ...]]:
    """Returns the algorithms for a Problem: a condition number is one of singular values or of norms of the inverse."""
    if problem.op == "linalg.cond" and problem.parameter("p") in INVERSE_NORMS:
        return {"getri": ROUTINES["linalg.inv"]["getri"]}
    return ROUTINES[problem.op]


def _worth_dividing(problem: LinalgProblem) -> bool:
    """Tells whether a batch takes so long that its items are divided among threads; iterations of small matrices are slow."""
    return problem.flops + problem.items * (ITERATION if problem.op in ITERATIVE else 0) >= THREAD_FLOPS


class _Writer(Indefinite, Results):
    """Every operation."""


def linalg_algorithms(blas: BlasTraits, problem: LinalgProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Every way of this LAPACK for an operation."""
    if problem.op not in ROUTINES:
        yield Refusal(blas.name, "", f"it has no {problem.op}", lacks=True)
        return
    if name_of(problem.dtype) not in LETTER:
        yield Refusal(blas.name, "", f"LAPACK has no {problem.dtype.name}")
        return
    if problem.empty:
        yield Refusal(blas.name, "", "an empty problem needs no LAPACK")
        return
    limit = blas.native.max_integer
    if any(size > limit for size in (problem.m, problem.n, problem.k)) or (
        blas.native.int_size == 4 and problem.m * problem.n > 8 * limit
    ):
        yield Refusal(blas.name, "", f"sizes past {limit} need 64-bit integers, this library has 32-bit ones")
        return
    driver = problem.parameter("driver")
    if driver is None and problem.op == "linalg.lstsq":
        driver = "gelsy"
    pool = (problem.op in LU_INSIDE and blas.lu_pool) or blas.pool
    shared = SHARED_FLOPS if pool == blas.pool else TWO_POOLS_FLOPS
    alone = SHARED_FLOPS * problem.items <= problem.flops < shared * problem.items and threads > 1
    for name, routines in _routines(problem).items():
        if problem.op.startswith("linalg.ldl") and name.startswith("he") != bool(problem.parameter("hermitian")):
            continue
        if driver is not None and name != driver:
            yield Refusal(blas.name, name, f"the call asks for driver={driver!r}")
            continue
        missing = [r for r in (routine_name(x, problem.dtype) for x in routines) if not blas.native.lapack(r)]
        if missing:
            yield Refusal(blas.name, name, f"the library exports no {missing[0]}")
            continue
        yield from _in_panels(blas, problem, threads, name)
        if threads > 1 and problem.flops >= max(THREAD_FLOPS, shared * problem.items):
            yield Algorithm(library=blas.name, name=name, threads=threads, scaled=True, basis=blas.run_basis, pool=pool)
        if threads > 1 and problem.items > 1 and blas.pool and _worth_dividing(problem):
            yield Algorithm(
                library=blas.name, name=f"{name}_items", threads=thread_team.items_threads(threads), scaled=True,
                level="threads", basis="construction", pool=blas.pool, note="items of the batch divided among the threads",
            )  # fmt: skip
        yield from _in_parts(blas, problem, threads, name)
        yield from _split(blas, problem, threads, name)
        note = f"LU on one thread up to {shared:.0e} operations: several wait for two pools in turn" if alone else ""
        yield Algorithm(library=blas.name, name=name, level="threads", basis=blas.run_basis, note=note)


def _in_parts(blas: BlasTraits, p: LinalgProblem, threads: int, name: str) -> Iterator[Algorithm]:
    """Lists an algorithm in parts, where there is one and the matrix is large enough for several of them."""
    needs = IN_PARTS.get(p.op, {}).get(name)
    if needs is None or not fixed_order.asked() or p.items != 1 or p.flops < LEAST_IN_PARTS:
        return
    if all(blas.native.lapack(routine_name(each, p.dtype)) for each in needs):
        make = partial(Algorithm, library=blas.name)
        yield from fixed_order.listed(name, threads, make, "in blocks of a fixed size, which the threads share", blas.pool)


def _split(blas: BlasTraits, p: LinalgProblem, threads: int, name: str) -> Iterator[Algorithm]:
    """Lists the LU of one matrix, and what follows it, by columns that threads share: steps for each panel, for one shape."""
    needs = IN_PARTS.get(p.op, {}).get(name)
    if needs is None or p.op not in LU_INSIDE or threads == 1 or not blas.pool or fixed_order.asked():
        return
    if p.items != 1 or p.flops < LEAST_SPLIT:
        return
    if all(blas.native.lapack(routine_name(each, p.dtype)) for each in needs):
        yield Algorithm(
            library=blas.name, name=name + SPLIT, threads=threads, scaled=True, basis=blas.run_basis, pool=blas.pool,
            note="columns divided among the threads", traits=(ONE_SHAPE,),
        )  # fmt: skip


def _in_panels(blas: BlasTraits, p: LinalgProblem, threads: int, name: str) -> Iterator[Algorithm]:
    """Lists the solution of a large system with few right-hand sides, whose factor threads read."""
    if p.op != "cholesky_solve" or threads == 1 or not blas.pool or p.items != 1 or fixed_order.asked():
        return
    if p.n >= LEAST_IN_PANELS and p.k <= MOST_IN_PANELS:
        yield Algorithm(
            library=blas.name, name=name + SPLIT, threads=threads, scaled=True, basis=blas.run_basis, pool=blas.pool,
            note="panel by panel, products with the factor divided among the threads", traits=(ONE_SHAPE,),
        )  # fmt: skip


def prepare_linalg(blas: BlasTraits, p: LinalgProblem, algorithm: Algorithm, again: Callable[[str], Any]) -> Any:
    """The PreparedCall of an Algorithm that `linalg_algorithms` listed.

    `again` prepares the same Problem by another algorithm: the second try when an iteration does not converge.
    """
    name = algorithm.name.removesuffix("_items")
    divided = name != algorithm.name
    if divided:
        thread_team.items_run()
    by_pivots = p.op == "linalg.ldl_solve"
    w = _Writer(blas, plain_pivots(p) if by_pivots else p, name, algorithm.threads)
    shares = divided or w.in_parts
    results, wrap = getattr(w, p.op.rpartition(".")[2])()
    w.finish()
    on_info: Any = None
    if p.op == "linalg.ldl_factor":
        on_info = partial(zero_blocks, p, wrap)
    elif p.op in SPREADS:
        on_info = partial(_perhaps_singular, blas, p.op, p.index("a") or 0, len(p.batch), p.parameter("check", True), wrap)
    elif p.parameter("check", True) and w.b.info_buffer:
        second = partial(again, "gesvd") if name == "gesdd" and p.parameter("driver") is None else None
        on_info = partial(_failed, p.op, second)
    plan = w.b.plan(
        *results,
        count=p.items,
        threads=algorithm.threads if divided else 1,
        wrap=wrap,
        on_info=on_info,
        guard_threads=1 if shares else algorithm.threads,
        **blas.guard(p.flops, vector=True, divided=shares),
    )
    return checked_pivots(p, plan) if by_pivots else plan


MEANING = {
    "linalg.cholesky": not_definite("{i}"),
    "cholesky_inverse": "element {i} of the diagonal is zero, the factor is singular",
    "linalg.eigh": "the eigenvalues did not converge ({i} off-diagonal elements are left)",
    "linalg.eigvalsh": "the eigenvalues did not converge ({i} off-diagonal elements are left)",
    "linalg.eig": "the eigenvalues did not converge (the last {i} are missing)",
    "linalg.eigvals": "the eigenvalues did not converge (the last {i} are missing)",
    "linalg.svd": "the singular values did not converge",
    **dict.fromkeys(("linalg.svdvals", *OF_SPECTRA), "the singular values did not converge"),
    "linalg.lstsq": "the matrix has no full rank (element {i} of the triangular factor is zero), or the SVD did not converge",
}
BAD_PIVOTS = "a pivot is not one of the rows, which are counted from 1"


def meaning(op: str, info: int) -> str:
    """Explains LAPACK's positive info for an operation."""
    return MEANING[op].format(i=info) if op in MEANING else singular(op, info)


# LU of NaN or infinity spreads them; whether LAPACK then finds a zero among the pivots depends on the library.
SPREADS = ("linalg.lu_factor", "linalg.inv", "linalg.solve")


def _perhaps_singular(
    blas: BlasTraits, op: str, matrix: int, rank: int, check: bool, wrap: Any, plan: Any, infos: list[int],
    arrays: tuple[Any, ...], results: tuple[Any, ...],
) -> Any:  # fmt: skip
    """Handles nonzero infos of an LU: items that are not finite get NaN and info 0, the others are singular.

    `matrix` is the number of the array with the matrices, `rank` that of the batch.
    """
    core, batch = arrays[matrix].shape[-2:], results[0].shape[:rank]
    a = np.broadcast_to(arrays[matrix], (*batch, *core)).reshape(-1, *core)
    spoilt = ~np.isfinite(a).all(axis=(1, 2)) & (np.array(infos) != 0)
    left = [0 if s else _zero_pivot(blas, x, info) if info else 0 for s, x, info in zip(spoilt, a, infos, strict=True)]
    if check and any(left):
        return _failed(op, None, plan, left, arrays, results)
    parts = list(results)
    wrong = spoilt.reshape(batch)
    parts[0][wrong] = np.nan
    if not check:
        if isinstance(parts[-1], np.ndarray):
            parts[-1][...] = np.reshape(left, batch)
        else:
            parts[-1] = np.int32(left[0])
    return wrap(*parts) if wrap else parts[0]


def _zero_pivot(blas: BlasTraits, a: Any, info: int) -> int:
    """Returns the number of A's zero pivot from A's own LU, as `info` may be that of the transpose for another memory order."""
    a = np.array(a, order="F")
    problem = LinalgProblem("linalg.lu_factor", (operand("a", a),), (("check", True),), "linalg", m=len(a), n=a.shape[1])
    w = _Writer(blas, problem, "getrf")
    results, _ = w.lu_factor()
    w.finish()
    found: list[int] = []  # stays empty where rounding lets A's own LU through
    w.b.plan(*results, on_info=lambda plan, infos, arrays, made: found.extend(infos))(a)
    return found[0] if found else info


def _failed(op: str, second: Any, plan: Any, infos: list[int], arrays: tuple[Any, ...], results: tuple[Any, ...]) -> Any:
    item, info = next((i, x) for i, x in enumerate(infos) if x)
    where = f"item {item} of the batch: " if len(infos) > 1 else ""
    if info == NOT_FINITE:
        raise LinAlgError(f"{op}: {where}{not_finite(op)}")
    if info == NOT_IN_RANGE:
        raise BadValue(f"{op}: {where}{BAD_PIVOTS}", remedy="pivots as lu_factor returns them")
    if info < 0:
        raise RuntimeError(f"{op}: {where}LAPACK calls argument {-info} illegal; this is an error in backline")
    if second is not None:
        return second()(*arrays)
    raise LinAlgError(f"{op}: {where}{meaning(op, info)}")
