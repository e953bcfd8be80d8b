"""Functions of one array, element by element, by a library that computes so many neighbours in memory in one call."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ...native.plan_builder import Builder, Pointer
from ...problems.dtypes import HALVES
from ...problems.neural_problem import NeuralProblem
from .shares import Share, dense, even_share, in_shares, memory_order, placed

__all__ = ["is_dense", "result_of", "write_dense"]

SHARE, LINE = 1 << 14, 64  # elements of an item, and of the lines of the cache that it begins with

Call = Callable[[int, Pointer, Pointer], None]


def is_dense(p: NeuralProblem) -> bool:
    """Tells whether no array has gaps between its elements, and all lie in one order."""
    order = memory_order(p.operands[0])
    return all(dense(o, order) for o in p.operands)


def result_of(b: Builder, p: NeuralProblem) -> Pointer:
    """Returns the array that the caller gives for the result, or a new one."""
    return b.argument("out") if p.get("out") is not None else placed(b, p, p.operands[0])


def write_dense(b: Builder, p: NeuralProblem, threads: int, call: Call) -> tuple[Pointer, int]:
    """Writes calls for shares of dense arrays down, the same on any number of threads.

    `call` is given a number of elements, and where they are read and written, which may be one place; those of 16-bit floats are
    widened to float32 before and rounded after. Returns the result, and the number of items of the last group.
    """
    source, out, size = b.argument("input"), result_of(b, p), prod(p.result)
    share = even_share(size, 1, SHARE, LINE)
    halves = p.dtype.name in HALVES
    work = b.work(4 * share) if halves else out

    def write(at: Share) -> None:
        call(at.units, at.load(source, p.dtype, 1, work), work if halves else at.place(out, p.dtype.itemsize))
        at.store(work, out, p.dtype, 1)

    return out, in_shares(b, size, share, threads, write)
