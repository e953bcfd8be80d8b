"""Products with rounded operands: what they compute, what they refuse, and that their error is what theory says.

With u the unit roundoff of the precision and gamma that of float32 accumulation (Higham, Accuracy and Stability of Numerical
Algorithms, sections 3.1 and 3.5), |C - A B| <= (2 u + u**2 + gamma (1 + u)**2) |A| |B|, element by element.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backline import libraries, switches
from backline.errors import BadValue
from backline.libraries import errata
from backline.libraries.base import Refusal
from backline.libraries.emulated.library import INNER, Emulated
from backline.libraries.numpy.library import reference_plan
from backline.libraries.reference.rounding import round_to, unit
from support import (
    LAYOUTS,
    arrays_in,
    assert_close,
    clean,
    numpy_on_one_thread,
    problem_of,
    random_array,
    rng,
    roundoff,
    seed,
    smallest,
    spread,
    wide,
)  # fmt: skip

Array = Any
PRECISIONS = ("tf32", "bf16")
DTYPES = ("float32", "complex64")
pytestmark = pytest.mark.usefixtures("clean", "numpy_on_one_thread")
assert clean and numpy_on_one_thread and rng and seed  # fixtures: imported to be found by pytest


def listed(problem: Any, threads: int = 2) -> list[Any]:
    return [a for a in Emulated().algorithms(problem, threads) if not isinstance(a, Refusal)]


def run(precision: str, op: str, *args: Any, threads: int = 2, **kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Every way of the precision for a call, one after the other: its key and its result."""
    problem = problem_of(op, *args, **kwargs)
    ways = [a for a in listed(problem, threads) if a.precision == precision]
    assert ways
    arrays = arrays_in(args, kwargs)
    for a in ways:
        yield a.key, Emulated().prepare(problem, a)(*arrays)


def inside(name: str) -> Any:
    """A scope in which that library runs the float32 product."""
    if not libraries.get(name).available():
        pytest.skip(f"{name} is not available: {libraries.get(name).reason()}")
    return switches.scope({"only": (name,)})


def gamma(k: int, dtype: np.dtype[Any]) -> float:
    nu = (k + 4) * roundoff(np.dtype(np.float32)) * (3 if dtype.kind == "c" else 1)
    return 1.01 * nu / (1 - nu)


def of_rounded(precision: str, a: Array, b: Array, c: Array | None = None, alpha: Any = 1, beta: Any = 0) -> tuple[Array, Array]:
    """beta C + alpha A B for rounded A and B in longdouble, and the bound on what float32 arithmetic adds to it."""
    left, right = wide(round_to(a, precision)), wide(round_to(b, precision))
    with np.errstate(invalid="ignore"):
        exact, size = np.matmul(left, right), np.matmul(np.abs(left), np.abs(right))
    exact, size = exact * alpha, size * abs(alpha)
    if c is not None and beta != 0:
        exact, size = exact + beta * wide(c), size + np.abs(beta * wide(c))
    return exact, gamma(a.shape[-1], a.dtype) * size + (a.shape[-1] + 4) * smallest(a.dtype) * (2 + abs(alpha) + abs(beta))


# What is listed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", INNER)
def test_ways_are_those_of_the_library_inside(inner: str, dtype: str) -> None:
    library = libraries.get(inner)
    with inside(inner):
        for n in (1, 8, 64, 300):
            a = np.ones((n, n), dtype)
            problem = problem_of("matmul", a, a)
            its = {(x.threads, x.scaled): x for x in reversed([*library.algorithms(problem, 2)]) if not isinstance(x, Refusal)}
            ways = listed(problem)
            assert {x.name for x in ways} == set(PRECISIONS)
            for precision in PRECISIONS:
                mine = {(x.threads, x.scaled): x for x in ways if x.name == precision}
                assert mine.keys() == its.keys()
                for key, x in mine.items():
                    assert x.library == "emulated" and x.precision == precision and "emulated" in x.traits
                    assert (x.level, x.basis, x.pool, x.isa) == (its[key].level, its[key].basis, its[key].pool, its[key].isa)
                    assert library.title in x.note and its[key].name in x.note
            assert len({x.key for x in ways}) == len(ways)


def test_one_refusal_for_what_is_not_float32() -> None:
    for dtype in ("float64", "complex128", "float16", "int32"):
        a = np.ones((3, 3), dtype)
        (only,) = Emulated().algorithms(problem_of("matmul", a, a), 2)
        assert isinstance(only, Refusal) and "float32 and complex64 only" in only.reason and dtype in only.reason
    (only,) = Emulated().algorithms(problem_of("linalg.inv", np.eye(3, dtype=np.float32)), 2)
    assert isinstance(only, Refusal) and "linalg.inv" in only.reason


def test_it_is_always_there() -> None:
    library = Emulated()
    assert library.available() and library.reason() == "" and library.switch == "emulate" and library.families == ("matmul",)
    assert {"name", "title", "available", "reason", "version", "path", "config"} <= library.report().keys()


def test_a_library_that_is_off_does_not_run_inside() -> None:
    a = np.ones((8, 8), np.float32)
    problem = problem_of("matmul", a, a)
    there = [name for name in INNER if libraries.get(name).available()]
    off: dict[str, object] = {}
    for name in there:
        with switches.scope(off):
            way = listed(problem)[0]
            assert libraries.get(name).title in way.note
            assert (Emulated().prepare(problem, way)(a, a) == 8).all()
        off[f"{name}.enabled"] = False
    with switches.scope(off):
        (only,) = Emulated().algorithms(problem, 2)
        assert isinstance(only, Refusal) and "openblas" in only.reason
        with pytest.raises(RuntimeError, match="any more"):
            Emulated().prepare(problem, way)


def test_a_preference_holds_inside() -> None:
    a = np.ones((8, 8), np.float32)
    with switches.scope({"prefer": ("numpy",)}):
        assert "NumPy" in listed(problem_of("matmul", a, a))[0].note


# What is computed -----------------------------------------------------------------------------------------------------

SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "one": ((1, 1), (1, 1)),
    "tiny": ((2, 3), (3, 4)),
    "kernel edges": ((17, 65), (65, 31)),
    "threaded": ((128, 96), (96, 112)),
    "inner product": ((1, 100), (100, 1)),
    "outer product": ((37, 1), (1, 29)),
    "row": ((1, 40), (40, 50)),
    "column": ((40, 50), (50, 1)),
    "batch": ((5, 6, 7), (5, 7, 8)),
    "broadcast batch": ((2, 1, 6, 7), (3, 7, 5)),
    "shared right": ((4, 9, 8), (8, 7)),
    "threaded batch": ((9, 48, 40), (9, 40, 44)),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("inner", INNER)
def test_products_of_the_rounded_operands(inner: str, case: str, dtype: str, precision: str, rng: np.random.Generator) -> None:
    a, b = (random_array(rng, shape, np.dtype(dtype)) for shape in SHAPES[case])
    exact, bound = of_rounded(precision, a, b)
    names = list(LAYOUTS)
    with inside(inner):
        for left in names:
            right, target = (names[i] for i in rng.integers(0, len(names), 2))
            x, y = LAYOUTS[left](a), LAYOUTS[right](b)
            kept = x.copy(), y.copy()
            for key, result in run(precision, "matmul", x, y):
                assert result.dtype == a.dtype
                assert_close(result, exact, bound, f"{key}, A {left}, B {right}")
            out = LAYOUTS[target](np.full(exact.shape, np.nan, a.dtype))
            for key, result in run(precision, "matmul", x, y, out=out):
                assert result is out
                assert_close(out, exact, bound, f"{key}, A {left}, B {right}, out {target}")
                out[...] = np.nan
            assert np.array_equal(x, kept[0]) and np.array_equal(y, kept[1]), "an operand was changed"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", INNER)
def test_operands_that_the_precision_has_give_the_bits_of_the_product_inside(
    inner: str, dtype: str, precision: str, rng: np.random.Generator
) -> None:
    library = libraries.get(inner)
    with inside(inner):
        for case, shapes in SHAPES.items():
            a, b = (round_to(random_array(rng, shape, np.dtype(dtype)), precision) for shape in shapes)
            for x, y in ((a, b), (LAYOUTS["F"](a), b), (a, LAYOUTS["F"](b))):
                problem = problem_of("matmul", x, y)
                for way in (w for w in listed(problem) if w.precision == precision):
                    its = next(
                        z for z in library.algorithms(problem, way.threads)
                        if not isinstance(z, Refusal) and z.scaled == way.scaled and not errata.refusal(library, problem, z)
                    )  # fmt: skip
                    plain = library.prepare(problem, its)(x, y)
                    rounded = Emulated().prepare(problem, way)(x, y)
                    assert np.array_equal(plain, rounded), f"{case} {way.key} inside {its.key}"


def calls(dtype: np.dtype[Any], rng: np.random.Generator) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """One of every kind of call."""

    def some(*shape: int) -> Array:
        return random_array(rng, shape, dtype)

    half: Any = 0.5 + 2j if dtype.kind == "c" else 0.5
    matrix, nan = some(4, 6), np.full((5, 6), np.nan, dtype)
    return [
        ("matmul", (some(7), some(7)), {}),
        ("matmul", (some(7), some(7, 3)), {}),
        ("matmul", (some(2, 3, 7), some(7)), {}),
        ("matmul", (some(3, 1, 4, 5), some(2, 5, 6)), {}),
        ("matmul", (spread(some(3, 4, 5), 0), some(3, 5, 6)), {}),
        ("matmul", (spread(some(3, 4, 5), 0), spread(some(3, 5, 6), 0)), {}),
        ("matmul", (spread(some(2, 3, 4, 5), 1), spread(some(3, 5, 6), 0)), {"out": np.empty((2, 3, 4, 6), dtype)}),
        ("baddbmm", (some(6), spread(some(3, 4, 5), 0), spread(some(3, 5, 6), 0)), {}),
        ("matmul", (spread(some(3, 4, 5), 1), spread(some(5, 6), 0)), {"out": np.empty((3, 4, 6), dtype)}),
        ("matmul", (matrix, matrix.T), {}),
        ("mm", (some(4, 5), some(5, 6)), {"out": np.empty((6, 4), dtype).T}),
        ("bmm", (some(3, 4, 5), some(3, 5, 6)), {}),
        ("mv", (some(4, 5), some(5)), {"out": np.empty(8, dtype)[::-2]}),
        ("dot", (some(9), some(9)), {}),
        ("dot", (some(18)[::-2], some(9)), {"out": np.empty((), dtype)}),
        ("vdot", (some(9), some(9)), {}),
        ("outer", (some(4), some(5)), {}),
        ("addmm", (some(6), some(5, 4), some(4, 6)), {}),
        ("addmm", (some(5, 1), some(5, 4), some(4, 6)), {"alpha": half, "beta": -2.0}),
        ("addmm", (nan, some(5, 4), some(4, 6)), {"alpha": 3, "beta": 0}),
        ("addmm", (some(5, 6), nan[:, :4], nan[:4]), {"alpha": 0, "beta": half}),
        ("baddbmm", (some(6), some(3, 5, 4), some(3, 4, 6)), {"beta": half, "out": np.empty((3, 5, 6), dtype)}),
        ("matmul", (some(0, 3), some(3, 4)), {}),
        ("matmul", (some(2, 0), some(0, 4)), {}),
        ("matmul", (some(0), some(0)), {}),
        ("matmul", (some(2, 0, 3), some(2, 3, 4)), {}),
        ("matmul", (some(0), some(2, 0, 1)), {}),
        ("matmul", (some(0, 2, 3), some(3, 4)), {"out": np.empty((0, 2, 4), dtype)}),
        ("addmm", (some(2, 3), some(2, 0), some(0, 3)), {"beta": 2}),
    ]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", INNER)
def test_every_kind_of_call_does_what_numpy_does_with_rounded_operands(
    inner: str, dtype: str, precision: str, rng: np.random.Generator
) -> None:
    kind = np.dtype(dtype)
    with inside(inner):
        for op, args, kwargs in calls(kind, rng):
            rounded = tuple(round_to(x, precision) if i >= len(args) - 2 else x for i, x in enumerate(args))
            wanted_in = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
            wanted = reference_plan(problem_of(op, *rounded, **wanted_in))(*arrays_in(rounded, wanted_in))
            for key, result in run(precision, op, *args, **kwargs):
                what = f"{op} {[np.shape(x) for x in args]} {key}"
                assert type(result) is type(wanted) and np.asarray(result).dtype == kind, what
                assert "out" not in kwargs or result is kwargs["out"], what
                assert np.shape(result) == np.shape(wanted), what
                assert np.allclose(result, wanted, rtol=1e-5, atol=1e-5), what
                if inner == "numpy" and "out" not in kwargs and all(x.flags.c_contiguous for x in args):
                    assert np.array_equal(result, wanted), f"{what}: not the very bits"


def test_keywords_in_any_order(rng: np.random.Generator) -> None:
    a, b, c = (random_array(rng, (6, 6), np.dtype(np.float32)) for _ in range(3))
    out = np.empty_like(c)
    _, plain = next(run("tf32", "addmm", c, a, b, alpha=2, beta=3))
    _, other = next(run("tf32", "addmm", out=out, mat2=b, alpha=2, input=c, beta=3, mat1=a))
    assert other is out and np.array_equal(plain, out)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_neither_c_nor_the_sum_nor_the_result_is_rounded(precision: str) -> None:
    long = np.ones(4097, np.float32)
    for _, result in run(precision, "dot", long, long):
        assert result == 4097  # more bits than either precision has
    c = np.full((3, 3), 1 + 2.0**-20, np.float32)
    eye = np.eye(3, dtype=np.float32)
    for _, result in run(precision, "addmm", c, eye, eye, alpha=0):
        assert np.array_equal(result, c)
    for _, result in run(precision, "addmm", c, eye, eye, alpha=1 + 2.0**-20, beta=0):
        assert np.array_equal(result, eye * c)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_infinity_nan_and_overflow(precision: str) -> None:
    largest = float(np.finfo(np.float32).max)
    a = np.array([[np.inf, 1], [np.nan, 1], [largest, 1], [2.0**127, 1]], np.float32)
    b = np.array([[1], [1]], np.float32)
    for _, result in run(precision, "matmul", a, np.repeat(b, 2, axis=1)):
        assert (result[0] == np.inf).all() and np.isnan(result[1]).all()
        assert (result[2] == np.inf).all(), "the largest float32 is past the largest of the precision"
        assert (result[3] == 2.0**127).all()
    for _, result in run(precision, "matmul", a, b):
        assert np.array_equal(result.ravel(), np.float32([np.inf, np.nan, np.inf, 2.0**127]), equal_nan=True)


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", INNER)
def test_overlapping_out(inner: str, rng: np.random.Generator) -> None:
    base = rng.standard_normal((20, 20)).astype(np.float32)
    kept = base.copy()
    a, b = base[:10, :10], rng.standard_normal((10, 10)).astype(np.float32)
    with inside(inner):
        for out in (a, base[5:15, 5:15], base[:10, :10].T, base[9::-1, :10], base[:20:2, :10]):
            for op, args in (("matmul", (a, b)), ("matmul", (b, a)), ("addmm", (b, b, a))):
                with pytest.raises(BadValue, match="overlaps an operand"):
                    next(run("tf32", op, *args, out=out))
        for c in (base[1:11, :10], base[0, :10]):
            with pytest.raises(BadValue, match="overlaps"):
                next(run("bf16", "addmm", c, b, b, out=base[:10, :10]))
        assert np.array_equal(base, kept), "a refused call wrote"
        for out in (base[:10, 10:], base[10:, :10]):
            for _, result in run("tf32", "matmul", a, b, out=out):
                assert result is out and np.allclose(out, kept[:10, :10] @ b, atol=0.05)
        mixed = np.zeros((10, 20), np.float32)
        mixed[:, ::2] = b
        for _, result in run("tf32", "matmul", mixed[:, ::2], b, out=mixed[:, 1::2]):
            assert np.allclose(result, b @ b, atol=0.05)
        c = kept[:10, :10].copy()
        _, result = next(run("tf32", "addmm", c, b, b, out=c))
        assert result is c and not np.array_equal(c, kept[:10, :10])


# Any product ----------------------------------------------------------------------------------------------------------


@st.composite
def any_product(draw: Any) -> tuple[Any, ...]:
    m, k, n = (draw(st.integers(0, 12)) for _ in range(3))
    batch = draw(st.lists(st.integers(0, 3), max_size=2))
    left: list[int] = [*batch, m, k] if draw(st.booleans()) else [m, k]
    right = [*(1 if draw(st.booleans()) else s for s in batch), k, n]
    vector = draw(st.integers(0, 9))
    left, right = ([k] if vector == 0 else left), ([k] if vector == 1 else right)
    names = [*LAYOUTS, "spread"]
    layouts = [draw(st.sampled_from(names)) for _ in range(2)]
    out = draw(st.sampled_from(["none", *LAYOUTS]))
    return (
        tuple(left), tuple(right), layouts, out, draw(st.sampled_from(DTYPES)), draw(st.sampled_from(PRECISIONS)),
        draw(st.integers(0, 2**32 - 1)), draw(st.integers(1, 3)), draw(st.sampled_from(INNER)),
    )  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_product())
def test_any_product(call: Any) -> None:
    *shapes, layouts, out_layout, dtype, precision, number, threads, inner = call
    source, kind = np.random.default_rng(number), np.dtype(dtype)
    args = []
    for shape, layout in zip(shapes, layouts, strict=True):
        x = random_array(source, shape, kind)
        args.append(spread(x, number % x.ndim) if layout == "spread" else LAYOUTS[layout](x))
    exact, bound = (np.asarray(x) for x in of_rounded(precision, *(np.array(x) for x in args)))
    kwargs = {} if out_layout == "none" else {"out": LAYOUTS[out_layout](np.full(exact.shape, np.nan, kind))}
    with inside(inner):
        for key, result in run(precision, "matmul", *args, threads=threads, **kwargs):
            assert_close(result, exact, bound, f"{key} inside {inner} {shapes} {layouts} out {out_layout}")


def test_one_plan_in_many_threads(rng: np.random.Generator) -> None:
    a, b = (random_array(rng, (40, 40), np.dtype(np.float32)) for _ in range(2))
    problem = problem_of("matmul", a, b)
    plan = Emulated().prepare(problem, listed(problem)[0])
    wanted = plan(a, b)
    pairs = [(a, b) if i % 2 else (b, a) for i in range(200)]
    turned = plan(b, a)
    with ThreadPoolExecutor(8) as pool:
        for (left, _), result in zip(pairs, pool.map(lambda pair: plan(*pair), pairs), strict=True):
            assert np.array_equal(result, wanted if left is a else turned)


# How large the error is -----------------------------------------------------------------------------------------------


def errors(precision: str, a: Array, b: Array) -> tuple[Array, Array]:
    """Error of each element of the product against float64, and |A| |B|."""
    _, result = next(run(precision, "matmul", a, b))
    left, right = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (a, b))
    return result - left @ right, np.abs(left) @ np.abs(right)


LENGTHS = (1, 2, 3, 4, 7, 8, 16, 31, 64, 100, 256, 511, 1024, 2048, 4095, 4096)


@pytest.mark.parametrize("signs", ["random", "positive"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_error_stays_below_the_bound(precision: str, dtype: str, signs: str, rng: np.random.Generator) -> None:
    u = unit(precision)
    most = 0.0
    for k in LENGTHS:
        a, b = (random_array(rng, shape, np.dtype(dtype)) for shape in ((24, k), (k, 28)))
        if signs == "positive":
            a, b = np.abs(a).astype(dtype), np.abs(b).astype(dtype)
        error, size = errors(precision, a, b)
        # Rounded by parts, a complex number moves by no more than u times its absolute value, too.
        bound = 2 * u + u**2 + gamma(k, a.dtype) * (1 + u) ** 2
        ratio = np.abs(error) / size
        assert (ratio <= bound).all(), f"k = {k}: {ratio.max():.3e} above {bound:.3e}"
        most = max(most, float(ratio.max()) / bound)
    assert most > 0.3, "the bound is of the size of the error"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_bound_is_reached_where_every_rounding_goes_one_way(precision: str) -> None:
    u = unit(precision)
    worst = np.float32(1 + u)  # a tie, and 1 is even
    for k in (1, 16, 256, 4096):
        error, size = errors(precision, np.full((4, k), worst), np.full((k, 4), worst))
        assert (error < 0).all()
        assert (np.abs(error) >= 2 * u / (1 + u) ** 2 * size * (1 - gamma(k, np.dtype(np.float32)))).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_typical_error_grows_with_the_root_of_the_length(precision: str, dtype: str, rng: np.random.Generator) -> None:
    """Errors of the operands are independent: their sum has the variance of one term times k, and it can be predicted."""
    lengths, found = (16, 64, 256, 1024, 4096), []
    for k in lengths:
        a, b = (random_array(rng, shape, np.dtype(dtype)) for shape in ((64, k), (k, 64)))
        error, _ = errors(precision, a, b)
        square = {name: np.mean(np.abs(x.astype(np.complex128)) ** 2) for name, x in (
            ("a", a), ("b", b), ("da", round_to(a, precision) - a), ("db", round_to(b, precision) - b))}  # fmt: skip
        predicted = math.sqrt(k * (square["da"] * square["b"] + square["a"] * square["db"]))
        measured = math.sqrt(np.mean(np.abs(error) ** 2))
        assert 0.75 < measured / predicted < 1.33, f"k = {k}: {measured:.3e}, predicted {predicted:.3e}"
        found.append(measured / math.sqrt(square["a"] * square["b"]))
    slope = np.polyfit(np.log(lengths), np.log(found), 1)[0]
    assert 0.42 < slope < 0.58, f"the error grows with k to the power of {slope:.2f}"


def test_the_error_shrinks_with_the_bits_that_are_kept(rng: np.random.Generator) -> None:
    """Three bits more are eight times less error; float32 itself is thousands of times better than either."""
    a, b = (random_array(rng, (128, 128), np.dtype(np.float32)) for _ in range(2))
    size = {p: math.sqrt(np.mean(errors(p, a, b)[0] ** 2)) for p in PRECISIONS}
    plain = math.sqrt(np.mean((a @ b - a.astype(np.float64) @ b.astype(np.float64)) ** 2))
    assert 6.5 < size["bf16"] / size["tf32"] < 9.5
    assert size["tf32"] > 300 * plain
