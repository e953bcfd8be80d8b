"""The planner of contractions: which operands are multiplied first.

With three operands or more the order decides how much work a contraction is. Every planner here returns a `Path`: of sums of
products in general, as `backends.opt_einsum` says; of chains of matrices the exact optimum, which needs no other package.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import cast

from .. import switches

__all__ = ["Path", "chain_path", "contraction_path", "origin"]

Path = tuple[tuple[int, ...], ...]
"""Positions of the operands of each step; a result is put at the end of those that are left."""


def contraction_path(equation: str, shapes: tuple[tuple[int, ...], ...], memory_limit: int | None = None) -> Path:
    """Returns the order in which to contract operands of these shapes, under the switches that hold here.

    From left to right for fewer than three operands, or while opt_einsum is not enabled; else opt_einsum searches, as
    ``opt_einsum.strategy`` says, and the path is kept. The equation has an arrow and no ellipsis; axes of one label are equal or
    1. With `memory_limit`, operands whose intermediate results would have more elements are contracted at once.

    >>> contraction_path("ij,jk,kl->il", ((1000, 2), (2, 1000), (1000, 2)))
    ((1, 2), (0, 1))
    >>> from backline.backends import opt_einsum
    >>> with opt_einsum.flags(enabled=False):
    ...     contraction_path("ij,jk,kl->il", ((1000, 2), (2, 1000), (1000, 2)))
    ((0, 1), (1, 0))
    """
    if len(shapes) < 3 or not switches.get("opt_einsum.enabled"):
        path = _left_to_right(len(shapes))
        return path if memory_limit is None else _within(path, equation, shapes, memory_limit)
    return _searched(equation, shapes, cast(str, switches.get("opt_einsum.strategy")), memory_limit)


def origin(count: int, memory_limit: int | None) -> str:
    """Returns in words how `contraction_path` finds the order of so many operands."""
    if count < 3:
        return "there is one order only"
    within = "" if memory_limit is None else f", within {memory_limit} elements"
    if switches.get("opt_einsum.enabled"):
        return f"path found by opt_einsum, strategy {switches.get('opt_einsum.strategy')!r}{within}"
    return f"from left to right: opt_einsum is not enabled{within}"


@lru_cache(maxsize=512)
def chain_path(sizes: tuple[int, ...]) -> Path:
    """Returns the order in which a chain of matrices takes the fewest operations; `sizes` are its rows, then each one's columns.

    Dynamic programming over the ends of partial products: T. H. Cormen et al., Introduction to Algorithms, section 15.2.

    >>> chain_path((1000, 2, 1000, 2))
    ((1, 2), (0, 1))
    """
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            costs = {s: cost[i, s] + cost[s + 1, j] + sizes[i] * sizes[s + 1] * sizes[j + 1] for s in range(i, j)}
            split[i, j] = min(costs, key=lambda s: costs[s])
            cost[i, j] = costs[split[i, j]]
    left = [(i, i) for i in range(count)]  # ends of the products that are there, in the order of a path
    path: list[tuple[int, int]] = []

    def multiply(i: int, j: int) -> None:
        if i < j:
            parts = (i, split[i, j]), (split[i, j] + 1, j)
            for part in parts:
                multiply(*part)
            path.append((left.index(parts[0]), left.index(parts[1])))
            left[:] = [ends for ends in left if ends not in parts] + [(i, j)]

    multiply(0, count - 1)
    return tuple(path)


def _left_to_right(count: int) -> Path:
    if count == 1:
        return ((0,),)
    # The result goes to the end: it is the last, and the next operand the first, of those that are left.
    return ((0, 1), *((left - 1, 0) for left in range(count - 1, 1, -1)))


def _within(path: Path, equation: str, shapes: tuple[tuple[int, ...], ...], limit: int) -> Path:
    """The path as far as its results keep to the limit; what is left then is one step."""
    inputs, _, output = equation.partition("->")
    terms = [set(term) for term in inputs.split(",")]
    sizes: dict[str, int] = {}
    for term, shape in zip(inputs.split(","), shapes, strict=True):
        for label, n in zip(term, shape, strict=True):
            sizes[label] = max(n, sizes.get(label, 1))
    for at, step in enumerate(path[:-1]):
        left = [term for i, term in enumerate(terms) if i not in step]
        made = set().union(*(terms[i] for i in step)) & set(output).union(*left)
        if prod(sizes[label] for label in made) > limit:
            return (*path[:at], tuple(range(len(terms))))
        terms = [*left, made]
    return path


@lru_cache(maxsize=512)
def _searched(equation: str, shapes: tuple[tuple[int, ...], ...], strategy: str, memory_limit: int | None) -> Path:
    import random

    import opt_einsum

    state = random.getstate()  # strategies that draw numbers seed the generator of the whole program
    try:
        path, _ = opt_einsum.contract_path(equation, *shapes, optimize=strategy, memory_limit=memory_limit, shapes=True)
    finally:
        random.setstate(state)
    return tuple(tuple(step) for step in path)
