"""Calls of cuSOLVER's and cuBLAS's routines on CuPy's arrays: handles, workspaces, leading dimensions, addresses.

Matrices come as stacks (see `_stacks`). Work goes to CuPy's current stream. Workspaces on the device come from CuPy's pool,
which hands memory that was given back to later work of the same stream only, so nothing has to wait before they are. Those on
the host are pageable memory: CUDA has read or written it when a copy's call returns, so they may go when the routine returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..common import bindings
from ..common.streams import Handles, current_stream
from .matrix_stacks import LEFT, PLAIN, Settings, Stacks, address
from .routine_table import DATA_TYPES, LETTER

__all__ = ["Solver"]

SAME_BITS, ANY_ORDER = 1, 2  # cuSOLVER's deterministic mode
DEFAULT_MATH = 0  # cuBLAS's: float32 is float32


def _create_solver(module: Any) -> int:
    handle = module.create()
    module.set_deterministic_mode(handle, SAME_BITS)
    return int(handle)


def _create_blas(module: Any) -> int:
    # No switch reaches this handle: whatever precision products may have, linear algebra has its inputs' own.
    handle = module.create()
    module.set_atomics_mode(handle, 0)
    module.set_math_mode(handle, DEFAULT_MATH)
    return int(handle)


_solver_handles, _blas_handles = Handles(_create_solver), Handles(_create_blas)
_parameters = Handles(lambda module: int(module.create_params()))
_syevj_infos = Handles(lambda module: int(module.create_syevj_info()))
_gesvdj_infos = Handles(lambda module: int(module.create_gesvdj_info()))

_ONE = {name: np.ones(1, name) for name in LETTER}  # whose addresses routines are given


class Solver(Stacks):
    """The routines during one call of a Plan."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.type = DATA_TYPES[settings.dtype.name]
        self.module: Any = bindings.cusolverDn()
        self.stream = current_stream()
        self.handle = _solver_handles.get(self.module, settings.device)
        self.module.set_stream(self.handle, self.stream)
        self.parameters = _parameters.get(self.module, settings.device)
        self._blas: tuple[Any, int] | None = None
        self._kept: list[Any] = []  # workspaces, until the call is over

    # handles and workspaces -------------------------------------------------------------------------------------

    def blas(self) -> tuple[Any, int]:
        """cuBLAS's module and handle, which has its workspace and the stream."""
        if self._blas is None:
            module, settings = bindings.cublas(), self.settings
            handle = _blas_handles.get(module, settings.device, self.stream if settings.own_handle else None)
            memory = self.xp.cuda.alloc(settings.workspace)
            self._kept.append(memory)
            module.set_stream(handle, self.stream)  # which takes the workspace away, so it comes first
            module.set_workspace(handle, memory.ptr, settings.workspace)
            self._blas = module, handle
        return self._blas

    @contextmanager
    def order_of_sums(self) -> Iterator[None]:
        """Let cuSOLVER sum in any order while this is open, if the recipe says so."""
        if not self.settings.recipe.any_order:
            yield
            return
        self.module.set_deterministic_mode(self.handle, ANY_ORDER)
        try:
            yield
        finally:
            self.module.set_deterministic_mode(self.handle, SAME_BITS)

    def _both_sides(self, sizes: tuple[int, int]) -> tuple[int, int, int, int]:
        """Workspaces on the device and on the host, as the routines for any type take them: address, bytes, twice."""
        device, host = (int(size) for size in sizes)
        there, here = self.xp.cuda.alloc(device), np.empty(host, np.uint8)
        self._kept += [there, here]
        return int(there.ptr), device, here.ctypes.data if host else 0, host

    def _any_type(
        self, name: str, items: int, arguments: Any, info: Any, *, asked: Any = None, after: tuple[int, ...] = ()
    ) -> None:
        """Call a routine for any type; `arguments` are those of item i before the workspaces, `asked` those of the question."""
        first = (self.handle, self.parameters)
        call = getattr(self.module, name)
        with self.order_of_sums():
            sizes = getattr(self.module, f"{name}_buffer_size")(*first, *(arguments(0) if asked is None else asked), *after)
            memory = self._both_sides(sizes)
            for i in range(items):
                call(*first, *arguments(i), *memory, address(info) + 4 * i, *after)

    def _of_type(
        self, name: str, items: int, arguments: Any, info: Any, *, after: tuple[int, ...] = (), unasked: int = 0
    ) -> None:
        """Call a routine for this type. `after` comes behind info; its first `unasked` are not part of the question."""
        name = f"{self.letter}{name}"
        call = getattr(self.module, name)
        with self.order_of_sums():
            count = int(getattr(self.module, f"{name}_buffer_size")(self.handle, *arguments(0), *after[unasked:]))
            memory = self.xp.cuda.alloc(count * self.dtype.itemsize)
            self._kept.append(memory)
            for i in range(items):
                call(self.handle, *arguments(i), int(memory.ptr), count, address(info) + 4 * i, *after)

    def _own(self, real: str, complex_: str) -> str:
        return complex_ if self.complex else real

    # LU and Cholesky --------------------------------------------------------------------------------------------

    def getrf(self, a: Any, pivots: Any, info: Any) -> None:
        """Factors in the place of the matrices; pivots of int64."""
        items, n, m = a.shape

        def arguments(i: int) -> tuple[int, ...]:
            return (m, n, self.type, address(a) + i * a.strides[0], m, address(pivots) + i * pivots.strides[0], self.type)

        self._any_type("xgetrf", items, arguments, info, asked=(m, n, self.type, address(a), m, self.type))

    def getrf_batched(self, a: Any, pivots: Any, info: Any) -> None:
        """The same in one call; pivots of int32."""
        module, handle = self.blas()
        items, n, _ = a.shape
        (table,) = self.tables(a)
        getattr(module, f"{self.letter}getrf_batched")(
            handle, n, address(table), n, address(pivots), address(info), items
        )  # fmt: skip

    def getrs(self, op: int, lu: int, step: int, ld: int, pivots: Any, x: Any, info: Any) -> None:
        """Solutions in the place of x; the factors are where the caller says, pivots of int64."""
        items, k, n = x.shape
        for i in range(items):
            self.module.xgetrs(
                self.handle, self.parameters, op, n, k, self.type, lu + i * step, ld, address(pivots) + i * pivots.strides[0],
                self.type, address(x) + i * x.strides[0], n, address(info) + 4 * i,
            )  # fmt: skip

    def getrs_batched(self, op: int, lu: int, step: int, ld: int, pivots: Any, x: Any) -> None:
        """The same in one call; pivots of int32."""
        module, handle = self.blas()
        items, k, n = x.shape
        factors, (sides,) = self.table(lu, items, step), self.tables(x)
        wrong = np.zeros(1, np.int32)
        getattr(module, f"{self.letter}getrs_batched")(
            handle, op, n, k, address(factors), ld, address(pivots), address(sides), n, wrong.ctypes.data, items
        )  # fmt: skip
        _expect(wrong, "getrs_batched")

    def trsm(
        self, side: int, uplo: int, op: int, unit: bool, a: int, step: int, ld: int, x: Any, *, rows: int | None = None,
        batched: bool,
    ) -> None:  # fmt: skip
        """Solutions of triangular systems in the place of x, of its first rows only where `rows` says so."""
        module, handle = self.blas()
        items, columns, ldx = x.shape
        one = _ONE[self.dtype.name].ctypes.data
        head = (handle, side, uplo, op, int(unit), ldx if rows is None else rows, columns, one)
        if batched:
            left, (right,) = self.table(a, items, step), self.tables(x)
            getattr(module, f"{self.letter}trsm_batched")(*head, address(left), ld, address(right), ldx, items)
            return
        call = getattr(module, f"{self.letter}trsm")
        for i in range(items):
            call(*head, a + i * step, ld, address(x) + i * x.strides[0], ldx)

    def potrf(self, uplo: int, a: Any, info: Any) -> None:
        items, n, _ = a.shape

        def arguments(i: int) -> tuple[int, ...]:
            return (uplo, n, self.type, address(a) + i * a.strides[0], n, self.type)

        self._any_type("xpotrf", items, arguments, info)

    def potrf_batched(self, uplo: int, a: Any, info: Any) -> None:
        items, n, _ = a.shape
        (table,) = self.tables(a)
        getattr(self.module, f"{self.letter}potrf_batched")(
            self.handle, uplo, n, address(table), n, address(info), items
        )  # fmt: skip

    def potrs(self, uplo: int, a: int, step: int, ld: int, x: Any, info: Any) -> None:
        items, k, n = x.shape
        for i in range(items):
            self.module.xpotrs(
                self.handle, self.parameters, uplo, n, k, self.type, a + i * step, ld, self.type,
                address(x) + i * x.strides[0], n, address(info) + 4 * i,
            )  # fmt: skip

    # QR ---------------------------------------------------------------------------------------------------------

    def geqrf(self, a: Any, tau: Any, info: Any) -> None:
        items, n, m = a.shape

        def arguments(i: int) -> tuple[int, ...]:
            return (m, n, self.type, address(a) + i * a.strides[0], m, self.type, address(tau) + i * tau.strides[0], self.type)

        self._any_type("xgeqrf", items, arguments, info)

    def geqrf_batched(self, a: Any, tau: Any) -> None:
        module, handle = self.blas()
        items, n, m = a.shape
        matrices, factors = self.tables(a, tau)
        wrong = np.zeros(1, np.int32)
        getattr(module, f"{self.letter}geqrf_batched")(
            handle, m, n, address(matrices), m, address(factors), wrong.ctypes.data, items
        )  # fmt: skip
        _expect(wrong, "geqrf_batched")

    def orgqr(self, a: Any, k: int, tau: Any, info: Any) -> None:
        """Orthonormal columns in the place of k reflectors."""
        items, columns, m = a.shape

        def arguments(i: int) -> tuple[int, ...]:
            return (m, columns, k, address(a) + i * a.strides[0], m, address(tau) + i * tau.strides[0])

        self._of_type(self._own("orgqr", "ungqr"), items, arguments, info)

    def ormqr(self, op: int, a: Any, tau: Any, x: Any, info: Any) -> None:
        """The product of Q, or its adjoint, with x, in the place of x."""
        items, k, m = x.shape
        count = tau.shape[1]

        def arguments(i: int) -> tuple[int, ...]:
            at, scale, side = (address(y) + i * y.strides[0] for y in (a, tau, x))
            return (LEFT, op, m, k, count, at, m, scale, side, m)

        self._of_type(self._own("ormqr", "unmqr"), items, arguments, info)

    def gels_batched(self, a: Any, x: Any, info: Any) -> None:
        module, handle = self.blas()
        items, n, m = a.shape
        matrices, sides = self.tables(a, x)
        wrong = np.zeros(1, np.int32)
        getattr(module, f"{self.letter}gels_batched")(
            handle, PLAIN, m, n, x.shape[1], address(matrices), m, address(sides), m, wrong.ctypes.data, address(info), items
        )  # fmt: skip
        _expect(wrong, "gels_batched")

    # eigenvalues and singular values ----------------------------------------------------------------------------

    def syevd(self, vectors: bool, uplo: int, a: Any, w: Any, info: Any) -> None:
        items, n, _ = a.shape
        real = DATA_TYPES[self.real.name]

        def arguments(i: int) -> tuple[int, ...]:
            at, values = address(a) + i * a.strides[0], address(w) + i * w.strides[0]
            return (int(vectors), uplo, n, self.type, at, n, real, values, self.type)

        self._any_type("xsyevd", items, arguments, info)

    def syev_batched(self, vectors: bool, uplo: int, a: Any, w: Any, info: Any) -> None:
        items, n, _ = a.shape
        real = DATA_TYPES[self.real.name]

        def arguments(i: int) -> tuple[int, ...]:
            return (int(vectors), uplo, n, self.type, address(a), n, real, address(w), self.type)

        self._any_type("xsyev_batched", 1, arguments, info, after=(items,))

    def syevj(self, vectors: bool, uplo: int, a: Any, w: Any, info: Any, *, batched: bool) -> None:
        items, n, _ = a.shape
        rotations = _syevj_infos.get(self.module, self.settings.device)

        def arguments(i: int) -> tuple[int, ...]:
            return (int(vectors), uplo, n, address(a) + i * a.strides[0], n, address(w) + i * w.strides[0])

        name = self._own("syevj", "heevj")
        if batched:
            self._of_type(f"{name}_batched", 1, arguments, info, after=(rotations, items))
        else:
            self._of_type(name, items, arguments, info, after=(rotations,))

    def geev(self, a: Any, w: Any, v: Any, info: Any) -> None:
        """Eigenvalues, always complex; vectors of the matrices' own type, pairs packed, unless v is None."""
        items, n, _ = a.shape
        values = DATA_TYPES[w.dtype.name]

        def arguments(i: int) -> tuple[int, ...]:
            right = 0 if v is None else address(v) + i * v.strides[0]
            return (
                0, int(v is not None), n, self.type, address(a) + i * a.strides[0], n, values, address(w) + i * w.strides[0],
                self.type, 0, n, self.type, right, n, self.type,
            )  # fmt: skip

        self._any_type("xgeev", items, arguments, info)

    def gesvd(self, job: str, a: Any, s: Any, u: Any, vt: Any, info: Any) -> None:
        """For matrices with no fewer rows than columns; gives the adjoint of V."""
        items, n, m = a.shape
        real = DATA_TYPES[self.real.name]

        def arguments(i: int) -> tuple[int, ...]:
            at, values = address(a) + i * a.strides[0], address(s) + i * s.strides[0]
            left, right = (0 if x is None else address(x) + i * x.strides[0] for x in (u, vt))
            rows = n if vt is None else vt.shape[2]
            head = (ord(job), ord(job), m, n, self.type, at, m, real, values)
            return (*head, self.type, left, m, self.type, right, rows, self.type)

        self._any_type("xgesvd", items, arguments, info)

    def gesvdj(self, vectors: bool, thin: bool, a: Any, s: Any, u: Any, v: Any, info: Any) -> None:
        """Gives V itself. u and v are written to in any case."""
        items, n, m = a.shape
        rotations = _gesvdj_infos.get(self.module, self.settings.device)

        def arguments(i: int) -> tuple[int, ...]:
            at, values, left, right = (address(x) + i * x.strides[0] for x in (a, s, u, v))
            return (int(vectors), int(thin), m, n, at, m, values, left, m, right, n)

        self._of_type("gesvdj", items, arguments, info, after=(rotations,))

    def gesvdj_batched(self, vectors: bool, a: Any, s: Any, u: Any, v: Any, info: Any) -> None:
        """The same in one call, with square u and v."""
        items, n, m = a.shape
        rotations = _gesvdj_infos.get(self.module, self.settings.device)

        def arguments(i: int) -> tuple[int, ...]:
            return (int(vectors), m, n, address(a), m, address(s), address(u), m, address(v), n)

        self._of_type("gesvdj_batched", 1, arguments, info, after=(rotations, items))

    def gesvda(self, vectors: bool, a: Any, s: Any, u: Any, v: Any, info: Any) -> None:
        """For matrices with no fewer rows than columns; gives V itself."""
        items, n, m = a.shape
        size = self.dtype.itemsize

        def arguments(i: int) -> tuple[int, ...]:
            return (
                int(vectors), n, m, n, address(a), m, a.strides[0] // size, address(s), s.strides[0] // self.real.itemsize,
                address(u), m, u.strides[0] // size, address(v), n, v.strides[0] // size,
            )  # fmt: skip

        # The norm of what is left over would have to be waited for.
        self._of_type("gesvda_strided_batched", 1, arguments, info, after=(0, items), unasked=1)


def _expect(wrong: np.ndarray[Any, Any], routine: str) -> None:
    if wrong[0]:
        raise RuntimeError(f"{routine} calls argument {-int(wrong[0])} illegal; this is an error in backline")
