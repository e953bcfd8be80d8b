"""Gradients against central differences of the operations themselves, and of halves against those of float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from layers import LAYOUTS, assert_near, by_each, draw, order, wide

from backline.errors import BadType, BadValue
from backline.nn import functional as F
from backline.nn import grad as G
from support import clean, numpy_on_one_thread, rng, seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean", "numpy_on_one_thread")
assert clean and numpy_on_one_thread and rng and seed  # fixtures: imported to be found by pytest

STEP = 1e-5


def numeric(f: Callable[[Array], Array], x: Array, g: Array) -> Array:
    """Gradient of sum(g * f(x)) by central differences."""
    result = np.empty(x.shape)
    for i in np.ndindex(x.shape):
        there = x.copy()
        there[i] = x[i] + STEP
        up = f(there)
        there[i] = x[i] - STEP
        result[i] = ((up - f(there)) * g).sum() / (2 * STEP)
    return result


def agree(got: Array, f: Callable[[Array], Array], x: Array, g: Array) -> None:
    assert got.shape == x.shape and got.dtype == x.dtype
    np.testing.assert_allclose(got, numeric(f, x, g), rtol=1e-6, atol=2e-8 * max(1.0, float(np.abs(g).sum())))


def test_linear(rng: np.random.Generator) -> None:
    for lead in ((4,), (2, 3), ()):
        x, w, g = rng.standard_normal((*lead, 5)), rng.standard_normal((3, 5)), rng.standard_normal((*lead, 3))
        b = rng.standard_normal(3)
        agree(G.linear_input(w, g), lambda v, w=w: F.linear(v, w), x, g)
        agree(G.linear_weight(x, g), lambda v, x=x: F.linear(x, v), w, g)
        agree(G.linear_bias(g), lambda v, x=x, w=w: F.linear(x, w, v), b, g)
    assert G.linear_weight(x[None][:0], g[None][:0]).tolist() == np.zeros((3, 5)).tolist()
    half = draw(rng, (3000, 2), "float16")
    assert_near(G.linear_bias(half), wide(half).sum(0), "float16", "bias", 2)


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu(form: str, rng: np.random.Generator) -> None:
    x, g = rng.standard_normal((5, 7)) * 2, rng.standard_normal((5, 7))
    agree(G.gelu_input(x, g, form), lambda v: F.gelu(v, form), x, g)
    far = np.array([-np.inf, -1e200, -40, 40, 1e200, np.inf, np.nan])
    np.testing.assert_array_equal(G.gelu_input(far, np.ones(7), form), [0, 0, 0, 1, 1, 1, np.nan])


def test_relu(rng: np.random.Generator) -> None:
    x, g = rng.standard_normal((5, 7)), rng.standard_normal((5, 7))
    agree(G.relu_input(x, g), F.relu, x, g)
    np.testing.assert_array_equal(G.relu_input(np.array([0.0, -0.0, np.nan, np.inf]), np.ones(4)), [0, 0, 1, 1])


@pytest.mark.parametrize("name", ["silu", "tanh", "sigmoid"])
def test_activations(name: str, rng: np.random.Generator) -> None:
    x, g = rng.standard_normal((5, 7)) * 2, rng.standard_normal((5, 7))
    agree(getattr(G, f"{name}_input")(x, g), getattr(F, name), x, g)
    far = np.array([-np.inf, -1e200, -800, 800, 1e200, np.inf, np.nan])
    rest = 1.0 if name == "silu" else 0.0
    np.testing.assert_array_equal(getattr(G, f"{name}_input")(far, np.ones(7)), [0, 0, 0, rest, rest, rest, np.nan])


@pytest.mark.parametrize("name", ["gelu", "silu", "tanh", "sigmoid"])
def test_activations_of_what_is_not_finite_by_each(name: str) -> None:
    """Every library says of one such number what NumPy says of it, whatever is beside it."""
    values = (np.nan, np.inf, -np.inf, 3e38, -3e38, 88.0, -88.0, 1e-40, -0.0, 13.0, -13.0)
    for v in values:
        for w in (1.0, 0.0, np.inf, -np.inf, np.nan):
            x, g = np.full(20, v, np.float32), np.full(20, w, np.float32)
            found = {what: result[0] for what, result in by_each(f"nn.grad.{name}_input", x, g)}
            wanted = found[next(what for what in found if "numpy" in what)]
            for what, result in found.items():
                np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6, err_msg=f"{what} of {v}, {w}")


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(dim: int, rng: np.random.Generator) -> None:
    x, g = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 4, 5))
    agree(G.softmax_input(F.softmax(x, dim), g, dim), lambda v: F.softmax(v, dim), x, g)
    agree(G.log_softmax_input(F.log_softmax(x, dim), g, dim), lambda v: F.log_softmax(v, dim), x, g)


@pytest.mark.parametrize("last", [1, 2, 3])
def test_layer_norm(last: int, rng: np.random.Generator) -> None:
    x, g = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 3, 4))
    shape = x.shape[-last:]
    w, b = rng.standard_normal(shape), rng.standard_normal(shape)
    for weight in (w, None):
        got = G.layer_norm_backward(x, g, shape, weight, 1e-3)
        agree(got.input, lambda v, weight=weight: F.layer_norm(v, shape, weight, b, 1e-3), x, g)
        agree(got.weight, lambda v: F.layer_norm(x, shape, v, b, 1e-3), w, g)
        agree(got.bias, lambda v: F.layer_norm(x, shape, w, v, 1e-3), b, g)


@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 4), (2, 3, 2, 3)])
def test_batch_norm(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x, g, w, b = rng.standard_normal(shape), rng.standard_normal(shape), rng.standard_normal(3), rng.standard_normal(3)

    def forward(x: Array, w: Array | None, b: Array) -> Array:
        return F.batch_norm(x, None, None, w, b, training=True, eps=1e-3)

    for weight in (w, None):
        got = G.batch_norm_backward(x, g, weight, 1e-3)
        agree(got.input, lambda v, weight=weight: forward(v, weight, b), x, g)
        agree(got.weight, lambda v: forward(x, v, b), w, g)
        agree(got.bias, lambda v: forward(x, w, v), b, g)


POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 2, 7), {"kernel_size": 3, "stride": 2, "padding": 1}),
    ((2, 2, 7), {"kernel_size": 2, "stride": 3, "ceil_mode": True}),
    ((2, 2, 5, 6), {"kernel_size": (3, 2), "stride": 1, "padding": 1}),
    ((3, 6, 5), {"kernel_size": 2}),  # no batch
    ((2, 2, 7, 7), {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    ((1, 2, 3, 4, 5), {"kernel_size": 2, "stride": 1, "padding": (1, 0, 1)}),
]


@pytest.mark.parametrize("number", range(len(POOLS)))
def test_pooling(number: int, rng: np.random.Generator) -> None:
    shape, case = POOLS[number]
    rank = {0: 1, 1: 1, 2: 2, 3: 2, 4: 2, 5: 3}[number]
    x = rng.permutation(np.prod(shape)).reshape(shape) * 0.37  # no two alike: windows have one maximum
    pool, back = getattr(F, f"max_pool{rank}d"), getattr(G, f"max_pool{rank}d_input")
    g = rng.standard_normal(pool(x, **case).shape)
    agree(back(x, g, **case), lambda v: pool(v, **case), x, g)
    pool, back = getattr(F, f"avg_pool{rank}d"), getattr(G, f"avg_pool{rank}d_input")
    for include in (True, False):
        agree(back(shape, g, count_include_pad=include, **case), lambda v, i=include: pool(v, count_include_pad=i, **case), x, g)
    if rank > 1:
        agree(back(shape, g, divisor_override=7, **case), lambda v: pool(v, divisor_override=7, **case), x, g)
    pool, back = getattr(F, f"adaptive_avg_pool{rank}d"), getattr(G, f"adaptive_avg_pool{rank}d_input")
    for output in (1, 2, 3):
        g = rng.standard_normal(pool(x, output).shape)
        agree(back(shape, g, output), lambda v, o=output: pool(v, o), x, g)


def test_dilated_maximum(rng: np.random.Generator) -> None:
    x = rng.permutation(128).reshape(1, 2, 8, 8) * 0.37
    more = {"kernel_size": 3, "stride": 2, "padding": 2, "dilation": 2}
    g = rng.standard_normal(F.max_pool2d(x, **more).shape)
    agree(G.max_pool2d_input(x, g, **more), lambda v: F.max_pool2d(v, **more), x, g)


def test_which_element_of_a_window_gets_the_gradient() -> None:
    def back(*values: float, **more: Any) -> list[float]:
        x = np.array([[values]], np.float64)
        return G.max_pool1d_input(x, np.ones(F.max_pool1d(x, 3, **more).shape), 3, **more).ravel().tolist()

    inf, nan = np.inf, np.nan
    assert back(2, 2, 1) == [1, 0, 0]
    assert back(-inf, -inf, -inf) == [1, 0, 0]
    assert back(1, nan, 5) == [0, 1, 0]
    assert back(nan, 5, nan) == [0, 0, 1]
    assert back(-inf, -inf, -inf, stride=1, padding=1) == [2, 1, 0]  # never the padding


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes(dtype: str, rng: np.random.Generator) -> None:
    """Each dtype against float64, by every library."""
    x, g, w = draw(rng, (4, 6, 5, 7), dtype), draw(rng, (4, 6, 5, 7), dtype), draw(rng, (6,), dtype)
    y = F.softmax(x, 1)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("relu_input", (x, g)), ("gelu_input", (x, g)), ("gelu_input", (x, g, "tanh")), ("silu_input", (x, g)),
        ("tanh_input", (x, g)), ("sigmoid_input", (x, g)), ("softmax_input", (y, g, 1)),
        ("log_softmax_input", (F.log_softmax(x, 1), g, 1)), ("max_pool2d_input", (x, g, 1)),
        ("max_pool2d_input", (x, F.max_pool2d(g, 3, 2, 1), 3, 2, 1)), ("avg_pool2d_input", (x.shape, F.avg_pool2d(g, 3, 2, 1), 3, 2, 1)),
    ]  # fmt: skip
    for name, args in calls:
        wanted = getattr(G, name)(*(wide(a) if isinstance(a, np.ndarray) else a for a in args))
        for what, result in by_each(f"nn.grad.{name}", *args):
            assert_near(result, wanted, dtype, what, 4 if "numpy" in what or "kernels" in what else 12, 4.0)
    for got, right in (
        (G.layer_norm_backward(x, g, 7), G.layer_norm_backward(wide(x), wide(g), 7)),
        (G.batch_norm_backward(x, g, w), G.batch_norm_backward(wide(x), wide(g), wide(w))),
    ):
        for a, b in zip(got, right, strict=True):
            # Of float32 another library than NumPy may add up in float32.
            assert_near(a, b, dtype, "norm", 64 if dtype == "float32" else 4, 8.0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_keep_the_order_of_axes(layout: str, rng: np.random.Generator) -> None:
    x = LAYOUTS[layout](draw(rng, (2, 3, 4, 6), "float64"))
    g = draw(rng, x.shape, "float64")
    results = {
        "relu": G.relu_input(x, g), "gelu": G.gelu_input(x, g), "softmax": G.softmax_input(x, g, 1),
        "max_pool": G.max_pool2d_input(x, g[:, :, ::2, ::2], 2), "layer_norm": G.layer_norm_backward(x, g, 6).input,
        "avg_pool": G.avg_pool2d_input((2, 3, 8, 12), x, 2),
    }  # fmt: skip
    for name, result in results.items():
        assert order(result) == order(x), name
    plain = x.copy()
    np.testing.assert_allclose(results["gelu"], G.gelu_input(plain, g), rtol=1e-14, atol=1e-14)  # by another library
    np.testing.assert_allclose(results["layer_norm"], G.layer_norm_backward(plain, g, 6).input, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(results["max_pool"], G.max_pool2d_input(plain, g[:, :, ::2, ::2], 2))


POOLED: list[tuple[str, dict[str, Any]]] = [
    (name, case)
    for name in ("max", "avg")
    for case in (
        {"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": (2, 3), "stride": (3, 1)},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}, {"kernel_size": 5, "stride": 4, "padding": 2},
    )
]  # fmt: skip
POOLED += [("max", {"kernel_size": 2, "dilation": 3}), ("max", {"kernel_size": 3, "stride": 2, "padding": 2, "dilation": 2})]
POOLED += [("avg", {"kernel_size": 3, "padding": 1, "count_include_pad": False}), ("avg", {"kernel_size": 2, "divisor_override": -3})]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("number", range(len(POOLED)))
def test_compiled_pooling_is_numpys(number: int, dtype: str, rng: np.random.Generator) -> None:
    """But for the order in which float64 sums are taken where windows meet: for every layout of both operands."""
    name, case = POOLED[number]
    x = draw(rng, (2, 11, 9, 10), dtype).round(1)  # some are alike
    pool = getattr(F, f"{name}_pool2d")
    g = draw(rng, pool(x, **case).shape, dtype)
    for left in LAYOUTS:
        for right in ("C", "channels last", left):
            a, b = LAYOUTS[left](x), LAYOUTS[right](g)
            args = (a, b) if name == "max" else (x.shape, b)
            found = dict(by_each(f"nn.grad.{name}_pool2d_input", *args, **case))
            wanted = found.popitem()[1]  # NumPy's loops are listed last
            assert "misaligned" in (left, right) or len(found) > 0
            for what, result in found.items():
                assert result.strides == wanted.strides, what
                assert_near(result, wide(wanted), dtype, what, 1 if dtype == "float32" else 8, 4.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compiled_gradients_of_what_is_not_finite(dtype: str) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, -3e38], dtype)
    x = np.tile(values, 40).reshape(1, 5, 8, 8)
    g = np.tile(np.roll(values, 3), 10).reshape(1, 5, 4, 4)
    wide_g = np.repeat(np.repeat(g, 2, 2), 2, 3)
    for op, args in (("relu_input", (x, wide_g)), ("max_pool2d_input", (x, g, 2)), ("avg_pool2d_input", (x.shape, g, 2))):
        found = dict(by_each(f"nn.grad.{op}", *args))
        wanted = found.popitem()[1]
        for what, result in found.items():
            np.testing.assert_array_equal(result, wanted, err_msg=what)


def test_compiled_relu_of_many_shapes(rng: np.random.Generator) -> None:
    for shape in ((1,), (3,), (40000,), (300000,), (3, 1, 5), (2, 3, 4, 5, 6), (7, 1, 1, 9)):
        x, g = rng.standard_normal(shape, np.float32), rng.standard_normal(shape, np.float32)
        for layout in LAYOUTS.values():
            for a, b in ((layout(x), layout(g)), (layout(x), g), (x, layout(g)), (x, np.broadcast_to(g[:1], shape))):
                found = dict(by_each("nn.grad.relu_input", a, b))
                for what, result in found.items():
                    np.testing.assert_array_equal(result, np.where(x <= 0, 0, b), err_msg=what)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_normalisation_by_each(layout: str, rng: np.random.Generator) -> None:
    """Sums of a few hundred float32, by every library, of operands of every layout."""
    x, g = draw(rng, (4, 6, 5, 7), "float32") + np.float32(3), draw(rng, (4, 6, 5, 7), "float32")
    w, v = draw(rng, (6,), "float32"), draw(rng, (5, 7), "float32")
    right = G.layer_norm_backward(wide(x), wide(g), (5, 7), wide(v)), G.batch_norm_backward(wide(x), wide(g), wide(w))
    a, b = LAYOUTS[layout](x), LAYOUTS[layout](g)
    for name, args, wanted in (("layer", (a, b, (5, 7), v), right[0]), ("batch", (a, g, w), right[1]), ("layer", (x, b, (5, 7), v), right[0])):
        for what, results in by_each(f"nn.grad.{name}_norm_gradients", *args):
            for got, exact in zip(results, wanted, strict=True):
                assert_near(got, exact, "float32", what, 64, 8.0)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_normalisation_of_large_and_small_numbers(scale: float, rng: np.random.Generator) -> None:
    x = (rng.standard_normal((8, 40)) * scale).astype(np.float32)
    g = rng.standard_normal((8, 40), np.float32)
    for name, args in (("layer", (x, g, 40)), ("batch", (x, g))):
        wanted = getattr(G, f"{name}_norm_backward")(wide(x), wide(g), *args[2:])
        for what, results in by_each(f"nn.grad.{name}_norm_gradients", *args):
            for got, exact in zip(results, wanted, strict=True):
                np.testing.assert_allclose(got, exact, rtol=1e-3, atol=1e-4 * abs(exact).max(), err_msg=what)


def test_empty() -> None:
    x = np.ones((0, 3, 4, 4), np.float32)
    assert G.relu_input(x, x).shape == G.softmax_input(x, x, 1).shape == G.gelu_input(x, x).shape == x.shape
    norm = G.batch_norm_backward(x, x, np.ones(3, np.float32))
    assert norm.input.shape == x.shape and norm.weight.tolist() == [0, 0, 0]
    assert G.layer_norm_backward(x, x, 4).bias.tolist() == [0] * 4
    assert G.max_pool2d_input(x, x[:, :, :2, :2], 2).shape == G.avg_pool2d_input(x.shape, x[:, :, :2, :2], 2).shape == x.shape


X = np.ones((2, 3, 4, 4), np.float32)
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: G.relu_input(X, X[:1]), BadValue, r"relu_input: grad_output has shape \(1, 3, 4, 4\), input has"),
    (lambda: G.gelu_input(X, X.astype(float)), BadType, "gelu_input: grad_output has dtype float64"),
    (lambda: G.softmax_input(X, X, 4), BadValue, "softmax_input: dim=4"),
    (lambda: G.layer_norm_backward(X, X, 3), BadValue, "layer_norm_backward: normalized_shape"),
    (lambda: G.batch_norm_backward(X, X, np.ones(2, np.float32)), BadValue, "batch_norm_backward: weight has shape"),
    (lambda: G.max_pool2d_input(X, X, 2), BadValue, r"max_pool2d_input: grad_output has shape .*the result has \(2, 3, 2, 2\)"),
    (lambda: G.max_pool2d_input(X, X[:, :, ::2, ::2].astype(float), 2), BadType, "grad_output has dtype float64"),
    (lambda: G.avg_pool2d_input((2, 3, 4), X, 2), BadValue, "avg_pool2d_input: grad_output has shape"),
    (lambda: G.avg_pool2d_input((4, 4), X, 2), BadValue, "avg_pool2d_input: input_size must have shape"),
    (lambda: G.avg_pool2d_input(4, X, 2), BadType, "avg_pool2d_input: input_size is a shape"),
    (lambda: G.linear_input(X[0, 0], X[..., :3]), BadValue, "do not fit"),
    (lambda: G.linear_weight(X, X[:1]), BadValue, "all but the last axis must agree"),
    (lambda: G.linear_weight(X, X.astype(float)), BadType, "grad_output has dtype float64"),
    (lambda: G.linear_bias(X.astype(int)), BadType, "linear_bias: grad_output has dtype int64"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_wrong_arguments_are_named(number: int) -> None:
    call, kind, text = REFUSED[number]
    with pytest.raises(kind, match=text):
        call()
