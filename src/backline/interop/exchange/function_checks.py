"""Checks of a library's routines before an address of theirs is written anywhere: small problems with known properties.

Each type of number and each family is checked by itself: what computes wrong numbers, or takes its arguments otherwise, is
refused with all of its family, and the rest can be exchanged. References are NumPy's loops, which call no BLAS.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ...libraries.probing.probe_program import Unfit, integer_bytes
from .routines import FAMILIES
from .targets import Target

__all__ = ["complex_convention", "refusals"]

DTYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
_INTEGERS = {4: ctypes.c_int32, 8: ctypes.c_int64}
_REALS = {"s": ctypes.c_float, "c": ctypes.c_float, "d": ctypes.c_double, "z": ctypes.c_double}
WORK = 4096  # elements of workspace: plenty for matrices of this size

_known: dict[tuple[str, int], dict[tuple[str, str, str], str]] = {}


def refusals(target: Target, width: int) -> dict[tuple[str, str, str], str]:
    """Returns what is wrong with a library's routines, by interface, family and letter; what is right is not in it.

    The routines are called once for each library and width of integers.
    """
    key = target.name, width
    if key not in _known:
        _known[key] = dict(_check(target, width)) if width in target.namings else {}
    return _known[key]


def complex_convention(target: Target) -> str:
    """Returns how a library's Fortran functions return complex numbers: "registers" or "hidden argument", "" if not known.

    A product of no elements is asked for. A function that takes a hidden first argument sets that to zero; any other takes it for
    the number of elements, which is zero, and leaves it alone.
    """
    width = min(target.namings)
    address = target.address("fortran", "zdotc", width)
    if not address:
        return ""
    integer = _INTEGERS[width]
    result = np.array([0.0, 7.0])  # the first eight bytes are the integer 0
    x, count, one = np.zeros(4), integer(0), integer(1)
    pointers = [ctypes.c_void_p(result.ctypes.data), ctypes.byref(count), ctypes.c_void_p(x.ctypes.data), ctypes.byref(one)]
    ctypes.CFUNCTYPE(None)(address)(*pointers, ctypes.c_void_p(x.ctypes.data), ctypes.byref(one))
    return "registers" if result[1] == 7.0 else "hidden argument"


def _check(target: Target, width: int) -> Iterator[tuple[tuple[str, str, str], str]]:
    isamax = target.address("fortran", "isamax", width)
    wrong = ""
    if not isamax:
        wrong = "it has no isamax_, by which the width of its integers would be known"
    else:
        try:
            found = integer_bytes(partial(target.native.call, isamax, restype=ctypes.c_int32))
            if found != width:
                wrong = f"its integers have {8 * found} bits, where {8 * width} are expected"
        except Unfit as error:
            wrong = str(error)
    for interface, family, check in _CHECKS:
        for letter in DTYPES:
            reason = wrong
            if not reason:
                try:
                    with np.errstate(all="ignore"):
                        check(_Routines(target, interface, width, letter))
                except Unfit as error:
                    reason = str(error)
            if reason:
                yield (interface, family, letter), reason


class _Routines:
    """The routines of a library for one type of number, called through ctypes."""

    def __init__(self, target: Target, interface: str, width: int, letter: str) -> None:
        self.target, self.interface, self.width, self.letter = target, interface, width, letter
        self.dtype = np.dtype(DTYPES[letter])
        self.complex = letter in "cz"
        self.real = np.dtype(np.float32 if letter in "sc" else np.float64)
        self.integer = np.dtype(np.int32 if width == 4 else np.int64)
        self.random = np.random.default_rng(5)

    def has(self, routine: str) -> bool:
        return bool(self.target.address(self.interface, self.letter + routine, self.width))

    def matrix(self, *shape: int) -> Any:
        values = self.random.standard_normal(shape)
        if self.complex:
            values = values + 1j * self.random.standard_normal(shape)
        return np.asfortranarray(values.astype(self.dtype))

    def zeros(self, *shape: int, dtype: Any = None) -> Any:
        return np.zeros(shape, dtype or self.dtype, order="F")

    def call(self, routine: str, *args: Any, result: Any = None, full_name: bool = False) -> Any:
        """Calls a Fortran routine: integers, numbers and arrays by reference, text with its length at the end."""
        name = routine if full_name else self.letter + routine
        address = self.target.address("fortran", name, self.width)
        converted: list[Any] = []
        lengths, kept = [], []
        for value in args:
            if isinstance(value, str):
                converted.append(ctypes.c_char_p(value.encode()))
                lengths.append(ctypes.c_size_t(1))
                continue
            if isinstance(value, int):
                value = np.array(value, self.integer)
            elif isinstance(value, float):
                value = np.array(value, self.dtype)
            kept.append(value)
            converted.append(ctypes.c_void_p(value.ctypes.data))
        return ctypes.CFUNCTYPE(result)(address)(*converted, *lengths)

    def factor(self, routine: str, *args: Any) -> None:
        """Calls a routine of LAPACK, whose last argument says whether it has done its work."""
        info = np.full((), -99, self.integer)
        self.call(routine, *args, info)
        if info != 0:
            raise Unfit(f"{self.letter}{routine} answered {int(info)} for a problem that has a solution")

    def equal(self, routine: str, value: Any, wanted: Any, loose: float = 1.0) -> None:
        error = float(np.max(np.abs(np.asarray(value) - wanted), initial=0.0))
        scale = max(float(np.max(np.abs(wanted), initial=0.0)), 1.0)
        bound = 500 * float(np.finfo(self.real.type(0)).eps) * scale * loose
        if not error <= bound:  # NaN is no number of what was asked for
            raise Unfit(f"{self.letter}{routine} computes a wrong result: an error of {error:.1e} where {bound:.1e} is allowed")


def _times(*factors: Any) -> Any:
    product = factors[0]
    for factor in factors[1:]:
        product = np.einsum("ij,jk->ik", product, factor)
    return product


def _products(r: _Routines) -> None:
    m, n, k = 5, 4, 3
    a, b, c = r.matrix(m, k), r.matrix(k, n), r.zeros(m, n)
    r.call("gemm", "N", "N", m, n, k, 2.0, a, m, b, k, 0.0, c, m)
    r.equal("gemm", c, 2 * _times(a, b))
    r.call("gemm", "T", "C" if r.complex else "T", m, n, k, 1.0, _transposed(a), k, _transposed(b.conj()), n, 0.0, c, m)
    r.equal("gemm", c, _times(a, b))
    y = r.zeros(m)
    r.call("gemv", "N", m, k, 1.0, a, m, b[:, 0].copy(), 1, 0.0, y, 1)
    r.equal("gemv", y, _times(a, b[:, :1])[:, 0])
    s = r.zeros(m, m)
    r.call("syrk", "U", "N", m, k, 1.0, a, m, 0.0, s, m)
    r.equal("syrk", np.triu(s), np.triu(_times(a, a.T)))
    t = np.asfortranarray(np.triu(r.matrix(k, k)) + 3 * np.eye(k, dtype=r.dtype))
    x = b.copy(order="F")
    r.call("trsm", "L", "U", "N", "N", k, n, 1.0, t, k, x, k)
    r.equal("trsm", _times(t, x), b, 10)
    r.call("trmm", "L", "U", "N", "N", k, n, 1.0, t, k, x, k)
    r.equal("trmm", x, b, 10)
    v = b[:, 0].copy()
    r.call("trsv", "U", "N", "N", k, t, k, v, 1)
    r.equal("trsv", _times(t, v[:, None])[:, 0], b[:, 0], 10)
    g, row = r.zeros(m, n), b[0].copy()
    r.call("geru" if r.complex else "ger", m, n, 1.0, a[:, 0].copy(), 1, row, 1, g, m)
    r.equal("ger", g, np.multiply.outer(a[:, 0], row))


def _transposed(a: Any) -> Any:
    return np.asfortranarray(a.T)


def _vectors(r: _Routines) -> None:
    n = 7
    x, y = r.matrix(n), r.matrix(n)
    wanted = x * np.asarray(2, r.dtype) + y
    r.call("axpy", n, 2.0, x, 1, y, 1)
    r.equal("axpy", y, wanted)
    z = r.zeros(n)
    r.call("copy", n, x, 1, z, 1)
    r.equal("copy", z, x)
    r.call("scal", n, 3.0, z, 1)
    r.equal("scal", z, 3 * x)
    r.call("swap", n, y, 1, z, 1)
    r.equal("swap", z, wanted)
    norm = {"s": "snrm2", "d": "dnrm2", "c": "scnrm2", "z": "dznrm2"}[r.letter]
    # As a function of the same precision: one that returns a double for a float (f2c) gives another number.
    length = r.call(norm, n, x, 1, result=_REALS[r.letter], full_name=True)
    r.equal("nrm2", length, np.sqrt(np.add.reduce(np.abs(x) ** 2)))
    if not r.complex:
        r.equal("dot", r.call("dot", n, x, 1, z, 1, result=_REALS[r.letter]), np.add.reduce(x * z))
    x[4] = 90
    if r.call(f"i{r.letter}amax", n, x, 1, result=ctypes.c_int32, full_name=True) != 5:
        raise Unfit(f"i{r.letter}amax finds another element than the largest")


def _lapack(r: _Routines) -> None:
    if not r.has("getrf"):
        return  # nothing that could be exchanged
    n, nrhs = 6, 2
    a, b = r.matrix(n, n), r.matrix(n, nrhs)
    real = r.zeros(16 * n * n, dtype=r.real)
    work, pivots = r.zeros(WORK), np.zeros(16 * n, r.integer)
    f, x = a.copy(order="F"), b.copy(order="F")
    r.factor("gesv", n, nrhs, f, n, pivots, x, n)
    r.equal("gesv", _times(a, x), b, 50)
    if pivots.min() < 0 or pivots[:n].min() < 1 or pivots.max() > n:
        raise Unfit(f"{r.letter}gesv writes pivots that are none: {pivots[:n].tolist()}")
    x = b.copy(order="F")
    r.factor("getrs", "N", n, nrhs, f, n, pivots, x, n)
    r.equal("getrs", _times(a, x), b, 50)
    r.factor("getri", n, f, n, pivots, work, WORK)
    r.equal("getri", _times(a, f), np.eye(n), 50)
    positive = np.asfortranarray(_times(a, a.conj().T) + n * np.eye(n, dtype=r.dtype))
    f = positive.copy(order="F")
    r.factor("potrf", "L", n, f, n)
    lower = np.tril(f)
    r.equal("potrf", _times(lower, lower.conj().T), positive, 10)
    _spectra(r, a, positive, work, real, pivots)
    f, tau = a.copy(order="F"), r.zeros(n)
    r.factor("geqrf", n, n, f, n, tau, work, WORK)
    upper = np.triu(f)
    r.factor("ungqr" if r.complex else "orgqr", n, n, n, f, n, tau, work, WORK)
    r.equal("geqrf", _times(f, upper), a, 10)
    norm = r.call("lange", "F", n, n, a, n, real, result=_REALS[r.letter])
    r.equal("lange", norm, np.sqrt(np.add.reduce(np.abs(a) ** 2, axis=None)))


def _spectra(r: _Routines, a: Any, symmetric: Any, work: Any, real: Any, integers: Any) -> None:
    n = len(a)
    lapack_real: tuple[Any, ...] = (real, real.size) if r.complex else ()
    f, w = symmetric.copy(order="F"), r.zeros(n, dtype=r.real)
    r.factor("heevd" if r.complex else "syevd", "V", "L", n, f, n, w, work, WORK, *lapack_real, integers, integers.size)
    r.equal("syevd", _times(f * w, f.conj().T), symmetric, 20)
    f, u, vt = a.copy(order="F"), r.zeros(n, n), r.zeros(n, n)
    r.factor("gesdd", "A", n, n, f, n, w, u, n, vt, n, work, WORK, *lapack_real[:1], integers)
    r.equal("gesdd", _times(u * w, vt), a, 20)
    f, left, right = a.copy(order="F"), r.zeros(1, 1), r.zeros(n, n)
    if r.complex:
        values = r.zeros(n)
        r.factor("geev", "N", "V", n, f, n, values, left, 1, right, n, work, WORK, real)
        r.equal("geev", _times(a, right), right * values, 100)
    else:
        values, imaginary = r.zeros(n), r.zeros(n)
        r.factor("geev", "N", "V", n, f, n, values, imaginary, left, 1, right, n, work, WORK)
        # Sums are enough for a matrix with pairs of complex eigenvalues.
        r.equal("geev", np.add.reduce(values), np.add.reduce(np.diagonal(a)), 100)
        powers = np.add.reduce(values**2 - imaginary**2)
        r.equal("geev", powers, np.add.reduce(np.diagonal(_times(a, a))), 200)
    f, x, rank = a.copy(order="F"), r.matrix(n, 1), np.zeros((), r.integer)
    wanted = x.copy()
    r.factor("gelsd", n, n, 1, f, n, x, n, w, np.array(-1, r.real), rank, work, WORK, *lapack_real[:1], integers)
    r.equal("gelsd", _times(a, x), wanted, 200)
    if rank != n:
        raise Unfit(f"{r.letter}gelsd finds rank {int(rank)} of a matrix of rank {n}")


def _c_products(r: _Routines) -> None:
    """Products through the C interface, by rows."""
    if not r.has("gemm"):
        return
    row, plain, transposed, upper = (ctypes.c_int(value) for value in (101, 111, 112, 121))
    integer = _INTEGERS[r.width]
    m, n, k = 5, 4, 3
    a, b, c = (np.ascontiguousarray(x) for x in (r.matrix(m, k), r.matrix(k, n), r.zeros(m, n)))
    one, zero = np.ones((), r.dtype), np.zeros((), r.dtype)
    scalars = [ctypes.c_void_p(x.ctypes.data) if r.complex else _REALS[r.letter](float(x.real)) for x in (one, zero)]

    def call(routine: str, *args: Any) -> None:
        address = r.target.address("cblas", r.letter + routine, r.width)
        values = [
            integer(x) if isinstance(x, int) else ctypes.c_void_p(x.ctypes.data) if isinstance(x, np.ndarray) else x for x in args
        ]
        r.target.native.call(address, *values)

    call("gemm", row, plain, plain, m, n, k, scalars[0], a, k, b, n, scalars[1], c, n)
    r.equal("gemm", c, _times(a, b))
    y = r.zeros(m)
    call("gemv", row, plain, m, k, scalars[0], a, k, b[:, 0].copy(), 1, scalars[1], y, 1)
    r.equal("gemv", y, _times(a, b)[:, 0])
    s = np.zeros((k, k), r.dtype)
    call("syrk", row, upper, transposed, k, m, scalars[0], a, k, scalars[1], s, k)
    r.equal("syrk", np.triu(s), np.triu(_times(a.T, a)))


def _c_vectors(r: _Routines) -> None:
    """Sums of products through the C interface: complex ones are returned through a pointer."""
    integer, n = _INTEGERS[r.width], 6
    x, y = r.matrix(n), r.matrix(n)
    wanted = np.add.reduce(x * y)
    pointers = [integer(n), ctypes.c_void_p(x.ctypes.data), integer(1), ctypes.c_void_p(y.ctypes.data), integer(1)]
    name = "dotu_sub" if r.complex else "dot"
    if not r.has(name):
        return
    address = r.target.address("cblas", r.letter + name, r.width)
    if r.complex:
        value = np.zeros((), r.dtype)
        r.target.native.call(address, *pointers, ctypes.c_void_p(value.ctypes.data))
    else:
        value = r.target.native.call(address, *pointers, restype=_REALS[r.letter])
    r.equal(name, value, wanted)


_CHECKS: tuple[tuple[str, str, Callable[[_Routines], None]], ...] = (
    ("fortran", "blas", _products),
    ("fortran", "level1", _vectors),
    ("fortran", "lapack", _lapack),
    ("cblas", "blas", _c_products),
    ("cblas", "level1", _c_vectors),
)
assert {family for _, family, _ in _CHECKS} <= set(FAMILIES)
