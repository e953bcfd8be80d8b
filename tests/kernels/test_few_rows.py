"""Products of a few rows with a large matrix, and linear layers of them, by a compiled loop: against wider arithmetic."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.libraries import capability
from backline.libraries.base import Refusal
from backline.nn import functional as F
from support import (
    LAYOUTS,
    algorithms,
    assert_close,
    clean,
    dtype_of,
    problem_of,
    random_array,
    rng,
    roundoff,
    run_each,
    seed,
    smallest,
    wide,
)

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures: imported to be found by pytest

DTYPES = ("float32", "float64", "float16", "bfloat16")
LINEAR = "nn.functional.linear"
#: Rows, elements of each, and columns; past 2^17 elements of the matrix threads come in.
SIZES = ((1, 700, 13), (2, 9, 700), (3, 64, 128), (4, 37, 300), (5, 1, 5000), (7, 5000, 2), (8, 300, 450))


def close(result: Array, wanted: Array, sizes: Array, terms: int, dtype: str, what: str) -> None:
    """Within the rounding errors of sums of so many terms, whose absolute values are summed up in `sizes`, and of the result."""
    kind = dtype_of(dtype)
    unit = roundoff(dtype_of("float32") if kind.itemsize == 2 else kind)
    bound = 1.01 * (terms + 3) * unit * sizes + 1.01 * roundoff(kind) * np.abs(wanted) + (terms + 1) * smallest(kind)
    assert result.dtype == kind, what
    assert_close(result, wanted, bound, what)


class Exact:
    """A product of two matrices in wider arithmetic."""

    def __init__(self, a: Array, b: Array) -> None:
        self.value, self.sizes, self.terms = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b)), a.shape[-1]

    @property
    def T(self) -> Exact:
        """That of the transposes."""
        other = object.__new__(Exact)
        other.value, other.sizes, other.terms = self.value.T, self.sizes.T, self.terms
        return other

    def check(self, a: Array, b: Array, **call: Any) -> int:
        """Compares every algorithm of the loop for the product, and returns their number."""
        results = list(run_each("kernels", "matmul", a, b, **call))
        for name, result in results:
            close(result, self.value, self.sizes, self.terms, a.dtype.name, f"{name} of {a.shape} {b.shape}")
            assert call.get("out") is None or result is call["out"]
        return len(results)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout(dtype: str, rng: np.random.Generator) -> None:
    taken: set[str] = set()
    for m, k, n in SIZES:
        a, b = random_array(rng, (m, k), dtype_of(dtype)), random_array(rng, (k, n), dtype_of(dtype))
        exact = Exact(a, b)
        for few, matrix in itertools.product(("C", *rng.choice([*LAYOUTS], 2)), ("C", "F", "wide", *rng.choice([*LAYOUTS], 1))):
            left, right = LAYOUTS[few](a), LAYOUTS[matrix](b)
            if exact.check(left, right) + exact.T.check(right.T, left.T):
                taken.add(matrix)
    assert taken >= {"C", "F", "wide"}


@pytest.mark.cpu_kernel
@pytest.mark.parametrize("word", ["default", "avx2", "avx512"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_loops_for_every_processor(dtype: str, word: str, rng: np.random.Generator) -> None:
    if not capability.allows(word):
        pytest.skip(f"this processor has no {word}")
    with backline.backends.cpu.flags(capability=word):
        for m, k, n in SIZES:
            a, b = random_array(rng, (m, k), dtype_of(dtype)), random_array(rng, (k, n), dtype_of(dtype))
            exact = Exact(a, b)
            assert exact.check(a, b) and exact.check(a, np.asfortranarray(b))


@pytest.mark.parametrize("dtype", DTYPES)
def test_out_and_what_is_added(dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    for m, k, n in ((3, 50, 100), (100, 50, 3), (1, 90, 50)):
        a, b, c = (random_array(rng, shape, kind) for shape in ((m, k), (k, n), (m, n)))
        exact, sizes = wide(a) @ wide(b) + wide(c), np.abs(wide(a)) @ np.abs(wide(b)) + np.abs(wide(c))
        for layout, other in (("C", "F"), ("steps", "C"), ("negative rows", "wide"), ("F", "negative columns")):
            out = LAYOUTS[layout](np.full((m, n), 7, kind))
            assert Exact(a, b).check(a, b, out=out)
            results = list(run_each("kernels", "addmm", LAYOUTS[other](c), a, b))
            assert results
            for name, result in results:
                close(result, exact, sizes, k + 1, dtype, name)
            out = LAYOUTS[layout](c)
            for name, result in run_each("kernels", "addmm", out, a, b, out=out):
                assert result is out
                close(out, exact, sizes, k + 1, dtype, f"{name}, in place")
                break


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_layers(dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    k, n = 70, 90
    for lead, activation in itertools.product(((), (1,), (2, 3), (8,)), (None, "relu")):
        x, w, b = (random_array(rng, shape, kind) for shape in ((*lead, k), (n, k), (n,)))
        residual = random_array(rng, (*lead, n), kind)
        exact, sizes = wide(x) @ wide(w).T + wide(b), np.abs(wide(x)) @ np.abs(wide(w)).T + np.abs(wide(b))
        for more in (None, residual):
            wanted = exact if more is None else exact + wide(more)
            wanted = np.maximum(wanted, 0) if activation else wanted
            for weight, bias in ((w, b), (np.asfortranarray(w), np.repeat(b, 2)[::2])):
                results = list(run_each("kernels", LINEAR, x, weight, bias, activation=activation, residual=more))
                assert results
                for name, result in results:
                    close(result, wanted, sizes + (0 if more is None else np.abs(wide(more))), k + 2, dtype, name)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "tanh", "sigmoid"])
def test_activations_are_those_of_the_layers(activation: str, rng: np.random.Generator) -> None:
    x, w = random_array(rng, (2, 80), dtype_of("float64")), random_array(rng, (60, 80), dtype_of("float64"))
    name, approximate = activation.removesuffix("_tanh"), {"approximate": "tanh"} if activation == "gelu_tanh" else {}
    for what, result in run_each("kernels", LINEAR, x, w, activation=activation):
        wanted = getattr(F, name if activation != "tanh" else "tanh")(x @ w.T, **approximate)
        np.testing.assert_allclose(result, wanted, rtol=1e-11, atol=1e-11, err_msg=what)


@pytest.mark.cpu_kernel
@pytest.mark.parametrize("word", ["default", "avx2", "avx512"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_float_is_read_as_it_is(dtype: str, word: str) -> None:
    """Subnormal numbers, infinities and NaN among them."""
    if not capability.allows(word):
        pytest.skip(f"this processor has no {word}")
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype_of(dtype))
    beside = np.stack([every, np.zeros_like(every)])
    with backline.backends.cpu.flags(capability=word):
        for a, b in ((np.ones((1, 1), every.dtype), every[None]), (np.ones((1, 2), every.dtype), np.asfortranarray(beside))):
            results = list(run_each("kernels", "matmul", a, b))
            assert results
            for name, result in results:
                np.testing.assert_array_equal(result[0].astype(np.float32), every.astype(np.float32), err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_no_bit(dtype: str, rng: np.random.Generator) -> None:
    for m, k, n in ((1, 400, 700), (1, 300, 2003), (6, 900, 301)):
        a, b = random_array(rng, (m, k), dtype_of(dtype)), random_array(rng, (k, n), dtype_of(dtype))
        for matrix in (b, np.asfortranarray(b)):
            results = [result for _, result in run_each("kernels", "matmul", a, matrix)]
            assert len(results) == 2
            assert results[0].tobytes() == results[1].tobytes()


def test_special_values_stay_where_they_are(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((2, 70)), rng.standard_normal((70, 90))
    b[3, 5], b[69, 88], b[0, 0] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        exact = a @ b
    for matrix in (b, np.asfortranarray(b)):
        for _, result in run_each("kernels", "matmul", a, matrix):
            np.testing.assert_array_equal(np.isnan(result), np.isnan(exact))
            np.testing.assert_array_equal(np.isinf(result), np.isinf(exact))


def test_what_it_refuses(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((3, 90)), rng.standard_normal((90, 80))
    cases = {
        "neither operand is a matrix": (a.repeat(3, 0), b), "there is a batch": (np.stack([a, a]), b), "elements of the matrix":
        (a, b.repeat(2, 0).repeat(2, 1)[::2, ::2]), "fewer than": (a[:, :4], b[:4]), "not complex128": (a + 0j, b + 0j),
        "is empty": (a[:0], b),
    }  # fmt: skip
    for reason, arrays in cases.items():
        problem = problem_of("matmul", *arrays)
        listed = libraries.get("kernels").algorithms(problem, 2)
        refused = [r.reason for r in listed if isinstance(r, Refusal) and r.name == "few_rows"]
        assert len(refused) == 1 and (reason in refused[0] or reason == "is empty"), (reason, refused)
    assert algorithms("kernels", problem_of("matmul", a, b))
    assert not algorithms("kernels", problem_of("addmm", np.zeros((3, 80)), a, b, alpha=2.0))


def test_a_user_gets_it(rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((1, 300)).astype(np.float16), rng.standard_normal((500, 300)).astype(np.float16)
    with backline.use("kernels"):
        result = F.linear(x, w)
        assert (backline.explain().library, backline.explain().algorithm) == ("kernels", "few_rows")
    np.testing.assert_allclose(result, x.astype(np.float32) @ w.T.astype(np.float32), rtol=2e-3, atol=2e-2)
