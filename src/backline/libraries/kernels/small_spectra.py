"""Eigenvalues and eigenvectors of many small symmetric matrices by a compiled loop: a matrix for each lane of a vector."""

from __future__ import annotations

from typing import Any

from ... import _kernels
from ...errors import LinAlgError
from ...native.plan_builder import Builder
from ...problems.linalg_problem import LinalgProblem, not_finite
from ...problems.result_tuples import Eigh
from ..base import Algorithm
from .small_systems import BYTES, SMALL
from .vector_level import vector_level

__all__ = ["prepare_spectra"]

NOT_CONVERGED = 1  # info of matrices that are left undone


def prepare_spectra(p: LinalgProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of an Algorithm that `system_algorithms` listed, for eigenvalues."""
    b, n, level = Builder(p), p.n, vector_level()
    a, batch = b.argument("a"), p.where("a")
    vectors = p.op == "linalg.eigh"
    results = [b.result(p.dtype, (*p.batch, n))]
    results += [b.result(p.dtype, (*p.batch, n, n))] if vectors else []
    lower = p.parameter("UPLO", "L") == "L"
    fields = [p.dtype.itemsize, level, p.items, n, vectors, lower, batch, *p.operands[p.index("a") or 0].strides[-2:]]
    description = b.packed(f"<{len(fields)}q", *fields)
    count = -(-p.items // (BYTES[level] // p.dtype.itemsize))
    infos = b.info(p.items)[0], 0, 0
    b.call(_kernels.addresses["small_spectra"], [description, list(range(count)), a, results[0], results[-1], infos])
    return b.plan(
        *results, count=count, threads=algorithm.threads, wrap=Eigh if vectors else None, release_gil=p.flops >= SMALL,
        on_info=_Failed(p.op),
    )  # fmt: skip


class _Failed:
    """The error for what has no eigenvalues, which names the first such matrix."""

    def __init__(self, op: str) -> None:
        self.op = op

    def __call__(self, plan: Any, infos: list[int], arrays: tuple[Any, ...], results: tuple[Any, ...]) -> Any:
        item, info = next((i, x) for i, x in enumerate(infos) if x)
        why = "the eigenvalues did not converge" if info == NOT_CONVERGED else not_finite(self.op)
        raise LinAlgError(f"{self.op}: item {item} of the batch: {why}")
