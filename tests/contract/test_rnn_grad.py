"""Gradients of recurrent networks: against differences in float64, in other dtypes, and beside PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from backline import nn
from backline.errors import BadType, BadValue
from backline.nn import grad as nn_grad
from recurrent import MODES, make, tolerance
from support import HALVES, clean, dtype_of, rng, run_each, seed

__all__ = ["clean", "rng", "seed"]

Array = Any

pytestmark = pytest.mark.usefixtures("clean")


def backward(mode: str) -> Any:
    return getattr(nn_grad, f"{mode}_backward")


def states(call: dict[str, Any]) -> tuple[Array, ...]:
    return call["hx"] if isinstance(call["hx"], tuple) else (call["hx"],)


def nones(mode: str, grad: Array) -> tuple[Array, ...]:
    """The gradient by the output, and none by the last states."""
    return (grad, None, None) if mode == "lstm" else (grad, None)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", [None, np.array([2, 0, 3])])
@pytest.mark.parametrize(("layers", "bidirectional", "biases", "batch_first"), [
    (1, False, True, False), (2, True, True, True), (2, False, False, False),
])  # fmt: skip
def test_gradients_against_differences(
    layers: int, bidirectional: bool, biases: bool, batch_first: bool, lengths: Array, mode: str, rng: np.random.Generator
) -> None:
    call = make(rng, mode, 3, 3, 2, 3, layers=layers, bidirectional=bidirectional, biases=biases, batch_first=batch_first)
    call |= {"dropout": 0.4, "train": True}
    further = {"lengths": lengths, "seed": 3}
    run = getattr(nn, mode)
    weights = [rng.standard_normal(part.shape) for part in run(*call.values(), **further)]

    def loss() -> float:
        return sum(float((w * part).sum()) for w, part in zip(weights, run(*call.values(), **further), strict=True))

    values = list(call.values())
    grads = backward(mode)(*values[:3], *weights, *values[3:], **further)
    arrays = [call["input"], *states(call), *call["params"]]
    assert len(grads) == len(arrays)
    assert grads.input is grads[0] and grads.h_0 is grads[1] and len(grads.params) == len(call["params"])
    assert mode != "lstm" or grads.c_0 is grads[2]
    for array, grad in zip(arrays, grads, strict=True):
        assert grad.shape == array.shape and grad.dtype == array.dtype
        for at in rng.integers(0, array.size, 6):
            place, old = np.unravel_index(at, array.shape), array.flat[at]
            sides = []
            for shift in (1e-5, -1e-5):
                array[place] = old + shift
                sides.append(loss())
            array[place] = old
            np.testing.assert_allclose(grad[place], (sides[0] - sides[1]) / 2e-5, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_gradients_in_other_dtypes(dtype: str, mode: str, rng: np.random.Generator) -> None:
    # Positive throughout: no state of relu near 0, where rounding decides which gradient there is.
    call = make(rng, mode, 4, 3, 5, 6)
    call["input"], call["params"] = np.abs(call["input"]), tuple(map(np.abs, call["params"]))
    narrow = {k: v.astype(dtype_of(dtype)) if isinstance(v, np.ndarray) else v for k, v in call.items()}
    for name in ("hx", "params"):
        if isinstance(call[name], tuple):
            narrow[name] = tuple(a.astype(dtype_of(dtype)) for a in call[name])
    grad = rng.standard_normal((4, 3, 6)).astype(dtype_of(dtype))

    def exact(value: Any) -> Any:
        return tuple(map(exact, value)) if isinstance(value, tuple) else value.astype(float) if isinstance(value, np.ndarray) else value

    values = list(narrow.values())
    wanted = backward(mode)(*map(exact, values[:3]), *nones(mode, exact(grad)), *values[3:])
    close = tolerance(dtype_of(dtype))
    for name, got in run_each("numpy", f"nn.grad.{mode}_backward", *values[:3], *nones(mode, grad), *values[3:]):
        assert all(part.dtype == dtype_of(dtype) for part in got), name
        for part, right in zip(got, wanted, strict=True):
            np.testing.assert_allclose(part.astype(float), right, rtol=close, atol=close * max(10, np.abs(right).max()))


@pytest.mark.parametrize("mode", MODES)
def test_gradients_do_not_read_what_is_not_there(mode: str, rng: np.random.Generator) -> None:
    call = make(rng, mode, 4, 2, 3, 5)
    values, lengths = list(call.values()), np.array([2, 4])
    grads = nones(mode, rng.standard_normal((4, 2, 5)))
    right = backward(mode)(*values[:3], *grads, *values[3:], lengths=lengths)
    call["input"][2:, 0] = np.nan
    got = backward(mode)(*values[:3], *grads, *values[3:], lengths=lengths)
    for a, b in zip(got, right, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not got.input[2:, 0].any()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("steps", "batch"), [(0, 2), (3, 0)])
def test_gradients_of_nothing(steps: int, batch: int, mode: str, rng: np.random.Generator) -> None:
    call = make(rng, mode, steps, batch, 3, 5, layers=2)
    values, h = list(call.values()), rng.standard_normal((2, batch, 5))
    grads = backward(mode)(*values[:3], *nones(mode, None)[:1], h, *nones(mode, None)[2:], *values[3:])
    np.testing.assert_array_equal(grads.h_0, h)
    assert not any(part.any() for part in grads.params) and grads.input.shape == (steps, batch, 3)


def test_where_relu_stands_still_and_where_it_is_not_a_number(rng: np.random.Generator) -> None:
    x, h, one = np.array([-1.0, 2.0, np.nan]).reshape(3, 1, 1), np.zeros((1, 1, 1)), np.eye(1)
    grad = np.ones((3, 1, 1))
    got = nn_grad.rnn_relu_backward(x, h, (one, 0 * one), grad, None, False, 1, 0.0, False, False, False)
    np.testing.assert_array_equal(got.input.ravel(), [0, 1, 1])
    assert np.isnan(got.params[0]).all()


@pytest.mark.parametrize("mode", MODES)
def test_errors_name_argument_and_sizes(mode: str, rng: np.random.Generator) -> None:
    call = make(rng, mode, 3, 2, 4, 5, layers=2)
    run, (x, hx, params, *rest) = backward(mode), call.values()
    with pytest.raises(BadValue, match=f"{mode}_backward: .*grad_h_n.* are all None"):
        run(x, hx, params, *nones(mode, None), *rest)
    with pytest.raises(BadValue, match=r"grad_output has shape \(3, 2, 4\), it must be \(3, 2, 5\)"):
        run(x, hx, params, *nones(mode, x), *rest)
    last = states(call)[-1]
    with pytest.raises(BadType, match=r"grad_[hc]_n has dtype float32"):
        run(x, hx, params, *nones(mode, None)[:-1], last.astype(np.float32), *rest)
    with pytest.raises(BadValue, match=r"grad_[hc]_n has shape \(1, 2, 5\), it must be \(2, 2, 5\)"):
        run(x, hx, params, *nones(mode, None)[:-1], last[1:], *rest)
    with pytest.raises(BadValue, match=rf"{mode}_backward: lengths\[1\] = 4"):
        run(x, hx, params, *nones(mode, x[..., :1] @ np.ones((1, 5))), *rest, lengths=np.array([3, 4]))


@pytest.mark.torch
@pytest.mark.parametrize("mode", MODES)
def test_torch_has_the_same_gradients(mode: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    for bidirectional, batch_first in itertools.product((False, True), (False, True)):
        call = make(rng, mode, 4, 3, 5, 6, layers=2, bidirectional=bidirectional, batch_first=batch_first)
        x, hx, params, *rest = call.values()
        leaves = [torch.from_numpy(a).requires_grad_() for a in (x, *states(call), *params)]
        count = len(states(call))
        given = tuple(leaves[1:3]) if mode == "lstm" else leaves[1]
        results = getattr(torch, mode)(leaves[0], given, leaves[1 + count :], *rest)
        weights = [rng.standard_normal(tuple(part.shape)) for part in results]
        sum((part * torch.from_numpy(w)).sum() for part, w in zip(results, weights, strict=True)).backward()
        for got, leaf in zip(backward(mode)(x, hx, params, *weights, *rest), leaves, strict=True):
            np.testing.assert_allclose(got, leaf.grad.numpy(), rtol=1e-11, atol=1e-12)
