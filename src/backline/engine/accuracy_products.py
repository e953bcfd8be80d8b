"""Relative errors of matrix products: each element is judged by the size that its terms would give it if none cancelled.

That is the root of the sum of the squared terms, or the element itself where that is larger. A sum whose terms happen to
cancel is then no worse than others, as it would be if it were judged by itself. The sum of absolute terms would do that as
well, but it grows faster with the length of a sum than the sum does, so that in long ones nothing at all would count as
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..problems.matmul_problem import MatmulProblem
from .accuracy_wide import EPS, ProblemReference, may_hold
from .double_double import CHUNK, Pair, difference, exponent, pair, paired, probes, product, scaled, times, widened

__all__ = ["ProductReference"]

Array = Any

FLOPS = 5e7  # of a product that is computed whole in double-double arithmetic, or of the rows that are
ITEMS, ROWS, COLUMNS = 4, 16, 1024  # of a larger one that are compared, the first and the last among them


class ProductReference(ProblemReference):
    """The reference of a product of matrices, or of a sample of its rows and columns."""

    problem: MatmulProblem

    def __init__(self, problem: MatmulProblem, arrays: list[Array]) -> None:
        super().__init__(problem, arrays)
        p = problem
        self.double |= p.dtype.char in "gG"
        copies = (16 if p.dtype.kind == "c" else 8) * (sum(math.prod(o.shape) for o in p.operands) + p.m * p.n * p.items)
        self.whole = may_hold(copies) and not (self.double and p.flops > FLOPS)
        self.views = {
            o.role: np.lib.stride_tricks.as_strided(x, o.shape, o.strides) for o, x in zip(p.operands, arrays, strict=True)
        }
        working = np.dtype(np.float32) if p.dtype.name in ("float16", "bfloat16") else p.dtype
        self.alpha, self.beta = (widened(np.asarray(x).astype(working)) for x in (p.alpha, p.beta))
        self.powers = self._powers() if self.double else dict.fromkeys(("sum", "product", "addend", *self.views), 0)
        self._shown: tuple[Array, Array, Array] | None = None
        self._wanted: dict[Any, tuple[Pair, Array]] = {}

    def _powers(self) -> dict[str, int]:
        """Powers of two that operands, alpha * A @ B, beta * C and their sum are multiplied by such that nothing overflows."""
        found = {role: -exponent(x) for role, x in self.views.items()}
        ab, bc = found["a"] + found["b"], found.get("c", 0)
        first, second = exponent(self.alpha), exponent(self.beta)
        self.alpha, self.beta = scaled(self.alpha, -first), scaled(self.beta, -second)
        found["sum"] = min(ab - first, bc - second) if self.problem.beta != 0 else ab - first
        return found | {"product": found["sum"] - (ab - first), "addend": found["sum"] - (bc - second)}

    def error(self, parts: tuple[Array, ...]) -> float:
        p, got = self.problem, parts[0]
        if p.empty:
            return 0.0
        if got.shape not in (p.result, (*p.batch, p.m, p.n)):
            return math.inf
        got = got.reshape(*p.batch, p.m, p.n)
        if self.whole:
            return self._compared(got, ())
        # Products with random vectors show a wrong element wherever it is; how wrong the usual one is, a sample shows better.
        return max(self._probed(got), *(self._compared(got, item) for item in self._items()))

    def _items(self) -> list[tuple[int, ...]]:
        p = self.problem
        return [tuple(map(int, np.unravel_index(i, p.batch))) for i in _sample(p.items, ITEMS)] if p.batch else [()]

    def _compared(self, got: Array, item: tuple[int, ...]) -> float:
        p = self.problem
        wide = {role: np.broadcast_to(x, (*p.batch, *_core(p, role))) for role, x in self.views.items() if role != "out"}
        if not self.whole:
            rows, columns = _sample(p.m, max(min(ROWS, int(FLOPS / (2 * p.k))), 1)), _sample(p.n, COLUMNS)
            columns = columns[: max(int(FLOPS / (2 * p.k * len(rows))), 1)]
            where: dict[str, Any] = {"a": (rows,), "b": (slice(None), columns), "c": np.ix_(rows, columns)}
            got = got[item][where["c"]]
            wide = {role: x[item][where[role]] for role, x in wide.items()}
        if item not in self._wanted:
            self._wanted[item] = self._sum(wide)
        return _by_size(paired(scaled(got, self.powers["sum"])), *self._wanted[item])

    def _sum(self, wide: dict[str, Array]) -> tuple[Pair, Array]:
        """Returns alpha * A @ B + beta * C, and the squares of what its elements are judged by."""
        p = self.problem
        wide = {role: scaled(x, self.powers[role]) for role, x in wide.items()}
        left, right = paired(wide["a"].conj() if p.parameter("conj") else wide["a"]), paired(wide["b"])
        a, b = left.high, right.high
        total = product(left, right) if self.double else pair(np.matmul(a, b))
        squares = np.matmul(_square(a), _square(b)) * _square(self.alpha)
        if self.alpha != 1:
            total = total.times(self.alpha)
        total, squares = total.each(self._to("product")), self._to("product", 2)(squares)
        if p.beta != 0:
            c = paired(wide["c"])
            total = total + c.times(self.beta).each(self._to("addend"))
            squares = squares + self._to("addend", 2)(_square(c.high) * _square(self.beta))
        return total, squares

    def _to(self, name: str, times: int = 1) -> Callable[[Array], Array]:
        return lambda x: scaled(x, times * self.powers[name])

    def _probed(self, got: Array) -> float:
        if self._shown is None:
            self._shown = self._probe()
        v, wanted, squares = self._shown
        found = _by_size(times(got, pair(v), exact=False, power=self.powers["sum"]), pair(wanted), squares)
        # In float64 these sums have rounding errors of their own, below which nothing is seen.
        return found if not self.double or found > 16 * EPS * math.sqrt(self.problem.k + self.problem.n) else 0.0

    def _probe(self) -> tuple[Array, Array, Array]:
        """Returns random vectors, the product times those, and the squares of what each sum is judged by."""
        p = self.problem
        a, b = self.views["a"], self.views["b"]
        a = a.conj() if p.parameter("conj") else a
        v = probes(np.random.default_rng(1), p.n, p.dtype)
        first, second, third = (self.powers.get(role, 0) for role in "abc")
        wanted = times(a, times(b, pair(v), exact=False, power=second), exact=False, power=first).high * self.alpha
        squares = _squared_times(a, _squared_times(b, _square(v), second), first) * _square(self.alpha)
        wanted, squares = self._to("product")(wanted), self._to("product", 2)(squares)
        if p.beta != 0:
            c = np.broadcast_to(self.views["c"], (*p.batch, p.m, p.n))
            wanted = wanted + self._to("addend")(times(c, pair(v), exact=False, power=third).high * self.beta)
            squares = squares + self._to("addend", 2)(_squared_times(c, _square(v), third) * _square(self.beta))
        return v, wanted, squares


def _core(p: MatmulProblem, role: str) -> tuple[int, int]:
    return {"a": (p.m, p.k), "b": (p.k, p.n)}.get(role, (p.m, p.n))


def _sample(n: int, most: int) -> Array:
    """Returns some of n numbers, the first and the last among them."""
    if n <= max(most, 2):
        return np.arange(n)
    others = np.random.default_rng(1).choice(np.arange(1, n - 1), max(most - 2, 0), replace=False)
    return np.unique([0, n - 1, *others])


def _by_size(got: Pair, wanted: Pair, squares: Array) -> float:
    size = np.maximum(np.abs(wanted.high), np.sqrt(squares))
    distance = difference(got, wanted)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(distance == 0, 0.0, distance / size)
    return math.inf if np.isnan(found).any() else float(np.max(found))


def _square(x: Array) -> Array:
    return x.real**2 + x.imag**2 if x.dtype.kind == "c" else x * x


def _squared_times(a: Array, x: Array, power: int) -> Array:
    """The squares of a matrix's elements, times two to the power, times vectors, some rows at a time."""
    step = max(CHUNK // max(a.size // a.shape[-2], 1), 1)
    parts = [np.matmul(_square(widened(scaled(a[..., i : i + step, :], power))), x) for i in range(0, a.shape[-2], step)]
    return np.concatenate(parts, axis=-2) if len(parts) > 1 else parts[0]
