"""Fourier transforms by numpy.fft, which computes single precision in single precision, on one thread.

NumPy has no cosine and sine transforms: these are made of real transforms of a longer sequence with the symmetry that each type
implies, which is slower and no less exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np

from ...errors import refuse_overlap
from ...problems.fft_problem import FftProblem
from ..base import Algorithm

__all__ = ["AFTER", "BEFORE", "FftPlan", "algorithms", "apart", "fits", "fitted", "plan", "scaled"]

Array = Any
NORMS = ("backward", "ortho", "forward")


def algorithms(problem: FftProblem) -> Iterator[Algorithm]:
    """One, on one thread: no other thread count can give other bits."""
    made = problem.op == "fft.r2r"
    note = "made of real Fourier transforms of a longer sequence" if made else ""
    yield Algorithm(library="numpy", name="extended" if made else "fft", level="threads", basis="construction", note=note)


def apart(out: Array, x: Array) -> None:
    """Refuse an output that overlaps the input, as the compiled plans do."""
    if np.may_share_memory(out, x):
        refuse_overlap(out, x)


def fits(p: FftProblem) -> bool:
    """Tells if the input itself is transformed: neither cut nor filled up, neither converted nor aligned first."""
    o = p.get("input")
    assert o is not None
    whole = tuple(o.shape[axis] for axis in p.axes) == p.taken and not p.empty
    return whole and o.aligned and o.dtype == (p.complex if o.dtype.kind == "c" else p.real)


def fitted(p: FftProblem, x: Array) -> Array:
    """The input in the dtype it is computed in, cut or filled up to what is taken; a view of it where nothing has to change."""
    dtype = p.complex if x.dtype.kind == "c" else p.real
    shape = list(x.shape)
    for axis, n in zip(p.axes, p.taken, strict=True):
        shape[axis] = n
    there = x[tuple(slice(0, n) for n in shape)]
    if there.shape == tuple(shape):
        return np.require(there, dtype, "A")
    whole = np.zeros(shape, dtype)
    whole[tuple(slice(0, n) for n in there.shape)] = there
    return whole


def scaled(p: FftProblem, y: Array) -> Array:
    """Times `scale`, where the transform could not do it."""
    if p.normalisation is None:
        y *= p.real.type(p.scale)
    return y


class FftPlan:
    """A Plan in Python that counts its runs, as the cache of transforms reads them off the compiled ones.

    `function` transforms the first array into the second, or into a new one for None; it returns the result. `runs` is how often
    it ran, `used` when it last did, by a clock that counts the runs of all of them.
    """

    __slots__ = ("choice", "function", "order", "runs", "used")

    def __init__(self, problem: FftProblem, function: Callable[[Array, Array | None], Array]) -> None:
        self.function = function
        self.choice: Any = None
        self.order = tuple(o.role for o in problem.operands)
        self.runs = self.used = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Array:
        self.runs += 1
        self.used = next(_clock)
        out = kwargs.get("out")
        if not args:
            return self.function(kwargs["input"], out)
        given = args[0]
        if out is None and len(self.order) == 2:  # called with the arrays alone, in their order
            arrays = [a for a in args if isinstance(a, np.ndarray)]
            given, out = arrays if self.order[0] == "input" else reversed(arrays)
        return self.function(given, out)


_clock = count(1)


def plan(p: FftProblem) -> FftPlan:
    """The Plan of NumPy's transforms for a Problem."""
    compute = _cosine(p) if p.op == "fft.r2r" else _fourier(p)
    ready = fits(p)

    def run(x: Array, out: Array | None) -> Array:
        if out is not None:
            apart(out, x)
        with np.errstate(all="ignore"):  # overflow and NaN show in the result
            if p.empty:
                y = np.empty(p.result, p.result_dtype)
            else:
                y = scaled(p, compute(x if ready else fitted(p, x)))
            if out is None:
                return y
            out[...] = y
            return out

    return FftPlan(p, run)


def _fourier(p: FftProblem) -> Callable[[Array], Array]:
    if not p.axes:
        return lambda x: x.astype(p.complex)
    norm = NORMS[p.normalisation or 0]
    back = NORMS[2 - (p.normalisation or 0)]  # what the inverse functions call the same factor
    one = len(p.axes) == 1  # the functions of one dimension take less time for short transforms
    where: Any = (p.lengths[0], p.axes[0]) if one else (p.lengths, p.axes)
    names = {"fft.c2c": ("fft", "ifft"), "fft.r2c": ("rfft", "rfft"), "fft.c2r": ("irfft", "irfft")}[p.op]
    name = names[p.sign > 0] + ("" if one else "n")
    transform: Any = getattr(np.fft, name)
    if p.op == "fft.c2c":
        return lambda x: transform(x, *where, norm if p.sign < 0 else back)
    if p.op == "fft.r2c":
        if p.sign < 0:
            return lambda x: transform(x, *where, norm)

        def conjugate(x: Array) -> Array:
            y = transform(x, *where, norm)
            return np.conjugate(y, out=y)

        return conjugate
    if p.sign > 0:
        return lambda x: transform(x, *where, back)
    return lambda x: transform(np.conjugate(x), *where, back)


# Cosine and sine transforms ---------------------------------------------------------------------------------------------


# Elements that an orthogonal matrix scales by the root of 2: multiplied in the input, divided in the result.
BEFORE = {"dct1": (0, -1), "dct3": (0,), "dst3": (-1,)}
AFTER = {"dct1": (0, -1), "dct2": (0,), "dst2": (-1,)}


def _cosine(p: FftProblem) -> Callable[[Array], Array]:
    kind, ortho = str(p.parameter("kind")), bool(p.parameter("ortho"))
    one = KINDS[kind]
    before, after = (ends.get(kind, ()) if ortho else () for ends in (BEFORE, AFTER))

    def along(x: Array, axis: int) -> Array:
        y = np.moveaxis(x, axis, -1)
        root = p.real.type(2) ** p.real.type(0.5)
        y = y.copy() if before else y
        for end in before:
            y[..., end] *= root
        y = one(y, p.real)
        for end in after:
            y[..., end] /= root
        return np.moveaxis(y, -1, axis)

    def real(x: Array) -> Array:
        for axis in p.axes:
            x = along(x, axis)
        if p.normalisation:
            x = x * p.real.type(1 / (p.real.type(p.period) ** (p.real.type(0.5) if p.normalisation == 1 else 1)))
        return x

    def run(x: Array) -> Array:
        if x.dtype.kind != "c":
            return real(x)
        y = np.empty(p.result, p.complex)
        y.real, y.imag = real(x.real), real(x.imag)
        return y

    return run


def _turn(n: int, first: float, steps: Array, real: Any) -> Array:
    """exp(-1j * pi * (first + steps) / n) in the dtype."""
    wide = np.longdouble if np.dtype(real) == np.longdouble else np.float64
    angle = -np.arccos(wide(-1)) * (wide(first) + steps.astype(wide)) / wide(n)
    return (np.cos(angle) + 1j * np.sin(angle)).astype(np.dtype(real).char.upper())


def _dct1(x: Array, real: Any) -> Array:
    """Even around both ends: the sequence and its mirror image."""
    return np.fft.rfft(np.concatenate([x, x[..., -2:0:-1]], -1)).real.copy()


def _dst1(x: Array, real: Any) -> Array:
    """Odd around a zero before and one behind."""
    zero = np.zeros((*x.shape[:-1], 1), x.dtype)
    y = np.fft.rfft(np.concatenate([zero, x, zero, -x[..., ::-1]], -1))
    return -y.imag[..., 1 : x.shape[-1] + 1]


def _type2(x: Array, real: Any) -> Array:
    """Cosines at half steps: the spectrum of the sequence and its mirror image, turned by half a step."""
    n = x.shape[-1]
    y = np.fft.rfft(np.concatenate([x, x[..., ::-1]], -1))[..., :n]
    return (y * _turn(2 * n, 0, np.arange(n), real)).real.copy()


def _alternate(x: Array) -> Array:
    y = x.copy()
    y[..., 1::2] *= -1
    return y


def _dst2(x: Array, real: Any) -> Array:
    """The cosine transform of the sequence with every second sign changed, from behind."""
    return _type2(_alternate(x), real)[..., ::-1].copy()


def _type3(x: Array, real: Any) -> Array:
    """The inverse of type 2, but for a factor of twice the points."""
    n = x.shape[-1]
    half = np.zeros((*x.shape[:-1], n + 1), np.dtype(real).char.upper())
    half[..., :n] = x * np.conjugate(_turn(2 * n, 0, np.arange(n), real))
    return np.fft.irfft(half, 2 * n, norm="forward")[..., :n].copy()


def _dst3(x: Array, real: Any) -> Array:
    y = _type3(x[..., ::-1], real)
    y[..., 1::2] *= -1
    return y


def _dct4(x: Array, real: Any) -> Array:
    """A complex transform of twice the points, turned before and after."""
    n = x.shape[-1]
    turned = x * _turn(2 * n, 0, np.arange(n), real)
    y = np.fft.fft(turned, 2 * n)[..., :n]
    return 2 * (y * _turn(4 * n, 1, 2 * np.arange(n), real)).real


def _dst4(x: Array, real: Any) -> Array:
    y = _dct4(x[..., ::-1], real)
    y[..., 1::2] *= -1
    return y


KINDS: dict[str, Callable[[Array, Any], Array]] = {
    "dct1": _dct1, "dct2": _type2, "dct3": _type3, "dct4": _dct4, "dst1": _dst1, "dst2": _dst2, "dst3": _dst3, "dst4": _dst4,
}  # fmt: skip
