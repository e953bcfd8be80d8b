"""Traits of a BLAS library that its symbols do not show, and the constants of its C interface."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...native.shared_library import NativeLibrary

__all__ = ["COLUMN", "LETTER", "PLAIN", "ROW", "TRANSPOSED", "BlasTraits"]

LETTER = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
ROW, COLUMN = 101, 102
PLAIN, TRANSPOSED = 111, 112

# Below this many operations a thread team costs more than it brings, and so does releasing the GIL.
SMALL_FLOPS = 6e4
# OpenBLAS divides a dot product from 10 000 elements on and gemv from 9216: it must be told its count before that, or the
# bits of a product would depend on what ran last.
GUARDED_VECTOR_FLOPS = 1.5e4


class BlasTraits:
    """Properties of one BLAS library that the engine needs in addition to its symbols."""

    def __init__(
        self, name: str, native: NativeLibrary, thread_guard: Any, pool: str, *, run: str = "measured", threads: str = "",
        always_guarded: bool = False, own_count: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.native, self.thread_guard, self.pool = name, native, thread_guard, pool
        self._batches: dict[str, bool] = {}
        self.run_basis = run
        self.always_guarded = always_guarded  # it starts its threads for products of (nearly) any size
        self.own_count = own_count  # its thread count is the calling thread's: setting it waits for nobody
        self.faster_triangle: dict[str, str] = {}  # of symmetric matrices, by type code: which one it reads faster, by columns
        self.lu_pool = ""  # where LU runs, if not with the rest
        # Operations that one product of a batch must have for several threads to compute different ones, by letter of the type.
        self.least_item: dict[str, float] = {}
        self.divides_batches = True  # among its threads, in no more time than we take to divide one
        self.any_thread_count = threads  # basis on which GEMM's bits do not depend on the thread count, "" if they may

    def batches(self, dtype: np.dtype[Any]) -> bool:
        """Tells whether the library's gemm_batch_strided is correct, tested once for each dtype.

        OpenBLAS 0.3.34 halves the strides of complex batches, so that every product but the first is wrong.
        """
        known = self._batches.get(dtype.name)
        if known is None:
            known = self._batches[dtype.name] = _batch_is_right(self.native, dtype)
        return known

    def guard(self, flops: float, *, vector: bool, divided: bool = False, always: bool = False) -> dict[str, Any]:
        """Returns the arguments of a plan that say whether a call sets the library's thread count first, and gives up the GIL.

        Below so many operations most libraries take one thread by themselves. A short call keeps the GIL, for others may keep it
        long, unless it might wait for those whose thread count is in force.
        """
        large = divided or flops >= (GUARDED_VECTOR_FLOPS if vector else SMALL_FLOPS)
        guarded = large or always or self.always_guarded
        return {"thread_guard": self.thread_guard if guarded else None, "release_gil": large or (guarded and not self.own_count)}


def _batch_is_right(native: NativeLibrary, dtype: np.dtype[Any]) -> bool:
    import ctypes

    a = np.arange(1, 13).reshape(3, 2, 2).astype(dtype)
    b = (a[::-1] * (1j if dtype.kind == "c" else 2)).astype(dtype)
    c = np.full(a.shape, np.nan, dtype)
    i, p = ctypes.c_int64, ctypes.c_void_p
    one, zero = (np.array(x, dtype) for x in (1, 0))
    real = ctypes.c_float if dtype.itemsize == 4 else ctypes.c_double
    alpha, beta = (p(x.ctypes.data) if dtype.kind == "c" else real(float(x)) for x in (one, zero))
    native.call(
        native.cblas(f"{LETTER[dtype.name]}gemm_batch_strided"), i(ROW), i(PLAIN), i(PLAIN), i(2), i(2), i(2), alpha,
        p(a.ctypes.data), i(2), i(4), p(b.ctypes.data), i(2), i(4), beta, p(c.ctypes.data), i(2), i(4), i(3),
    )  # fmt: skip
    return np.array_equal(c, np.matmul(a, b))
