"""FftProblems made of arrays, and what their results must be."""

import math
from typing import Any

import numpy as np

from backline.libraries import errata
from backline.libraries.base import Algorithm
from backline.problems import operand
from backline.problems.fft_problem import FftProblem

WIDE = {"float32": np.float64, "float64": np.longdouble, "complex64": np.complex128, "complex128": np.clongdouble}


def problem(
    op: str, x: np.ndarray, axes: tuple[int, ...] = (-1,), lengths: Any = None, sign: int | None = None, scale: float = 1.0,
    out: np.ndarray | None = None, **parameters: Any,
) -> FftProblem:  # fmt: skip
    """The Problem of a transform of `x`; lengths are those of `x` unless given, sign that of the usual function."""
    axes = tuple(a % x.ndim for a in axes)
    if lengths is None:
        lengths = [x.shape[a] for a in axes]
        if op == "c2r":
            lengths[-1] = 2 * (lengths[-1] - 1)
    shape = list(x.shape)
    for axis, n in zip(axes, lengths, strict=True):
        shape[axis] = n
    if op == "r2c":
        shape[axes[-1]] = lengths[-1] // 2 + 1
    operands = [operand("input", x)] + ([] if out is None else [operand("out", out)])
    return FftProblem(
        f"fft.{op}", tuple(operands), tuple(sorted(parameters.items())), "fft", axes=axes, lengths=tuple(lengths),
        sign=sign or (1 if op == "c2r" else -1), scale=scale, result=tuple(shape),
    )  # fmt: skip


def wanted(p: FftProblem, x: np.ndarray) -> np.ndarray:
    """The result in the next wider precision, by NumPy."""
    wide = x.astype(WIDE[x.dtype.name])
    axes, lengths = p.axes, p.lengths
    inverse = {True: np.fft.ifft, False: np.fft.fft}[p.sign > 0]
    norm = "forward" if p.sign > 0 else "backward"  # no factor of its own
    if p.op == "fft.c2r":
        wide = wide + WIDE_ZERO
        for axis, n in zip(axes[:-1], lengths[:-1], strict=True):
            wide = inverse(wide, n, axis, norm=norm)
        last = np.fft.irfft(wide if p.sign > 0 else wide.conj(), lengths[-1], axes[-1], norm="forward")
        return last * p.scale
    for axis, n in zip(axes, lengths, strict=True):
        wide = inverse(wide, n, axis, norm=norm)
    if p.op == "fft.r2c":
        wide = np.take(wide, range(lengths[-1] // 2 + 1), axes[-1])
    return wide * p.scale


WIDE_ZERO = np.clongdouble(0)


def allowed(p: FftProblem) -> float:
    """The largest relative error in the Euclidean norm: it grows with the logarithm of the points."""
    return 1.5 * float(np.finfo(p.real).eps) * math.sqrt(math.log2(max(p.points, 4)))


def error(got: np.ndarray, ref: np.ndarray) -> float:
    """Relative error in the Euclidean norm."""
    size = np.linalg.norm(ref.ravel().astype(np.complex128))
    return float(np.linalg.norm((got - ref).ravel().astype(np.complex128)) / (size or 1.0))


def arrays_like(shape: tuple[int, ...], dtype: str, fill: float | None = None) -> dict[str, np.ndarray]:
    """Random arrays of one shape that lie in memory in different ways, by name."""
    rng = np.random.default_rng(7)

    def made(size: tuple[int, ...]) -> np.ndarray:
        x = rng.standard_normal(size) if fill is None else np.full(size, fill)
        return (x + 1j * rng.standard_normal(size) if np.dtype(dtype).kind == "c" and fill is None else x).astype(dtype)

    base = made(shape)
    odd = np.ndarray(shape, dtype, np.empty(base.nbytes + 1, np.uint8), 1)
    odd[...] = base
    half = np.ndarray(shape, dtype, np.empty(base.nbytes + 64, np.uint8), np.dtype(dtype).alignment)
    half[...] = base
    return {
        "C": base, "F": np.asfortranarray(base), "backwards": base[..., ::-1], "upside down": base[::-1],
        "steps": made(tuple(2 * n for n in shape))[(slice(None, None, 2),) * len(shape)],
        "broadcast": np.broadcast_to(base[:1], shape), "misaligned": odd, "shifted": half,
    }  # fmt: skip


DTYPES = ("float32", "float64", "complex64", "complex128")
SHAPES = [
    ((1,), (0,)), ((13,), (0,)), ((5, 12), (1,)), ((5, 12), (0,)), ((4, 6, 9), (1,)), ((4, 6, 9), (2, 0)), ((4, 6, 8), (0, 1, 2)),
    ((3, 4, 5, 6), (1, 2)), ((2, 3, 2, 3), (0, 1, 2, 3)), ((1, 5), (0,)), ((1, 1), (0, 1)), ((9, 1024), (1,)), ((2,) * 6, tuple(range(6))),
]  # fmt: skip


def plans_of(library: Any, p: FftProblem, threads: int = 2) -> list[Any]:
    """Every algorithm that a library has, with its plan; none where its kernels are wrong or lose digits here."""
    listed = list(library.algorithms(p, threads))
    ways = [a for a in listed if isinstance(a, Algorithm)]
    assert ways or all(r.reason.startswith("loses digits at") for r in listed), listed
    return [(a, library.prepare(p, a)) for a in ways if not errata.refusal(library, p, a)]


def check_plans(library: Any, p: FftProblem, x: np.ndarray, out: np.ndarray | None = None) -> None:
    """Every algorithm gives what is wanted, in its place, and leaves its input alone."""
    reference, before = wanted(p, x), x.copy()
    for a, plan in plans_of(library, p):
        got = plan(x) if out is None else plan(x, out)
        assert got.shape == p.result and got.dtype == p.result_dtype, (a.key, got.shape, got.dtype)
        assert error(got, reference) <= allowed(p), (a.key, p.op, p.axes, p.lengths, p.sign, x.shape, x.strides, x.dtype)
        assert np.array_equal(x, before), f"{a.key} changed its input"
        assert out is None or got is out


def check_layouts(library: Any, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """All operations on one shape, however it lies, as long as it is, cut, and filled up."""
    ops = ["c2c", "c2r", *(["r2c"] if np.dtype(dtype).kind == "f" else [])]
    sizes = [shape[a] for a in axes]
    for k, (name, x) in enumerate(arrays_like(shape, dtype).items()):
        for i, op in enumerate(ops):
            for sign in (-1, 1) if name == "C" else ((-1) ** (i + k),):
                lengths = [2 * n - 1 for n in sizes] if op == "c2r" else None
                check_plans(library, problem(op, x, axes, lengths, sign, 0.37), x)
            if name in ("C", "backwards"):
                check_plans(library, problem(op, x, axes, [max(n - 2 + 4 * ((j + i) % 2), 1) for j, n in enumerate(sizes)]), x)
                check_plans(library, problem(op, x, axes, [n + 3 for n in sizes], 1), x)


def check_outputs(library: Any, dtype: str) -> None:
    """Given outputs, however they lie."""
    x = arrays_like((4, 6, 10), dtype)["C"]
    for op in ("c2c", "c2r") if np.dtype(dtype).kind == "c" else ("c2c", "r2c", "c2r"):
        for axes in ((2,), (0,), (0, 2)):
            p = problem(op, x, axes)
            for out in arrays_like(p.result, p.result_dtype.name, fill=np.nan).values():
                if 0 not in out.strides:
                    check_plans(library, problem(op, x, axes, out=out, scale=0.5), x, out)
