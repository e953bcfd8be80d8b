"""Products of vectors, diagonals, powers, tensor inverses and the exponential: against NumPy in wider arithmetic, and by torch's rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg
from backline.errors import BadAxis, BadType, BadValue, LinAlgError, TooLarge
from support import FLOATS, LAYOUTS, assert_close, clean, dtype_of, random_array, rng, roundoff, seed, wide

Array = Any
DTYPES = (*FLOATS, "float16", "bfloat16", "int8", "int32", "int64", "uint8")
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed


def reference_vecdot(x: Array, y: Array, dim: int = -1) -> Array:
    return np.sum(x.conj() * y, axis=dim)


def reference_addbmm(c: Array, a: Array, b: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    return (beta * c if beta else 0) + alpha * np.sum(np.matmul(a, b), axis=0)


# name -> function, reference, shapes of the arrays, keywords
CASES: list[tuple[str, Callable[..., Any], Callable[..., Any], list[tuple[int, ...]], dict[str, Any]]] = [
    ("inner", backline.inner, np.inner, [(5,), (5,)], {}),
    ("inner", backline.inner, np.inner, [(2, 3, 4), (6, 4)], {}),
    ("inner", backline.inner, np.inner, [(3, 0), (2, 0)], {}),
    ("inner", backline.inner, np.inner, [(), (2, 3)], {}),
    ("kron", backline.kron, np.kron, [(2, 3), (4, 2)], {}),
    ("kron", backline.kron, np.kron, [(3,), (2, 4, 2)], {}),
    ("kron", backline.kron, np.kron, [(2, 0), (3, 3)], {}),
    ("kron", backline.kron, np.kron, [(), ()], {}),
    ("vecdot", linalg.vecdot, reference_vecdot, [(7,), (7,)], {}),
    ("vecdot", linalg.vecdot, reference_vecdot, [(2, 1, 7), (5, 7)], {}),
    ("vecdot", linalg.vecdot, reference_vecdot, [(3, 2, 4), (3, 2, 4)], {"dim": 1}),
    ("vecdot", linalg.vecdot, reference_vecdot, [(3, 0), (3, 0)], {}),
    ("vecdot", linalg.vecdot, reference_vecdot, [(0, 3), (1, 3)], {}),
    ("cross", linalg.cross, np.cross, [(4, 3), (4, 3)], {}),
    ("cross", linalg.cross, lambda x, y, dim: np.cross(x, y, axis=dim), [(2, 3, 1), (1, 3, 4)], {"dim": 1}),
    ("cross", backline.cross, lambda x, y: np.cross(x, y, axis=0), [(3, 3), (3, 3)], {}),
    ("diagonal", linalg.diagonal, lambda x, **k: np.diagonal(x, k.get("offset", 0), -2, -1), [(2, 3, 4)], {"offset": 1}),
    ("diagonal", linalg.diagonal, lambda x: np.diagonal(x, 0, -2, -1), [(3, 3)], {}),
    ("diagonal", backline.diagonal, np.diagonal, [(2, 3, 4)], {}),
    ("diagonal", linalg.diagonal, lambda x, **k: np.diagonal(x, -9, 0, 2), [(2, 3, 4)], {"offset": -9, "dim1": 0, "dim2": 2}),
    ("vander", linalg.vander, lambda x, N: x[..., None] ** np.arange(N), [(2, 3)], {"N": 4}),
    ("vander", linalg.vander, lambda x: x[..., None] ** np.arange(3), [(3,)], {}),
    ("vander", linalg.vander, lambda x, N: np.atleast_1d(x)[..., None] ** np.arange(N), [()], {"N": 3}),
    ("vander", backline.vander, np.vander, [(3,)], {}),
    ("vander", backline.vander, np.vander, [(4,)], {"N": 2, "increasing": True}),
    ("trace", backline.trace, np.trace, [(4, 4)], {}),
    ("trace", backline.trace, np.trace, [(2, 5)], {}),
    ("trace", backline.trace, np.trace, [(0, 3)], {}),
    ("addbmm", backline.addbmm, reference_addbmm, [(3, 2), (4, 3, 5), (4, 5, 2)], {}),
    ("addbmm", backline.addbmm, reference_addbmm, [(2,), (1, 3, 5), (1, 5, 2)], {"beta": 2, "alpha": 3}),
    ("addbmm", backline.addbmm, reference_addbmm, [(3, 2), (0, 3, 5), (0, 5, 2)], {"beta": 2}),
    ("addbmm", backline.addbmm, reference_addbmm, [(3, 2), (4, 3, 0), (4, 0, 2)], {"beta": 0}),
]


def legal(name: str, dtype: np.dtype[Any]) -> bool:
    return not ((dtype.kind in "iu" and name == "vecdot") or (dtype.name in ("float16", "bfloat16") and name == "vander"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "function", "reference", "shapes", "keywords"), CASES)
def test_against_numpy(name: str, function: Any, reference: Any, shapes: Any, keywords: Any, dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    if function is linalg.vander and not legal(name, kind):
        with pytest.raises(BadType, match="supports floating point, complex, and integer tensors"):
            function(np.ones(3, kind))
        return
    if not legal(name, kind) and name == "vecdot":
        with pytest.raises(BadType, match="Expected a floating point or complex tensor"):
            function(*(np.ones(s, kind) for s in shapes))
        return
    widened = np.int64 if kind.kind in "iu" and name in ("trace", "vander") else kind
    given = [random_array(rng, s, kind) for s in shapes]
    exact = [x.astype(np.int64) if kind.kind in "iu" else wide(x) for x in given]
    wanted = np.asarray(reference(*exact, **keywords))
    sizes = np.asarray(reference(*(np.abs(x) for x in exact), **keywords)) if name not in ("cross",) else np.max(np.abs(exact[0]), initial=0) * np.max(np.abs(exact[1]), initial=0) * 2
    for layout, arrange in LAYOUTS.items():
        if kind.name == "bfloat16" and layout == "big-endian":
            continue
        arrays = [arrange(x) for x in given]
        before = [x.copy() for x in arrays]
        got = function(*arrays, **keywords)
        assert all(np.array_equal(x, y) for x, y in zip(before, arrays, strict=True))
        assert np.asarray(got).dtype == widened or name == "diagonal", layout
        if kind.kind in "iu":
            assert np.array_equal(got, wanted.astype(widened)), layout
        else:
            assert_close(got, wanted, sizes * roundoff(kind) * 40 + 1e-300, f"{name} {layout}")
        if isinstance(got, np.ndarray) and name != "diagonal":
            assert got.dtype.isnative, layout
            if name not in ("vander", "trace"):
                out = np.full(got.shape, 7, widened)
                assert function(*arrays, **keywords, out=out) is out and np.array_equal(out, got)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_nan_and_infinity_spread(dtype: str) -> None:
    x = np.array([np.nan, np.inf, 1.0], dtype)
    with np.errstate(all="raise"):
        assert np.isnan(backline.inner(x, x)) and np.isnan(linalg.vecdot(x[None], x[None])).all()
        assert np.isnan(backline.kron(x, x)[0]) and np.isnan(linalg.cross(x, x)).any()
        assert np.isnan(linalg.vander(x)[0, 1:]).all() and (linalg.vander(x)[:, 0] == 1).all()
        assert np.isnan(backline.trace(np.diag(x)))
        nothing = np.full((2, 2), np.nan, dtype)
        assert (backline.addbmm(nothing, np.ones((3, 2, 1), dtype), np.ones((3, 1, 2), dtype), beta=0) == 3).all()


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2000, 3)])
def test_cross_products_of_halves_are_rounded_once(shape: tuple[int, ...]) -> None:
    a, b = np.full(shape, 300, np.float16), np.full(shape, 300, np.float16)
    b[..., 2] = 299
    wanted = np.broadcast_to(np.array([-300, 300, 0], np.float16), shape)  # 300 * 300 is out of their range
    for made in (linalg.cross(a, b), backline.cross(a, b, dim=-1), linalg.cross(a, b, out=np.empty(shape, np.float16))):
        assert made.dtype == np.float16 and np.array_equal(made, wanted)
    assert np.array_equal(linalg.cross(a, np.full(shape, 2, np.float16)), np.zeros(shape))
    finest = linalg.cross(np.array([0, 1, 1], "f2"), np.array([0, 1, 1 + 2**-10], "f2"))
    assert np.array_equal(finest, np.array([2**-10, 0, 0], "f2"))


def test_powers_of_nothing_take_no_time() -> None:
    assert backline.vander(np.ones(0), 2**31).shape == linalg.vander(np.ones(0), N=2**31).shape == (0, 2**31)
    assert backline.vander(ONE, 0).shape == (3, 0)


def test_highest_power_first_is_in_order_in_memory() -> None:
    assert backline.vander(ONE).flags.c_contiguous


def test_diagonals_are_views() -> None:
    a = np.zeros((2, 3, 3))
    linalg.diagonal(a)[...] = 1
    assert np.array_equal(a, [np.eye(3)] * 2)
    fixed = np.broadcast_to(np.ones(3), (3, 3))
    assert not linalg.diagonal(fixed).flags.writeable


def test_addbmm_may_write_to_its_input(rng: np.random.Generator) -> None:
    c, a, b = rng.standard_normal((3, 2)), rng.standard_normal((4, 3, 5)), rng.standard_normal((4, 5, 2))
    wanted = c + np.matmul(a, b).sum(0)
    assert backline.addbmm(c, a, b, out=c) is c and np.allclose(c, wanted)


def test_trace_without_a_matrix_is_the_recorder() -> None:
    with backline.trace() as events:
        backline.inner(np.eye(3), np.eye(3))
    assert [e.op for e in events] == ["inner"]
    assert isinstance(backline.trace(np.eye(3)), np.float64)


# Tensor inverses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_tensor_inverses(dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    eye = np.eye(6).reshape(2, 3, 6) * 4
    for layout in LAYOUTS.values():
        a, b = (random_array(rng, s, kind) / 16 for s in ((2, 3, 6), (2, 3)))
        a = (a + eye).astype(kind)
        b = b.astype(kind)
        inverse = linalg.tensorinv(layout(a))
        assert inverse.shape == (6, 2, 3) and inverse.dtype == kind
        bound = 1e4 * roundoff(kind)
        assert np.allclose(np.tensordot(inverse, a, 2), np.eye(6), atol=bound)
        x = linalg.tensorsolve(layout(a), layout(b))
        assert x.shape == (6,) and np.allclose(np.tensordot(a, x, 1), b, atol=bound)
        y = linalg.tensorsolve(layout(np.moveaxis(a, -1, 0)), layout(b), dims=(0,))
        assert np.allclose(x, y, atol=bound)
        out = np.empty_like(inverse)
        assert linalg.tensorinv(a, out=out) is out and np.allclose(out, inverse, atol=bound)
    assert linalg.tensorinv(np.ones((0, 3, 0), kind), ind=1).shape == (3, 0, 0)
    with pytest.raises(LinAlgError):
        linalg.tensorinv(np.ones((2, 3, 6), kind))
    with pytest.raises(LinAlgError):
        linalg.tensorsolve(np.ones((2, 3, 6), kind), np.ones((2, 3), kind))


# The exponential ------------------------------------------------------------------------------------------------------


def exponential(a: Array) -> Array:
    """By a long Taylor series of the scaled matrix and squaring, in the widest type that there is."""
    x = wide(a)
    norm = float(np.abs(x).sum(-2).max(initial=0))
    times = max(0, int(np.ceil(np.log2(norm + 1e-300))) + 3)
    x = x / np.longdouble(2) ** times
    total = term = np.eye(a.shape[-1], dtype=x.dtype) + np.zeros_like(x)
    for k in range(1, 30):
        term = np.matmul(term, x) / k
        total = total + term
    for _ in range(times):
        total = np.matmul(total, total)
    return total


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("norm", [1e-9, 1e-5, 1e-3, 0.03, 0.2, 0.9, 2.5, 7.0, 40.0])
def test_exponentials_of_every_norm(norm: float, dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    for n in (1, 2, 5, 9):
        a = random_array(rng, (n, n), kind)
        a = (a * (norm / np.abs(a).sum(0).max())).astype(kind)
        got, wanted = linalg.matrix_exp(a), exponential(a)
        assert got.dtype == kind
        # Its condition number is at least the norm, and squarings add up to as much; terms of the polynomial cancel where
        # eigenvalues are negative.
        bound = 40 * n * max(norm, 1) * np.exp(2 * min(norm, 3)) * roundoff(kind) * float(np.abs(wanted).max())
        assert_close(got, wanted, bound, f"n={n}")


@pytest.mark.parametrize("dtype", FLOATS)
def test_matrices_of_a_batch_are_scaled_by_themselves(dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    scale = 10.0 ** np.arange(-9, 3).reshape(4, 3, 1, 1)
    a = (random_array(rng, (4, 3, 5, 5), kind) * scale / 60).astype(kind)
    for layout in LAYOUTS.values():
        got = linalg.matrix_exp(layout(a))
        assert got.dtype.isnative
        for i in np.ndindex(4, 3):
            wanted = exponential(a[i])
            assert_close(got[i], wanted, 1e3 * float(scale[i].max(initial=1)) * roundoff(kind) * float(np.abs(wanted).max()), str(i))
    a[1, 1, 0, 0] = np.nan
    a[2, 0, 3, 3] = np.inf
    got = linalg.matrix_exp(a)
    spoilt = np.zeros((4, 3), bool)
    spoilt[1, 1] = spoilt[2, 0] = True
    assert np.array_equal(np.isnan(got).all((-1, -2)), spoilt) and np.isfinite(got[~spoilt]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_exponentials_in_half_precision(dtype: str, rng: np.random.Generator) -> None:
    a = (random_array(rng, (2, 4, 4), np.dtype("f")) / 16).astype(dtype_of(dtype))
    got = linalg.matrix_exp(a)
    assert got.dtype == a.dtype and np.array_equal(got, linalg.matrix_exp(a.astype("f")).astype(a.dtype))


def test_exponentials_without_elements_and_of_extremes() -> None:
    assert linalg.matrix_exp(np.ones((0, 0))).shape == (0, 0)
    assert linalg.matrix_exp(np.ones((2, 0, 0))).shape == (2, 0, 0) and linalg.matrix_exp(np.ones((0, 2, 2))).shape == (0, 2, 2)
    with np.errstate(all="raise"):
        assert np.array_equal(linalg.matrix_exp(np.zeros((3, 3))), np.eye(3))
        assert np.array_equal(linalg.matrix_exp(-1e300 * np.eye(2)), np.zeros((2, 2)))
        assert not np.isfinite(linalg.matrix_exp(np.full((2, 2), 1e300))).any()
        assert not np.isfinite(linalg.matrix_exp(np.full((2, 2), 3e38, np.float32))).any()
    assert backline.matrix_exp is linalg.matrix_exp and backline.orgqr is linalg.householder_product
    with backline.trace() as events:
        linalg.matrix_exp(np.ones((3, 3)) / 7)
    assert [e.op for e in events] == ["matrix_exp"]


# What is refused ------------------------------------------------------------------------------------------------------

ONE, TWO, I3 = np.ones(3), np.ones((2, 3)), np.eye(3)
WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: backline.inner(ONE, ONE[:2]), BadValue, r"the last dimension must match on both input tensors but got shapes \[3\] and \[2\]"),
    (lambda: backline.inner(ONE, ONE.astype("f")), BadType, "dtype"),
    (lambda: backline.inner(ONE > 0, ONE > 0), BadType, "bool"),
    (lambda: backline.inner(ONE, None), BadType, "other must be a NumPy array"),
    (lambda: backline.kron(ONE, [1.0]), BadType, "other must be a NumPy array"),
    (lambda: backline.kron(ONE, ONE, out=np.ones(3)), BadValue, "the result has shape"),
    (lambda: backline.kron(*[np.broadcast_to(1.0, (2**29, 2**29))] * 2), TooLarge, "so much memory cannot be had"),
    (lambda: backline.kron(np.ones((1,) * 40), ONE), BadValue, "has 40 dimensions"),
    (lambda: linalg.vecdot(ONE, ONE[:2]), BadValue, "inconsistent tensor size"),
    (lambda: linalg.vecdot(TWO, np.ones((4, 3))), BadValue, "do not broadcast"),
    (lambda: linalg.vecdot(TWO, TWO, dim=2), BadAxis, "dim=2"),
    (lambda: linalg.vecdot(TWO, TWO, dim=1.5), BadType, "dim is an int"),
    (lambda: linalg.cross(TWO, ONE), BadValue, "inputs must have the same number of dimensions"),
    (lambda: linalg.cross(TWO, TWO, dim=0), BadValue, "inputs dimension 0 must have length 3. Got 2 and 2"),
    (lambda: linalg.cross(TWO, np.ones((4, 3))), BadValue, "must match the size of tensor"),
    (lambda: linalg.cross(TWO, TWO, dim=5), BadAxis, "dim=5"),
    (lambda: linalg.cross(TWO > 0, TWO > 0), BadType, "bool"),
    (lambda: backline.cross(np.ones((2, 2)), np.ones((2, 2))), BadAxis, "no dimension of size 3 in input"),
    (lambda: linalg.diagonal(ONE), BadAxis, "dim1=-2"),
    (lambda: linalg.diagonal(TWO, dim1=0, dim2=-2), BadValue, "diagonal dimensions cannot be identical 0, -2"),
    (lambda: linalg.diagonal(TWO, offset=1.0), BadType, "offset is an int"),
    (lambda: linalg.diagonal(None), BadType, "A must be a NumPy array"),
    (lambda: linalg.vander(ONE, N=1), BadValue, "N must be greater than 1."),
    (lambda: linalg.vander(ONE[:1]), BadValue, "N must be greater than 1."),
    (lambda: linalg.vander(ONE, N=True), BadType, "N is an int"),
    (lambda: backline.vander(TWO), BadValue, "x must be a one-dimensional tensor."),
    (lambda: backline.vander(ONE, -1), BadValue, "N must be non-negative."),
    (lambda: backline.vander(ONE, 2**60), TooLarge, "N=1152921504606846976 gives a result of shape"),
    (lambda: linalg.vander(ONE, N=10**400), TooLarge, "N=10000"),
    (lambda: backline.vander(ONE, 2, 1), BadType, "increasing is True or False"),
    (lambda: backline.trace(ONE), BadValue, "expected a matrix, but got tensor with dim 1"),
    (lambda: backline.trace(I3 > 0), BadType, "bool"),
    (lambda: backline.trace("matmul"), BadType, "input must be a NumPy array"),
    (lambda: backline.addbmm(ONE, TWO, TWO), BadValue, "batch1 must be a 3D tensor"),
    (lambda: backline.addbmm(ONE, np.ones((2, 3, 4)), np.ones((3, 4, 3))), BadValue, "batch1 and batch2 must have same number of batches"),
    (lambda: backline.addbmm(ONE, np.ones((2, 3, 4)), np.ones((2, 5, 3))), BadValue, "Incompatible matrix sizes for bmm"),
    (lambda: backline.addbmm(np.ones(2), np.ones((2, 3, 4)), np.ones((2, 4, 3))), BadValue, "does not broadcast"),
    (lambda: linalg.tensorinv(np.ones((2, 3, 5))), BadValue, "Expected self to satisfy the requirement"),
    (lambda: linalg.tensorinv(I3, ind=0), BadValue, "Expected a strictly positive integer for 'ind'"),
    (lambda: linalg.tensorinv(I3, ind=3), BadValue, "ind=3"),
    (lambda: linalg.tensorinv(I3, ind=1.0), BadType, "ind is an int"),
    (lambda: linalg.tensorinv(I3.astype(int), ind=1), BadType, "int64"),
    (lambda: linalg.tensorsolve(np.ones((2, 3, 5)), TWO), BadValue, "Expected self to satisfy the requirement"),
    (lambda: linalg.tensorsolve(np.ones((2, 3, 6)), TWO, dims=(7,)), BadAxis, "dims=7"),
    (lambda: linalg.tensorsolve(np.ones((2, 3, 6)), TWO, dims=2), BadType, "dims is a tuple"),
    (lambda: linalg.tensorsolve(np.ones((2, 3, 6)), np.ones((2, 2))), BadValue, "has 4 elements"),
    (lambda: linalg.tensorsolve(np.ones((2, 3, 6)), TWO.astype("f")), BadType, "float32"),
    (lambda: linalg.matrix_exp(TWO), BadValue, "square"),
    (lambda: linalg.matrix_exp(I3.astype(int)), BadType, "int64"),
    (lambda: linalg.matrix_exp(I3.tolist()), BadType, "list"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_is_refused(number: int) -> None:
    call, kind, text = WRONG[number]
    with pytest.raises(kind, match=text):
        call()
