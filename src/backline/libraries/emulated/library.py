"""Products in reduced precision on any machine: operands rounded to tf32 or bf16, then a float32 product of a real BLAS.

It is how tensor cores and bf16 instructions compute, as far as a result can show: they round the operands (or are given rounded
ones), multiply exactly, and add up in float32. It is slower than the float32 product, by the time that rounding takes; its use is
to measure what the precision does to a result, before there is hardware that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ... import libraries, switches
from ...errors import refuse_overlap
from ...problems import Operand
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MatmulProblem
from ...problems.memory_layout import contiguous_strides
from .. import errata
from ..base import Algorithm, Handler, Library, PythonPlan, Refusal
from ..linear_epilogue import linear_algorithms, prepare_linear
from ..reference.rounding import STORED, round_to

__all__ = ["INNER", "Emulated"]

INNER = ("openblas", "mkl", "blis", "numpy")
"""Libraries that may run the float32 product, the first that can and may is taken."""


class Emulated(Library):
    """Not a library of its own: rounding, and a product by one that is there.

    Each precision is listed as often as the library inside has ways: on all threads, on one. Threads, determinism and pool are
    those of that product, and the note says who runs it.

    Examples
    --------
    >>> import numpy as np
    >>> a = Operand("a", np.dtype(np.float32), (1, 1), (4, 4))
    >>> problem = MatmulProblem("matmul", (a, replace(a, role="b")), (), "matmul", m=1, n=1, k=1, result=(1, 1))
    >>> library = Emulated()
    >>> x = np.array([[1 + 2.0**-9]], np.float32)
    >>> for way in library.algorithms(problem, threads=1):
    ...     print(way.name, library.prepare(problem, way)(x, x)[0, 0] == x[0, 0] ** 2)
    tf32 True
    bf16 False
    """

    handlers: ClassVar = {
        MatmulProblem: Handler(lambda library, p, threads: _algorithms(p, threads), lambda library, p, a: _prepare(p, a)),
        LinearProblem: Handler(linear_algorithms, prepare_linear),
    }

    def reason(self) -> str:
        return ""

    def version(self) -> str | None:
        return None

    def details(self) -> dict[str, Any]:
        return {
            "path": "", "found by": "part of backline", "pool": "",
            "config": f"{' and '.join(STORED)} for the products of {', '.join(INNER)}, while emulate is on",
        }  # fmt: skip


def _algorithms(problem: MatmulProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    if problem.dtype not in (np.dtype(np.float32), np.dtype(np.complex64)):
        yield Refusal("emulated", "", f"reduced precision concerns float32 and complex64 only, not {problem.dtype.name}")
        return
    library, inner = _inner(_rounded_problem(problem), threads)
    if library is None:
        yield Refusal("emulated", "", f"none of {', '.join(INNER)} can run the float32 product and is allowed to")
        return
    for precision in STORED:
        for a in inner:
            note = f"rounded operands, float32 product by {library.title} ({a.name})"
            traits = ("emulated", *a.traits)
            yield replace(a, library="emulated", name=precision, precision=precision, note=note, traits=traits)


def _prepare(problem: MatmulProblem, algorithm: Algorithm) -> PythonPlan:
    rounded = _rounded_problem(problem)
    library, found = _inner(rounded, algorithm.threads)
    inner = next((a for a in found if a.scaled == algorithm.scaled and a.threads == algorithm.threads), None)
    if library is None or inner is None:
        raise RuntimeError(f"no library runs the float32 product of {problem} on {algorithm.threads} threads any more")
    return PythonPlan(_product(problem, algorithm.name, library.prepare(rounded, inner)))


def _inner(problem: MatmulProblem, threads: int) -> tuple[Library | None, list[Algorithm]]:
    """The library that runs the product, and of its ways the first on all threads and the first on one.

    Switches hold for it as they would if it were chosen itself: one that is off is passed over, one preferred comes first.
    """
    snapshot: Any = switches.current()
    only, prefer = snapshot["only"], snapshot["prefer"]
    names = [n for n in INNER if n in only] or list(INNER)  # `only` may well name nothing but "emulated"
    names.sort(key=lambda n: prefer.index(n) if n in prefer else len(prefer))
    for name in names:
        library = libraries.get(name)
        if not snapshot.get(library.switch, True) or not library.available():
            continue
        allowed = 1 if library.openmp and not snapshot["openmp.enabled"] else threads
        listed = [a for a in library.algorithms(problem, allowed) if isinstance(a, Algorithm)]
        ways = [a for a in listed if not errata.refusal(library, problem, a)]
        first = [next((a for a in ways if a.scaled is scaled), None) for scaled in (True, False)]
        if ways:
            return library, [a for a in first if a is not None]
    return None, []


def _rounded_problem(p: MatmulProblem) -> MatmulProblem:
    """The same product of rounded copies of A and B."""
    return replace(p, operands=tuple(_copy_of(o) if o.role in ("a", "b") else o for o in p.operands))


def _copy_of(o: Operand) -> Operand:
    """The rounded copy of an operand: dense, row or column major as the operand is, repeated along the batch where that is."""
    sizes, batch = _distinct(o), len(o.shape) - 2
    order = [*range(batch), *((batch + 1, batch) if _column_major(o) else (batch, batch + 1))]
    strides = contiguous_strides(sizes, o.dtype.itemsize, order)
    kept = tuple(s if i >= batch or sizes[i] == o.shape[i] else 0 for i, s in enumerate(strides))
    return Operand(o.role, o.dtype, o.shape, kept)


def _distinct(o: Operand) -> tuple[int, ...]:
    """The shape of an operand without what a stride of 0 repeats along the batch: each matrix is rounded once."""
    batch = len(o.shape) - 2
    sizes = zip(o.shape[:batch], o.strides[:batch], strict=True)
    return (*(min(n, 1) if s == 0 else n for n, s in sizes), *o.shape[batch:])


def _column_major(o: Operand) -> bool:
    return 1 not in o.shape[-2:] and abs(o.strides[-2]) < abs(o.strides[-1])


def _product(p: MatmulProblem, precision: str, product: Any) -> Callable[..., Any]:
    """Refuse what overlaps, round A and B, and hand them with the other arrays to the plan of the product."""
    inputs = [(i, o) for i, o in enumerate(p.operands) if o.role in ("a", "b")]
    out = p.index("out")

    def run(*arrays: Any) -> Any:
        given = list(arrays)
        for i, o in inputs:
            # The plan inside sees the copies only. Whether a call is legal must not depend on who runs it.
            if out is not None and np.may_share_memory(arrays[out], arrays[i]):
                refuse_overlap(arrays[out], arrays[i])
            view = np.lib.stride_tricks.as_strided(arrays[i], _distinct(o), o.strides, writeable=False)
            if _column_major(o):
                given[i] = round_to(view.swapaxes(-1, -2), precision).swapaxes(-1, -2)
            else:
                given[i] = round_to(view, precision)
        return product(*given)

    return run
