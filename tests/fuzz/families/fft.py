"""Transforms: Fourier, real, Hermitian, cosine and sine, of one axis and of many."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.fft

from ..arrays import FORMATS, Array, Draw, wide
from ..call import Call, generates
from ..check import Wrong, like

REAL_IN = ("rfft", "ihfft")
REAL_OUT = ("irfft", "hfft")
PRIMES = (67, 97, 101, 127, 131, 199, 211, 257, 509, 521, 1009, 1021, 2053)
NARROW = {"float32": "complex64", "float64": "complex128"}


def _length(draw: Draw, most: int) -> int:
    r = draw.random.random()
    if r < 0.6 or most < 66:
        n = draw.size(min(most, 65), zero=0)
    elif r < 0.75:
        n = draw.choice(PRIMES)
    elif r < 0.9:
        n = draw.whole(66, 700)
    elif r < 0.985:
        n = draw.whole(700, 4500)
    else:
        n = draw.whole(4500, 40000)
    n = min(n, most)
    return min(n, draw.plain.size) if draw.plain.size else n


def compare(result: Any, reference: Array, axes: tuple[int, ...], dtype: Any, count: int, source: Array) -> None:
    """The error of an element is that of the rounding of its whole transform: some units times log2(n) of the root mean square."""
    got = like(result, reference.shape, dtype)
    if not got.size:
        return
    f = FORMATS[dtype.name]
    with np.errstate(all="ignore"):
        g = wide(got)
        finite = np.isfinite(reference).all(axes, keepdims=True)
        # Relative to the root mean square of what came out or went in, whichever is larger after scaling: outputs may cancel.
        power = np.sqrt(np.mean(np.abs(reference) ** 2, axes, keepdims=True))
        levels = math.log2(count) + 1 if count > 1 else 1
        bound = f.eps * ((12 + 6 * levels) * power + 2 * levels * np.abs(reference)) + f.tiny * 16 * max(math.sqrt(count), 1)
        loose = np.isfinite(power) & (power * math.sqrt(count) * 4 > f.largest) | (np.max(np.abs(reference), axes, keepdims=True) * 4 > f.largest)
        # Intermediate results are as large as the sum of what goes in.
        loose |= np.max(np.abs(np.where(np.isfinite(source), source, 0)), initial=0) * count * 4 > f.largest
        error = np.abs(g - reference)
        wrong = ~(error <= bound) & finite & ~loose
        if wrong.any():
            at = tuple(int(i[0]) for i in np.nonzero(wrong))
            ratio = float(np.max(np.where(wrong, error / bound, 0)[np.isfinite(g)], initial=0))
            kind = "not finite" if (wrong & ~np.isfinite(g)).any() else "value"
            text = f"result{list(at)} is {got[at]}, not {reference[at]}; {int(wrong.sum())} of {wrong.size} wrong, worst {ratio:.3g} times the bound"
            raise Wrong(kind, text)
        lost = ~finite & np.isfinite(g).all(axes, keepdims=True)
        if lost.any():
            raise Wrong("special values", "a transform of NaN or infinity has only finite results")


def _finish(draw: Draw, op: str, x: Array, kwargs: dict[str, Any], name: str, axes: tuple[int, ...], given: dict[str, Any], dtype: str) -> Call:
    w = wide(x)
    with np.errstate(all="ignore"):
        transform = getattr(scipy.fft, name)
        if name.rstrip("n") in COSINES and x.dtype.kind == "c":  # SciPy 1.17 leaves `orthogonalize` out for complex numbers
            reference = np.asarray(transform(w.real, **given) + 1j * transform(w.imag, **given))
        else:
            reference = np.asarray(transform(w, **given))
    real_out = name.startswith(("irfft", "hfft")) or (x.dtype.kind == "f" and name.lstrip("i").startswith(("dct", "dst")))
    result = np.dtype(dtype if real_out or np.dtype(dtype).kind == "c" else NARROW[dtype])
    if real_out:
        result = np.zeros(0, result).real.dtype
    count = math.prod(max(reference.shape[a], x.shape[a]) for a in axes) if x.ndim else 1
    call = Call(op, (x,), kwargs, lambda got: compare(got, reference, axes, result, count, w))
    if draw.chance(0.15) and not draw.plain.out:
        call.out = draw.out(reference.shape, result)
        call.kwargs = {**kwargs, "out": call.out}
    return call


COSINES = ("dct", "idct", "dst", "idst")
KINDS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")


def _dtype(draw: Draw, name: str) -> str:
    base = name.rstrip("2n")
    if base in REAL_IN:
        return draw.choice(("float32", "float64"))
    return draw.choice(("complex64", "complex128")) if not (base in ("fft", "ifft") and draw.chance(0.2)) else draw.choice(("float32", "float64"))


@generates("fft", *(f"fft.{k}" for k in KINDS), weight=4)
def one(draw: Draw, op: str) -> Call:
    name = op[4:]
    dtype = _dtype(draw, name)
    rank = draw.choice((1, 1, 2, 2, 3))
    axis = draw.whole(-rank, rank - 1)
    n = _length(draw, 40000)
    shape = [draw.size(4) if n > 64 else draw.size(17) for _ in range(rank)]
    if draw.chance(0.02):
        shape[axis] = 0
    length = n if draw.chance(0.3) else None
    shape[axis] = max(n if length is None else n + draw.choice((-3, -1, 0, 1, 2, 5)), 1)
    if length is None and name in REAL_OUT:
        shape[axis] = max(n // 2 + 1, 2)
        length = n if draw.chance(0.5) and n > 1 else None
    other = [i for i in range(rank) if i != axis % rank]
    while math.prod(shape) > 60000 and any(shape[i] > 1 for i in other):
        shape[max(other, key=lambda i: shape[i])] = 1
    x = draw.array(tuple(shape), dtype)
    norm = draw.choice((None, None, "ortho", "forward", "backward"))
    kwargs: dict[str, Any] = {k: v for k, v in (("n", length), ("norm", norm)) if v is not None}
    if axis % rank != rank - 1 or draw.chance(0.2):
        kwargs["dim"] = axis
    return _finish(draw, op, x, kwargs, name, (axis % rank,), {"n": length, "axis": axis, "norm": norm}, dtype)


def _axes(draw: Draw, rank: int, two: bool) -> tuple[int, ...] | None:
    if draw.chance(0.4) and (rank >= 2 or not two):
        return None
    axes = list(range(rank))
    draw.random.shuffle(axes)
    count = 2 if two else draw.whole(1, rank)
    return tuple(a - rank if draw.chance(0.3) else a for a in axes[:count])


@generates("fft", *(f"fft.{k}2" for k in KINDS), *(f"fft.{k}n" for k in KINDS), weight=2)
def many(draw: Draw, op: str) -> Call:
    name = op[4:]
    two = name.endswith("2")
    dtype = _dtype(draw, name)
    rank = draw.choice((2, 2, 3, 4)) if two else draw.choice((1, 2, 2, 3, 4))
    most = {1: 2000, 2: 65, 3: 17, 4: 9}[rank]
    shape = tuple(draw.size(most, zero=0) for _ in range(rank))
    if name.rstrip("2n") in REAL_OUT:
        shape = tuple(max(n, 2) for n in shape)
    dim = _axes(draw, rank, two)
    axes = dim if dim is not None else ((-2, -1) if two else tuple(range(rank)))
    s = None
    if draw.chance(0.3):
        s = tuple(max(shape[a] + draw.choice((-2, -1, 0, 1, 3)), 1) for a in axes)
    x = draw.array(shape, dtype)
    norm = draw.choice((None, None, "ortho", "forward", "backward"))
    kwargs: dict[str, Any] = {k: v for k, v in (("s", s), ("dim", dim), ("norm", norm)) if v is not None}
    given = {"s": s, "axes": axes, "norm": norm}
    return _finish(draw, op, x, kwargs, name, tuple(a % rank for a in axes), given, dtype)


@generates("fft", *(f"fft.{k}" for k in COSINES), *(f"fft.{k}n" for k in COSINES), weight=2)
def cosines(draw: Draw, op: str) -> Call:
    name = op[4:]
    dtype = draw.choice(("float32", "float64", "float32", "float64", "complex64", "complex128"))
    kind = draw.whole(1, 4)
    norm = draw.choice((None, None, "ortho", "forward", "backward"))
    orthogonal = draw.choice((None, None, None, True, False))
    least = 2 if kind == 1 and "dct" in name else 1
    if name.endswith("n"):
        rank = draw.choice((1, 2, 2, 3))
        shape = tuple(max(draw.size({1: 500, 2: 33, 3: 11}[rank], zero=0), least) for _ in range(rank))
        dim = _axes(draw, rank, False)
        axes = tuple(range(rank)) if dim is None else dim
        size: Any = tuple(max(shape[a] + draw.choice((-1, 0, 1, 3)), least) for a in axes) if draw.chance(0.3) else None
        words, given = {"s": size, "dim": dim}, {"s": size, "axes": axes}
    else:
        rank = draw.choice((1, 1, 2, 3))
        axis = draw.whole(-rank, rank - 1)
        sizes = [draw.size(9) for _ in range(rank)]
        sizes = [max(n, 1) for n in sizes]
        sizes[axis] = max(_length(draw, 3000), least)
        shape, axes = tuple(sizes), (axis,)
        size = max(shape[axis] + draw.choice((-1, 0, 1, 3)), least) if draw.chance(0.3) else None
        words, given = {"n": size, "dim": axis if axis % rank != rank - 1 else None}, {"n": size, "axis": axis}
    x = draw.array(shape, dtype)
    words |= {"norm": norm, "type": kind if kind != 2 else None, "orthogonalize": orthogonal}
    kwargs = {k: v for k, v in words.items() if v is not None}
    given |= {"norm": norm, "type": kind, "orthogonalize": orthogonal}
    return _finish(draw, op, x, kwargs, name, tuple(a % rank for a in axes), given, dtype)


@generates("fft", "fft.fftshift", "fft.ifftshift", "fft.fftfreq", "fft.rfftfreq")
def helpers(draw: Draw, op: str) -> Call:
    function = getattr(np.fft, op[4:])
    if op.endswith("freq"):
        n, d = draw.whole(1, 100), draw.choice((1.0, 0.5, 3.0))
        reference = function(n, d)
        args: tuple[Any, ...] = (n, d)
    else:
        x = draw.array(draw.shape(draw.whole(1, 3), 17), draw.choice(("float32", "complex128", "float64")))
        dim = draw.choice((None, 0, -1))
        reference, args = function(x, dim), (x, dim)

    def check(result: Any) -> None:
        if not np.array_equal(like(result, reference.shape, np.asarray(result).dtype), reference.astype(np.asarray(result).dtype), equal_nan=True):
            raise Wrong("value", "elements differ")

    return Call(op, args, {}, check)


EXTENDED = {"reflect": "reflect", "constant": "constant", "replicate": "edge", "circular": "wrap"}


@generates("fft", "stft")
def frames(draw: Draw, op: str) -> Call:
    dtype = draw.choice(("float32", "float64", "complex64", "complex128"))
    n, hop = draw.size(65, zero=0), draw.whole(1, 70)
    taps, mode, center = draw.whole(1, n), draw.choice(tuple(EXTENDED)), draw.chance(0.5)
    length = draw.whole(n + 1, 2 * n + 200)
    x = draw.array((draw.whole(1, 4), length) if draw.chance(0.5) else (length,), dtype)
    window = draw.array((taps,), np.zeros(0, dtype).real.dtype.name, "normal")
    half = x.dtype.kind == "f" and draw.chance(0.7)
    signal, factors = wide(x), np.pad(wide(window), ((n - taps) // 2, n - taps - (n - taps) // 2))
    if center:
        signal = np.pad(signal, [(0, 0)] * (x.ndim - 1) + [(n // 2, n // 2)], EXTENDED[mode])
    with np.errstate(all="ignore"):
        cut = np.lib.stride_tricks.sliding_window_view(signal, n, axis=-1)[..., ::hop, :] * factors
        reference = scipy.fft.rfft(cut) if half else scipy.fft.fft(cut)
    kwargs = {"hop_length": hop, "win_length": taps, "window": window, "center": center, "pad_mode": mode, "onesided": half}
    result = np.dtype(dtype if x.dtype.kind == "c" else NARROW[dtype])

    def check(got: Any) -> None:
        compare(np.swapaxes(got, -1, -2), reference, (reference.ndim - 1,), result, n, cut)

    return Call(op, (x, n), kwargs, check)
