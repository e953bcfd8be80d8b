"""Products and linear layers of MLX's arrays against float64 of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mlx_arrays import Core, agree, back, close, metal, mx, there

import backline
from backline.errors import BadType, BadValue, NoKernel
from backline.nn import functional
from support import clean, dtype_of

pytestmark = pytest.mark.usefixtures("clean")
assert clean and metal

FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64")
RNG = np.random.default_rng(5)


def draw(shape: tuple[int, ...], name: str = "float32") -> Any:
    x = np.asarray(RNG.standard_normal(shape))
    return np.asarray(x + 1j * RNG.standard_normal(shape) if name == "complex64" else x).astype(dtype_of(name))


SHAPES = [
    ((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((1, 1), (1, 1)),
    ((2, 3, 4), (4,)), ((4,), (2, 4, 3)), ((0, 4), (4, 5)), ((3, 0), (0, 5)), ((0,), (0,)), ((2, 0, 4), (2, 4, 3)), ((3, 3), (3, 3)),
]  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul(shapes: Any, name: str) -> None:
    agree(backline.matmul, *(draw(shape, name) for shape in shapes), dtype=name)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize(
    ("op", "shapes"),
    [("mm", ((3, 4), (4, 2))), ("bmm", ((5, 3, 4), (5, 4, 2))), ("mv", ((3, 4), (4,))), ("dot", ((6,), (6,))), ("vdot", ((6,), (6,))),
     ("outer", ((3,), (4,))), ("outer", ((1,), (1,)))],
)  # fmt: skip
def test_relatives(op: str, shapes: Any, name: str) -> None:
    agree(getattr(backline, op), *(draw(shape, name) for shape in shapes), dtype=name, times=64)  # sums may cancel


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("c", [(2,), (3, 2), (3, 1), ()], ids=str)
@pytest.mark.parametrize("factors", [(1, 1), (2.5, -1), (0, 2), (2, 0), (0, 0)], ids=str)
def test_sums_of_products(name: str, c: tuple[int, ...], factors: tuple[float, float]) -> None:
    alpha, beta = factors
    agree(backline.addmm, draw(c, name), draw((3, 4), name), draw((4, 2), name), alpha=alpha, beta=beta, dtype=name)
    agree(backline.baddbmm, draw(c, name), draw((2, 3, 4), name), draw((2, 4, 2), name), alpha=alpha, beta=beta, dtype=name)


def test_sums_with_complex_factors_and_without_terms() -> None:
    agree(backline.addmm, draw((3, 2), "complex64"), draw((3, 4), "complex64"), draw((4, 2), "complex64"), alpha=1 + 2j, beta=-1j)
    agree(backline.addmm, draw((3, 2)), draw((3, 0)), draw((0, 2)), beta=2)


def test_a_factor_of_zero_leaves_out_what_is_not_finite() -> None:
    nan, one = np.full((2, 2), np.nan, np.float32), np.eye(2, dtype=np.float32)
    agree(backline.addmm, nan, one, one, beta=0)
    agree(backline.addmm, one, nan, one, alpha=0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e-40])
def test_numbers_at_the_ends(value: float) -> None:
    a = draw((3, 4))
    a[1, 2] = value
    with np.errstate(all="ignore"):
        agree(backline.matmul, a, np.eye(4, 3, dtype=np.float32))


def test_halves_sum_in_float32() -> None:
    for name in ("float16", "bfloat16"):
        a, b = RNG.random((4, 4096)).astype(dtype_of(name)), RNG.random((4096, 4)).astype(dtype_of(name))
        agree(backline.matmul, a, b, times=1)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("lead", [(3,), (), (2, 3), (0,), (1,)], ids=str)
@pytest.mark.parametrize("size", [(5, 4), (4, 4), (1, 4), (4, 1), (1, 1)], ids=str)
def test_linear(lead: tuple[int, ...], size: tuple[int, int], name: str) -> None:
    x, weight, bias = draw((*lead, size[1]), name), draw(size, name), draw(size[:1], name)
    agree(functional.linear, x, weight, dtype=name)
    agree(functional.linear, x, weight, bias, dtype=name)
    residual = draw((*lead, size[0]), name)
    for activation in ("relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", None):
        agree(functional.linear, x, weight, bias, activation=activation, residual=residual, dtype=name)
        agree(functional.linear, x, weight, activation=activation, dtype=name)


def test_linear_by_keywords_in_another_order() -> None:
    x, weight, bias, residual = draw((3, 4)), draw((5, 4)), draw((5,)), draw((3, 5))
    agree(functional.linear, residual=residual, bias=bias, weight=weight, input=x, activation="relu")


def test_float64_where_an_activation_is_exact() -> None:
    x, weight = draw((3, 4), "float64"), draw((5, 4), "float64")
    agree(functional.linear, x, weight, activation="relu")
    with pytest.raises(NoKernel, match="single precision"):
        functional.linear(there(x), there(weight), activation="gelu")


def test_transposed_and_sliced_arrays() -> None:
    a, b = draw((4, 6)), draw((4, 5))
    result = backline.matmul(there(a).T[::2], there(b))
    close(back(result), a.T[::2].astype(np.float64) @ b, 2.0**-23)


@pytest.mark.parametrize("name", FLOATS)
def test_what_is_done_on_metal(name: str, metal: Core) -> None:
    agree(backline.addmm, draw((5,), name), draw((3, 4), name), draw((4, 5), name), alpha=2, beta=-1.5)
    assert backline.explain().algorithm == ("matmul_cpu" if name == "float64" else "matmul")
    agree(backline.baddbmm, draw((5,), name), draw((2, 3, 4), name), draw((2, 4, 5), name), alpha=2, beta=-1.5)
    if name in ("float16", "bfloat16", "float32"):
        agree(functional.linear, draw((3, 4), name), draw((5, 4), name), draw((5,), name), activation="gelu", residual=draw((3, 5), name))
        agree(functional.conv2d, draw((2, 4, 7, 7), name), draw((6, 4, 3, 3), name), draw((6,), name), activation="relu")
        assert backline.explain().algorithm == "conv"


def test_refusals() -> None:
    a, whole = there(draw((3, 3))), mx.ones((3, 3), mx.int32)
    with pytest.raises(NoKernel, match="values that nothing is written to"):
        backline.matmul(a, a, out=mx.zeros((3, 3)))
    with pytest.raises(NoKernel, match="not of int32"):
        backline.matmul(whole, whole)
    with pytest.raises(BadType, match="MLX and NumPy"):
        backline.matmul(a, np.eye(3, dtype=np.float32))
    with pytest.raises(BadType, match="dtypes"):
        backline.matmul(a, a.astype(mx.float16))
    with pytest.raises(BadValue, match="do not fit"):
        backline.matmul(a, mx.zeros((2, 3)))


def test_the_same_bits_again() -> None:
    a, b = there(draw((37, 53))), there(draw((53, 29)))
    first = back(backline.matmul(a, b)).tobytes()
    assert all(back(backline.matmul(a, b)).tobytes() == first for _ in range(20))
