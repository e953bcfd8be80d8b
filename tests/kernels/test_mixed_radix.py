"""Transforms by lanes of vectors: right at every length and layout, with the same bits on any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fft_cases import allowed, arrays_like, error, problem, wanted

from backline import _kernels, libraries
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.kernels import mixed_radix
from backline.libraries.kernels.mixed_radix import MOST_SIDE
from backline.libraries.kernels.radix_tables import BY_DEFINITION, convolution, passes, radices, sides
from support import clean, rng, seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures: imported to be found by pytest

LEVELS = range(_kernels.instruction_level + 1)
OPS = ("c2c", "r2c", "c2r", "c2c of real numbers")
kernels = libraries.get("kernels")


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Each set of instructions that this processor has."""
    monkeypatch.setattr(mixed_radix, "vector_level", lambda: request.param)
    return int(request.param)


def on(threads: int) -> Algorithm:
    return Algorithm(library="kernels", name="mixed_radix", threads=threads, scaled=threads > 1)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def dtype_of(op: str, precision: str) -> str:
    return precision if op in ("r2c", "c2c of real numbers") else np.dtype(np.dtype(precision).char.upper()).name


def check(op: str, x: Array, axes: tuple[int, ...], lengths: Any = None, sign: int = -1, threads: int = 2, out: Any = None) -> Array:
    p = problem(op[:3], x, axes, lengths, sign, 0.37, out)
    listed = list(kernels.algorithms(p, threads))
    assert all(isinstance(a, Algorithm) for a in listed), listed
    before, reference = x.copy(), wanted(p, x)
    got = kernels.prepare(p, on(threads))(*([x] if out is None else [x, out]))
    assert got.shape == p.result and got.dtype == p.result_dtype and (out is None or got is out)
    assert error(got, reference) <= allowed(p), (op, axes, p.lengths, sign, x.shape, x.strides, x.dtype)
    assert np.array_equal(x, before)
    return got


def test_radices_make_the_length() -> None:
    for n in range(1, 5000):
        assert np.prod(radices(n)) == n and len(radices(n)) <= mixed_radix.MOST_PASSES
        one, other = sides(n)
        assert one * other == n and one <= other


def test_large_primes_are_convolved() -> None:
    for n in range(1, MOST_SIDE):
        convolved = prime, points = convolution(n)
        assert np.prod([prime or 1, *passes(n, convolved)]) == n and max(passes(n, convolved), default=1) <= BY_DEFINITION
        assert not prime or points == prime - 1 or points >= 2 * prime - 3
        assert max(radices(points)) <= BY_DEFINITION if prime else points == 0


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_every_length(precision: str, op: str, level: int, rng: np.random.Generator) -> None:
    for i, n in enumerate([*range(1, 68), 97, 121, 128, 169, 199, 210, 256, 343, 398, 401, 512, 1203, 605, 1001, 1024, 2187, 4096,
              83, 89, 107, 178, 179, 227, 263, 356, 771, 797, 1319, 1327, 2654, 3603, 4093]):
        lengths = [max(n, 2)] if op == "c2r" else None
        points = n // 2 + 1 if op == "c2r" and n > 1 else max(n, 2) if op == "c2r" else n
        check(op, numbers(rng, (8 + i % 27, points), dtype_of(op, precision)), (1,), lengths, 1 - 2 * (i % 2))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((17, 12), (1,)), ((13, 21), (0,)), ((5, 6, 9), (1,)), ((4, 6, 9), (2, 0)), ((4, 6, 8), (0, 1, 2)), ((9, 17, 16), (1, 2)), ((16, 9, 20), (2, 0))],
)  # fmt: skip
def test_every_layout(shape: tuple[int, ...], axes: tuple[int, ...], precision: str, op: str, level: int) -> None:
    dtype = dtype_of(op, precision)
    for k, x in enumerate(arrays_like(shape, dtype).values()):
        for i, change in enumerate((0, 3, -2)):
            lengths = [x.shape[a] + change for a in axes]
            if op == "c2r":
                lengths[-1] = 2 * lengths[-1] - i % 2 - 1
            check(op, x, axes, lengths, (-1) ** (i + k), 1 + i % 3)
        p = problem(op[:3], x, axes)
        for out in arrays_like(p.result, p.result_dtype.name, fill=np.nan).values():
            if 0 not in out.strides:
                check(op, x, axes, threads=1 + k % 3, out=out)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_long_lines_are_divided(precision: str, level: int, rng: np.random.Generator) -> None:
    dtype = dtype_of("c2c", precision)
    for shape, axis in (((256,), 0), ((323,), 0), ((2, 629), 1), ((1024,), 0), ((4096,), 0), ((1155,), 0), ((2, 1280), 1), ((1408, 3), 0), ((2, 2400, 2), 1), ((35321,), 0), ((9, 5000), 1), ((1319 * 9,), 0),
                        ((2 * 8, 8 * 1033), 1), ((8 * 4663,), 0), ((397 * 227,), 0), ((263 * 389,), 0)):
        for sign, form in ((-1, 0), (1, 1)):
            x = numbers(rng, shape, dtype)
            check("c2c", x[..., ::-1] if form else x, (axis,), None, sign, 1 + form * 2)
    check("c2c", numbers(rng, (1, 2500), dtype), (1,), [2560], 1)


@pytest.mark.parametrize("op", ["r2c", "c2r", "c2c of real numbers"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_long_real_lines_are_divided(precision: str, op: str, level: int, rng: np.random.Generator) -> None:
    for k, (n, shape, axis) in enumerate([
        (1024, (1,), 0), (1056, (1,), 0), (2310, (3, 1), 1), (2050, (1, 3), 0), (4096, (2, 1), 1), (5000, (9, 1), 1), (26220, (1,), 0),
        (2200, (2, 1, 2), 1), (374, (2,), 0), (646, (1, 2), 0),
    ]):  # fmt: skip
        sizes = [m * (n // 2 + 1 if op == "c2r" else n) if i == axis else m for i, m in enumerate(shape)]
        x = numbers(rng, tuple(sizes), dtype_of(op, precision))
        check(op, x[..., ::-1] if k % 3 == 1 else x, (axis,), [n], 1 - 2 * (k % 2), 1 + k % 3)


def test_random_shapes(rng: np.random.Generator, seed: int) -> None:
    for _ in range(300):
        count = int(rng.integers(1, 4))
        shape = tuple(int(n) for n in np.exp(rng.uniform(np.log(2), np.log(3000) / count**0.5, count)))
        axes = tuple(int(a) for a in rng.permutation(count)[: rng.integers(1, count + 1)])
        op, precision = rng.choice(OPS), rng.choice(["float32", "float64"])
        x = numbers(rng, shape, dtype_of(op, precision))
        p = problem(op[:3], x, axes)
        if any(isinstance(a, Refusal) for a in kernels.algorithms(p, 2)):
            continue
        check(op, x, axes, None, int(rng.choice([-1, 1])), int(rng.integers(1, 4)))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("shape", "axes"), [((33, 48), (0, 1)), ((11, 40, 24), (1, 2)), ((10, 15, 20), (0, 1, 2)), ((37, 160), (1,))])
def test_the_same_bits_on_any_number_of_threads(shape: tuple[int, ...], axes: tuple[int, ...], op: str, rng: np.random.Generator) -> None:
    x = numbers(rng, shape, dtype_of(op, "float32"))
    p = problem(op[:3], x, axes)
    one, *others = [kernels.prepare(p, on(threads))(x) for threads in (1, 2, 3, 7)]
    assert all(np.array_equal(one, other) for other in others)


def test_divided_lines_have_the_same_bits_on_any_number_of_threads(rng: np.random.Generator) -> None:
    p = problem("c2c", x := numbers(rng, (36000,), "complex64"))
    one, *others = [kernels.prepare(p, on(threads))(x) for threads in (1, 2, 3, 7)]
    assert all(np.array_equal(one, other) for other in others)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_line(bad: float, op: str, level: int, rng: np.random.Generator) -> None:
    for n in (12, 45, 46, 89, 2 * 227):
        x = numbers(rng, (19, n), dtype_of(op, "float64"))
        clean = x.copy()
        x[5, 7] = bad
        p = problem(op[:3], x, (1,))
        plan = kernels.prepare(p, on(1))
        found, right = plan(x), plan(clean)
        assert np.array_equal(np.delete(found, 5, 0), np.delete(right, 5, 0)) and not np.isfinite(found[5]).any()


@pytest.mark.parametrize("bad", [1e30, np.inf, np.nan])
@pytest.mark.parametrize("n", [45, 46, 64, 267, 454])
def test_imaginary_parts_that_have_no_say(n: int, bad: float, level: int, rng: np.random.Generator) -> None:
    x = numbers(rng, (11, n // 2 + 1), "complex64")
    clean = x.copy()
    x.imag[:, 0] = bad
    if n % 2 == 0:
        x.imag[:, -1] = bad
    plan = kernels.prepare(problem("c2r", x, (1,), (n,)), on(1))
    assert np.array_equal(plan(x), plan(clean))


@pytest.mark.parametrize("op", ["r2c", "c2c of real numbers"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [45, 46, 64, 267, 454])
def test_what_is_real_in_spectra_of_real_numbers_has_no_imaginary_part(
    n: int, dtype: str, op: str, level: int, rng: np.random.Generator
) -> None:
    x = numbers(rng, (11, n), dtype)
    y = kernels.prepare(problem(op[:3], x), on(1))(x)
    assert not y[:, 0].imag.any() and (n % 2 or not y[:, n // 2].imag.any()) and y[:, 1].imag.all()


def test_the_largest_and_the_smallest_numbers(level: int) -> None:
    for dtype in ("complex64", "complex128"):
        info = np.finfo(dtype)
        for size in (float(info.max) / 512, float(info.tiny), float(info.smallest_subnormal)):
            for n in (45, 89, 227):
                x = np.full((16, n), size, dtype)
                y = kernels.prepare(problem("c2c", x), on(1))(x)
                assert np.allclose(y[:, 0], n * x[:, 0], rtol=1e-6, atol=0) and np.isfinite(y).all()


@pytest.mark.parametrize(
    ("op", "shape", "axes", "said"),
    [
        ("r2r", (9, 8), (1,), "not for those of cosines"), ("c2c", (9, 409), (1,), ""), ("c2c", (7, 64), (1,), "fewer than 8 lines"), ("c2c", (2 * 193 * 197,), (0,), ""), ("c2c", (4 * 63,), (0,), "fewer than 8 lines"), ("c2c", (4 * 199,), (0,), "are no product"), ("c2c", (17 * 19,), (0,), ""),
        ("c2c", (8 * 8191,), (0,), ""), ("c2c", (8 * 8209,), (0,), "are no product"), ("r2c", (2, 2048), (1,), ""),
        ("r2c", (2, 2025), (1,), "odd number"), ("c2r", (2, 1195), (1,), "1194 points are no product"), ("c2c", (2, 1031), (1,), "are no product"), ("c2c", (6 * 199,), (0,), "are no product"),
        ("c2c", (400, 400, 400, 4), (3,), "65536"), ("c2c", (1 << 21,), (0,), "keeps as many numbers"), ("c2c", (409 * 419,), (0,), "lose too many digits"), ("c2c", (401 * 419,), (0,), ""), ("r2c", (1 << 21,), (0,), ""),
    ],
)  # fmt: skip
def test_what_is_refused(op: str, shape: tuple[int, ...], axes: tuple[int, ...], said: str) -> None:
    x = np.broadcast_to(np.zeros((), np.float32 if op == "r2c" else np.complex64), shape)
    p = problem(op, x, axes, **({"kind": "dct2"} if op == "r2r" else {}))
    first = next(iter(kernels.algorithms(p, 2)))
    assert isinstance(first, Refusal) == bool(said)
    if said:
        assert said in first.reason and first.name == "mixed_radix"
