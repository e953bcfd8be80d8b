"""A dot product of long vectors in parts of a fixed size, divided among the threads.

Its bits do not depend on their number, but they are other ones than those of the whole product, which one thread computes.
"""

from __future__ import annotations

from ... import _kernels
from ...native.plan_builder import Builder, Pointer
from ...problems.matmul_problem import MatmulProblem

__all__ = ["can_be_divided", "dot_in_parts"]

PART = 1 << 16  # elements that an item takes


def can_be_divided(p: MatmulProblem) -> bool:
    """Tells if both vectors are long, and lie in memory as BLAS takes them."""
    if p.items != 1 or p.k < 2 * PART or not all(o.aligned for o in p.operands):
        return False
    return all(step > 0 and step % p.dtype.itemsize == 0 for step in _steps(p))


def _steps(p: MatmulProblem) -> tuple[int, int]:
    return p.views["a"].stride1, p.views["b"].stride0


def dot_in_parts(b: Builder, p: MatmulProblem, function: int, result: Pointer, threads: int) -> None:
    """Write the products of the parts down, for `function` of a BLAS, and their sum."""
    item, is_complex = p.dtype.itemsize, p.dtype.kind == "c"
    starts = range(0, p.k, PART)
    sizes = [min(PART, p.k - start) for start in starts]
    parts = b.work(item * len(starts), shared=True)
    to = parts[0], 0, item
    arguments: list[object] = [sizes]
    for role, step in zip("ab", _steps(p), strict=True):
        arguments += [b.argument(role, PART * step), step // item]
    if is_complex:
        b.call(function, [*arguments, to])
    else:
        b.call(function, arguments, returns=1 if item == 4 else 2, to=to)
    b.each(len(starts), threads)
    real = item // (2 if is_complex else 1)
    b.call(_kernels.addresses["add_up"], [real, 1 + is_complex, len(starts), parts, result])
