"""Building blocks of LAPACK plans: routines, workspaces, operands copied to column-major order, results, infos.

LAPACK works on column-major matrices, takes every argument by reference, and reports errors in `info`. `Writer` implements
these conventions for `lapack_solving` and `lapack_spectra`, which define the operations.

References: LAPACK Users' Guide, third edition; the argument lists are those of the reference implementation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from ...native.plan_builder import Builder, Pointer
from ...problems.linalg_problem import LinalgProblem
from ...problems.memory_layout import matrix_layout
from ...problems.symbolic_values import upper_bound
from .. import fixed_order
from .cblas import LETTER, BlasTraits

__all__ = ["NOT_FINITE", "NOT_IN_RANGE", "SPLIT", "Writer", "routine_name"]

NOT_FINITE, NOT_IN_RANGE = -9999, -9998
#: Ends the names of algorithms in parts that are as many as the threads: the fastest, with other bits for each number of threads.
SPLIT = "_split"


def routine_name(pattern: str, dtype: np.dtype[Any]) -> str:
    """The routine for a dtype: {t} is its letter, {s} and {q} begin names for symmetric and for orthogonal matrices."""
    t = LETTER[dtype.name]
    complex_ = dtype.kind == "c"
    return pattern.format(t=t, s=t + ("he" if complex_ else "sy"), q=t + ("un" if complex_ else "or"))


class Writer:
    """Writes the steps of one operation down. Each method returns (results, what wraps them)."""

    def __init__(self, blas: BlasTraits, p: LinalgProblem, routine: str, threads: int = 1) -> None:
        self.blas, self.p, self.threads = blas, p, threads
        self.routine = routine.removesuffix(fixed_order.SUFFIX).removesuffix(SPLIT)
        self.in_parts, self.by_threads = self.routine != routine, routine.endswith(SPLIT)
        self.native = blas.native
        self.b = Builder(p, self.native.int_size)
        self.b.share_work = self.in_parts
        self.dtype = p.dtype
        self.size = p.dtype.itemsize
        self.complex = p.dtype.kind == "c"
        self.real = np.dtype(p.dtype.char.lower())
        self.check = p.parameter("check", True)
        self.later: list[Callable[[], None]] = []
        self.outs = 0
        self.spare: tuple[Pointer, int] | None = None
        self.checks: list[Callable[[], None]] = []
        self.targets: dict[int, Pointer] = {}  # temporary buffer -> the output the caller gave

    def lapack(self, pattern: str, *arguments: Any) -> None:
        """Call a routine: integers and characters by reference, hidden lengths of the characters at the end."""
        ints: list[Any] = []
        letters = 0
        for a in arguments:
            if isinstance(a, str):
                ints.append(self.b.character(a))
                letters += 1
            else:
                ints.append(a if isinstance(a, tuple) else self.b.integer(a))
        self.b.call(self.native.lapack(routine_name(pattern, self.dtype)), ints + [1] * letters)

    def workspace(self, pattern: str, *arguments: Any) -> tuple[int, int]:
        """Ask a routine for its optimal workspace: elements of `work`, and of `iwork` where it has one.

        Arguments are as for `lapack`; None stands for an array, "work", "lwork", "iwork", "liwork" for what is asked.
        It is that of `upper_bound` sizes: what a routine needs grows with them, and more does no harm.
        """
        work, iwork = np.zeros(2, self.dtype), np.zeros(2, np.int64)
        values: list[Any] = []
        letters = 0
        for a in arguments:
            if a == "work":
                values.append(ctypes.c_void_p(work.ctypes.data))
            elif a == "iwork":
                values.append(ctypes.c_void_p(iwork.ctypes.data))
            elif a in ("lwork", "liwork"):
                values.append(ctypes.byref(self.native.integer(-1)))
            elif a is None:
                values.append(ctypes.byref((ctypes.c_int64 * 2)()))  # of its own: queries write to rwork and to info
            elif isinstance(a, str):
                values.append(ctypes.c_char_p(a.encode()))
                letters += 1
            else:
                values.append(ctypes.byref(self.native.integer(upper_bound(a))))
        values += [ctypes.c_size_t(1)] * letters
        self.native.call(self.native.lapack(routine_name(pattern, self.dtype)), *values)
        wanted = float(np.real(work[0]))
        # A float32 cannot hold every integer past 2^24: what it shows may be rounded down.
        elements = int(wanted) + (int(wanted * 2.0**-23) + 1 if self.real.itemsize == 4 and wanted > 2**24 else 0)
        first = iwork.view(np.int32)[0] if self.native.int_size == 4 else iwork[0]
        return max(elements, 1), max(int(first), 1)

    def source(self, role: str, core: int = 2) -> tuple[Pointer, tuple[int, int], str]:
        """An operand with its matrix strides and layout; a vector counts as a column."""
        o = self.p.get(role)
        assert o is not None
        pointer = self.b.argument(role, self.p.where(role, core))
        if core == 1:
            return pointer, (o.strides[-1], self.size), "F" if o.strides[-1] == self.size else "X"
        strides = (o.strides[-2], o.strides[-1])
        return pointer, strides, matrix_layout(o.shape[-2:], strides, self.size, o.aligned)[0]

    def packed(self, shape: tuple[int, int], order: str) -> tuple[int, int]:
        """Strides in bytes of a packed matrix."""
        return (self.size, shape[0] * self.size) if order == "F" else (shape[1] * self.size, self.size)

    def result(self, shape: tuple[int, ...], order: str = "C", dtype: Any = None) -> Pointer:
        """The next result: new memory, or workspace that is copied to the output the caller gave."""
        dtype = np.dtype(dtype or self.dtype)
        core = 1
        for n in shape:
            core *= n
        nbytes = core * dtype.itemsize
        role = f"out{self.outs}"
        self.outs += 1
        o = self.p.get(role)
        if o is not None:
            rows, cols = (1, *shape) if len(shape) == 1 else shape if shape else (1, 1)
            given = (0, o.strides[-1]) if len(shape) == 1 else (o.strides[-2], o.strides[-1]) if shape else (0, 0)
            ours = (dtype.itemsize, rows * dtype.itemsize) if order == "F" else (cols * dtype.itemsize, dtype.itemsize)
            temporary = self.b.work(nbytes)
            target = self.b.argument(role, self.p.where(role, len(shape)))
            self.later.append(lambda: self.b.copy((rows, cols), temporary, ours, target, given, dtype.itemsize))
            self.targets[temporary[0]] = target
            return temporary
        batch = self.p.batch
        if order == "C" or len(shape) < 2:
            return self.b.result(dtype, (*batch, *shape), "C", nbytes)
        strides = [dtype.itemsize, shape[0] * dtype.itemsize]
        step = nbytes
        for n in reversed(batch):
            strides.insert(0, step)
            step *= n
        return self.b.result(dtype, (*batch, *shape), strides, nbytes)

    def finish(self) -> None:
        for step in self.later:
            step()

    def returned(self, *pointers: Pointer) -> list[Pointer]:
        """The pointers with given outputs in the place of their temporaries."""
        return [self.targets.get(p[0], p) for p in pointers]

    def load(self, role: str, shape: tuple[int, int], order: str, target: Pointer, ld: int = 0, core: int = 2) -> None:
        """Copy an operand into packed columns (order F) or rows (order C); `ld` widens the columns."""
        pointer, strides, _ = self.source(role, core)
        to = self.packed(shape, order)
        if ld:
            to = (self.size, ld * self.size)
        self.b.copy(shape, pointer, strides, target, to, self.size)

    def info(self) -> Pointer:
        return self.b.info(self.p.items)

    def with_info(self, pointers: list[Pointer], plain: Any, ex: Any) -> tuple[list[Pointer], Any]:
        """Results, and info as an int32 array behind them if the operation reports it instead of raising."""
        if self.check:
            return self.returned(*pointers), plain
        info = self.result((), dtype=np.int32)
        wide = self.native.int_size == 8
        self.later.insert(0, lambda: self.b.copy((1, 1), self.info(), (8, 8), info, (4, 4), ("int64", "int32") if wide else 4))
        return self.returned(*pointers, info), ex

    def finite(self, count: int, data: Pointer, value: int = NOT_FINITE) -> None:
        self.b.finite((1, count), (0, self.size), self.dtype, data, self.info(), value)

    def invert(self, a: Pointer, pivots: Pointer) -> None:
        """Put the inverse in the place of a matrix without gaps; an info that is not 0 is the number of a zero pivot."""
        n = self.p.n
        lwork, _ = self.workspace("{t}getri", n, None, n, None, "work", "lwork", None)
        work = self.b.work(lwork * self.size)
        self.lapack("{t}getrf", n, n, a, n, pivots, self.info())
        # getri looks for zeros on the diagonal itself and reports the same index.
        self.lapack("{t}getri", n, a, n, pivots, work, lwork, self.info())

    def own_order(self, role: str = "a") -> str:
        """The order in which copying the matrix is cheapest: its own."""
        o = self.p.get(role)
        return "F" if o is not None and len(o.shape) > 1 and o.layout() == "F" else "C"
