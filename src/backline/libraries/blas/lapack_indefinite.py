"""LAPACK's LDL factors, solutions by them, and products of reflectors, as steps."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...native.plan_builder import Pointer
from ...problems import operand
from ...problems.linalg_problem import LinalgProblem
from ...problems.result_tuples import LDLFactor, LDLFactorEx
from ..base import PythonPlan
from ..reference.reference_indefinite import check_pivots, zero_block
from .lapack_solving import Solving
from .lapack_steps import NOT_FINITE

__all__ = ["Indefinite", "checked_pivots", "plain_pivots", "zero_blocks"]


class Indefinite(Solving):
    """One method for each operation, named as the operation is."""

    def ldl_factor(self) -> tuple[list[Pointer], Any]:
        n = self.p.n
        ld = self.result((n, n), "F")
        native, pivots = self.pivots(n)
        self.load("a", (n, n), "F", ld)
        # The pivots of matrices that LAPACK is not given: no interchanges.
        rows = self.b.constant(np.arange(1, n + 1, dtype=np.int32 if self.native.int_size == 4 else np.int64).tobytes())
        width = self.native.int_size
        self.b.copy((1, n), rows, (0, width), native, (0, width), width)
        self.b.triangle("zero_upper", (n, n), self.packed((n, n), "F"), self.dtype, ld)
        self.finite(n * n, ld)
        lwork, _ = self.workspace("{t}" + self.routine, "L", n, None, n, None, "work", "lwork", None)
        self.lapack("{t}" + self.routine, "L", n, ld, n, native, self.b.work(lwork * self.size), lwork, self.info())
        return self.with_info([ld, pivots], LDLFactor, LDLFactorEx)

    def ldl_solve(self) -> tuple[list[Pointer], Any]:
        n = self.p.n
        ld = self.b.work(n * n * self.size)
        self.load("a", (n, n), "F", ld)
        o = self.p.get("p")
        assert o is not None
        pivots = self.b.work(self.native.int_size * n)
        kind = ("int32", "int64") if self.native.int_size == 8 else 4
        given = self.b.argument("p", self.p.where("p", 1))
        self.b.copy((1, n), given, (0, o.strides[-1]), pivots, (0, self.native.int_size), kind)
        x, k = self.right_sides(n, "F")
        self.lapack("{t}" + self.routine, "L", n, k, ld, n, pivots, x, n, self.info())
        return self.returned(x), None

    def householder_product(self) -> tuple[list[Pointer], Any]:
        m, n, k = self.p.m, self.p.n, self.p.k
        q = self.result((m, n), "F")
        self.load("a", (m, n), "F", q)
        o = self.p.get("t")
        assert o is not None
        tau = self.b.work(max(k, 1) * self.size)
        if k:
            self.b.copy((1, k), self.b.argument("t", self.p.where("t", 1)), (0, o.strides[-1]), tau, (0, self.size), self.size)
        lwork, _ = self.workspace("{q}gqr", m, n, k, None, m, None, "work", "lwork", None)
        self.lapack("{q}gqr", m, n, k, q, m, tau, self.b.work(lwork * self.size), lwork, self.info())
        return self.returned(q), None


def zero_blocks(p: LinalgProblem, wrap: Any, plan: Any, infos: list[int], arrays: Any, results: tuple[Any, ...]) -> Any:
    """Results where an info is not 0: items that are not finite get NaN and info 0, the others are singular."""
    found = np.array(infos)
    spoilt = found == NOT_FINITE
    if p.parameter("check", True):
        for item, info in enumerate(infos):
            if info > 0:
                raise zero_block(p, item, info)
    parts = list(results)
    parts[0][spoilt.reshape(p.batch)] = np.tril(np.full((p.n, p.n), np.nan))
    if len(parts) > 2:
        left = np.where(spoilt, 0, found).reshape(p.batch).astype(np.int32)
        if isinstance(parts[2], np.ndarray):
            parts[2][...] = left
        else:
            parts[2] = left[()]
    return wrap(*parts)


def plain_pivots(p: LinalgProblem) -> LinalgProblem:
    """The Problem with pivots as `checked_pivots` hands them on."""
    o = p.get("p")
    assert o is not None
    plain = operand("p", np.empty(o.shape, np.int32))
    return replace(p, operands=tuple(plain if each.role == "p" else each for each in p.operands))


def checked_pivots(p: LinalgProblem, plan: Any) -> PythonPlan:
    """The plan, called with a copy of the pivots that was looked at: LAPACK follows them through memory without looking."""
    index = p.index("p")
    assert index is not None
    return PythonPlan(partial(_checked, index, plan))


def _checked(index: int, plan: Any, *arrays: Any) -> Any:
    pivots = np.array(arrays[index], np.int32, order="C")
    check_pivots(pivots)
    return plan(*(pivots if i == index else array for i, array in enumerate(arrays)))
