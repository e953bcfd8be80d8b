"""Asks a loaded library what it is, by calls whose answers are known, before the first real pointer goes to it.

A child process has computed with the file before (`probe_cache`); here it runs beside what else is in this process.
"""

from __future__ import annotations

import ctypes
from typing import Any, cast

import numpy as np

from ... import switches

__all__ = ["probe"]

# Large enough that every library uses all the threads it is given.
ONES = 512


def probe(traits: Any, *, has_lapack: bool) -> str:
    """Returns what is wrong with a BLAS, or an empty string.

    Checks the width of its integers, products of ones on one thread and on all (a wrong OpenMP runtime gives wrong numbers
    in silence), that no other library computes in its place, and the diagonal of a Cholesky factor.
    """
    native, thread_guard = traits.native, traits.thread_guard
    wrong = _integers(native)
    if wrong:
        return wrong
    threads = cast(int, switches.get("num_threads"))
    for count in (1, threads) if threads > 1 else (1,):
        former = thread_guard.enter(count) if thread_guard else 0
        try:
            wrong = _products(native, count)
        finally:
            if thread_guard:
                thread_guard.leave(former)
        if wrong:
            return wrong
    return _factor(native) if has_lapack else ""


def _integers(native: Any) -> str:
    """A length with rubbish in its upper half tells 32-bit from 64-bit integers: isamax of it finds 2 or nothing."""
    address = native.lapack("isamax")
    if not address:
        return "exports no isamax_: not a BLAS that can be told LP64 from ILP64"
    x = np.array([1, 5, 2], np.float32)
    length, one = ctypes.c_int64(3 - 2**63), ctypes.c_int64(1)
    found = native.call(
        address, ctypes.byref(length), ctypes.c_void_p(x.ctypes.data), ctypes.byref(one), restype=ctypes.c_int32
    )
    size = {2: 4, 0: 8}.get(found)
    if size is None:
        return f"gives a strange answer to isamax ({found})"
    if size != native.int_size:
        return f"has {8 * size}-bit integers where {8 * native.int_size}-bit ones are expected"
    return ""


def _products(native: Any, threads: int) -> str:
    for letter, dtype, real in (("s", np.float32, ctypes.c_float), ("d", np.float64, ctypes.c_double)):
        for n in (3, ONES):
            a = np.ones((n, n), dtype)
            c = np.full((n, n), np.nan, dtype)  # beta is 0: what is there must not matter
            p = a.ctypes.data
            q = c.ctypes.data
            i = ctypes.c_int64
            native.call(
                native.cblas(f"{letter}gemm"), i(101), i(111), i(111), i(n), i(n), i(n), real(1), ctypes.c_void_p(p), i(n),
                ctypes.c_void_p(p), i(n), real(0), ctypes.c_void_p(q), i(n),
            )  # fmt: skip
            if not np.array_equal(c, np.full((n, n), n, dtype)):
                return f"computes a wrong {letter}gemm of {n} x {n} ones on {threads} threads"
    return ""


def _factor(native: Any) -> str:
    address = native.lapack("dpotrf")
    if not address:
        return "has no LAPACK (no dpotrf_)"
    n = 3
    a = np.eye(n) * 4.0
    info = np.full(2, -1, np.int64)
    order = native.integer(n)
    native.call(
        address, ctypes.c_char_p(b"L"), ctypes.byref(order), ctypes.c_void_p(a.ctypes.data), ctypes.byref(order),
        ctypes.c_void_p(info.ctypes.data), ctypes.c_size_t(1),
    )  # fmt: skip
    return "" if np.array_equal(a, np.eye(n) * 2.0) else "computes a wrong Cholesky factor"
