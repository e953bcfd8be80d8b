"""Asks a loaded library what it is, by calls whose answers are known, before the first real pointer goes to it.

A child process has computed with the file before (`probe_cache`); here it runs beside what else is in this process.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, cast

from ... import switches
from .probe_program import Unfit, check_factor, check_products, integer_bytes

__all__ = ["probe"]


def probe(traits: Any, *, has_lapack: bool) -> str:
    """Returns what is wrong with a BLAS, or an empty string.

    Checks the width of its integers, products of ones on one thread and on all (a wrong OpenMP runtime gives wrong numbers
    in silence), that no other library computes in its place, and the diagonal of a Cholesky factor.
    """
    try:
        _check(traits.native, traits.thread_guard, has_lapack)
    except Unfit as error:
        return str(error)
    return ""


def _check(native: Any, thread_guard: Any, has_lapack: bool) -> None:
    isamax = native.lapack("isamax")
    if not isamax:
        raise Unfit("exports no isamax_: not a BLAS that can be told LP64 from ILP64")
    size = integer_bytes(partial(native.call, isamax, restype=ctypes.c_int32))
    if size != native.int_size:
        raise Unfit(f"has {8 * size}-bit integers where {8 * native.int_size}-bit ones are expected")
    threads = cast(int, switches.get("num_threads"))
    for count in (1, threads) if threads > 1 else (1,):
        former = thread_guard.enter(count) if thread_guard else 0
        try:
            check_products(lambda letter: partial(native.call, native.cblas(f"{letter}gemm")), count)
        finally:
            if thread_guard:
                thread_guard.leave(former)
    if has_lapack:
        potrf = native.lapack("dpotrf")
        if not potrf:
            raise Unfit("has no LAPACK (no dpotrf_)")
        check_factor(partial(native.call, potrf))
