"""Determinants, inverses, solutions and Cholesky factors of many small systems by a compiled loop: a matrix for each vector lane.

Eigenvalues of symmetric matrices are listed here too; `small_spectra` has them.

LAPACK takes one matrix at a time, and with so few elements most of its time is the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ... import _kernels
from ...errors import LinAlgError
from ...native import thread_team
from ...native.plan_builder import Builder
from ...problems.linalg_problem import LinalgProblem, not_definite, singular
from ...problems.result_tuples import CholeskyEx, InvEx, Slogdet, SolveEx
from ..base import Algorithm, Refusal
from .vector_level import vector_level

__all__ = ["LANES", "SPECTRA", "prepare_systems", "system_algorithms"]

LANES = "lanes"
MOST = 16  # rows, columns and right-hand sides, as small_systems.cpp has them
DETERMINANT, LOGARITHM, INVERSE, SOLUTION, LOWER, UPPER = range(6)  # as small_systems.cpp has them
KINDS = {
    "linalg.det": DETERMINANT, "linalg.slogdet": LOGARITHM, "linalg.inv": INVERSE, "linalg.solve": SOLUTION,
    "linalg.cholesky": LOWER,
}  # fmt: skip
SPECTRA = ("linalg.eigh", "linalg.eigvalsh")
BYTES = (16, 32, 64)  # of a vector, by level
THREADED, SMALL = 2e5, 2e4  # operations from which threads, and the release of the GIL, bring more than they cost
WRAP: dict[tuple[str, bool], Any] = {
    ("linalg.inv", False): InvEx, ("linalg.solve", False): SolveEx, ("linalg.slogdet", True): Slogdet,
    ("linalg.cholesky", False): CholeskyEx,
}  # fmt: skip


def system_algorithms(p: LinalgProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Lists the compiled loop for batches of small real matrices, on one thread and on several."""
    why = _refusal(p)
    if why:
        yield Refusal("kernels", LANES, why)
        return
    note = "a matrix for each lane of a vector"
    if threads > 1 and p.flops >= THREADED:
        yield Algorithm(
            library="kernels", name=LANES, threads=threads, scaled=True, level="threads", basis="construction",
            pool=thread_team.name(), note=note,
        )  # fmt: skip
    yield Algorithm(library="kernels", name=LANES, level="threads", basis="construction", note=note)


def _refusal(p: LinalgProblem) -> str:
    if p.op not in KINDS and p.op not in SPECTRA:
        return f"there is no compiled loop for {p.op}"
    if not p.suits_loops or p.k > MOST:
        return "the loop is for batches of small real matrices"
    if any(o.role.startswith("out") for o in p.operands) or p.parameter("left", True) is not True:
        return "the loop writes new arrays, of solutions on the right of the matrix"
    vectors = ("b",) if p.parameter("vector") else ()
    if not all(o.aligned and isinstance(p.where(o.role, 1 if o.role in vectors else 2), int) for o in p.operands):
        return "the items of the batch are not at equal distances in memory"
    return ""


def prepare_systems(p: LinalgProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of what `system_algorithms` listed."""
    b, n, kind = Builder(p), p.n, KINDS[p.op]
    sides, check = p.get("b"), bool(p.parameter("check", True))
    k = n if kind == INVERSE else p.k if kind == SOLUTION else 0
    a, batch = b.argument("a"), p.where("a")
    rows = p.operands[p.index("a") or 0].strides[-2:]
    if kind == LOWER and p.parameter("upper", False):
        kind, rows = UPPER, rows[::-1]
    right, steps = a, (0, 0, 0)
    if sides is not None:
        vector = p.parameter("vector", False)
        right = b.argument("b")
        where, strides = p.where("b", 1 if vector else 2), sides.strides
        assert isinstance(where, int)
        steps = (where, strides[-1], 0) if vector else (where, strides[-2], strides[-1])
    results = [b.result(p.dtype, (*p.batch, *_core(p, kind)))]
    results += [b.result(p.dtype, p.batch)] if kind == LOGARITHM else []
    may_fail = kind not in (DETERMINANT, LOGARITHM)
    if not may_fail:
        infos = b.work(8)
    elif check:
        infos = (b.info(p.items)[0], 0, 0)
    else:
        infos = b.result(np.int32, p.batch)
        results.append(infos)
    level = vector_level()
    fields = [p.dtype.itemsize, level, kind, p.items, n, k, batch, *rows, *steps]
    description = b.packed(f"<{len(fields)}q", *fields)
    count = -(-p.items // (BYTES[level] // p.dtype.itemsize))
    logarithm = results[1] if kind == LOGARITHM else results[0]
    b.call(_kernels.addresses["small_systems"], [description, list(range(count)), a, right, results[0], logarithm, infos])
    return b.plan(
        *results, count=count, threads=algorithm.threads, wrap=WRAP.get((p.op, check)), release_gil=p.flops >= SMALL,
        on_info=_Failed(p.op) if may_fail and check else None,
    )  # fmt: skip


def _core(p: LinalgProblem, kind: int) -> tuple[int, ...]:
    """Returns the shape of the result of one matrix."""
    if kind in (DETERMINANT, LOGARITHM):
        return ()
    return (p.n,) if p.parameter("vector", False) else (p.n, p.k if kind == SOLUTION else p.n)


class _Failed:
    """The error for a pivot that is zero, or not positive, which the first matrix that has one is named in."""

    def __init__(self, op: str) -> None:
        self.op = op

    def __call__(self, plan: Any, infos: list[int], arrays: tuple[Any, ...], results: tuple[Any, ...]) -> Any:
        item, info = next((i, x) for i, x in enumerate(infos) if x)
        why = not_definite(info) if self.op == "linalg.cholesky" else singular(self.op, info)
        raise LinAlgError(f"{self.op}: item {item} of the batch: {why}")
