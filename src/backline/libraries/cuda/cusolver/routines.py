"""Calls of cuSOLVER's and cuBLAS's routines on CuPy's arrays: handles, workspaces, leading dimensions, addresses.

Matrices come as stacks (see `_stacks`). Work goes to CuPy's current stream. Workspaces on the device come from CuPy's pool,
which hands memory that was given back to later work of the same stream only, so nothing has to wait before they are. Those on
the host are pageable memory: CUDA has read or written it when a copy's call returns, so they may go when the routine returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ..common import alignment, bindings
from ..common.device_plan import at
from ..common.streams import Handles, current_stream
from .matrix_stacks import LEFT, PLAIN, RIGHT, Settings, Stacks
from .routine_table import DATA_TYPES, LARGEST, LETTER
from .workspace_sizes import size_of

__all__ = ["Solver"]

SAME_BITS, ANY_ORDER = 1, 2  # cuSOLVER's deterministic mode
DEFAULT_MATH = 0  # cuBLAS's: float32 is float32

Arguments = Callable[[Callable[[Any], int]], tuple[int, ...]]
"""Numbers of a call, by the function that gives the address of an array, or of one of its items."""


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

    # handles and workspaces -------------------------------------------------------------------------------------

    def blas(self) -> tuple[Any, int]:
        """cuBLAS's module and handle, which has its workspace and the stream."""
        if self._blas is None:
            module, settings = bindings.cublas(), self.settings
            handle = _blas_handles.get(module, settings.device, self.stream if settings.own_handle else None)
            memory = alignment.workspace(settings.workspace)
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

    def _size(self, name: str, first: tuple[int, ...], asked: Arguments, method: tuple[int, ...], last: tuple[int, ...]) -> Any:
        """Returns the sizes of workspace that a routine asks for, which depend on addresses only by whether there are any.

        `method` holds an address as well: of a description of the method.
        """
        key = (asked(lambda array: 0 if array is None else 1), last, self.settings.recipe.any_order)
        question = getattr(self.module, f"{name}_buffer_size")
        return size_of(self.module, self.settings.device, name, key, lambda: question(*first, *asked(at), *method, *last))

    def _any_type(
        self, name: str, items: int, arguments: Arguments, info: Any, *, asked: Arguments | None = None,
        after: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Call a routine for any type; `arguments` are those before the workspaces, `asked` those of the question."""
        first = (self.handle, self.parameters)
        call = getattr(self.module, name)
        with self.order_of_sums():
            memory = self._both_sides(self._size(name, first, asked or arguments, (), after))
            for i in range(items):
                call(*first, *arguments(partial(at, item=i)), *memory, at(info) + 4 * i, *after)

    def _of_type(
        self, name: str, items: int, arguments: Arguments, info: Any, *, method: int | None = None, after: tuple[int, ...] = (),
        unasked: int = 0,
    ) -> None:  # fmt: skip
        """Call a routine for this type.

        Behind info come `method`, the address of a description of it, and `after`, whose first `unasked` are not part of
        the question.
        """
        name = f"{self.letter}{name}"
        call = getattr(self.module, name)
        methods = () if method is None else (method,)
        with self.order_of_sums():
            count = int(self._size(name, (self.handle,), arguments, methods, after[unasked:]))
            memory = self.xp.cuda.alloc(count * self.dtype.itemsize)
            self._kept.append(memory)
            for i in range(items):
                call(self.handle, *arguments(partial(at, item=i)), int(memory.ptr), count, at(info) + 4 * i, *methods, *after)

    def _own(self, real: str, complex_: str) -> str:
        return complex_ if self.complex else real

    def _batched(self, name: str, *arguments: Any) -> None:
        """Call a routine of cuBLAS's for this type that takes a table of the items' addresses."""
        module, handle = self.blas()
        getattr(module, f"{self.letter}{name}")(handle, *arguments)

    # LU and Cholesky --------------------------------------------------------------------------------------------

    def getrf(self, a: Any, pivots: Any, info: Any) -> None:
        """Factors in the place of the matrices; pivots of int64."""
        items, n, m = a.shape
        t = self.type
        self._any_type(
            "xgetrf", items, lambda at: (m, n, t, at(a), m, at(pivots), t), info, asked=lambda at: (m, n, t, at(a), m, t)
        )  # fmt: skip

    def getrf_batched(self, a: Any, pivots: Any, info: Any) -> None:
        """The same in one call; pivots of int32."""
        items, n, _ = a.shape
        (table,) = self.tables_of(a)
        self._batched("getrf_batched", n, table, n, at(pivots), at(info), items)

    def getrs(self, op: int, lu: int, step: int, ld: int, pivots: Any, x: Any, info: Any) -> None:
        """Solutions in the place of x; the factors are where the caller says, pivots of int64."""
        items, k, n = x.shape
        for i in range(items):
            self.module.xgetrs(
                self.handle, self.parameters, op, n, k, self.type, lu + i * step, ld, at(pivots, i), self.type, at(x, i), n,
                at(info) + 4 * i,
            )  # fmt: skip

    def getrs_batched(self, op: int, lu: int, step: int, ld: int, pivots: Any, x: Any) -> None:
        """The same in one call; pivots of int32."""
        items, k, n = x.shape
        factors, sides = self.tables((lu, step), (at(x), x.strides[0]), items=items)
        wrong = np.zeros(1, np.int32)
        self._batched("getrs_batched", op, n, k, factors, ld, at(pivots), sides, n, wrong.ctypes.data, items)
        _expect(wrong, "getrs_batched")

    def trsm(
        self, side: int, uplo: int, op: int, unit: bool, a: int, step: int, ld: int, x: Any, *, rows: int | None = None,
        batched: bool,
    ) -> None:  # fmt: skip
        """Solutions of triangular systems in the place of x, of its first rows only where `rows` says so."""
        module, handle = self.blas()
        items, columns, ldx = x.shape
        one = _ONE[self.dtype.name].ctypes.data
        elements = max(ldx * columns, ld * (columns if side == RIGHT else ldx))  # from the first to the last
        wide = "_64" if elements > LARGEST else ""
        head = (handle, side, uplo, op, int(unit), ldx if rows is None else rows, columns, one)
        if batched:
            left, right = self.tables((a, step), (at(x), x.strides[0]), items=items)
            getattr(module, f"{self.letter}trsm_batched{wide}")(*head, left, ld, right, ldx, items)
            return
        call = getattr(module, f"{self.letter}trsm{wide}")
        for i in range(items):
            call(*head, a + i * step, ld, at(x, i), ldx)

    def potrf(self, uplo: int, a: Any, info: Any) -> None:
        items, n, _ = a.shape
        self._any_type("xpotrf", items, lambda at: (uplo, n, self.type, at(a), n, self.type), info)

    def potrf_batched(self, uplo: int, a: Any, info: Any) -> None:
        items, n, _ = a.shape
        (table,) = self.tables_of(a)
        getattr(self.module, f"{self.letter}potrf_batched")(self.handle, uplo, n, table, n, at(info), items)

    def potrs(self, uplo: int, a: int, step: int, ld: int, x: Any, info: Any) -> None:
        items, k, n = x.shape
        for i in range(items):
            self.module.xpotrs(
                self.handle, self.parameters, uplo, n, k, self.type, a + i * step, ld, self.type, at(x, i), n, at(info) + 4 * i
            )  # fmt: skip

    # QR ---------------------------------------------------------------------------------------------------------

    def geqrf(self, a: Any, tau: Any, info: Any) -> None:
        items, n, m = a.shape
        t = self.type
        self._any_type("xgeqrf", items, lambda at: (m, n, t, at(a), m, t, at(tau), t), info)

    def geqrf_batched(self, a: Any, tau: Any) -> None:
        items, n, m = a.shape
        matrices, factors = self.tables_of(a, tau)
        wrong = np.zeros(1, np.int32)
        self._batched("geqrf_batched", m, n, matrices, m, factors, wrong.ctypes.data, items)
        _expect(wrong, "geqrf_batched")

    def orgqr(self, a: Any, k: int, tau: Any, info: Any) -> None:
        """Orthonormal columns in the place of k reflectors."""
        items, columns, m = a.shape
        self._of_type(self._own("orgqr", "ungqr"), items, lambda at: (m, columns, k, at(a), m, at(tau)), info)

    def ormqr(self, op: int, a: Any, tau: Any, x: Any, info: Any) -> None:
        """The product of Q, or its adjoint, with x, in the place of x."""
        items, k, m = x.shape
        count = tau.shape[1]
        name = self._own("ormqr", "unmqr")
        self._of_type(name, items, lambda at: (LEFT, op, m, k, count, at(a), m, at(tau), at(x), m), info)

    def gels_batched(self, a: Any, x: Any, info: Any) -> None:
        items, n, m = a.shape
        matrices, sides = self.tables_of(a, x)
        wrong = np.zeros(1, np.int32)
        self._batched(
            "gels_batched", PLAIN, m, n, x.shape[1], matrices, m, sides, m, wrong.ctypes.data, at(info), items
        )  # fmt: skip
        _expect(wrong, "gels_batched")

    # eigenvalues and singular values ----------------------------------------------------------------------------

    def syevd(self, vectors: bool, uplo: int, a: Any, w: Any, info: Any) -> None:
        items, n, _ = a.shape
        t, real = self.type, DATA_TYPES[self.real.name]
        self._any_type("xsyevd", items, lambda at: (int(vectors), uplo, n, t, at(a), n, real, at(w), t), info)

    def syev_batched(self, vectors: bool, uplo: int, a: Any, w: Any, info: Any) -> None:
        items, n, _ = a.shape
        t, real = self.type, DATA_TYPES[self.real.name]
        self._any_type("xsyev_batched", 1, lambda at: (int(vectors), uplo, n, t, at(a), n, real, at(w), t), info, after=(items,))

    def syevj(self, vectors: bool, uplo: int, a: Any, w: Any, info: Any, *, batched: bool) -> None:
        items, n, _ = a.shape
        method, after = _syevj_infos.get(self.module, self.settings.device), (items,) if batched else ()
        name = self._own("syevj", "heevj") + ("_batched" if batched else "")
        calls = 1 if batched else items
        self._of_type(name, calls, lambda at: (int(vectors), uplo, n, at(a), n, at(w)), info, method=method, after=after)

    def geev(self, a: Any, w: Any, v: Any, info: Any) -> None:
        """Eigenvalues, always complex; vectors of the matrices' own type, pairs packed, unless v is None."""
        items, n, _ = a.shape
        t, values, job = self.type, DATA_TYPES[w.dtype.name], int(v is not None)
        self._any_type(
            "xgeev", items, lambda at: (0, job, n, t, at(a), n, values, at(w), t, 0, n, t, at(v), n, t), info
        )  # fmt: skip

    def gesvd(self, job: str, a: Any, s: Any, u: Any, vt: Any, info: Any) -> None:
        """For matrices with no fewer rows than columns; gives the adjoint of V."""
        items, n, m = a.shape
        t, real, jobs = self.type, DATA_TYPES[self.real.name], (ord(job), ord(job))
        rows = n if vt is None else vt.shape[2]
        self._any_type(
            "xgesvd", items, lambda at: (*jobs, m, n, t, at(a), m, real, at(s), t, at(u), m, t, at(vt), rows, t), info
        )  # fmt: skip

    def gesvdj(self, vectors: bool, thin: bool, a: Any, s: Any, u: Any, v: Any, info: Any) -> None:
        """Gives V itself. u and v are written to in any case."""
        items, n, m = a.shape
        method = _gesvdj_infos.get(self.module, self.settings.device)
        jobs = int(vectors), int(thin)
        self._of_type(
            "gesvdj", items, lambda at: (*jobs, m, n, at(a), m, at(s), at(u), m, at(v), n), info, method=method
        )  # fmt: skip

    def gesvdj_batched(self, vectors: bool, a: Any, s: Any, u: Any, v: Any, info: Any) -> None:
        """The same in one call, with square u and v."""
        items, n, m = a.shape
        method = _gesvdj_infos.get(self.module, self.settings.device)
        self._of_type(
            "gesvdj_batched", 1, lambda at: (int(vectors), m, n, at(a), m, at(s), at(u), m, at(v), n), info, method=method,
            after=(items,),
        )  # fmt: skip

    def gesvda(self, vectors: bool, a: Any, s: Any, u: Any, v: Any, info: Any) -> None:
        """For matrices with no fewer rows than columns; gives V itself."""
        items, n, m = a.shape
        steps = [x.strides[0] // x.itemsize for x in (a, s, u, v)]

        def arguments(at: Callable[[Any], int]) -> tuple[int, ...]:
            left = int(vectors), n, m, n, at(a), m, steps[0], at(s), steps[1]
            return (*left, at(u), m, steps[2], at(v), n, steps[3])

        # The norm of what is left over would have to be waited for.
        self._of_type("gesvda_strided_batched", 1, arguments, info, after=(0, items), unasked=1)


def _expect(wrong: np.ndarray[Any, Any], routine: str) -> None:
    if wrong[0]:
        raise RuntimeError(f"{routine} calls argument {-int(wrong[0])} illegal; this is an error in backline")
