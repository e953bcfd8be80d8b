"""The formula of attention over an array namespace, for NumPy, CuPy and MLX.

A product, softmax, a product; and the gradients. All scores are held at once, queries x keys for every head. A key that takes no
part does not count at all: NaN or infinity in it, or in its value, go nowhere. That holds for masks of bool, for minus infinity
in masks that are added, and for causal ones. Nothing is read back from a device for that: where something is left out, one more
product counts for every element of the result the infinities that it has a share in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...problems.attention_problem import AttentionGrads, AttentionLSE, AttentionProblem

__all__ = ["AttentionSpace", "kept_weights", "run"]

Array = Any


@dataclass(frozen=True, slots=True)
class AttentionSpace:
    """The arrays that the formula computes with."""

    xp: Any  # the namespace: CuPy, ``mlx.core``, NumPy
    # compute, flag: its dtypes of softmax, and of truth.
    compute: Any
    flag: Any
    # The product of two batches of matrices; either may be another one with its last axes exchanged.
    multiply: Callable[[Array, Array], Array]
    # Shape of the weights and seed -> what dropout multiplies them with. Called only where there is dropout.
    kept: Callable[[tuple[int, ...], Any], Array]
    # Makes a number that arrays of the dtype `compute` can be multiplied with, of one in extended precision.
    scalar: Callable[[Any], Any] = float
    values_known: bool = False  # whether values can be read without waiting for a device


def kept_weights(p: AttentionProblem, shape: tuple[int, ...], seed: int, dtype: np.dtype[Any]) -> Array:
    """Returns what dropout multiplies the weights with, by NumPy's generator."""
    kept = np.random.default_rng(seed).random(shape) >= p.dropout
    return np.asarray(kept * dtype.type(1 / (1 - p.dropout) if p.dropout < 1 else 0))


def run(p: AttentionProblem, space: AttentionSpace, given: dict[str, Array], seed: int | None = None) -> Any:
    """Computes attention of arrays by role, or its gradients where ``grad`` is among them. Results have the arrays' own dtype.

    `seed` is that of dropout. With ``lse`` among the arrays, the log-sum-exp that attention gave, the softmax takes one pass;
    with ``output``, the gradient of a row takes no pass over its scores.
    """
    if p.dropout and seed is None:
        raise TypeError("attention with dropout is given a seed with its arrays")
    queries, keys, _ = p.lengths
    leads = [shape[:-2] for shape in p.shapes]
    if p.enable_gqa:
        leads = [shape[:-3] for shape in p.shapes]
    lead = np.broadcast_shapes(*leads)
    if p.enable_gqa and max(map(len, p.shapes)) > 2:
        lead = (*lead, p.heads[0])
    zeros, dtype = space.xp.zeros, given["query"].dtype
    if 0 in (*lead, queries, keys) or (p.dims[2] == 0 and not p.returns_lse):
        if "grad" not in given:
            output = zeros((*lead, queries, p.dims[2]), dtype)
            none = space.xp.full((*lead, queries), -float("inf"), space.compute)
            return AttentionLSE(output, none) if p.returns_lse else output
        query, key, value = (zeros(shape, dtype) for shape in p.shapes)
        added = p.mask is not None and p.mask.dtype.kind != "b"
        return AttentionGrads(query, key, value, zeros(given["mask"].shape, given["mask"].dtype) if added else None)
    formula = _Formula(p, space, given, seed)
    return formula.gradients(given["grad"]) if "grad" in given else formula.result(lead)


class _Formula:
    """One attention."""

    def __init__(self, p: AttentionProblem, space: AttentionSpace, given: dict[str, Array], seed: int | None) -> None:
        self.p, self.space, self.xp = p, space, space.xp
        self.mask, self.dtype = given.get("mask"), given["query"].dtype
        self.mask_dtype = None if self.mask is None else self.mask.dtype
        self.added = p.mask is not None and p.mask.dtype.kind != "b"
        if self.added:
            self.mask = _as(self.mask, space.compute)
        self.zero, self.one = (self.xp.full((), value, space.compute) for value in (0.0, 1.0))
        self.infinity = self.xp.full((), float("inf"), space.compute)
        # Query and key are multiplied with these, whose product is the scale: that keeps large scores finite longer.
        root = np.sqrt(np.longdouble(abs(p.scale)))  # rounded once, to the precision that is computed in
        self.roots = space.scalar(-root if p.scale < 0 else root), space.scalar(root)
        self.query, self.key = (_as(given[role], space.compute) * r for role, r in zip(("query", "key"), self.roots, strict=True))
        self.value = _as(given["value"], space.compute)
        self.taken = self._taken()  # where a key takes part for a query, over what it broadcasts to; None for everywhere
        self.lse: Array = None  # log-sum-exp of each row of scores, where it is a result
        self.output = given.get("output")
        self.weights = self._softmax(given.get("lse"))  # of the scores; 0 where a key takes no part
        self.kept = space.kept(tuple(self.weights.shape), seed) if p.dropout > 0 else None
        self.used = self.weights if self.kept is None else self.weights * self.kept

    def _taken(self) -> Array | None:
        if self.mask is not None:
            return self.mask != -float("inf") if self.added else self.mask
        if self.p.is_causal:
            return self.xp.tri(*self.p.lengths[:2], 0, dtype=self.space.flag)
        return None

    def _softmax(self, lse: Array) -> Array:
        xp, least = self.xp, -self.infinity
        scores = self._rows(self.query, self.key, turned=True)
        if self.mask is not None and self.added:
            scores = scores + self.mask
        if self.taken is not None:
            scores = xp.where(self.taken, scores, least)
        if lse is not None:  # minus infinity where no key takes part: the scores are that, too
            lse = self._of_scores(lse, scores)
            return self._where_taken(xp.exp(scores - xp.where(lse == least, self.zero, lse)))
        most = xp.max(scores, axis=-1, keepdims=True)
        weights = xp.exp(scores - xp.where(most == least, self.zero, most))
        total = xp.sum(weights, axis=-1, keepdims=True)
        if self.p.returns_lse:
            self.lse = xp.where(total == self.zero, least, most + xp.log(total))[..., 0]
        weights = weights / xp.where(total == self.zero, self.one, total)  # no key takes part: zeros
        return self._where_taken(weights)

    def _where_taken(self, values: Array) -> Array:
        return values if self.taken is None else self.xp.where(self.taken, values, self.zero)

    # --- products ---------------------------------------------------------------------------------------------------------

    def _shared(self, of: Array) -> int:
        """Returns the number of query heads that share one of a key or value."""
        heads = of.shape[-3] if of.ndim > 2 else 1
        return self.p.heads[0] // heads if self.p.enable_gqa else 1

    @staticmethod
    def _folded(array: Array, each: int) -> Array:
        """Rows of all the query heads that share one of a key or value, one after the other."""
        if each == 1:
            return array
        *batch, heads, rows, columns = array.shape
        return array.reshape(*batch, heads // each, each * rows, columns)

    @staticmethod
    def _unfolded(array: Array, each: int) -> Array:
        if each == 1:
            return array
        *batch, heads, rows, columns = array.shape
        return array.reshape(*batch, heads * each, rows // each, columns)

    def _rows(self, left: Array, of: Array, turned: bool = False) -> Array:
        """The rows of every query head times the matrix of a key or value."""
        each = self._shared(of)
        right = of.swapaxes(-1, -2) if turned else of
        return self._unfolded(self.space.multiply(self._folded(left, each), right), each)

    def _back(self, weights: Array, rows: Array, of: Array) -> Array:
        """For each key, the rows times its weights, added up over all queries and all heads that share it."""
        each = self._shared(of)
        return self.space.multiply(self._folded(weights, each).swapaxes(-1, -2), self._folded(rows, each))

    def _careful(self, product: Callable[[Array, Array], Array], left: Array, right: Array) -> Array:
        """A product in which what is not finite on the right counts only where a key takes part.

        Weights are never negative, so on devices an infinity counts with its own sign. Where values can be read this happens
        only if something is not finite, so there is time for the signs on the left, and for zeros: these make a NaN.
        """
        xp, infinity = self.xp, self.infinity
        if self.taken is None or (self.space.values_known and xp.isfinite(right).all()):
            return product(left, right)
        unknown, up, down = xp.isnan(right), right == infinity, right == -infinity
        strange = up | down | unknown
        found = product(left, xp.where(strange, self.zero, right))
        taken = xp.broadcast_to(self.taken, (*self._lead(self.taken), *self.p.lengths[:2]))
        shares = [(taken, up | unknown, down | unknown)]  # where a weight is taken, with what gives infinity, and what minus it
        if self.space.values_known:
            above, below = left > self.zero, left < self.zero
            shares = [
                (taken & above, up | unknown, down | unknown),
                (taken & below, down | unknown, up | unknown),
                (taken & ~(above | below), strange, strange),
            ]
        counts = self.zero
        for where, plus, minus in shares:
            flags = xp.concatenate([plus, minus], axis=-1).astype(self.space.compute)
            counts = counts + product(where.astype(self.space.compute), flags)
        columns = right.shape[-1]
        found = xp.where(counts[..., :columns] > self.zero, found + infinity, found)
        return xp.where(counts[..., columns:] > self.zero, found - infinity, found)  # both: NaN

    def _lead(self, taken: Array) -> tuple[int, ...]:
        """Batch and heads over which a mask is spread: with shared heads, those of the query."""
        lead = tuple(taken.shape[:-2])
        if not self.p.enable_gqa or max(map(len, self.p.shapes)) < 3:
            return lead
        return (*lead[:-1], self.p.heads[0])

    # --- results ----------------------------------------------------------------------------------------------------------

    def result(self, lead: tuple[int, ...]) -> Any:
        """Returns the attention, with the log-sum-exp where that is asked for."""
        if not self.p.returns_lse:
            return _as(self._careful(self._rows, self.used, self.value), self.dtype)
        if self.p.dims[2] == 0:  # the log-sum-exp has no such axis
            return AttentionLSE(self.xp.zeros((*lead, self.p.lengths[0], 0), self.dtype), self._spread(self.lse, lead))
        output = _as(self._careful(self._rows, self.used, self.value), self.dtype)
        return AttentionLSE(output, self._spread(self.lse, lead))

    def _spread(self, lse: Array, lead: tuple[int, ...]) -> Array:
        """The log-sum-exp of scores over batch and heads of the result, which those of the value may have made more."""
        shape = (*lead, self.p.lengths[0])
        return lse if tuple(lse.shape) == shape else self.xp.broadcast_to(lse, shape) + self.zero

    @staticmethod
    def _of_scores(lse: Array, scores: Array) -> Array:
        """A log-sum-exp over batch and heads of the result, as a column for scores, which may have fewer of them."""
        more = lse.ndim + 1 - scores.ndim
        lse = lse[(0,) * more] if more else lse
        spread = zip(scores.shape[:-1], lse.shape, strict=True)
        return lse[tuple(slice(0, 1) if n == 1 != m else slice(None) for n, m in spread)][..., None]

    def gradients(self, grad: Array) -> AttentionGrads:
        """With respect to query, key, value and, where it is added, the mask."""
        grad = _as(grad, self.space.compute)
        changed = self._where_taken(self._rows(grad, self.value, turned=True))
        changed = changed if self.kept is None else changed * self.kept
        weighted = changed * self.weights
        if self.output is not None and self.output.dtype == self.space.compute:
            total = self.xp.sum(self.output * grad, axis=-1, keepdims=True)  # the same sum, of fewer terms
        else:
            total = self.xp.sum(weighted, axis=-1, keepdims=True)  # of a result that was not rounded
        scores = self._where_taken(weighted - self.weights * total)
        query = self._careful(self._rows, scores, self.key) * self.roots[0]
        key = self._careful(lambda left, rows: self._back(left, rows, self.key), scores, self.query) * self.roots[1]
        value = self._careful(lambda left, rows: self._back(left, rows, self.value), self.used, grad)
        found = [_as(self._summed(x, of), self.dtype) for x, of in zip((query, key, value), self.p.shapes, strict=True)]
        mask = None
        if self.mask is not None and self.added:
            mask = _as(self._summed(scores, tuple(self.mask.shape)), self.mask_dtype)
        return AttentionGrads(found[0], found[1], found[2], mask)

    def _summed(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Added up over the axes along which an operand of that shape was broadcast."""
        extra = array.ndim - len(shape)
        if extra:
            array = self.xp.sum(array, axis=tuple(range(extra)))
        axes = tuple(axis for axis, (n, m) in enumerate(zip(shape, array.shape, strict=True)) if n == 1 != m)
        return self.xp.sum(array, axis=axes, keepdims=True) if axes else array


def _as(array: Array, dtype: Any) -> Array:
    """The array in a dtype: itself where it has it."""
    return array if array.dtype == dtype else array.astype(dtype)
