"""Linear layers: products with bias, residual and activation in one call, by every library, against formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from layers import DTYPES, EPS, assert_near, by_each, draw, exact, wide

import backline
from backline import libraries
from backline.errors import BadType, BadValue
from backline.nn import functional as F
from backline.problems.linear_problem import LinearProblem
from backline.problems.matmul_problem import MatmulProblem
from support import THREADS, algorithms, clean, dtype_of, misaligned, numpy_on_one_thread, problem_of, rng, seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean", "numpy_on_one_thread")
assert clean and numpy_on_one_thread and rng and seed  # fixtures: imported to be found by pytest

OP = "nn.functional.linear"
ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")


def close(result: Array, wanted: Array, dtype: str, k: int, what: str) -> None:
    """A product of k terms in the dtype (halves in float32), and one rounding."""
    ulps = 2 + (0 if dtype in ("float16", "bfloat16") else k)
    assert_near(result, wanted, dtype, what, ulps, 8.0 if EPS[dtype] < 1e-3 else 0.25)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear(activation: str | None, dtype: str, rng: np.random.Generator) -> None:
    for lead in ((), (1,), (7,), (2, 3), (2, 1, 4), (300,)):
        x, w, b = draw(rng, (*lead, 20), dtype, 0.5), draw(rng, (9, 20), dtype, 0.5), draw(rng, (9,), dtype)
        r = draw(rng, (*lead, 9), dtype)
        for bias, residual in ((None, None), (b, None), (None, r), (b, r)):
            wanted = wide(x) @ wide(w).T + (0 if bias is None else wide(b)) + (0 if residual is None else wide(r))
            wanted = wanted if activation is None else exact(activation, np.asarray(wanted))
            for what, result in by_each(OP, x, w, bias, activation=activation, residual=residual):
                close(result, wanted, dtype, 20, f"{what} of {lead}")


def test_what_needs_no_more_than_a_product_is_one(rng: np.random.Generator) -> None:
    x, w, b = draw(rng, (2, 5, 6), "float32"), draw(rng, (3, 6), "float32"), draw(rng, (3,), "float32")
    plain = problem_of(OP, x, w, b)
    assert isinstance(plain, MatmulProblem) and (plain.m, plain.n, plain.k, plain.batch) == (10, 3, 6, ())
    assert plain.result == (2, 5, 3)  # rows are joined: one product, not two
    assert isinstance(problem_of(OP, x, w, b, activation="relu"), LinearProblem)
    apart = draw(rng, (2, 7, 6), "float32")[:, ::2]
    assert problem_of(OP, apart, w).batch == (2,)  # they cannot be joined


@pytest.mark.parametrize("activation", [None, "relu"])
def test_layouts_of_operands_and_out(activation: str | None, rng: np.random.Generator) -> None:
    x, w, b, r = (draw(rng, s, "float32", 0.5) for s in ((4, 5, 6), (3, 6), (3,), (4, 5, 3)))
    wanted = wide(x) @ wide(w).T + wide(b) + wide(r)
    wanted = np.maximum(wanted, 0) if activation else wanted
    forms: list[Any] = [
        lambda a: a.copy(), np.asfortranarray, misaligned, lambda a: np.repeat(a, 2, 0)[::2], lambda a: a[::-1].copy()[::-1],
        lambda a: np.repeat(a, 2, -1)[..., ::2],
    ]  # fmt: skip
    for i, form in enumerate(forms):
        given = form(x), form(w), form(b), form(r)
        for out in (None, *(f(np.zeros_like(r)) for f in forms)):
            for what, result in by_each(OP, *given[:3], activation=activation, residual=given[3], out=out):
                close(result, wanted, "float32", 6, f"{what}, operands {i}")
                assert out is None or result is out


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_out_may_be_the_residual_and_nothing_else(dtype: str, rng: np.random.Generator) -> None:
    x, w, b, r = (draw(rng, s, dtype, 0.5) for s in ((4, 6), (6, 6), (6,), (4, 6)))
    wanted = np.maximum(wide(x) @ wide(w).T + wide(b) + wide(r), 0)
    given = r.copy()
    assert F.linear(x, w, b, residual=given, activation="relu", out=given) is given
    close(given, wanted, dtype, 6, "in place")
    for wrong in (x, w[:4]):
        for kind in (None, "relu"):
            with pytest.raises(BadValue, match="overlaps"):
                F.linear(x, w, b, out=wrong, activation=kind)
    row = np.zeros((4, 6), x.dtype)
    with pytest.raises(BadValue, match="overlaps"):
        F.linear(x, w, row[1], residual=r, out=row)


def test_keywords_in_any_order(rng: np.random.Generator) -> None:
    x, w, b, r = (draw(rng, s, "float32") for s in ((4, 6), (3, 6), (3,), (4, 3)))
    one = F.linear(x, w, b, activation="silu", residual=r)
    np.testing.assert_array_equal(F.linear(residual=r, weight=w, bias=b, activation="silu", input=x), one)


def test_a_batch_of_halves_rounds_once() -> None:
    """2048 + 1 is no float16; the bias brings it back."""
    x, w = np.ones((1, 2), np.float16), np.array([[2048, 1]], np.float16)
    assert F.linear(x, w, np.array([-2048], np.float16), activation="relu").item() == 1


def test_complex_and_integers_have_products_only() -> None:
    x = np.array([[1j, 2]])
    assert F.linear(x, x).item() == 3
    assert F.linear(np.array([[1, 2]]), np.array([[3, 4]]), np.array([5])).item() == 16
    with pytest.raises(BadType, match="linear: input has dtype complex128"):
        F.linear(x, x, activation="relu")


def test_every_blas_has_it(rng: np.random.Generator) -> None:
    problem = problem_of(OP, draw(rng, (4, 6), "float32"), draw(rng, (3, 6), "float32"), activation="relu")
    for name in ("mkl", "openblas", "blis", "numpy"):
        if libraries.get(name).available():
            assert any(a.name.endswith("_pointwise") for a in algorithms(name, problem, THREADS)), name


def test_benchmark_measures_it(rng: np.random.Generator) -> None:
    x, w = draw(rng, (16, 32), "float32", 0.5), draw(rng, (8, 32), "float32", 0.5)
    with backline.backends.flags(benchmark=True):
        result = F.linear(x, w, activation="gelu")
        assert "measured" in str(backline.explain())
    close(result, exact("gelu", wide(x) @ wide(w).T), "float32", 32, "gelu")


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 4)])
def test_empty(shape: tuple[int, ...]) -> None:
    x, w, b = np.ones(shape, np.float32), np.ones((2, shape[-1]), np.float32), np.array([1, -1], np.float32)
    wanted = np.broadcast_to([1.0, 0.0], (*shape[:-1], 2))
    np.testing.assert_array_equal(F.linear(x, w, b, activation="relu"), wanted)
    assert F.linear(x, w[:0], b[:0], activation="relu").shape == (*shape[:-1], 0)


# bilinear -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_bilinear(dtype: str, rng: np.random.Generator) -> None:
    for lead in ((), (5,), (2, 3), (3000,)):
        x, y = draw(rng, (*lead, 4), dtype, 0.5), draw(rng, (*lead, 6), dtype, 0.5)
        w, b = draw(rng, (70, 4, 6), dtype, 0.5), draw(rng, (70,), dtype)
        wanted = np.einsum("...i,oij,...j->...o", wide(x), wide(w), wide(y))
        close(F.bilinear(x, y, w), wanted, dtype, 24, "bilinear")
        close(F.bilinear(x, y, w, b), wanted + wide(b), dtype, 24, "bilinear with bias")
    assert F.bilinear(x[:0], y[:0], w, b).shape == (0, 70)


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_of_one_dimension(dtype: str, activation: str | None, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    w, b = rng.standard_normal(6).astype(kind), np.array(0.75, kind)
    for shape in ((6,), (1, 6), (5, 6), (2, 3, 6), (0, 6), (2, 0, 6)):
        x, r = rng.standard_normal(shape).astype(kind), rng.standard_normal(shape[:-1]).astype(kind)
        for bias, residual in ((None, None), (b, None), (None, r), (b, r)):
            row = None if bias is None else bias[None]
            wanted = F.linear(x, w[None], row, activation=activation, residual=None if residual is None else residual[..., None])
            more: dict[str, Any] = {"activation": activation, "residual": residual}
            for what, result in by_each("nn.functional.linear", x, w, bias, **more):
                close(result, wide(np.asarray(wanted)[..., 0]), dtype, 8, what)
            out = np.empty(shape[:-1], kind)
            assert F.linear(x, w, bias, **more, out=out) is out
            np.testing.assert_array_equal(out, F.linear(x, w, bias, **more))
    x = rng.standard_normal((2, 3, 6)).astype(kind)
    for view in (x[::-1], x.transpose(1, 0, 2), x[..., ::-1][..., ::-1], np.asfortranarray(x)):
        close(F.linear(view, w, b), wide(view) @ wide(w) + wide(b), dtype, 8, "a view")
    packed = F.prepack_linear(w, b, activation=activation)
    close(packed(x), wide(F.linear(x, w, b, activation=activation)), dtype, 8, "packed")


# What is refused ------------------------------------------------------------------------------------------------------

X, W, B = np.ones((2, 3), np.float32), np.ones((4, 3), np.float32), np.ones(4, np.float32)
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: F.linear(X, W.T), BadValue, r"linear: input of shape \(2, 3\) and weight of shape \(3, 4\) do not fit"),
    (lambda: F.linear(X, W[None]), BadValue, r"linear: weight must have shape \(out, in\) or \(in,\), it has \(1, 4, 3\)"),
    (lambda: F.linear(X, W[0], B[:1]), BadValue, r"linear: bias has shape \(1,\), for weight of shape \(3,\) it must be \(\)"),
    (lambda: F.linear(np.float32(1) * np.ones((), np.float32), W), (BadValue, BadType), "linear: input"),
    (lambda: F.linear(X, W, B[:2]), BadValue, r"linear: bias has shape \(2,\)"),
    (lambda: F.linear(X, W.astype(float)), BadType, "linear: weight has dtype float64, input has float32"),
    (lambda: F.linear(X, W, B.astype(float)), BadType, "linear: bias has dtype float64"),
    (lambda: F.linear(X, W, activation="swish"), BadValue, "linear: activation='swish'"),
    (lambda: F.linear(X, W, activation=1), BadType, "linear: activation is a str"),
    (lambda: F.linear(X, W, residual=X), BadValue, r"linear: residual has shape \(2, 3\), the result has \(2, 4\)"),
    (lambda: F.linear(X, W, residual=np.ones((2, 4))), BadType, "linear: residual has dtype float64"),
    (lambda: F.linear(X, W, out=X), BadValue, "linear: out has shape"),
    (lambda: F.linear([[1.0]], W), BadType, "linear: input must be a NumPy array"),
    (lambda: F.bilinear(X, None, W), BadType, "bilinear: input2 must be"),
    (lambda: F.bilinear(X, X, W), BadValue, "bilinear: weight must have shape"),
    (lambda: F.bilinear(X, X[:1], np.ones((1, 3, 3), np.float32)), BadValue, "bilinear: input1 and input2"),
    (lambda: F.bilinear(X, X[:, :2], np.ones((1, 3, 3), np.float32)), BadValue, r"bilinear: input2 of shape \(2, 2\)"),
    (lambda: F.bilinear(X, X, np.ones((1, 3, 3), np.float32), B), BadValue, "bilinear: bias has shape"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_wrong_arguments_are_named(number: int) -> None:
    call, kind, text = REFUSED[number]
    with pytest.raises(kind, match=text):
        call()
