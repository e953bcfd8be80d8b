"""Elementary functions by the compiled loops below NumPy's own, on all threads: the bits are those of `numpy.exp`.

Shares of the array do not depend on the number of threads.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer
from ...problems.dtypes import HALVES
from ...problems.memory_layout import contiguous_strides
from ...problems.neural_problem import ELEMENTARY, NeuralProblem
from ..base import Algorithm, Refusal
from ..kernels.element_loops import Axis, merged
from ..kernels.element_shares import is_dense, result_of, write_dense
from ..kernels.shares import memory_order

__all__ = ["SMALL_ELEMENTS", "THREADED", "UFUNC", "element_algorithms", "prepare_elements"]

UFUNC = "ufunc"
DTYPES = (*HALVES, "float32", "float64", "complex64", "complex128")
AXES = 4  # that lie apart in memory: so many the loop has
WIDTH = 1 << 12  # elements of an item, where they have gaps
THREADED, SMALL_ELEMENTS = 1 << 13, 1 << 13  # elements below which threads and the release of the GIL cost more than they bring


@functools.cache
def _loop(name: str, dtype: str) -> tuple[int, int] | None:
    """Returns the addresses of the loop of a function and of its data; None where this NumPy has none."""
    number = np.dtype(dtype).num
    return _kernels.ufunc_loop(getattr(np, name), bytes((number, number)))


def _reason(p: NeuralProblem) -> str:
    """Returns the reason why the loops do not take a Problem, or an empty string."""
    if p.dtype.name not in DTYPES:
        return f"its loops are for {', '.join(DTYPES)}, not {p.dtype.name}"
    if p.empty:
        return "there is nothing to compute"
    if not all(o.aligned for o in p.operands):
        return "an array is not aligned"
    if _loop(p.op, _wide(p)) is None:
        return f"NumPy {np.__version__} has no loop of {p.op} of the form known here"
    if is_dense(p):
        return ""
    if p.dtype.name in HALVES:
        return "there are gaps between 16-bit floats, or arrays lie in different orders"
    return "" if len(_axes(p)) <= AXES else f"more than {AXES} axes lie apart in memory"


def element_algorithms(p: NeuralProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Yields the loops for an elementary function, on all threads and on one, or the reason why they do not take it."""
    if p.op not in ELEMENTARY:
        return
    reason = _reason(p)
    if reason:
        yield Refusal("numpy", UFUNC, reason)
        return
    precision = "f32, rounded once" if p.dtype.name in HALVES else ""
    note = f"the loop below numpy.{p.op}"
    if threads > 1 and prod(p.result) >= THREADED:
        yield Algorithm(
            library="numpy", name=UFUNC, threads=threads, scaled=True, precision=precision, level="threads",
            basis="construction", pool=thread_team.name(), note=note,
        )  # fmt: skip
    yield Algorithm(library="numpy", name=UFUNC, precision=precision, level="threads", basis="construction", note=note)


def prepare_elements(p: NeuralProblem, algorithm: Algorithm) -> Any:
    """The PreparedCall of what `element_algorithms` listed."""
    b, threads = Builder(p), algorithm.threads
    loop = _loop(p.op, _wide(p))
    assert loop is not None
    item = np.dtype(_wide(p)).itemsize

    def call(count: int, source: Pointer, target: Pointer) -> None:
        _write(b, loop, (Axis(count, item, 0, item),), (count, 1, 1), 0, source, target)

    if is_dense(p):
        out, count = write_dense(b, p, threads, call)
    else:
        out, count = _write_lines(b, p, loop)
    return b.plan(out, count=count, threads=threads, release_gil=prod(p.result) >= SMALL_ELEMENTS, same=("input",))


def _wide(p: NeuralProblem) -> str:
    return "float32" if p.dtype.name in HALVES else p.dtype.name


def _axes(p: NeuralProblem) -> tuple[Axis, ...]:
    """The axes of the input and the result, those taken together that are one in both; last the innermost of the result."""
    given, out = p.operands[0], p.get("out")
    to = out.strides if out else contiguous_strides(p.result, p.dtype.itemsize, memory_order(given))
    axes = [Axis(n, x, 0, y) for n, x, y in zip(p.result, given.strides, to, strict=True)]
    return merged(sorted(axes, key=lambda axis: -abs(axis.out)))


def _write_lines(b: Builder, p: NeuralProblem, loop: tuple[int, int]) -> tuple[Pointer, int]:
    """Writes loops over lines with gaps down; returns the result, and the number of items."""
    source, out = b.argument("input"), result_of(b, p)
    axes = _axes(p)
    length = axes[-1].size
    width = min(WIDTH, length)
    rows = prod(axis.size for axis in axes[:-1]) * -(-length // width)
    share = max(WIDTH // width, 1)
    count = -(-rows // share)
    _write(b, loop, axes, (width, share, rows), list(range(count)), source, out)
    return out, count


def _write(
    b: Builder, loop: tuple[int, int], axes: tuple[Axis, ...], parts: tuple[int, int, int], item: Any, source: Pointer,
    target: Pointer,
) -> None:  # fmt: skip
    *outer, last = ((Axis(1, 0, 0, 0),) * (AXES - len(axes)) + axes)[-AXES:]
    by_axis = [*(a.size for a in outer), *(a.x for a in outer), *(a.out for a in outer)]
    fields = [*loop, last.size, *parts, last.x, last.out, *by_axis]
    description = b.packed(f"<{len(fields)}q", *fields)
    b.call(_kernels.addresses["elements_ufunc"], [description, item, source, target])
