"""Fourier, cosine and sine transforms: every library that has them, against sums in long double and transforms in float64."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.fft
from hypothesis import given, settings
from hypothesis import strategies as st

import backline
import backline.fft
from backline import _core, libraries
from backline.errors import BadType, BadValue, NoKernel
from backline.libraries import errata
from backline.problems.fft_problem import FftProblem
from support import BFLOAT16, LAYOUTS, algorithms, clean, dtype_of, misaligned, need, new_seed, problem_of, run_each, spread

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fft_accuracy as accuracy

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean

LIBRARIES = [name for name in ("mkl", "fftw", "kernels", "scipy", "numpy") if name in libraries.names()]
COMPLEX, REAL, HALF = ("fft", "ifft"), ("rfft", "ihfft"), ("irfft", "hfft")
ONE = (*COMPLEX, *REAL, *HALF)
COSINES = ("dct", "idct", "dst", "idst")
DTYPES = ("float32", "float64", "complex64", "complex128")
NORMS = (None, "ortho", "forward", "backward")
WIDE = np.clongdouble


@pytest.mark.parametrize("name", ["mkl", "fftw"])
@pytest.mark.parametrize("points, most", [(1024, 0), (2048, 2), (4096, 4), (8192, 64)])  # 51, 113, 246, 532 thousand
def test_few_threads_share_what_many_do_not(name: str, points: int, most: int) -> None:
    asked = problem_of("fft.fft", np.zeros(points, np.complex128))
    for threads in (2, 4, 64):
        found = {a.threads for a in algorithms(name, asked, threads)}
        assert found == ({1, threads} if threads <= most else {1})


# The definition -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def matrix(kind: str, n: int) -> Array:
    """Of a transform of n points without a factor, in long double."""
    pi = np.arccos(np.longdouble(-1))
    j, k = np.arange(n)[None, :], np.arange(n)[:, None]
    if kind in ("-1", "1"):
        angle = int(kind) * 2 * pi * ((j * k) % n).astype(np.longdouble) / n
        return np.cos(angle) + 1j * np.sin(angle)
    trig = np.cos if kind[:3] == "dct" else np.sin
    sine = kind[:3] == "dst"
    if kind[3] == "1":
        turns, of = ((j + 1) * (k + 1), n + 1) if sine else (j * k, n - 1)
    elif kind[3] == "2":
        turns, of = (k + sine) * (2 * j + 1), 2 * n
    elif kind[3] == "3":
        turns, of = (j + sine) * (2 * k + 1), 2 * n
    else:
        turns, of = (2 * j + 1) * (2 * k + 1), 4 * n
    m = 2 * trig(pi * (turns % (2 * of)).astype(np.longdouble) / of)
    if kind == "dct1":
        m[:, [0, -1]] /= 2
    elif kind in ("dct3", "dst3"):
        m[:, -1 if sine else 0] /= 2
    return m


def orthogonal(kind: str, m: Array) -> Array:
    """The matrix with its ends scaled."""
    m, root = m.copy(), np.sqrt(np.longdouble(2))
    if kind == "dct1":
        m[:, [0, -1]] *= root
        m[[0, -1]] /= root
    elif kind in ("dct2", "dst2"):
        m[-1 if kind == "dst2" else 0] /= root
    elif kind in ("dct3", "dst3"):
        m[:, -1 if kind == "dst3" else 0] *= root
    return m


def along(m: Array, x: Array, axis: int) -> Array:
    return np.moveaxis(np.tensordot(m, x, (1, axis)), 0, axis)


def fit(x: Array, axis: int, n: int) -> Array:
    """Cut, or filled with zeros."""
    x = np.take(x, range(min(n, x.shape[axis])), axis)
    return np.pad(x, [(0, n - x.shape[a] if a == axis else 0) for a in range(x.ndim)])


def exact(p: FftProblem, x: Array) -> Array:
    """Returns what a Problem asks for, from the definition."""
    y = x.astype(WIDE)
    if p.op == "fft.r2r":
        kind = str(p.parameter("kind"))
        for axis, n in zip(p.axes, p.lengths, strict=True):
            m = matrix(kind, n)
            y = along(orthogonal(kind, m) if p.parameter("ortho") else m, fit(y, axis, n), axis)
    else:
        for axis, n in list(zip(p.axes, p.lengths, strict=True))[: -1 if p.op == "fft.c2r" else None]:
            y = along(matrix(str(p.sign), n), fit(y, axis, n), axis)
        if p.op == "fft.r2c":
            y = fit(y, p.axes[-1], p.lengths[-1] // 2 + 1)
        elif p.op == "fft.c2r":
            axis, n = p.axes[-1], p.lengths[-1]
            y = np.moveaxis(fit(y, axis, n // 2 + 1), axis, -1)
            mirror = y[..., 1 : (n + 1) // 2][..., ::-1].conj()
            y[..., 0] = y[..., 0].real
            if n % 2 == 0:
                y[..., -1] = y[..., -1].real
            y = np.moveaxis(np.concatenate([y, mirror], -1), -1, axis)
            y = along(matrix(str(p.sign), n), y, axis)
    period = np.longdouble(p.period)
    factor = {0: np.longdouble(1), 1: 1 / np.sqrt(period), 2: 1 / period}[p.normalisation]
    y = y * factor
    return y if p.result_dtype.kind == "c" else y.real


def close(p: FftProblem, result: Array, wanted: Array, what: str) -> None:
    """The size of an element's error is that of the whole transform's rounding, wherever it is."""
    assert isinstance(result, np.ndarray) and result.dtype == p.result_dtype and result.shape == p.result == wanted.shape, what
    if wanted.size == 0:
        return
    eps = max(np.finfo(p.real).eps, np.finfo(np.longdouble).eps)
    size = float(np.sqrt(np.mean(np.abs(wanted) ** 2)))
    allowed = 4 * eps * (1 + np.log2(max(p.period, 2))) * max(size, 1e-30)
    error = float(np.max(np.abs(result.astype(WIDE) - wanted)))
    assert error <= allowed, f"{what} of {p.key}: error {error:.2e}, allowed {allowed:.2e}"


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def takes(name: str, dtype: str) -> bool:
    return not (name.rstrip("2n") in REAL and np.dtype(dtype).kind == "c")


def each(library: str, name: str, x: Array, *args: Any, **kwargs: Any) -> Iterator[tuple[str, FftProblem, Array]]:
    problem = problem_of(f"fft.{name}", x, *args, **kwargs)
    for how, result in run_each(library, f"fft.{name}", x, *args, **kwargs):
        yield f"{library} {how}", problem, result


# Every function -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("library", LIBRARIES)
def test_one_axis(library: str, name: str, dtype: str) -> None:
    if not takes(name, dtype):
        return
    x = numbers((3, 8, 5), dtype)
    norms = itertools.cycle(NORMS)
    for axis, n in itertools.product((0, 1, -1), (None, 1, 2, 4, 7, 9, 16)):
        norm = next(norms)
        for what, p, result in each(library, name, x, n, axis, norm):
            close(p, result, exact(p, x), what)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [f"{name}{suffix}" for name in ONE for suffix in ("2", "n")])
@pytest.mark.parametrize("library", LIBRARIES)
def test_several_axes(library: str, name: str, dtype: str) -> None:
    if not takes(name, dtype):
        return
    x = numbers((3, 4, 5, 2), dtype)
    norms = itertools.cycle(NORMS)
    two = ((0, 1), (1, 0), (2, 1), (0, 3), (-2, -1))
    for axes in two if name[-1] == "2" else (*two, (1, 2, 0), (0,), (0, 1, 2), None):
        count = 4 if axes is None else len(axes)
        for s in (None, (4, 7, 2, 3)[:count], (2, -1, 6, 4)[:count]):
            norm = next(norms)
            for what, p, result in each(library, name, x, s, axes, norm):
                close(p, result, exact(p, x), what)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [1, 2, 3, 4])
@pytest.mark.parametrize("name", COSINES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_cosines_and_sines(library: str, name: str, kind: int, dtype: str) -> None:
    x = numbers((3, 8, 5), dtype)
    ways = itertools.cycle(itertools.product(NORMS, (None, True, False)))
    for axis, n in itertools.product((0, 1, -1), (None, 2, 3, 8, 11)):
        norm, ortho = next(ways)
        for what, p, result in each(library, name, x, kind, n, axis, norm, ortho):
            close(p, result, exact(p, x), what)
    for axes, s in (((0, 1), None), ((2, 0), (4, 3)), (None, None)):
        norm, ortho = next(ways)
        for what, p, result in each(library, name + "n", x, kind, s, axes, norm, ortho):
            close(p, result, exact(p, x), what)


def test_every_function_is_in_some_library() -> None:
    x = numbers((4, 4), "float32")
    for name in backline.fft.__all__:
        if f"fft.{name}" in backline.problems.op_registry.operations:
            found = [lib for lib in LIBRARIES if libraries.get(lib).available() and algorithms(lib, problem_of(f"fft.{name}", x))]
            assert {"scipy", "numpy"} <= set(found), name


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["fft", "rfft", "irfft", "dct"])
def test_the_public_function_runs_on_it(library: str, name: str) -> None:
    x = numbers((4, 31), "float64")  # irfft: 60 points; MKL may not run a large prime factor
    problem = problem_of(f"fft.{name}", x)
    need(library)
    if not algorithms(library, problem):
        with backline.use(library, only=True), pytest.raises(NoKernel):
            getattr(backline.fft, name)(x)
        return
    with backline.use(library, only=True):
        close(problem, getattr(backline.fft, name)(x), exact(problem, x), library)
        assert backline.explain().library == library


# Dtypes -------------------------------------------------------------------------------------------------------------------

RESULTS = {
    "float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64", "longdouble": "longdouble",
    "int8": "float64", "uint8": "float64", "int64": "float64", "bool": "float64", "complex64": "float32", "complex128": "float64",
    "clongdouble": "longdouble",
}  # fmt: skip


@pytest.mark.parametrize("dtype", RESULTS)
def test_dtypes(dtype: str) -> None:
    real = np.dtype(RESULTS[dtype])
    wide = np.dtype(real.char.upper())
    x = (numbers((3, 9), "complex128" if dtype.startswith("c") else "float64") * 4).astype(BFLOAT16 if dtype == "bfloat16" else dtype)
    for name in (*ONE, *COSINES):
        if x.dtype.kind == "c" and name in REAL:
            continue
        p = problem_of(f"fft.{name}", x)
        wanted = exact(p, x)
        if name in COSINES:
            assert p.result_dtype == (wide if x.dtype.kind == "c" else real)
        else:
            assert p.result_dtype == (real if name in HALF else wide)
        close(p, getattr(backline.fft, name)(x), wanted, name)
        out = np.empty(p.result, p.result_dtype)
        assert getattr(backline.fft, name)(x, out=out) is out
        close(p, out, wanted, name)
        for library in LIBRARIES:
            for what, _, result in each(library, name, x):
                close(p, result, wanted, what)


def test_foreign_byte_order_and_subclasses() -> None:
    class Sub(np.ndarray):
        pass

    x = np.arange(6.0)
    wanted = backline.fft.fft(x)
    for y in (x.astype(">f8"), x.view(Sub)):
        result = backline.fft.fft(y)
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, wanted)


# Layouts, out -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fft", "rfft", "irfft", "fft2", "rfft2", "irfft2", "ihfft2", "hfft2", "dct", "dstn"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_layouts_of_input_and_out(library: str, name: str) -> None:
    dtype = "complex64" if name.startswith(("fft", "irfft", "hfft")) else "float64"
    x = numbers((3, 6, 5), dtype)
    p = problem_of(f"fft.{name}", x)
    wanted = exact(p, x)
    zeros = np.zeros(p.result, p.result_dtype)
    for i, (layout, form) in enumerate(LAYOUTS.items()):
        given = form(x)
        before = given.copy()
        for what, q, result in each(library, name, given):
            close(q, result, wanted, f"{what}, input {layout}")
        outs = [*LAYOUTS.items()][i::3] if i else LAYOUTS.items()
        for order, made in outs:
            out = made(zeros)
            for what, q, result in each(library, name, given, out=out):
                assert result is out
                close(q, result, wanted, f"{what}, input {layout}, out {order}")
                out[...] = 0
        np.testing.assert_array_equal(given, before)  # it is not touched
    if not name.startswith("d"):
        for axis in (0, 1):
            given = spread(x, axis)
            q = problem_of(f"fft.{name}", given)
            for what, _, result in each(library, name, given):
                close(q, result, exact(q, given), f"{what}, repeated along {axis}")
        for given in (x[:, ::-1], x[::2, :, ::-2], misaligned(x)[::-1]):
            q = problem_of(f"fft.{name}", given)
            for what, _, result in each(library, name, given):
                close(q, result, exact(q, given), what)


@pytest.mark.parametrize("name", ["fft", "ifftn", "rfft", "irfft", "dct", "dstn"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_overlaps_is_refused(library: str, name: str) -> None:
    memory = np.zeros(64, np.complex128)
    x = memory[:16] if name.startswith(("fft", "ifft", "irfft")) else memory.view(np.float64)[:16]
    p = problem_of(f"fft.{name}", x)
    outs = [memory[:40].view(p.result_dtype)[at : at + p.result[0]] for at in (0, 1, 7)]
    for out in outs:
        for algorithm in algorithms(library, problem_of(f"fft.{name}", x, out=out)) if need(library) else ():
            plan = libraries.get(library).prepare(problem_of(f"fft.{name}", x, out=out), algorithm)
            with pytest.raises(BadValue, match="overlaps"):
                plan(x, out)


def test_an_out_that_does_not_fit() -> None:
    x = np.ones(8)
    for out, error in (
        (np.empty(7, complex), BadValue), (np.empty(8), BadType), (np.empty(8, np.complex64), BadType), ([0], BadType),
        (np.broadcast_to(np.empty(1, complex), 8), BadValue),
    ):  # fmt: skip
        with pytest.raises(error, match="out"):
            backline.fft.fft(x, out=out)


@pytest.mark.parametrize("library", LIBRARIES)
def test_overwriting_the_input_changes_no_result(library: str) -> None:
    for name, dtype in itertools.product(("fft", "ifft2", "rfft", "irfft2", "hfft", "dct", "idstn"), DTYPES):
        if not takes(name, dtype):
            continue
        x = numbers((4, 12), dtype)
        p = problem_of(f"fft.{name}", x, overwrite_input=True)
        wanted = exact(p, x)
        if need(library):
            for algorithm in algorithms(library, p):
                given = x.copy()
                close(p, libraries.get(library).prepare(p, algorithm)(given), wanted, f"{library} {algorithm.key}")
        readonly = x.copy()
        readonly.flags.writeable = False
        getattr(backline.fft, name)(readonly, overwrite_input=True)
        np.testing.assert_array_equal(readonly, x)


# Nasty input --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
def test_nothing_and_one_element(library: str) -> None:
    for name in (*ONE, *(f"{n}n" for n in ONE), *COSINES):
        for shape, axis in (((0, 4), 1), ((3, 0, 4), -1), ((4, 0), 0)):
            x = np.empty(shape)
            args = (None, (axis,)) if name.endswith("n") else (2, None, axis) if name in COSINES else (None, axis)
            for what, p, result in each(library, name, x, *args):
                assert result.shape == p.result and result.dtype == p.result_dtype and result.size == 0, what
                out = np.empty(p.result, p.result_dtype)
                q = problem_of(f"fft.{name}", x, *args, out=out)
                for algorithm in algorithms(library, q):
                    assert libraries.get(library).prepare(q, algorithm)(x, out) is out
    for name in ("fft", "ifft", "rfft", "ihfft"):
        for what, _, result in each(library, name, np.array([3.0])):
            assert result.tolist() == [3], what
    for name in ("irfft", "hfft"):
        for what, _, result in each(library, name, np.array([3.0]), 1):
            assert result.tolist() == [3], what
    for name in ("fft", "rfft", "irfft", "dct"):  # an empty input of a transform with points: zeros
        for what, p, result in each(library, name, np.empty((2, 0)), *((2, 4) if name == "dct" else (4,))):
            assert result.shape == p.result and not result.any(), what


@pytest.mark.parametrize("library", LIBRARIES)
def test_along_no_axis(library: str) -> None:
    for x in (np.array(2.0), np.ones((2, 3), np.complex64)):
        for what, p, result in each(library, "fftn", x, None, ()):
            assert result.dtype == p.result_dtype and not np.may_share_memory(result, x), what
            np.testing.assert_array_equal(result, x)
    with pytest.raises(BadValue, match="no axis"):
        backline.fft.rfftn(np.array(2.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_not_finite_stays_where_it_is(library: str, dtype: str) -> None:
    for name in ("fft", "rfft", "irfft", "dct"):
        if not takes(name, dtype):
            continue
        for bad in (np.nan, np.inf):
            x = numbers((5, 12), dtype)
            x[1, 3] = bad
            for what, _, result in each(library, name, x):
                clean_rows = [0, 2, 3, 4]
                q = problem_of(f"fft.{name}", x[clean_rows])
                close(q, np.ascontiguousarray(result[clean_rows]), exact(q, x[clean_rows]), what)
                assert not np.isfinite(result[1]).all(), what


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_very_small_and_very_large(library: str, dtype: str) -> None:
    info = np.finfo(dtype)
    for size in (float(info.tiny) * 64, float(info.max) / 256):
        x = (np.sign(numbers((2, 16), dtype)) * np.dtype(dtype).type(size)).astype(dtype)
        for name in ("fft", "rfft", "irfft"):
            for what, p, result in each(library, name, x):
                wanted = exact(p, x)
                assert np.isfinite(result).all(), what
                np.testing.assert_allclose(np.abs(result), np.abs(wanted).astype(dtype), rtol=1e-4, atol=size * 1e-5, err_msg=what)
    x = np.full(8, info.max, dtype)
    for what, _, result in each(library, "fft", x):
        assert not np.isfinite(result[0]), what  # it overflows, and shows it


# Accuracy -----------------------------------------------------------------------------------------------------------------

SIZES = [4, 16, 64, 256, 1_000, 4096, 10_007, 3 * 5 * 7 * 11 * 13, 1 << 16, 1 << 18, 1 << 19, 1 << 20]


def growth(n: int) -> float:
    """Euclidean error over machine epsilon that rounding explains: sqrt(log n) where errors are random, log n at most."""
    return 1.0 + 0.4 * float(np.log2(max(n, 2)))


@lru_cache(maxsize=8)
def large(name: str, n: int, dtype: str) -> tuple[Array, Array]:
    """Random numbers and their transform, computed with twice as many digits or, for float64, three more."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal(n // 2 + 1 if name == "irfft" else n).astype(dtype)
    if name != "rfft":
        x = x + 1j * rng.standard_normal(x.shape).astype(dtype)
    wide = np.longdouble if dtype == "float64" else np.float64
    precise = x.astype(wide if name == "rfft" else np.dtype(wide).char.upper())
    return x, getattr(scipy.fft, name)(precise, n)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["fft", "rfft", "irfft"])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_grow_like_log_n(library: str, name: str, n: int, dtype: str) -> None:
    if dtype == "float64" and n > 1 << 16:
        return
    x, wanted = large(name, n, dtype)
    size = float(np.linalg.norm(wanted))
    for what, p, result in each(library, name, x, *((n,) if name == "irfft" else ())):
        error = float(np.linalg.norm(result - wanted)) / size / float(np.finfo(p.real).eps)
        assert error <= growth(n), f"{what}: {error:.2f} eps at n = {n}, {growth(n):.2f} allowed"


@pytest.mark.parametrize(
    ("name", "n", "dtype"),
    [
        *[("irfft", n, "float32") for n in (8232, 8250, 12584, 26364, 50544, 65534, 100_000)], ("hfft", 8250, "float32"), ("irfft", 906_770, "float32"),
        *[("fft", n, "float64") for n in (34, 68, 1030, 4204, 8512, 33_688)], ("rfft", 3144, "float64"), ("irfft", 2060, "float64"),
        *[(f, n, "float32") for f in ("fft", "rfft", "irfft") for n in (16_807, 196_569, 93_750, 10_007, (1 << 17) + 1)],
        ("fft", 906_770, "float32"), ("rfft", (1 << 20) + 1, "float32"),
    ],
)  # fmt: skip
def test_the_default_choice_is_accurate_at_lengths_where_kernels_were_not(name: str, n: int, dtype: str) -> None:
    case = accuracy.Case(name, n, 1, dtype == "float32", "backward", 1, n)
    x = case.numbers()
    ours, theirs, ratio = case.ratio(getattr(backline.fft, name)(x, n), x)
    assert ratio <= accuracy.ALLOWED, f"{backline.explain().chosen}: error {ours:.1e}, NumPy's {theirs:.1e}"


@pytest.mark.parametrize("part", range(3))
def test_the_default_choice_is_accurate_at_random_lengths(part: int) -> None:
    """A hundred of the cases of ``python benchmarks/fft_accuracy.py``, which runs 3000."""
    seed = new_seed() % 1_000_000
    for case in accuracy.cases(seed, 100, 1 << 16):
        x = case.numbers()
        ours, theirs, ratio = case.ratio(getattr(backline.fft, case.function)(x, case.n, norm=case.norm), x)
        assert ratio <= accuracy.ALLOWED, f"{case} by {backline.explain().chosen}: error {ours:.1e}, NumPy's {theirs:.1e}"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("rows", ["different", "equal"])
@pytest.mark.parametrize(
    "shape", [(251, 4), (4, 241), (4, 4093), (3, 509), (94, 1006), (558, 277), (111, 226), (53, 59), (43, 32, 53)], ids=str
)
def test_several_axes_are_as_accurate(library: str, shape: tuple[int, ...], rows: str) -> None:
    """Holds where the rows are equal, too: transforming along them then adds no error to NumPy's."""
    need(library)
    x, half = numbers(shape, "complex64"), numbers((*shape[:-1], shape[-1] // 2 + 1), "complex64")
    if rows == "equal":
        x, half = (np.broadcast_to(each[:1], each.shape).copy() for each in (x, half))
    with backline.use(library, only=True):
        for name, given in (("fftn", x), ("rfftn", x.real.copy()), ("irfftn", half)):
            if library == "kernels" and not algorithms(library, problem_of(f"fft.{name}", given)):
                continue  # its loops are not for every length
            exact = getattr(scipy.fft, name)(given.astype(np.result_type(given, np.float64)))
            ours, theirs = (np.linalg.norm(getattr(m, name)(given) - exact) for m in (backline.fft, np.fft))
            assert ours <= accuracy.ALLOWED * theirs, (name, ours / theirs)


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_is_accurate_at_lengths_with_large_factors(library: str) -> None:
    # pocketfft transforms 29503 = 163 x 181 by a convolution.
    for name, n, single in itertools.product(("fft", "rfft", "irfft"), (37, 127, 626, 1009, 3274, 8191, 29503), (True, False)):
        case = accuracy.Case(name, n, 1, single, "backward", 1, n)
        x = case.numbers()
        for what, p, result in each(library, name, x, n):
            way = what.partition(".")[2].partition("@")[0]
            if any(errata.matching(libraries.get(library), p, way)):  # listed to be checked, and never chosen
                continue
            ours, theirs, ratio = case.ratio(result, x)
            assert ratio <= accuracy.ALLOWED, f"{what}, {case}: error {ours:.1e}, NumPy's {theirs:.1e}"


@pytest.mark.parametrize("library", LIBRARIES)
@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 600), rows=st.integers(1, 4), single=st.booleans(), norm=st.sampled_from(NORMS), seed=st.integers(0, 99))
def test_round_trips_and_parseval(library: str, n: int, rows: int, single: bool, norm: str | None, seed: int) -> None:
    need(library)
    eps = float(np.finfo(np.float32 if single else np.float64).eps) * (8 + 8 * np.log2(n + 1))
    x = numbers((rows, n), "complex64" if single else "complex128", seed)
    with backline.use(library):  # at some lengths an erratum forbids it, and the next library takes over
        y = backline.fft.fft(x, norm=norm)
        back = backline.fft.ifft(y, norm=norm)
        half = backline.fft.rfft(np.ascontiguousarray(x.real), norm=norm)
        real = backline.fft.irfft(half, n, norm=norm)
        both = backline.fft.irfftn(backline.fft.rfftn(np.ascontiguousarray(x.real)), (rows, n), (0, 1))
    energy = float(np.sum(np.abs(x.astype(np.complex128)) ** 2))
    factor = {None: n, "backward": n, "ortho": 1, "forward": 1 / n}[norm]
    assert np.linalg.norm(back - x) <= eps * np.sqrt(energy)
    assert abs(float(np.sum(np.abs(y.astype(np.complex128)) ** 2)) - factor * energy) <= 4 * eps * factor * energy
    for got in (real, both):
        assert np.linalg.norm(got - x.real) <= eps * np.sqrt(energy)


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["dct", "dst"])
def test_cosines_undo_each_other(name: str, kind: int) -> None:
    forward, inverse = getattr(backline.fft, name), getattr(backline.fft, f"i{name}")
    for n, norm, ortho in itertools.product((2, 3, 16, 45), NORMS, (None, True, False)):
        x = numbers((3, n), "float64")
        np.testing.assert_allclose(inverse(forward(x, kind, norm=norm, orthogonalize=ortho), kind, norm=norm, orthogonalize=ortho), x)


# What is promised about bits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
def test_promises_about_bits_hold(library: str) -> None:
    lib = need(library)
    cases = [("fft", (7, 1000), "complex64"), ("rfft", (33, 1024), "float32"), ("irfft2", (3, 64, 33), "complex128"),
             ("fftn", (31, 17, 64), "complex64"), ("fft", (1 << 16,), "complex128"), ("dct", (9, 500), "float64")]  # fmt: skip
    for name, shape, dtype in cases:
        x = numbers(shape, dtype)
        p = problem_of(f"fft.{name}", x)
        seen: dict[str, Array] = {}
        for threads in (1, 2, 3):
            for a in algorithms(library, p, threads):
                plan = lib.prepare(p, a)
                result = plan(x)
                if a.reaches("run"):
                    np.testing.assert_array_equal(plan(x.copy()), result, err_msg=f"{library} {a.key} of {p.key}")
                if a.reaches("threads"):
                    np.testing.assert_array_equal(seen.setdefault(a.name, result), result, err_msg=f"{library} {a.key}")


# Bad input ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda f, x: f.fft([1, 2]), BadType, "list"),
        (lambda f, x: f.fft(np.array(["a"])), BadType, "not a number"),
        (lambda f, x: f.fft(np.ma.array(x)), BadType, "MaskedArray"),
        (lambda f, x: f.rfft(x * 1j), BadType, "complex128"),
        (lambda f, x: f.ihfftn(x * 1j), BadType, "complex128"),
        (lambda f, x: f.fft(x, 0), BadValue, "n=0"),
        (lambda f, x: f.fft(x, -1), BadValue, "n=-1"),
        (lambda f, x: f.fft(x, 2.5), BadType, "n is an int"),
        (lambda f, x: f.fft(x, True), BadType, "n is an int"),
        (lambda f, x: f.fft(np.empty((2, 0))), BadValue, "0 elements along axis 1"),
        (lambda f, x: f.irfft(np.ones(1)), BadValue, "1 element along axis 0"),
        (lambda f, x: f.fft(x, dim=2), BadValue, "dim=2"),
        (lambda f, x: f.fft(x, dim=-3), BadValue, "dim=-3"),
        (lambda f, x: f.fft(x, dim="last"), BadType, "dim is an int"),
        (lambda f, x: f.fft(np.array(1.0)), BadValue, "0 dimensions"),
        (lambda f, x: f.fft2(np.ones(4)), BadValue, "dim=-2"),
        (lambda f, x: f.fftn(x, dim=(0, 0)), BadValue, "twice"),
        (lambda f, x: f.fftn(x, dim=(1, -1)), BadValue, "twice"),
        (lambda f, x: f.fftn(x, (4,), (0, 1)), BadValue, "1 sizes"),
        (lambda f, x: f.fftn(x, (4, 4, 4)), BadValue, "3 sizes"),
        (lambda f, x: f.fftn(x, (4, 0)), BadValue, "s="),
        (lambda f, x: f.fftn(x, (4, -2)), BadValue, "s="),
        (lambda f, x: f.irfftn(x, dim=()), BadValue, "no axis"),
        (lambda f, x: f.fft(x, norm="orthogonal"), BadValue, "orthogonal"),
        (lambda f, x: f.fft(x, norm=1), BadType, "norm is a str"),
        (lambda f, x: f.fft(x, overwrite_input=1), BadType, "overwrite_input"),
        (lambda f, x: f.dct(x, 5), BadValue, "type=5"),
        (lambda f, x: f.dct(x, "two"), BadType, "type is an int"),
        (lambda f, x: f.dct(x, 1, 1), BadValue, "two ends"),
        (lambda f, x: f.dctn(x, orthogonalize="yes"), BadType, "orthogonalize"),
        (lambda f, x: f.dctn(np.array(1.0)), BadValue, "no axis"),
        (lambda f, x: f.fft(x, 1 << 50), BadValue, "GiB"),
        (lambda f, x: f.rfft(x, 1 << 61), BadValue, "GiB"),
        (lambda f, x: f.fftn(x, (1 << 40, 1 << 40)), BadValue, "GiB"),
        (lambda f, x: f.dct(x, n=(1 << 63) - 1), BadValue, "GiB"),
        (lambda f, x: f.fft(x, 1 << 70), BadValue, "GiB"),
        (lambda f, x: f.rfft(x[:0], 1 << 70), BadValue, "GiB"),
        (lambda f, x: f.fftfreq(0), BadValue, "n=0"),
        (lambda f, x: f.fftfreq(2.0), BadType, "n is an int"),
        (lambda f, x: f.fftfreq(4, dtype=int), BadType, "fftfreq requires a floating point or complex dtype"),
        (lambda f, x: f.rfftfreq(4, dtype=np.complex64), BadType, "rfftfreq: dtype is complex64"),
        (lambda f, x: f.fftfreq(4, dtype=np.float64, out=np.empty(4, "f4")), BadType, "out has dtype float32"),
        (lambda f, x: f.rfftfreq(4, 0), BadValue, "d=0"),
        (lambda f, x: f.rfftfreq(4, "s"), BadType, "d is a number"),
        (lambda f, x: f.fftshift(x, 2), BadValue, "dim=2"),
        (lambda f, x: f.fftshift(x, (0, 0)), BadValue, "twice"),
        (lambda f, x: f.fftshift(x, out=x), BadValue, "overlaps"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call(backline.fft, np.ones((3, 4)))
    assert backline.fft.fft(np.ones(2)).tolist() == [2, 0]


# Calls --------------------------------------------------------------------------------------------------------------------


def test_keywords_lists_and_numpy_numbers() -> None:
    x = numbers((4, 6), "float64")
    f = backline.fft
    wanted = f.rfftn(x, (4, 8), (0, 1), "ortho")
    for result in (
        f.rfftn(norm="ortho", dim=(0, 1), s=(4, 8), input=x), f.rfftn(x, [4, 8], [0, 1], "ortho"), f.rfftn(x, s=(-1, 8), norm="ortho"),
        f.rfftn(x, (np.int64(4), np.int64(8)), norm="ortho"), f.rfft2(x, (4, 8), norm="ortho"),
    ):  # fmt: skip
        np.testing.assert_array_equal(result, wanted)
    np.testing.assert_array_equal(f.fftn(x, 8, 1), f.fft(x, 8))
    out = np.empty((4, 4), complex)
    assert f.rfft(out=out, input=x) is out


def test_a_repeated_call_asks_nobody() -> None:
    x, out = numbers((4, 16), "complex64"), np.empty((4, 16), np.complex64)
    for call in (lambda: backline.fft.fft(x), lambda: backline.fft.ifft2(x, out=out), lambda: backline.fft.irfft(x, 30, norm="ortho")):
        call()
        before = _core.memo_info()["misses"]
        call()
        assert _core.memo_info()["misses"] == before


def test_keys_say_what_decides_the_time() -> None:
    x = np.ones((4, 6), np.float32)

    def key(name: str, *args: Any, **kwargs: Any) -> str:
        return str(problem_of(f"fft.{name}", *args, **kwargs).key)

    assert key("fft", x) == key("fft", x, norm="ortho") == "fft.fft f32 4x6"
    assert key("ifft", x, dim=0) == "fft.ifft f32 4x6 dim=0"
    assert key("rfft", x, 8) == "fft.rfft f32 4x6 n=8"
    assert key("irfft", x) == "fft.irfft f32 4x6" and key("hfft", x, 9) == "fft.hfft f32 4x6 n=9"
    assert key("fft2", x) == "fft.fftn f32 4x6" and key("fftn", x, (4, 8), (1, 0)) == "fft.fftn f32 4x6 s=(4,8) dim=(1,0)"
    assert key("idct", x, norm="ortho") == "fft.dct f32 4x6 type=3 orthogonalize=True"
    assert key("fft", x, out=np.empty((4, 6), np.complex64)) == "fft.fft f32 4x6 out"
    assert key("rfft", x, overwrite_input=True) == "fft.rfft f32 4x6 overwrite_input=True"


def test_explain_and_trace_name_it() -> None:
    x = np.ones(16, np.complex64)
    assert "fft.fft c64 16" in str(backline.explain(backline.fft.fft, x))
    assert backline.explain("fft.rfft2", np.ones((4, 4))).problem.key == "fft.rfftn f64 4x4"
    with backline.trace() as events:
        backline.fft.ifft(x)
    assert [e.op for e in events] == ["ifft"]


# Frequencies and their order ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_frequencies(n: int) -> None:
    for d in (1.0, 0.25, 3, np.float64(2), -1.0):
        np.testing.assert_array_equal(backline.fft.fftfreq(n, d), np.fft.fftfreq(n, d))
        np.testing.assert_array_equal(backline.fft.rfftfreq(n, d), np.fft.rfftfreq(n, d))
    for out in (np.empty(n), np.empty(n, np.float32)):
        assert backline.fft.fftfreq(n, 0.1, out=out) is out
        np.testing.assert_allclose(out, np.fft.fftfreq(n, 0.1), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_dtype_of_frequencies(dtype: str) -> None:
    kind = dtype_of(dtype)
    for n, d in ((1, 1.0), (7, 0.3), (64, 2.5), (65, -0.1)):
        for ours, theirs in ((backline.fft.fftfreq, np.fft.fftfreq), (backline.fft.rfftfreq, np.fft.rfftfreq)):
            wanted = theirs(n, d).astype(kind)
            for name in (dtype, kind, kind.type):
                result = ours(n, d, dtype=name)
                assert result.dtype == kind
                np.testing.assert_array_equal(result, wanted)
            out = np.empty(wanted.shape, kind)
            assert ours(n, d, dtype=kind, out=out) is out
            np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("shape", [(), (1,), (2,), (7,), (4, 5), (3, 0, 2), (2, 3, 5)])
def test_shifts(shape: tuple[int, ...]) -> None:
    x = np.arange(int(np.prod(shape))).reshape(shape)
    for dim in (None, *range(-len(shape), len(shape)), tuple(range(len(shape)))):
        for name in ("fftshift", "ifftshift"):
            wanted = getattr(np.fft, name)(x, dim) if shape else x
            for laid in (x, np.asfortranarray(x)):
                result = getattr(backline.fft, name)(laid, dim)
                np.testing.assert_array_equal(result, wanted)
                assert not np.may_share_memory(result, laid) or not x.size
            out = np.empty_like(x)
            assert getattr(backline.fft, name)(x, dim, out=out) is out
            np.testing.assert_array_equal(out, wanted)
