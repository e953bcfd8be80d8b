"""MKL's transforms as convolutions with a chirp: right for every layout, listed where they lose no digits."""

import ctypes
import os

import numpy as np
import pytest
from fft_cases import arrays_like, error, problem, wanted

from backline import _kernels, libraries
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.mkl.chirp_fft import FROM, GIVEN, TAKEN, TO, convolution_length, convolved, tables
from backline.libraries.mkl.transform_trials import LARGEST, chance_factor
from backline.problems.length_factors import largest_factor

SEED = int(os.environ.get("BACKLINE_TEST_SEED", "0"))
mkl = libraries.get("mkl")
MOST_ERROR = {"float32": 2.5e-7, "float64": 1.5e-15}
LEVELS = range(_kernels.instruction_level + 1)
with_mkl = pytest.mark.skipif(not mkl.available(), reason="MKL is not installed")


def algorithms(threads):
    """The three that a Problem may have."""
    scaled = {"library": "mkl", "threads": threads, "scaled": True}
    return [Algorithm(library="mkl", name="dfti_chirp"), Algorithm(name="dfti_chirp", **scaled), Algorithm(name="dfti_chirp_parts", **scaled)]


def numbers(shape, seed=0, dtype="complex64"):
    rng = np.random.default_rng([SEED, seed])
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def test_convolutions_are_long_enough_and_no_longer_than_such_lengths_allow():
    for n in (*range(FROM, 4000), 99991, TO - 1, TO):
        for given in (n, n // 2 + 1):
            length = convolution_length(n, given)
            odd = length >> (length & -length).bit_length() - 1
            assert odd in (1, 3, 5) and n + given - 1 <= length < 1.34 * (n + given)


def input_of(op, x, n):
    """Those of complex numbers that are the input of an operation of `n` points."""
    return x.real if op == "r2c" else x[: n // 2 + 1] if op == "c2r" else x


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("kind", ["c2c", "r2c", "c2r"])
@pytest.mark.parametrize("n", [131, 262, 1009])
def test_tables(n, kind, sign):
    """Transforming by their definition, with transforms of NumPy in float64."""
    before, factors, after = tables(kind, n, sign, 0.3)
    x = input_of(kind, numbers(n), n).astype(float if kind == "r2c" else complex)
    if kind == "c2r":
        x[0] = x[0].real
        x[-1] = x[-1].real if n % 2 == 0 else x[-1]
    there = np.fft.ifft(np.fft.fft(x * before, len(factors)) * factors, norm="forward")[: len(after)] * after
    right = wanted(problem(kind, x, lengths=(n,), sign=sign, scale=0.3), x)
    assert error(there.real if kind == "c2r" else there, right) < 1e-14


@pytest.mark.parametrize(
    ("x", "lengths", "op", "is_one"),
    [
        (np.zeros(131, "c8"), None, "c2c", True), (np.zeros((131, 3), "c8"), (131,), "c2c", True), (np.zeros(9, "c8"), (1009,), "c2c", True),
        (np.zeros(131, "f4"), None, "c2c", True), (np.zeros(131, "f4"), None, "r2c", True), (np.zeros(132, "c8"), None, "c2r", True),
        (np.zeros(131, "c16"), None, "c2c", True), (np.zeros(131, "f8"), None, "r2c", True), (np.zeros(131, "f4"), None, "r2r", False),
        (np.zeros(131, "f2"), None, "r2c", False), (np.zeros(131, "g"), None, "r2c", False), (np.zeros(131, "i4"), None, "r2c", False),
        (np.zeros(127, "c8"), None, "c2c", False), (np.zeros(47 * 8, "c8"), None, "c2c", False),
        (np.zeros(1, "c8"), (TO + 7,), "c2c", False),
    ],
)  # fmt: skip
def test_what_is_convolved(x, lengths, op, is_one):
    assert convolved(problem(op, x, (0,), lengths)) == is_one


def test_lines_that_cannot_be_listed_are_not_convolved():
    many = np.broadcast_to(np.zeros(1, np.complex64), (1025, 131, 1024))
    assert not convolved(problem("c2c", many, (1,))) and convolved(problem("c2c", many[1:], (1,)))


def test_transforms_of_several_axes_are_not_convolved():
    assert not convolved(problem("c2c", np.zeros((131, 131), np.complex64), (0, 1)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("step", [1, 3, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("real_numbers", "real_results", "ends"),
    [(0, 0, (0, 0)), (1, 0, (0, 0)), (0, 1, (0, 0)), (0, 0, (1, 1)), (0, 0, (1, 0)), (0, 0, (0, 1)), (0, 0, (2, 2)), (0, 0, (2, 0)), (0, 0, (0, 2))],
)
def test_products_with_a_table_are_rounded_once_and_filled_up(level, dtype, step, real_numbers, real_results, ends):
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(_kernels.addresses["transform_weight"])
    real = np.dtype(dtype)
    both = np.dtype(real.char.upper())
    for count, zeros in ((0, 3), (1, 0), (7, 2), (64, 0), (133, 130)):
        whole = numbers(3 * (count + zeros) + 1, 0, both)
        whole = whole.real.copy() if real_numbers else whole
        x = whole[::step]
        table = numbers(count, 1).astype(complex) / 3
        taken = x[:count].astype(complex)
        if ends[0] == TAKEN:
            taken[:1] = taken[:1].real
        if ends[1] == TAKEN:
            taken[-1:] = taken[-1:].real
        right = taken.real * table.real - taken.imag * table.imag + 1j * (taken.real * table.imag + taken.imag * table.real)
        if ends[0] == GIVEN:
            right[:1] = right[:1].real
        if ends[1] == GIVEN:
            right[-1:] = right[-1:].real
        right = (right.real if real_results else right).astype(real if real_results else both)
        for apart in (1, 2):
            to = np.full((count + zeros + 1, apart), 7, right.dtype)
            what = [level, real.itemsize, real_numbers, real_results, *ends, count, zeros, x.strides[0], to.strides[0]]
            what = np.array(what, np.int64)
            function(what.ctypes.data, table.ctypes.data, x.ctypes.data, to.ctypes.data)
            assert np.array_equal(to[:count, 0], right)
            assert not to[count:-1, 0].any() and to[-1, 0] == 7 and (to[:, 1:] == 7).all()
        if x.dtype == right.dtype and TAKEN not in ends:  # in its own place
            what[-1] = x.strides[0]
            function(what.ctypes.data, table.ctypes.data, x.ctypes.data, x.ctypes.data)
            assert np.array_equal(x[:count], right)


@with_mkl
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("op", ["c2c", "r2c", "c2r", "c2c of real numbers"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((137,), 0), ((1, 1009), 1), ((2, 331), 1), ((331, 2), 0), ((4, 139, 3), 1), ((2, 3, 142), 2), ((30, 149), 1)]
)
def test_every_layout_and_length(shape, axis, op, precision, threads):
    real = op in ("r2c", "c2c of real numbers")
    dtype = precision if real else np.dtype(np.dtype(precision).char.upper()).name
    for k, x in enumerate(arrays_like(shape, dtype).values()):
        for sign, n in ((-1, None), (1, shape[axis] - 3), (-1, shape[axis] + 40)):
            lengths = [(n or shape[axis]) * (2 if op == "c2r" else 1)]
            p = problem(op[:3], x, (axis,), lengths, sign, 0.37)
            before, reference = x.copy(), wanted(p, x)
            out = np.full((2 * p.result[0], *p.result[1:]), np.nan, p.result_dtype)[:: (-2) ** (k % 2)][: p.result[0]]
            q = problem(op[:3], x, (axis,), lengths, sign, 0.37, out=out)
            for a in algorithms(threads):
                limit = MOST_ERROR[precision] * chance_factor(p.points)
                assert error(mkl.prepare(p, a)(x), reference) <= limit, (a.key, x.strides, sign, n)
                assert mkl.prepare(q, a)(x, out) is out and error(out, reference) <= limit
                assert np.array_equal(x, before)


@with_mkl
@pytest.mark.parametrize("n", [1009, 1018])
@pytest.mark.parametrize("bad", [1e30, np.inf, np.nan])
def test_imaginary_parts_that_have_no_say(n, bad):
    """Those of the ends of half a spectrum, of the last one where the length is even."""
    x = numbers((2, n // 2 + 1))
    clean = x.copy()
    x.imag[:, 0] = bad
    x.imag[:, -1] = bad if n % 2 == 0 else x.imag[:, -1]
    p = problem("c2r", x, (1,), (n,))
    for threads in (1, 2, 3):
        for a in algorithms(threads):
            plan = mkl.prepare(p, a)
            assert np.array_equal(plan(x), plan(clean))


@with_mkl
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["r2c", "c2c"])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("n", [1009, 1018])
def test_what_is_real_in_spectra_of_real_numbers_has_no_imaginary_part(n, sign, op, dtype):
    x = numbers((2, n)).real.astype(dtype)
    p = problem(op, x, (1,), sign=sign)
    for threads in (1, 2, 3):
        for a in algorithms(threads):
            y = mkl.prepare(p, a)(x)
            assert not y[:, 0].imag.any() and (n % 2 or not y[:, n // 2].imag.any()), a.key
            assert y[:, 1].imag.all()


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
def test_in_float32_not_listed_where_dfti_is_right(monkeypatch):
    monkeypatch.setattr(mkl.transform_trials, "refusal", lambda *args: "")
    assert {f.name for f in mkl.algorithms(problem("c2c", numbers(1009)), 2)} == {"dfti"}


@with_mkl
@pytest.mark.parametrize("op", ["c2c", "r2c", "c2r"])
def test_in_float64_listed_in_any_case_and_never_tried(op, monkeypatch):
    tried = []
    monkeypatch.setattr(mkl.transform_trials, "refusal", lambda p, a, make: tried.append(a.name) or "loses digits")
    monkeypatch.setattr(mkl, "instruction_sets", lambda: ("avx2", "avx512"))
    for n, names in ((1009, {"dfti", "dfti_chirp"}), (1018, {"dfti_chirp"})):
        x = numbers(n // 2 + 1 if op == "c2r" else n, 0, "complex128")
        found = mkl.algorithms(problem(op, x.real.copy() if op == "r2c" else x, lengths=(n,)), 2)
        assert {f.name for f in found if isinstance(f, Algorithm)} == names
    assert set(tried) == {"dfti"}


@with_mkl
@pytest.mark.parametrize("op", ["c2c", "r2c", "c2r"])
def test_errors_in_float64_at_random_lengths(op):
    rng = np.random.default_rng([SEED, 6])
    lengths = np.exp(rng.uniform(np.log(FROM), np.log(TO), 30)).astype(int).tolist()
    for n in filter(lambda n: largest_factor(n) > LARGEST, lengths):
        x = input_of(op, numbers(n, n, "complex128"), n)
        x = x.copy() if op == "r2c" else x
        p = problem(op, x, lengths=(n,))
        reference = wanted(p, x)
        for a in algorithms(2)[:2]:
            assert error(mkl.prepare(p, a)(x), reference) < 1.2e-15, (n, a.key)


@with_mkl
def test_the_tables_count_as_memory_of_the_plan():
    p = problem("c2c", numbers(99991))
    plan = mkl.prepare(p, algorithms(1)[0])
    held = sum(getattr(kept, "nbytes", 0) for kept in plan.keep)
    assert held >= 16 * (2 * 99991 + convolution_length(99991, 99991))
