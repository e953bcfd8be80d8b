"""Products: every library, every algorithm it lists, every dtype, on plain and on nasty operands.

References are computed in the widest type NumPy has (longdouble: 64 bits of mantissa). Bounds are those of Higham, Accuracy and
Stability of Numerical Algorithms, section 3.5: componentwise gamma_n |A| |B|, plus one rounding into the result's dtype, plus
what underflow can take.
"""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import backline
from backline.errors import BadType, BadValue, NoKernel
from support import (
    FLOATS,
    HALVES,
    LAYOUTS,
    LIBRARIES,
    algorithms,
    arrays_in,
    assert_close,
    clean,
    dtype_of,
    misaligned,
    need,
    numpy_on_one_thread,
    problem_of,
    random_array,
    rng,
    roundoff,
    run_each,
    seed,
    smallest,
    spread,
    wide,
)  # fmt: skip

Array = Any
DTYPES = (*HALVES, *FLOATS)
pytestmark = pytest.mark.usefixtures("clean", "numpy_on_one_thread")
assert clean and numpy_on_one_thread and rng and seed  # fixtures: imported to be found by pytest


# The reference --------------------------------------------------------------------------------------------------------


def reference(
    a: Array, b: Array, c: Array | None = None, alpha: Any = 1, beta: Any = 0, conj: bool = False
) -> tuple[Array, Array]:
    """beta C + alpha A B in longdouble, and the bound on the error of any order of summation in a's dtype."""
    dtype = a.dtype
    left, right = wide(a.conj() if conj else a), wide(b)
    k = a.shape[-1]
    exact, size = np.matmul(left, right), np.matmul(np.abs(left), np.abs(right))
    if alpha != 1:
        exact, size = exact * alpha, size * abs(alpha)
    if alpha == 0:
        exact = size = np.zeros_like(exact)
    if c is not None and beta != 0:
        exact, size = exact + beta * wide(c), size + np.abs(beta * wide(c))
    if dtype.kind in "iub":
        return exact, np.zeros(exact.shape)
    inner = np.dtype(np.float32) if dtype.name in HALVES else dtype
    n = k + 4
    u = roundoff(inner) * (3 if dtype.kind == "c" else 1)  # a complex product: sqrt(2) gamma_2, rounded up
    gamma = n * u / (1 - n * u)
    bound = 1.01 * gamma * size + n * smallest(inner) * (2 + abs(alpha) + abs(beta))
    if dtype.name in HALVES:
        bound = bound + roundoff(dtype) * 1.01 * (np.abs(exact) + bound) + smallest(dtype)
    return exact, np.abs(bound)


def compare(result: Array, dtype: np.dtype[Any], exact: Array, bound: Array, what: str) -> None:
    assert np.asarray(result).dtype == dtype, f"{what}: dtype {np.asarray(result).dtype}"
    if dtype.name == "float16":  # past the largest half: infinity, or the largest where the bound leaves both open
        largest = 65504.0
        exact = np.where(np.abs(exact) >= 65520, np.copysign(np.inf, exact), exact)
        edge = (np.abs(exact) > largest * 0.99) & (np.abs(exact) < 65520 * 1.01)
        exact = np.where(edge, wide(np.asarray(result)), exact)
    assert_close(result, exact, bound, what)


# Every algorithm, every layout ----------------------------------------------------------------------------------------

# Shapes of A and B; sizes above a million operations are those where threads come in.
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "tiny": ((2, 3), (3, 4)),
    "one": ((1, 1), (1, 1)),
    "square": ((33, 33), (33, 33)),
    "kernel edges": ((17, 65), (65, 31)),
    "inner product": ((1, 100), (100, 1)),
    "outer product": ((37, 1), (1, 29)),
    "row": ((1, 40), (40, 50)),
    "column": ((40, 50), (50, 1)),
    "batch": ((5, 6, 7), (5, 7, 8)),
    "broadcast batch": ((2, 1, 6, 7), (3, 7, 5)),
    "shared right": ((4, 9, 8), (8, 7)),
    "batch of rows": ((3, 1, 20), (3, 20, 30)),
    "batch of dots": ((6, 1, 20), (6, 20, 1)),
}
THREADED: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "threaded": ((128, 96), (96, 112)),
    "threaded batch": ((9, 48, 40), (9, 40, 44)),
    "threaded column": ((800, 700), (700, 1)),
    "threaded thin": ((3, 400), (400, 700)),
}


def operands(
    rng: np.random.Generator, shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    return random_array(rng, shapes[0], dtype), random_array(rng, shapes[1], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_algorithm_in_every_layout(library: str, case: str, dtype: str, rng: np.random.Generator) -> None:
    a, b = operands(rng, SHAPES[case], dtype_of(dtype))
    exact, bound = reference(a, b)
    pairs = list(itertools.product(LAYOUTS, LAYOUTS))
    chosen = {(name, name) for name in LAYOUTS} | {pairs[i] for i in rng.choice(len(pairs), 10, replace=False)}
    ran = 0
    for left, right in sorted(chosen):
        for name, result in run_each(library, "matmul", LAYOUTS[left](a), LAYOUTS[right](b)):
            compare(result, a.dtype, exact, bound, f"{name}, A {left}, B {right}")
            ran += 1
    assert ran, "the library lists no algorithm"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", THREADED)
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_algorithm_on_threads(library: str, case: str, dtype: str, rng: np.random.Generator) -> None:
    a, b = operands(rng, THREADED[case], dtype_of(dtype))
    exact, bound = reference(a, b)
    for left, right in (("C", "C"), ("C", "F"), ("F", "C"), ("steps", "misaligned"), ("batch last", "wide")):
        for name, result in run_each(library, "matmul", LAYOUTS[left](a), LAYOUTS[right](b)):
            compare(result, a.dtype, exact, bound, f"{name}, A {left}, B {right}")


@pytest.mark.parametrize("threads", [3, 5])
@pytest.mark.parametrize("library", LIBRARIES)
def test_more_threads_than_processors(library: str, threads: int, rng: np.random.Generator) -> None:
    for shapes in (THREADED["threaded"], THREADED["threaded batch"]):
        a, b = operands(rng, shapes, np.dtype(np.float64))
        exact, bound = reference(a, b)
        for name, result in run_each(library, "matmul", a, b, threads=threads):
            compare(result, a.dtype, exact, bound, name)


@pytest.mark.parametrize("library", LIBRARIES)
def test_thread_algorithms_are_among_those_tested(library: str) -> None:
    need(library)
    a = np.ones(THREADED["threaded batch"][0])
    listed = algorithms(library, problem_of("matmul", a, np.ones(THREADED["threaded batch"][1])))
    assert max(x.threads for x in listed) == 2


OUT_LAYOUTS = ("C", "F", "batch last", "negative rows", "negative columns", "steps", "wide", "misaligned")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [*SHAPES, "threaded", "threaded batch"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_out_in_every_layout(library: str, case: str, dtype: str, rng: np.random.Generator) -> None:
    a, b = operands(rng, {**SHAPES, **THREADED}[case], dtype_of(dtype))
    exact, bound = reference(a, b)
    lib = need(library)
    inputs = list(LAYOUTS)
    for layout in OUT_LAYOUTS:
        left, right = (LAYOUTS[inputs[i]] for i in rng.integers(0, len(inputs), 2))
        x, y = left(a), right(b)
        filler = np.full(exact.shape, np.nan, a.dtype)  # what was there must not matter
        problem = problem_of("matmul", x, y, out=LAYOUTS[layout](filler))
        for algorithm in algorithms(library, problem):
            out = LAYOUTS[layout](filler)
            around = out.base.copy() if isinstance(out.base, np.ndarray) and out.base.dtype == out.dtype else None
            result = lib.prepare(problem, algorithm)(x, y, out)
            assert result is out
            compare(out, a.dtype, exact, bound, f"{algorithm.key}, out {layout}")
            if layout in ("steps", "wide") and around is not None and around.size > out.size:
                inside = np.zeros(out.base.shape, bool)
                view = np.lib.stride_tricks.as_strided(
                    inside[tuple(slice(17, None) if layout == "wide" and d == out.ndim - 1 else slice(None) for d in range(out.ndim))],
                    out.shape, [s // out.itemsize for s in out.strides],
                )  # fmt: skip
                view[...] = True
                untouched = ~inside
                assert np.array_equal(out.base[untouched].view(np.uint8), around[untouched].view(np.uint8)), (
                    f"{algorithm.key} wrote beside out ({layout})"
                )


# The other operations -------------------------------------------------------------------------------------------------


def calls(rng: np.random.Generator, dtype: np.dtype[Any]) -> dict[str, tuple[tuple[Array, ...], dict[str, Any], Array, Array]]:
    """Arguments, keywords, and reference and bound of each operation but matmul."""

    def new(*shape: int) -> Array:
        return np.asarray(random_array(rng, shape, dtype))

    found: dict[str, Any] = {}

    def add(op: str, args: tuple[Array, ...], ref: tuple[Array, Array], **kwargs: Any) -> None:
        found[f"{op} {len(found)}"] = (op, args, kwargs, *ref)

    a, b = new(9, 20), new(20, 13)
    add("mm", (a, b), reference(a, b))
    a, b = new(4, 5, 6), new(4, 6, 7)
    add("bmm", (a, b), reference(a, b))
    for n in (1, 7, 3000):
        x, y = new(n), new(n)
        add("dot", (x, y), reference(x, y))
        add("vdot", (x, y), reference(x, y, conj=dtype.kind == "c"))
    a, x = new(30, 21), new(21)
    add("mv", (a, x), reference(a, x))
    x, y = new(14), new(19)
    add("outer", (x, y), reference(x[:, None], y[None, :]))
    factors: list[tuple[Any, Any]] = [(1, 1), (1, 0), (0, 1), (2, -3), (0, 0)]
    if dtype.kind not in "iu":
        factors += [(0.5, 1.5), (-1.25, 0)]
    if dtype.kind == "c":
        factors += [(1 + 2j, -0.5j), (0.25j, 0)]
    for alpha, beta in factors:
        for shape in ((8, 9), (9,), (8, 1), (1, 1), ()):
            c, a, b = new(*shape), new(8, 11), new(11, 9)
            add("addmm", (c, a, b), reference(a, b, np.broadcast_to(c, (8, 9)), alpha, beta), alpha=alpha, beta=beta)
        for shape in ((3, 8, 9), (8, 9), (3, 1, 9), ()):
            c, a, b = new(*shape), new(3, 8, 5), new(3, 5, 9)
            add("baddbmm", (c, a, b), reference(a, b, np.broadcast_to(c, (3, 8, 9)), alpha, beta), alpha=alpha, beta=beta)
        for m, n in ((8, 1), (1, 8), (1, 1)):  # where gemv and dot come in
            c, a, b = new(m, n), new(m, 11), new(11, n)
            add("addmm", (c, a, b), reference(a, b, c, alpha, beta), alpha=alpha, beta=beta)
    return found


@pytest.mark.parametrize("dtype", [*DTYPES, "int32", "int64", "uint8"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_operation(library: str, dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    if kind.kind in "iu" and library != "numpy":
        need(library)
        with backline.use(library, only=True), pytest.raises(NoKernel, match=r"BLAS has no product of|no kernels for"):
            backline.mm(np.ones((2, 2), kind), np.ones((2, 2), kind))
        return
    for name, (op, args, kwargs, exact, bound) in calls(rng, kind).items():
        if kind.kind == "u" and any(v < 0 for v in kwargs.values()):
            continue
        if kind.name == "uint8":  # integers wrap round, as NumPy's do
            exact = np.asarray(exact.astype(np.int64) % 256, np.longdouble)
        for layout in ("C", "steps", "misaligned"):
            given = tuple(LAYOUTS[layout](x) for x in args)
            for which, result in run_each(library, op, *given, **kwargs):
                compare(result, kind, exact, bound, f"{name} {which} {layout} {kwargs}")
            with backline.use(library, only=True):
                result = getattr(backline, op)(*given, **kwargs)
            compare(result, kind, exact, bound, f"{name} {layout} {kwargs}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_beta_of_zero_ignores_what_input_holds(library: str, dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    for m, n, batch in ((5, 6, ()), (5, 1, ()), (1, 6, ()), (1, 1, ()), (5, 6, (3,)), (40, 40, (9,)), (128, 112, ())):
        a, b = random_array(rng, (*batch, m, 96), kind), random_array(rng, (*batch, 96, n), kind)
        exact, bound = reference(a, b, alpha=2)
        c = np.full((*batch, m, n), np.nan, kind)
        op = "baddbmm" if batch else "addmm"
        for name, result in run_each(library, op, c, a, b, beta=0, alpha=2):
            compare(result, kind, exact, bound, name)
        for name, result in run_each(library, op, c, a, b, beta=0, alpha=2, out=c.copy()):
            compare(result, kind, exact, bound, f"{name} with out")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_alpha_of_zero_ignores_what_the_matrices_hold(library: str, dtype: str) -> None:
    kind = dtype_of(dtype)
    a = np.full((4, 5), np.nan, kind)
    c = np.arange(16).reshape(4, 4).astype(kind)
    for b in (np.ones((5, 4), kind), np.full((5, 4), np.inf, kind)):
        for name, result in run_each(library, "addmm", c, a, b, alpha=0, beta=1):
            assert np.array_equal(result, c), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_out_may_be_the_input_of_addmm(library: str, dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    lib = need(library)
    for shape in ((6, 7), (6, 1), (1, 7), (1, 1), (3, 6, 7), (9, 48, 44)):
        m, n = shape[-2:]
        a, b = random_array(rng, (*shape[:-2], m, 40), kind), random_array(rng, (*shape[:-2], 40, n), kind)
        start = random_array(rng, shape, kind)
        exact, bound = reference(a, b, start, 1.5, -0.5)
        op = "addmm" if len(shape) == 2 else "baddbmm"
        for layout in OUT_LAYOUTS:
            c = LAYOUTS[layout](start)
            problem = problem_of(op, c, a, b, alpha=1.5, beta=-0.5, out=c)
            for algorithm in algorithms(library, problem):
                c[...] = start
                assert lib.prepare(problem, algorithm)(c, a, b, c) is c
                compare(c, kind, exact, bound, f"{algorithm.key} {shape} {layout}")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_products_of_many(library: str, dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    need(library)
    chain = [random_array(rng, s, kind) for s in ((6, 30), (30, 2), (2, 25), (25, 7))]
    exact = wide(chain[0])
    size = np.abs(exact)
    for x in chain[1:]:
        exact, size = exact @ wide(x), size @ np.abs(wide(x))
    bound = 3 * 40 * 3 * roundoff(kind) * size
    with backline.use(library, only=True):
        compare(backline.linalg.multi_dot(chain), kind, exact, bound, "multi_dot")
        compare(backline.chain_matmul(*chain), kind, exact, bound, "chain_matmul")
        out = np.empty((6, 7), kind)
        assert backline.linalg.multi_dot(chain, out=out) is out
        compare(out, kind, exact, bound, "multi_dot out")
        vectors = [chain[0][0], *chain[1:3], chain[3][:, 0]]
        compare(backline.linalg.multi_dot(vectors), kind, exact[0, 0], bound[0, 0], "multi_dot of vectors")
        single = np.empty_like(chain[0])
        assert backline.chain_matmul(chain[0], out=single) is single and np.array_equal(single, chain[0])
        a, b = random_array(rng, (3, 4, 5, 6), kind), random_array(rng, (6, 4, 5, 2), kind)
        for dims in (([1, 2], [1, 2]), ([3, 1], [0, 1]), ([-1], [0]), ([], []), (0)):
            ref = np.tensordot(wide(a), wide(b), dims)
            scale = np.tensordot(np.abs(wide(a)), np.abs(wide(b)), dims)
            result = backline.tensordot(a, b, dims)
            compare(result, kind, ref, 30 * 3 * roundoff(kind) * scale, f"tensordot {dims}")
            out = np.empty(ref.shape, kind)
            assert backline.tensordot(a, b, dims, out=out) is out
            turned = np.empty(ref.shape, kind).transpose().copy().transpose() if ref.ndim else out
            assert backline.tensordot(a, b, dims, out=turned) is turned
            assert np.array_equal(out, result) and np.array_equal(turned, result)


# Numbers that are not plain -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_nan_and_infinity_go_where_they_should(library: str, dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    for shapes in ((8, 9, 10), (1, 9, 10), (8, 9, 1), (1, 30, 1), (70, 40, 90)):
        m, k, n = shapes
        a, b = np.abs(random_array(rng, (m, k), kind)) + 1, np.abs(random_array(rng, (k, n), kind)) + 1
        a, b = a.astype(kind), b.astype(kind)
        i, j, l = int(rng.integers(m)), int(rng.integers(n)), int(rng.integers(k))
        for value in (np.nan, np.inf, -np.inf):
            x, y = a.copy(), b.copy()
            x[i, l] = value
            exact, bound = reference(a, b)
            for name, result in run_each(library, "matmul", x, y):
                what = f"{name} {shapes} {value}"
                touched = np.zeros((m, n), bool)
                touched[i] = True
                got = wide(result)
                assert np.isfinite(got[~touched]).all() and (np.abs(got - exact) <= bound)[~touched].all(), what
                if kind.kind != "c":
                    assert np.array_equal(got[touched], np.full(n, value, np.longdouble), equal_nan=True), what
                else:
                    assert not np.isfinite(got[touched]).any(), what
            y[l, j] = 0  # NaN or infinity times 0 is NaN
            for name, result in run_each(library, "matmul", x, y):
                assert np.isnan(wide(result)[i, j]), f"{name} {shapes}: {value} times 0 gave {result[i, j]}"


@pytest.mark.parametrize("library", LIBRARIES)
def test_opposite_infinities_make_nan(library: str) -> None:
    a = np.array([[np.inf, -np.inf, 1.0]] * 2)
    for b in (np.ones((3, 2)), np.ones((3, 1)), np.ones(3)):
        for name, result in run_each(library, "matmul", a, b):
            assert np.isnan(result).all(), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_subnormal_numbers_are_kept(library: str, dtype: str) -> None:
    kind = dtype_of(dtype)
    tiny = np.array(smallest(kind)).astype(kind)
    assert tiny != 0
    for m, k, n in ((3, 4, 5), (3, 4, 1), (1, 4, 3), (1, 4, 1), (70, 64, 80)):
        a = np.zeros((m, k), kind)
        a[:, 0] = tiny * 3
        b = np.ones((k, n), kind)
        for name, result in run_each(library, "matmul", a, b):
            if dtype == "bfloat16" and "gemm_mixed" in name:  # its instructions take subnormal numbers for 0
                assert np.isin(result.astype(np.float64), (0, float(tiny * 3))).all(), name
                continue
            assert (result == tiny * 3).all(), f"{name} {(m, k, n)}: {result.ravel()[0]}"


@pytest.mark.parametrize("library", LIBRARIES)
def test_half_precisions_overflow_to_infinity_without_a_warning(library: str) -> None:
    a = np.full((3, 4), 60000, np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, result in run_each(library, "matmul", a, a.T):
            assert (result == np.inf).all(), name
        for name, result in run_each(library, "matmul", -a, a.T):
            assert (result == -np.inf).all(), name
        # Within float32, past float16 on the way: 60000 + 60000 - 60000.
        b = np.array([[1], [1], [-1], [0]], np.float16)
        for name, result in run_each(library, "matmul", a, b):
            assert (result == 60000).all(), name


@pytest.mark.parametrize("library", LIBRARIES)
def test_half_precision_rounds_once(library: str) -> None:
    """1 + 2**-11 twice is 1 + 2**-10 in float32, representable; rounded at each step it would stay 1."""
    a = np.array([[1.0, 2.0**-11, 2.0**-11]], np.float16)
    for name, result in run_each(library, "matmul", a, np.ones((3, 1), np.float16)):
        assert result[0, 0] == np.float16(1 + 2.0**-10), name


# Empty, tiny, spread --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_empty_products(library: str, dtype: str) -> None:
    kind = dtype_of(dtype)
    need(library)
    shapes = [((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (3, 0)), ((0, 0), (0, 0)), ((0, 2, 3), (0, 3, 4)), ((0,), (0,)),
              ((0,), (0, 3)), ((3, 0), (0,)), ((5, 0, 2, 3), (1, 3, 4)), ((2, 2, 0), (2, 0, 3))]  # fmt: skip
    with backline.use(library, only=True):
        for left, right in shapes:
            a, b = np.ones(left, kind), np.ones(right, kind)
            expected = np.matmul(np.ones(left), np.ones(right))
            result = backline.matmul(a, b)
            assert np.shape(result) == expected.shape and np.asarray(result).dtype == kind
            assert not np.any(result)
            out = np.full(expected.shape, 7, kind)
            assert backline.matmul(a, b, out=out) is out and not out.any()
        c = np.arange(6).reshape(2, 3).astype(kind)
        assert np.array_equal(backline.addmm(c, np.ones((2, 0), kind), np.ones((0, 3), kind), beta=2), 2 * c)
        nan = np.full((2, 3), np.nan, kind)
        assert not backline.addmm(nan, np.ones((2, 0), kind), np.ones((0, 3), kind), beta=0).any()
        assert backline.outer(np.ones(0, kind), np.ones(3, kind)).shape == (0, 3)
        assert backline.tensordot(np.ones((0, 2), kind), np.ones((2, 3), kind), 1).shape == (0, 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_strides_of_zero(library: str, dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    for shapes in (((6, 7), (7, 8)), ((1, 9), (9, 1)), ((6, 7), (7, 1)), ((4, 6, 7), (4, 7, 5))):
        a, b = operands(rng, shapes, kind)
        for axis in range(-len(shapes[0]), 0):
            x, y = spread(a, axis), spread(b, axis)
            exact, bound = reference(np.array(x), np.array(y))
            for name, result in run_each(library, "matmul", x, y):
                compare(result, kind, exact, bound, f"{name} {shapes} axis {axis}")


@pytest.mark.parametrize("library", LIBRARIES)
def test_windows_that_overlap_themselves(library: str, rng: np.random.Generator) -> None:
    """A Hankel matrix: rows closer together than they are long, which BLAS's leading dimension cannot say."""
    x = rng.standard_normal(40)
    windows = np.lib.stride_tricks.sliding_window_view(x, 12)
    kernel = rng.standard_normal((12, 5))
    for view in (windows, windows[::2], windows[:, ::-1]):
        ref, limit = reference(view.copy(), kernel)
        for name, result in run_each(library, "matmul", view, kernel):
            compare(result, x.dtype, ref, limit, name)


@pytest.mark.parametrize("library", LIBRARIES)
def test_results_are_of_the_kind_numpy_would_give(library: str) -> None:
    need(library)
    with backline.use(library, only=True):
        for kind in (np.float64, np.complex64, np.float16):
            x = np.ones(3, kind)
            assert type(backline.dot(x, x)) is type(np.dot(x, x))
            assert type(backline.matmul(x, x)) is type(np.matmul(x, x))
        out = np.empty((), np.float64)
        assert backline.dot(np.ones(3), np.ones(3), out=out) is out and out == 3
        fresh = backline.mm(np.ones((300, 300)), np.ones((300, 300)))
        assert fresh.flags.owndata and fresh.flags.writeable and fresh.flags.c_contiguous


# Refusals -------------------------------------------------------------------------------------------------------------

GOOD = np.ones((3, 3))


def wrong_outs() -> dict[str, tuple[Any, type[Exception], str]]:
    read_only = np.empty((3, 3))
    read_only.flags.writeable = False
    return {
        "shape": (np.empty((3, 4)), BadValue, r"out has shape \(3, 4\), the result has shape \(3, 3\)"),
        "rank": (np.empty(9), BadValue, "has shape"),
        "dtype": (np.empty((3, 3), np.float32), BadType, "float32"),
        "byte order": (np.empty((3, 3), ">f8"), BadType, ">f8"),
        "read-only": (read_only, BadValue, "read-only"),
        "stride of 0": (np.lib.stride_tricks.as_strided(np.empty(3), (3, 3), (0, 8)), BadValue, "share memory"),
        "list": ([[0.0] * 3] * 3, BadType, "NumPy array, not list"),
        "masked": (np.ma.zeros((3, 3)), BadType, "MaskedArray"),
        "matrix": (np.zeros((3, 3)).view(np.matrix), BadType, "matrix"),
        "another device's array": (type("DeviceArray", (), {"shape": (3, 3)})(), BadType, "not DeviceArray"),
    }


@pytest.mark.parametrize("which", wrong_outs())
@pytest.mark.parametrize("library", LIBRARIES)
def test_wrong_out(library: str, which: str) -> None:
    need(library)
    out, kind, text = wrong_outs()[which]
    with backline.use(library, only=True):
        for call in (lambda: backline.mm(GOOD, GOOD, out=out), lambda: backline.addmm(GOOD, GOOD, GOOD, out=out)):
            with pytest.raises(kind, match=text):
                call()


@pytest.mark.parametrize("library", LIBRARIES)
def test_overlapping_out(library: str, rng: np.random.Generator) -> None:
    need(library)
    base = rng.standard_normal((20, 20))
    kept = base.copy()
    a, b = base[:10, :10], rng.standard_normal((10, 10))
    with backline.use(library, only=True):
        for out in (a, base[5:15, 5:15], base[:10, :10].T, base[9::-1, :10], base[:20:2, :10]):
            with pytest.raises(BadValue, match=r"overlaps an operand"):
                backline.matmul(a, b, out=out)
            with pytest.raises(BadValue, match=r"overlaps"):
                backline.matmul(b, a, out=out)
            with pytest.raises(BadValue, match=r"overlaps"):  # only the very same memory may be input and out
                backline.addmm(base[1:11, :10], b, b, out=base[:10, :10])
            with pytest.raises(BadValue, match=r"overlaps"):
                backline.addmm(base[0, :10], b, b, out=base[:10, :10])
        assert np.array_equal(base, kept), "a refused call wrote"
        # Neighbours in one array have no element in common.
        for out in (base[:10, 10:], base[10:, :10], base[10:, 10:]):
            assert np.allclose(backline.matmul(a, b, out=out), kept[:10, :10] @ b)
        mixed = np.zeros((10, 20))
        mixed[:, ::2] = kept[:10, :10]
        assert np.allclose(backline.matmul(mixed[:, ::2], b, out=mixed[:, 1::2]), kept[:10, :10] @ b)


@pytest.mark.parametrize("library", LIBRARIES)
def test_operands_that_are_refused(library: str) -> None:
    need(library)
    with backline.use(library, only=True):
        for bad, text in (
            ([[1.0]], "list"), (1.0, "float"), (np.float64(1), "not float"), (None, "NoneType"),
            (np.ma.ones((3, 3)), "MaskedArray"), (GOOD.view(np.matrix), "matrix"), (np.ones((3, 3), object), "object"),
            (np.zeros((3, 3), "M8[s]"), "datetime64"), (np.zeros((3, 3), "S3"), r"\|S3"), (np.zeros((3, 3), "i4,f4"), "dtype"),
        ):  # fmt: skip
            for args in ((bad, GOOD), (GOOD, bad)):
                with pytest.raises(BadType, match=text):
                    backline.matmul(*args)
                with pytest.raises(BadType, match=text):
                    backline.mm(*args)
        with pytest.raises(BadType, match="float64 and float32"):
            backline.mm(GOOD, GOOD.astype("f"))
        with pytest.raises(BadType, match="input has dtype float32"):
            backline.addmm(GOOD.astype("f"), GOOD, GOOD)
        for call, text in (
            (lambda: backline.matmul(np.array(1.0), GOOD), "input is a scalar"),
            (lambda: backline.matmul(GOOD, np.ones((2, 2))), r"\(3, 3\) and \(2, 2\)"),
            (lambda: backline.matmul(np.ones((2, 3, 3)), np.ones((4, 3, 3))), r"\(2,\) and \(4,\)"),
            (lambda: backline.mm(np.ones(3), GOOD), "input must have 2 dimensions"),
            (lambda: backline.mm(GOOD, np.ones((1, 3, 3))), "mat2 must have 2 dimensions"),
            (lambda: backline.bmm(GOOD, GOOD), "input must have 3 dimensions"),
            (lambda: backline.bmm(np.ones((1, 3, 3)), np.ones((2, 3, 3))), "stacks of 1 and 2"),
            (lambda: backline.dot(GOOD, GOOD), "input must have 1 dimension"),
            (lambda: backline.dot(np.ones(3), np.ones(4)), "3 columns on the left, 4 rows"),
            (lambda: backline.mv(GOOD, GOOD), "vec must have 1 dimension"),
            (lambda: backline.addmm(np.ones((2, 2)), GOOD, GOOD), r"input of shape \(2, 2\)"),
            (lambda: backline.addmm(np.ones((1, 3, 3)), GOOD, GOOD), r"input of shape \(1, 3, 3\)"),
            (lambda: backline.linalg.multi_dot([GOOD]), "two arrays or more, 1 given"),
            (lambda: backline.tensordot(GOOD, GOOD, 3), "dims=3"),
            (lambda: backline.tensordot(GOOD, GOOD, ([0, 0], [0, 1])), "names an axis twice"),
            (lambda: backline.tensordot(GOOD, GOOD, ([5], [0])), r"dims\[0\]=5, and a of shape"),
        ):  # fmt: skip
            with pytest.raises(BadValue, match=text):
                call()
        for bad, text in ((1j, "must be real"), ("2", "not str"), (None, "NoneType"), (True, "not bool"), (GOOD, "not ndarray")):
            with pytest.raises(BadType, match=text):
                backline.addmm(GOOD, GOOD, GOOD, alpha=bad)
        with pytest.raises(TypeError):
            backline.mm(GOOD)
        with pytest.raises(TypeError):
            backline.mm(GOOD, GOOD, GOOD)
        with pytest.raises(TypeError, match="nonsense"):
            backline.mm(GOOD, GOOD, nonsense=1)


def test_integers_are_not_cut_off() -> None:
    one = np.ones((2, 2), np.int64)
    for name in ("alpha", "beta"):
        with pytest.raises(BadType, match=f"{name} = 1.5 for int64"):
            backline.addmm(one, one, one, **{name: 1.5})
    assert (backline.addmm(one, one, one, alpha=2.0) == 5).all()


# Arrays that are not plain --------------------------------------------------------------------------------------------


class Marked(np.ndarray):
    """A subclass without rules of its own."""


@pytest.mark.parametrize("library", LIBRARIES)
def test_unusual_arrays(library: str, rng: np.random.Generator, tmp_path: Path) -> None:
    need(library)
    a, b = rng.standard_normal((5, 6)), rng.standard_normal((6, 7))
    exact, bound = reference(a, b)
    mapped = np.memmap(tmp_path / "a", np.float64, "w+", shape=a.shape)
    mapped[...] = a
    frozen = a.copy()
    frozen.flags.writeable = False
    with backline.use(library, only=True):
        for name, x in (
            ("byte-swapped", a.astype(">f8")),
            ("memmap", mapped),
            ("subclass", a.view(Marked)),
            ("read-only", frozen),
        ):
            result = backline.matmul(x, b)
            assert type(result) is np.ndarray, name
            compare(result, a.dtype, exact, bound, name)
            compare(backline.matmul(x, b), a.dtype, exact, bound, f"{name} again")
        out = np.memmap(tmp_path / "out", np.float64, "w+", shape=(5, 7))
        assert backline.matmul(mapped, b, out=out) is out
        compare(np.asarray(out), a.dtype, exact, bound, "memmap out")
        marked = np.empty((5, 7)).view(Marked)
        assert backline.matmul(a.astype(">f8"), b, out=marked) is marked
        compare(np.asarray(marked), a.dtype, exact, bound, "subclass out")
        with pytest.raises(BadValue, match="overlaps"):
            backline.matmul(mapped, np.eye(6), out=mapped)
        many = rng.standard_normal((1,) * 25 + (2, 3))  # too many axes for the Memo's key
        compare(backline.matmul(many, many.swapaxes(-1, -2).copy()), a.dtype, *reference(many, many.swapaxes(-1, -2)), "25 axes")
        same = backline.mm(input=a, mat2=b)
        assert np.array_equal(same, backline.mm(mat2=b, input=a)) and np.array_equal(same, backline.mm(a, mat2=b))
        target = np.empty((5, 7))
        assert backline.mm(out=target, mat2=b, input=a) is target and np.array_equal(target, same)
        c = rng.standard_normal((5, 7))
        plain = backline.addmm(c, a, b, alpha=2, beta=3)
        assert np.array_equal(plain, backline.addmm(mat2=b, alpha=2, input=c, beta=3, mat1=a))
        assert np.array_equal(plain, backline.addmm(c, mat2=b, mat1=a, alpha=np.float64(2), beta=np.int8(3)))


# Anything at all ------------------------------------------------------------------------------------------------------


@st.composite
def any_product(draw: Any) -> tuple[str, list[tuple[int, ...]], list[str], str, str, int, int]:
    size = st.integers(0, 12)
    m, k, n = draw(size), draw(size), draw(size)
    batch = draw(st.lists(st.integers(0, 3), max_size=2))
    ones = [draw(st.booleans()) for _ in batch]
    left = [*batch, m, k] if not draw(st.booleans()) else [m, k]
    right = [*(1 if one else s for s, one in zip(batch, ones, strict=True)), k, n]
    if draw(st.integers(0, 4)) == 0:
        left = [k]
    elif draw(st.integers(0, 4)) == 0:
        right = [k]
    names = list(LAYOUTS)
    layouts = [draw(st.sampled_from([*names, "spread"])) for _ in range(2)]
    out = draw(st.sampled_from(["none", *OUT_LAYOUTS]))
    return (
        draw(st.sampled_from(LIBRARIES)), [tuple(left), tuple(right)], layouts, out, draw(st.sampled_from(DTYPES)),
        draw(st.integers(0, 2**32 - 1)), draw(st.integers(1, 2)),
    )  # fmt: skip


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_product())
def test_any_product(call: Any) -> None:
    library, shapes, layouts, out_layout, dtype, number, threads = call
    lib = need(library)
    kind = dtype_of(dtype)
    source = np.random.default_rng(number)
    args = []
    for shape, layout in zip(shapes, layouts, strict=True):
        x = random_array(source, shape, kind)
        args.append(spread(x) if layout == "spread" else LAYOUTS[layout](x))
    exact, bound = reference(*(np.array(x) for x in args))
    exact, bound = np.asarray(exact), np.asarray(bound)
    kwargs = {} if out_layout == "none" else {"out": LAYOUTS[out_layout](np.full(exact.shape, np.nan, kind))}
    problem = problem_of("matmul", *args, **kwargs)
    for algorithm in algorithms(library, problem, threads):
        if kwargs:
            kwargs["out"][...] = np.nan
        result = lib.prepare(problem, algorithm)(*arrays_in(tuple(args), kwargs))
        compare(result, kind, exact, bound, f"{algorithm.key} {shapes} {layouts} out {out_layout}")


def test_the_reference_of_these_tests_would_notice_errors(rng: np.random.Generator) -> None:
    """Bounds that are too wide prove nothing: one element off by a few roundoffs of its row and column must be seen."""
    for dtype in DTYPES:
        kind = dtype_of(dtype)
        a, b = random_array(rng, (8, 8), kind), random_array(rng, (8, 8), kind)
        exact, bound = reference(a, b)
        limit = np.asarray(np.abs(exact) + np.abs(bound), float)
        good = np.asarray(exact).astype(kind)
        compare(good, kind, exact, bound, "right")
        row = int(np.argmax((np.abs(exact) / bound).max(axis=1)))
        spoilt = good.copy()
        spoilt[row] = (wide(spoilt[row]) * (1 + 300 * roundoff(kind)) + 3 * bound[row]).astype(kind)
        with pytest.raises(AssertionError, match="elements are wrong"):
            compare(spoilt, kind, exact, bound, "spoilt")
        assert np.isfinite(limit).all()
    assert misaligned(np.ones(3)).flags.aligned is False
