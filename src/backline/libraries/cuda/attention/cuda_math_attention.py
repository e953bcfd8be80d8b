"""Attention of CuPy's arrays made of products and a softmax: "math". It takes every shape and mask, and has every gradient.

The products are operations of their own, chosen by the engine: they obey what the switches say of products of matrices. Half
precisions are computed in float32; where a switch permits it, "math_half" has their products in their own precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ....errors import BacklineError
from ....problems import Operand
from ....problems.attention_problem import AttentionProblem
from ....problems.dtypes import HALVES, compute_dtype
from ....problems.matmul_problem import MatmulProblem
from ....problems.memory_layout import contiguous_strides
from ...attention_constraints import Facts, refusal
from ...base import Algorithm, Planner, Refusal
from ...reference.attention_formula import AttentionSpace, run
from ..common import bindings
from .philox import kept

__all__ = ["Products", "algorithms", "function", "product_of", "scores_of"]

COMPUTED = (*HALVES, "float32", "float64")
WAYS = {"math_half": ("math", "half math"), "math": ("math",)}
"""Name -> traits. What a switch has to permit comes first: permitting it is asking for it."""


def product_of(left: Operand, right: Operand, device: str) -> MatmulProblem:
    """The Problem of a product of two batches of matrices."""
    (*a, m, k), (*b, _, n) = left.shape, right.shape
    batch = np.broadcast_shapes(tuple(a), tuple(b))
    return MatmulProblem(
        "matmul", (left, right), (), "matmul", m=m, n=n, k=k, batch=batch, result=(*batch, m, n), device=device,
    )  # fmt: skip


def scores_of(p: AttentionProblem, dtype: np.dtype[Any]) -> MatmulProblem:
    """The first product of a Problem: what chooses for it chooses for them all."""
    query, key, _ = p.shapes
    if p.enable_gqa and len(key) > 2 and key[-3] != query[-3]:
        query = (*query[:-3], key[-3], query[-3] // key[-3] * query[-2], query[-1])
    size, strides = dtype.itemsize, contiguous_strides(key, dtype.itemsize)
    turned = Operand("b", dtype, (*key[:-2], key[-1], key[-2]), (*strides[:-2], strides[-1], strides[-2]))
    return product_of(Operand("a", dtype, query, contiguous_strides(query, size)), turned, p.device)


def _inner(p: AttentionProblem, half: bool) -> np.dtype[Any]:
    """Returns the dtype that the products are computed in."""
    return p.dtype if half else compute_dtype(p.dtype)


class Products:
    """The products of one Problem on a device ("cuda:0"), each planned when it is first met: all calls have the same ones."""

    def __init__(self, device: str, dtype: np.dtype[Any], planner: Planner) -> None:
        self.device, self.dtype, self.planner = device, dtype, planner
        self.plans: dict[tuple[tuple[int, ...], ...], Any] = {}

    def plan(self, problem: MatmulProblem) -> Any:
        """The Plan of a product."""
        a, b = problem.operands
        key = (a.shape, a.strides, b.shape, b.strides)
        plan = self.plans.get(key)
        if plan is None or getattr(plan, "failed", False):
            plan = self.plans[key] = self.planner.plan(problem)
        return plan

    def __call__(self, left: Any, right: Any) -> Any:
        given = left.dtype
        left, right = (x if x.dtype == self.dtype else x.astype(self.dtype) for x in (left, right))
        a, b = (Operand(role, self.dtype, x.shape, x.strides) for role, x in (("a", left), ("b", right)))
        found = self.plan(product_of(a, b, self.device))(left, right)
        return found if given == self.dtype else found.astype(given)


class _Run:
    """The function of a Plan: of the arrays of a call."""

    def __init__(self, p: AttentionProblem, half: bool, planner: Planner) -> None:
        self.p, self.roles = p, [o.role for o in p.operands]
        self.compute = compute_dtype(p.dtype)
        self.multiply = Products(p.device, _inner(p, half), planner)
        self.multiply.plan(scores_of(p, self.multiply.dtype))

    def __call__(self, *arrays: Any, **scalars: int) -> Any:
        p, xp = self.p, bindings.cupy()

        def drawn(shape: tuple[int, ...], seed: int) -> Any:
            return kept(xp, shape, seed, p.dropout, self.compute)

        space = AttentionSpace(xp, self.compute, np.dtype(bool), self.multiply, drawn)
        return run(p, space, dict(zip(self.roles, arrays, strict=True)), **scalars)


def algorithms(library: str, p: AttentionProblem, planner: Planner) -> Iterator[Algorithm | Refusal]:
    """Lists the algorithms for a Problem under a library's name."""
    reason = refusal("math", p, Facts())
    if not reason and p.dtype.name not in COMPUTED:
        reason = f"attention on CUDA is for {', '.join(COMPUTED)}, not {p.dtype.name}"
    if reason:
        yield Refusal(library, "math", reason)
        return
    for name, traits in WAYS.items():
        if name == "math" or p.dtype.name in HALVES:
            yield _listed(library, p, name, traits, planner)


def _listed(
    library: str, p: AttentionProblem, name: str, traits: tuple[str, ...], planner: Planner
) -> Algorithm | Refusal:
    try:
        chosen = planner.chosen(scores_of(p, _inner(p, name == "math_half"))).chosen
    except BacklineError as error:
        return Refusal(library, name, f"there is nothing for its products: {error}")
    # What half precisions lose is lost in their inputs; a product of float32 may be coarser than these.
    precision = "f32 accumulation" if p.dtype.name in HALVES else chosen.precision
    note = f"all scores of all heads at once; products by {chosen.library} {chosen.name}"
    return Algorithm(
        library=library, name=name, precision=precision, level=chosen.level, basis=chosen.basis, note=note, traits=traits
    )


def function(p: AttentionProblem, algorithm: Algorithm, planner: Planner) -> Callable[..., Any]:
    """The function of the arrays of a call, on the device that is current."""
    return _Run(p, "half math" in algorithm.traits, planner)
