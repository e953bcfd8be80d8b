"""Attention as it is written down: a product, softmax, a product. NumPy's, for every shape, dtype and mask; and its gradients.

It holds all scores at once, queries x keys for every head. A key that a mask leaves out takes no part at all: NaN or infinity
in it go nowhere. That holds for masks of bool, for minus infinity in masks that are added, and for causal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ... import switches
from ...problems.attention_problem import AttentionGrads, AttentionProblem
from ...switches.definitions import KERNELS
from ..attention_constraints import facts_of, refusal
from ..base import Algorithm, Refusal

__all__ = ["HALF", "algorithms", "plan"]

Array = np.ndarray[Any, Any]
HALVES = ("float16", "bfloat16")
HALF = "math_half"


def algorithms(library: str, problem: AttentionProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """What NumPy has, and why the kernels that no library has for arrays of the CPU are none."""
    for kernel in KERNELS:
        if kernel == "overrideable":
            yield Refusal(library, kernel, "no extension has registered one")
        elif kernel not in ("math", "flash_attention"):
            yield Refusal(library, kernel, refusal(kernel, problem, facts_of(problem.device)))
    reason = refusal("math", problem, facts_of(problem.device))
    if reason:
        yield Refusal(library, "math", reason)
        return
    if problem.dtype.name in HALVES and switches.get("cuda.fp16_bf16_reduction_math_sdp"):
        how = f"products and softmax rounded to {problem.dtype.name}"
        yield Algorithm(library=library, name=HALF, level="threads", basis="construction", note=how, traits=("math", "half math"))
    precision = "f32 accumulation" if problem.dtype.name in HALVES else ""
    note = "all scores of all heads at once"
    if problem.dtype.name not in (*HALVES, "float32", "float64"):  # no BLAS takes part
        yield Algorithm(library=library, name="math", level="threads", basis="construction", note=note, traits=("math",))
        return
    pool = "numpy" if threads > 1 else ""
    yield Algorithm(
        library=library, name="math", threads=threads, scaled=True, precision=precision, pool=pool, note=note, traits=("math",)
    )


def plan(problem: AttentionProblem, *, half: bool = False) -> Callable[..., Any]:
    """The function of the arrays of the call: attention, or its gradients where ``grad`` is among the operands.

    With `half` operands of half precision are not widened: each product, and the softmax, is rounded to their dtype.
    """
    index = {o.role: i for i, o in enumerate(problem.operands)}

    def run(*arrays: Array) -> Any:
        found = {role: arrays[i] for role, i in index.items()}
        with np.errstate(all="ignore"):  # what overflows or is NaN shows in the result
            formula = _Formula(problem, found["query"], found["key"], found["value"], found.get("mask"), half)
            return formula.gradients(found["grad"]) if "grad" in found else formula.result()

    return run


class _Formula:
    """One attention in the precision it is computed in: half precisions in float32, unless they are to stay as they are.

    Attributes
    ----------
    query, key, value
        In that precision; query and key times the root of the scale, which keeps large scores finite longer.
    roots
        What query and key were multiplied with; their product is the scale.
    taken
        Where a key takes part for a query, over what it broadcasts to; None for everywhere.
    weights
        Softmax of the scores; 0 where a key takes no part.
    """

    def __init__(self, problem: AttentionProblem, query: Array, key: Array, value: Array, mask: Array | None, half: bool) -> None:
        self.problem, self.mask = problem, mask
        compute = np.dtype(np.float32) if problem.dtype.name in HALVES and not half else problem.dtype
        self.zero = compute.type(0)
        root = np.sqrt(np.longdouble(abs(problem.scale)))  # rounded once, to the precision that is computed in
        self.roots = compute.type(-root if problem.scale < 0 else root), compute.type(root)
        self.query = query.astype(compute, copy=False) * self.roots[0]
        self.key = key.astype(compute, copy=False) * self.roots[1]
        self.value = value.astype(compute, copy=False)
        self.taken = self._taken()
        self.weights = self._softmax()

    def _taken(self) -> Array | None:
        if self.mask is not None:
            return self.mask if self.mask.dtype.kind == "b" else np.asarray(self.mask != -np.inf)
        if self.problem.is_causal:
            return np.tri(*self.problem.lengths[:2], dtype=bool)
        return None

    def _softmax(self) -> Array:
        scores = self._product(self.query, self.key.swapaxes(-1, -2))
        compute = scores.dtype
        if compute.name in HALVES:
            scores = scores.astype(np.float32)
        if self.mask is not None and self.mask.dtype.kind != "b":
            scores = scores + self.mask.astype(scores.dtype, copy=False)
        if self.taken is not None:
            scores = np.where(self.taken, scores, scores.dtype.type(-np.inf))
        most = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        most[most == -np.inf] = 0
        weights = np.exp(scores - most)
        total = weights.sum(axis=-1, keepdims=True)
        total[total == 0] = 1  # no key takes part: zeros
        return self._where_taken((weights / total).astype(compute, copy=False))

    def _where_taken(self, values: Array) -> Array:
        return values if self.taken is None else np.asarray(np.where(self.taken, values, self.zero))

    def _heads(self, array: Array) -> tuple[int, int]:
        """Heads of a key or value, and how many query heads share each."""
        heads = array.shape[-3] if array.ndim > 2 else 1
        return heads, self.problem.heads[0] // heads if self.problem.enable_gqa and heads else 1

    def _product(self, left: Array, right: Array) -> Array:
        """A matrix for every query head times one of a key or value."""
        heads, each = self._heads(right)
        if each == 1:
            return np.asarray(np.matmul(left, right)).astype(self.zero.dtype, copy=False)  # of bfloat16 NumPy makes float32
        right = right if right.ndim > 2 else right[None]
        split = left.reshape(*left.shape[:-3], heads, each, *left.shape[-2:])
        product = np.asarray(np.matmul(split, right[..., :, None, :, :])).astype(self.zero.dtype, copy=False)
        return product.reshape(*product.shape[:-4], heads * each, *product.shape[-2:])

    def _careful(self, left: Array, right: Array, taken: Array | None) -> Array:
        """`_product`, but what is not finite on the right does not meet the zeros that are on the left where nothing is taken."""
        finite = np.asarray(np.isfinite(right).all(axis=-1))
        if taken is None or finite.all():
            return self._product(left, right)
        length = right.shape[-2]
        bad = np.flatnonzero(~finite.reshape(-1, length).all(axis=0))
        good = right.copy()
        good[..., bad, :] = 0
        product = self._product(left, good)
        _, each = self._heads(right)
        if each > 1:
            right = np.repeat(right if right.ndim > 2 else right[None], each, axis=-3)
        taken = np.broadcast_to(taken, (*taken.shape[:-1], length))
        for j in bad:
            part = left[..., j, None] * right[..., None, j, :]
            product = product + np.where(taken[..., j, None], part, self.zero)
        return product

    def _kept(self) -> Array | None:
        """What dropout multiplies the weights with; None without it."""
        p = self.problem.dropout
        if p == 0:
            return None
        kept = np.random.default_rng(self.problem.parameter("seed")).random(self.weights.shape) >= p
        return np.asarray(kept * self.weights.dtype.type(1 / (1 - p) if p < 1 else 0))

    def result(self) -> Array:
        """What the operation returns."""
        kept = self._kept()
        weights = self.weights if kept is None else self.weights * kept
        return self._careful(weights, self.value, self.taken).astype(self.problem.dtype, order="C", copy=False)

    # gradients ----------------------------------------------------------------------------------------------------------

    def gradients(self, grad: Array) -> AttentionGrads:
        """With respect to query, key, value and, where it is added, the mask."""
        grad = grad.astype(self.weights.dtype, copy=False)
        kept = self._kept()
        weights = self.weights if kept is None else self.weights * kept
        changed = self._where_taken(self._product(grad, self.value.swapaxes(-1, -2)))
        changed = changed if kept is None else changed * kept
        weighted = changed * self.weights
        scores = self._where_taken(weighted - self.weights * weighted.sum(axis=-1, keepdims=True))
        across = None if self.taken is None else np.atleast_2d(self.taken).swapaxes(-1, -2)
        query = self._careful(scores, self.key, self.taken) * self.roots[0]
        key = self._back(scores, self.query, across, self.key) * self.roots[1]
        value = self._back(weights, grad, across, self.value)
        added = self.mask is not None and self.mask.dtype.kind != "b"
        mask = _summed(scores, self.mask.shape).astype(self.mask.dtype, copy=False) if added and self.mask is not None else None
        query = _summed(query, self.query.shape)
        query, key, value = (x.astype(self.problem.dtype, order="C", copy=False) for x in (query, key, value))
        return AttentionGrads(query, key, value, mask)

    def _back(self, weights: Array, rows: Array, across: Array | None, of: Array) -> Array:
        """The gradient of a key or value: every query head's, added up over those that share one of its heads."""
        left = weights.swapaxes(-1, -2)
        across = None if across is None else np.broadcast_to(across, (*across.shape[:-1], rows.shape[-2]))
        found = self._careful(left, rows, across)
        heads, each = self._heads(of)
        if each > 1:
            found = found.reshape(*found.shape[:-3], heads, each, *found.shape[-2:]).sum(axis=-3)
        return _summed(found, of.shape)


def _summed(array: Array, shape: tuple[int, ...]) -> Array:
    """Added up over the axes along which an operand of that shape was broadcast."""
    array = array.sum(axis=tuple(range(array.ndim - len(shape))))
    axes = tuple(axis for axis, (n, m) in enumerate(zip(shape, array.shape, strict=True)) if n == 1 != m)
    return np.asarray(array.sum(axis=axes, keepdims=True))
