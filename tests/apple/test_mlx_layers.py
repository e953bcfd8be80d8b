"""Activations, softmax, normalisation, pooling and recurrent networks of MLX's arrays against float64 of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mlx_arrays import agree, back, mx, there

import backline
from backline.errors import NoKernel
from backline.nn import functional, grad
from backline.problems.neural_problem import ELEMENTARY
from support import clean, dtype_of

pytestmark = pytest.mark.usefixtures("clean")
assert clean

RNG = np.random.default_rng(7)
NAMES = ("float16", "bfloat16", "float32")
ENDS = np.array([np.nan, np.inf, -np.inf, 1000.0, -1000.0, 88.0, -88.0, 0.0, -0.0, 1e-30], np.float32)


def draw(shape: tuple[int, ...], name: str = "float32") -> Any:
    return np.asarray(RNG.standard_normal(shape) * 2).astype(dtype_of(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("op", ["relu", "gelu", "silu", "tanh", "sigmoid"])
@pytest.mark.parametrize("shape", [(3, 5), (), (1,), (0, 3)], ids=str)
def test_activations(op: str, shape: Any, name: str) -> None:
    x = np.asarray(np.abs(draw(shape, name))) if shape == () else draw(shape, name)  # alone, a small result of gelu has few digits
    agree(getattr(functional, op), x, dtype=name)
    if op == "gelu":
        agree(functional.gelu, x, approximate="tanh", dtype=name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("op", ELEMENTARY)
@pytest.mark.parametrize("shape", [(3, 5), (), (1,), (0, 3)], ids=str)
def test_elementary_functions(op: str, shape: Any, name: str) -> None:
    x = draw(shape, name)
    agree(getattr(backline, op), np.asarray(np.abs(x)) if op.startswith("log") else x, dtype=name)
    with pytest.raises(NoKernel, match="there is no out"):
        getattr(backline, op)(there(x), out=there(x))


@pytest.mark.parametrize("op", ELEMENTARY)
def test_elementary_functions_at_the_ends(op: str) -> None:
    agree(getattr(backline, op), ENDS)


@pytest.mark.parametrize("op", ["relu", "gelu", "silu", "tanh", "sigmoid"])
def test_activations_at_the_ends(op: str) -> None:
    agree(getattr(functional, op), ENDS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("shape", "dim"), [((3, 5), 1), ((3, 5), 0), ((4,), 0), ((2, 3, 4), -2), ((0, 3), 1), ((3, 0), 1), ((2, 1), 1)])
def test_softmax(shape: Any, dim: int, name: str) -> None:
    agree(functional.softmax, draw(shape, name), dim, dtype=name)
    agree(functional.log_softmax, draw(shape, name), dim, dtype=name)


def test_softmax_at_the_ends() -> None:
    x = np.array([[1000, 0, -1000], [np.inf, 0, 1], [np.nan, 0, 1], [-np.inf, 0, 1], [-np.inf] * 3, [3e38, 1, 0]], np.float32)
    agree(functional.softmax, x, 1)
    agree(functional.log_softmax, x, 1)


@pytest.mark.parametrize("name", [*NAMES, "float64"])
def test_normalisation(name: str) -> None:
    x = draw((3, 4, 5), name)
    agree(functional.layer_norm, x, 5)
    agree(functional.layer_norm, x, (4, 5), draw((4, 5), name), draw((4, 5), name), eps=0.1)
    statistics = draw((4,), name), np.abs(draw((4,), name))
    agree(functional.batch_norm, x, *statistics)
    agree(functional.batch_norm, x, *statistics, draw((4,), name), draw((4,), name))
    if name in ("float16", "bfloat16"):
        agree(functional.layer_norm, x, 5, draw((5,)), draw((5,)))


@pytest.mark.parametrize("shape", [(0, 4, 5), (3, 4, 0), (1, 1, 1)], ids=str)
def test_normalisation_of_little(shape: Any) -> None:
    agree(functional.layer_norm, draw(shape), shape[-1:])
    agree(functional.batch_norm, draw(shape), draw(shape[1:2]), np.ones(shape[1], np.float32))


def test_normalisation_of_what_is_far_from_zero_or_not_finite() -> None:
    x = draw((3, 64)) + np.float32(1000)
    agree(functional.layer_norm, x, 64, times=2000)  # the input's own rounding, magnified
    x[1, 3] = np.nan
    agree(functional.layer_norm, x, 64, times=2000)
    agree(functional.layer_norm, np.full((2, 3), 5, np.float32), 3, eps=0)


@pytest.mark.parametrize("name", [*NAMES, "float64"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pooling(rank: int, name: str) -> None:
    x = draw((2, 3, 9, 8, 7)[: 2 + rank], name)
    largest, mean, adaptive = (getattr(functional, f"{op}{rank}d") for op in ("max_pool", "avg_pool", "adaptive_avg_pool"))
    for places in ({}, {"stride": 1}, {"padding": 1}, {"ceil_mode": True}, {"stride": 2, "padding": 1, "ceil_mode": True}):
        agree(largest, x, 3, **places)
        agree(mean, x, 3, **places)
        agree(mean, x, 3, count_include_pad=False, **places)
    agree(largest, x, 2, dilation=2)
    agree(largest, x[0], 2)
    agree(adaptive, x, 3)
    agree(adaptive, x, 1)
    if rank > 1:
        agree(mean, x, 3, divisor_override=5)


def test_pooling_of_nothing_and_nan() -> None:
    x = draw((1, 1, 6, 6))
    x[0, 0, 2, 2] = np.nan
    x[0, 0, 5, 5] = -np.inf
    agree(functional.max_pool2d, x, 2)
    agree(functional.avg_pool2d, x, 2)
    agree(functional.max_pool2d, x[:0], 2)


@pytest.mark.parametrize("op", [functional.gelu, functional.silu, functional.sigmoid, backline.exp, backline.sin, backline.cos])
def test_float64_is_not_computed_in_less(op: Any) -> None:
    with pytest.raises(NoKernel, match="single precision"):
        op(mx.zeros((3,), mx.float64))
    with pytest.raises(NoKernel, match="single precision"):
        functional.softmax(mx.zeros((3,), mx.float64), 0)


def test_gradients_are_those_of_mlx() -> None:
    x = there(draw((4,)))
    slope = mx.grad(lambda y: mx.sum(functional.silu(y)))(x)
    ours = grad.silu_input(x, mx.ones((4,)))
    np.testing.assert_allclose(back(ours), back(slope), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("op", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("kind", [(1, False, True), (2, True, True), (2, False, False)], ids=str)
def test_recurrent_networks(op: str, kind: Any, name: str) -> None:
    layers, bidirectional, biases = kind
    hidden, gates, directions = 4, {"lstm": 4, "gru": 3}.get(op, 1), 1 + bidirectional
    params: list[Any] = []
    for layer in range(layers):
        for _ in range(directions):
            width = 3 if layer == 0 else hidden * directions
            params += [draw((gates * hidden, width), name) / 4, draw((gates * hidden, hidden), name) / 4]
            params += [draw((gates * hidden,), name)] * 2 if biases else []
    state = draw((layers * directions, 2, hidden), name)
    first = (state, state) if op == "lstm" else state
    for batch_first in (False, True):
        x = draw((2, 5, 3) if batch_first else (5, 2, 3), name)
        given = (tuple(params), biases, layers, 0.0, False, bidirectional, batch_first)
        agree(getattr(backline.nn, op), x, first, *given, times=32, dtype=name)


def test_refusals() -> None:
    x = mx.zeros((2, 3))
    with pytest.raises(backline.errors.BadType, match="nothing is written to arrays of MLX"):
        functional.batch_norm(x, mx.zeros((3,)), None, training=True)
    with pytest.raises(backline.errors.BadType, match="float16, bfloat16, float32, float64"):
        functional.relu(mx.zeros((3,), mx.int32))
    with pytest.raises(backline.errors.BadValue, match="dim=2"):
        functional.softmax(x, 2)
