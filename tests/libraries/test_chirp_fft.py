"""MKL's complex transforms of float32 as convolutions with a chirp: right for every layout, listed where they lose no digits."""

import ctypes
import os

import numpy as np
import pytest
from fft_cases import arrays_like, error, problem, wanted

from backline import _kernels, libraries
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.mkl.chirp_fft import FROM, TO, convolution_length, convolved, tables
from backline.libraries.mkl.transform_trials import chance_factor

SEED = int(os.environ.get("BACKLINE_TEST_SEED", "0"))
mkl = libraries.get("mkl")
MOST_ERROR = 2.5e-7
LEVELS = range(_kernels.instruction_level + 1)
with_mkl = pytest.mark.skipif(not mkl.available(), reason="MKL is not installed")


def algorithms(threads):
    """The three that a Problem may have."""
    scaled = {"library": "mkl", "threads": threads, "scaled": True}
    return [Algorithm(library="mkl", name="dfti_chirp"), Algorithm(name="dfti_chirp", **scaled), Algorithm(name="dfti_chirp_parts", **scaled)]


def numbers(shape, seed=0):
    rng = np.random.default_rng([SEED, seed])
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


def test_convolutions_are_long_enough_and_no_longer_than_such_lengths_allow():
    for n in (*range(FROM, 4000), 99991, TO - 1, TO):
        length = convolution_length(n)
        odd = length >> (length & -length).bit_length() - 1
        assert odd in (1, 3, 5) and 2 * n - 1 <= length < 2.7 * n


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("n", [131, 1009])
def test_tables(n, sign):
    """Transforming by their definition, with transforms of NumPy in float64."""
    length = convolution_length(n)
    chirp, factors = tables(n, length, sign, 0.3)
    x = numbers(n).astype(complex)
    there = np.fft.ifft(np.fft.fft(x * chirp, length) * factors, norm="forward")[:n] * chirp
    assert error(there, wanted(problem("c2c", x, sign=sign, scale=0.3), x)) < 1e-14


@pytest.mark.parametrize(
    ("x", "lengths", "op", "is_one"),
    [
        (np.zeros(131, "c8"), None, "c2c", True), (np.zeros((131, 3), "c8"), (131,), "c2c", True), (np.zeros(9, "c8"), (1009,), "c2c", True),
        (np.zeros(131, "c16"), None, "c2c", False), (np.zeros(131, "f4"), None, "c2c", False), (np.zeros(131, "f4"), None, "r2c", False),
        (np.zeros(131, "c8"), None, "c2r", False), (np.zeros(127, "c8"), None, "c2c", False), (np.zeros(47 * 8, "c8"), None, "c2c", False),
        (np.zeros(1, "c8"), (TO + 7,), "c2c", False),
    ],
)  # fmt: skip
def test_what_is_convolved(x, lengths, op, is_one):
    assert convolved(problem(op, x, (0,), lengths)) == is_one


def test_transforms_of_several_axes_are_not_convolved():
    assert not convolved(problem("c2c", np.zeros((131, 131), np.complex64), (0, 1)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("step", [8, 24, -8])
def test_products_with_a_table_are_rounded_once_and_filled_up(level, step):
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(_kernels.addresses["transform_weight"])
    for count, zeros in ((0, 3), (1, 0), (7, 2), (64, 0), (133, 130)):
        whole = numbers(3 * (count + zeros) + 1)
        x = whole[:: step // 8] if step > 0 else whole[::-1]
        table = numbers(count, 1).astype(complex) / 3
        to = np.full(count + zeros + 1, 7, np.complex64)
        what = np.array([level, count, zeros, step, 8], np.int64)
        function(what.ctypes.data, table.ctypes.data, x.ctypes.data, to.ctypes.data)
        products = x[:count].astype(complex)
        right = products.real * table.real - products.imag * table.imag + 1j * (products.real * table.imag + products.imag * table.real)
        assert np.array_equal(to[:count], right.astype(np.complex64))
        assert not to[count:-1].any() and to[-1] == 7
        apart = np.full((count + zeros, 2), 7, np.complex64)
        function(np.array([level, count, zeros, step, 16], np.int64).ctypes.data, table.ctypes.data, x.ctypes.data, apart.ctypes.data)
        assert np.array_equal(apart[:, 0], to[:-1]) and (apart[:, 1] == 7).all()


@with_mkl
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "axis"), [((137,), 0), ((1, 1009), 1), ((2, 331), 1), ((331, 2), 0), ((4, 139, 3), 1), ((2, 3, 142), 2), ((30, 149), 1)]
)
def test_every_layout_and_length(shape, axis, threads):
    for k, x in enumerate(arrays_like(shape, "complex64").values()):
        for sign, n in ((-1, None), (1, shape[axis] - 3), (-1, shape[axis] + 40)):
            p = problem("c2c", x, (axis,), [n or shape[axis]], sign, 0.37)
            before, reference = x.copy(), wanted(p, x)
            out = np.full((2 * p.result[0], *p.result[1:]), np.nan, np.complex64)[:: (-2) ** (k % 2)][: p.result[0]]
            q = problem("c2c", x, (axis,), [n or shape[axis]], sign, 0.37, out=out)
            for a in algorithms(threads):
                limit = MOST_ERROR * chance_factor(p.points)
                assert error(mkl.prepare(p, a)(x), reference) <= limit, (a.key, x.strides, sign, n)
                assert mkl.prepare(q, a)(x, out) is out and error(out, reference) <= limit
                assert np.array_equal(x, before)


@with_mkl
def test_lines_give_the_same_bits_on_any_number_of_threads():
    x = numbers((5, 1009))
    p = problem("c2c", x)
    one, *others = [mkl.prepare(p, a)(x) for threads in (2, 3, 5) for a in algorithms(threads)]
    assert all(np.array_equal(one, other) for other in others)


@with_mkl
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_line(bad):
    x = numbers((3, 1009))
    clean = x.copy()
    x[1, 700] = bad
    for a in algorithms(2):
        found = mkl.prepare(problem("c2c", x), a)(x)
        right = mkl.prepare(problem("c2c", x), a)(clean)
        assert np.array_equal(found[::2], right[::2]) and not np.isfinite(found[1]).any()


@with_mkl
@pytest.mark.parametrize("size", [float(np.finfo(np.float32).tiny) * 64, float(np.finfo(np.float32).max) / 1e4])
def test_very_small_and_very_large(size):
    rng = np.random.default_rng([SEED, 5])
    x = (np.exp(2j * np.pi * rng.random(1009)) * size).astype(np.complex64)
    p = problem("c2c", x)
    for a in algorithms(2):
        found = mkl.prepare(p, a)(x)
        assert np.isfinite(found).all() and error(found / np.float32(size), wanted(p, x) / size) < 1e-5


@with_mkl
@pytest.mark.parametrize("rows", [(), (40,)])
@pytest.mark.parametrize("chirp_loses", [False, True])
def test_listed_where_it_loses_no_digits_and_dfti_does(rows, chirp_loses, monkeypatch):
    def refusal(p, a, make):
        return "loses digits" if chirp_loses or not a.name.startswith("dfti_chirp") else ""

    monkeypatch.setattr(mkl.transform_trials, "refusal", refusal)
    found = list(mkl.algorithms(problem("c2c", numbers((*rows, 1009))), 2))
    able = {(f.name, f.precision) for f in found if isinstance(f, Algorithm)}
    refused = {f.name for f in found if isinstance(f, Refusal)}
    assert able == {("dfti_double", "f64")} | (set() if chirp_loses else {("dfti_chirp", "")})
    assert refused == ({"dfti", "dfti_chirp"} if chirp_loses else {"dfti"})


@with_mkl
def test_not_listed_where_dfti_is_right(monkeypatch):
    monkeypatch.setattr(mkl.transform_trials, "refusal", lambda *args: "")
    assert {f.name for f in mkl.algorithms(problem("c2c", numbers(1009)), 2)} == {"dfti"}


@with_mkl
def test_the_tables_count_as_memory_of_the_plan():
    p = problem("c2c", numbers(99991))
    plan = mkl.prepare(p, algorithms(1)[0])
    held = sum(getattr(kept, "nbytes", 0) for kept in plan.keep)
    assert held >= 16 * (99991 + convolution_length(99991))
