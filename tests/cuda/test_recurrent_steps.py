"""Recurrent networks of CuPy's arrays step by step, where cuDNN does not run them: with CuPy's stand-in and products of the fakes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_recurrent import agree, forms, ones, run, run_grad

import backline
from backline import switches
from backline.errors import NoKernel
from fakes.solver_machine import real_types
from recurrent import MODES, make, oracle
from support import HALVES, clean, dtype_of, rng, seed

__all__ = ["clean", "rng", "seed"]

real_types()
pytestmark = pytest.mark.usefixtures("clean", "machine", "without_cudnn")


@pytest.fixture
def without_cudnn() -> Iterator[None]:
    with switches.scope({"cudnn.enabled": False}):
        yield


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("layers", "bidirectional", "biases", "batch_first", "lengths"), forms((1, False), (2, True)))
def test_numbers(
    layers: int, bidirectional: bool, biases: bool, batch_first: bool, lengths: Any, mode: str, rng: np.random.Generator
) -> None:
    for dtype in (np.float32, np.float64):
        call = make(rng, mode, 4, 3, 5, 6, layers=layers, bidirectional=bidirectional, biases=biases, batch_first=batch_first, dtype=dtype)
        chosen = agree(mode, rng, call, lengths)
        assert (chosen.library, chosen.algorithm) == ("cupy", "steps")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", HALVES)
def test_halves(dtype: str, mode: str, rng: np.random.Generator) -> None:
    call = make(rng, mode, 3, 2, 5, 4, layers=2, dtype=dtype_of(dtype))
    assert agree(mode, rng, call).effective_precision == "f32 accumulation"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("steps", "batch", "features", "hidden"), [(0, 2, 3, 4), (3, 0, 3, 4), (3, 2, 0, 4), (3, 2, 3, 0)])
def test_empty(steps: int, batch: int, features: int, hidden: int, mode: str, rng: np.random.Generator) -> None:
    call = make(rng, mode, steps, batch, features, hidden, layers=2, bidirectional=True)
    for enabled in (False, True):  # cuDNN takes no empty networks
        with switches.scope({"cudnn.enabled": enabled}):
            agree(mode, rng, call)


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_gradients_with_dropout(mode: str, rng: np.random.Generator) -> None:
    """Against differences: the elements that are left out are the same in the network and in its gradients."""
    call = make(rng, mode, 3, 2, 2, 3, layers=3, biases=False) | {"dropout": 0.4, "train": True}
    further = {"seed": 3, "lengths": np.array([3, 1])}
    weights = [rng.standard_normal(part.shape) for part in run(mode, call, **further)]
    grads = run_grad(mode, call, weights, **further)
    arrays = [call["input"], *(call["hx"] if mode == "lstm" else (call["hx"],)), *call["params"]]
    assert len(grads) == len(arrays)
    for array, grad in zip(arrays, grads, strict=True):
        if not array.size:
            continue
        at = tuple(int(rng.integers(n)) for n in array.shape)
        kept, sums = array[at], []
        for change in (1e-6, -1e-6):
            array[at] = kept + change
            sums.append(sum(float((w * part).sum()) for w, part in zip(weights, run(mode, call, **further), strict=True)))
        array[at] = kept
        np.testing.assert_allclose(grad[at], (sums[0] - sums[1]) / 2e-6, rtol=1e-4, atol=1e-6)


def test_how_much_is_left_out(rng: np.random.Generator) -> None:
    # A second layer whose state is the sum of what it reads: every element is 0 or 1 / (1 - rate).
    hidden = 64
    first = np.zeros((hidden, 1)), np.zeros((hidden, hidden)), np.ones(hidden), np.zeros(hidden)
    second = np.eye(hidden), np.zeros((hidden, hidden)), np.zeros(hidden), np.zeros(hidden)
    x, h = np.ones((20, 16, 1)), np.zeros((2, 16, hidden))
    call = {"input": x, "hx": h, "params": first + second, "b": True, "l": 2, "d": 0.25, "t": True, "bi": False, "bf": False}
    output, _ = run("rnn_relu", call, seed=5)
    np.testing.assert_allclose(np.unique(output), [0, 4 / 3])
    count = output.size
    assert abs((output == 0).sum() - count / 4) < 6 * (count * 3 / 16) ** 0.5
    assert not np.array_equal(output, run("rnn_relu", call, seed=6)[0]) and np.array_equal(output, run("rnn_relu", call, seed=5)[0])


def test_dropout_is_one_librarys(rng: np.random.Generator) -> None:
    """A seed leaves out the same elements in a network and in its gradients, so only one of two libraries may have them."""
    call = make(rng, "gru", 3, 2, 3, 4, layers=2) | {"dropout": 0.5, "train": True}
    with switches.scope({"cudnn.enabled": True}):
        run("gru", call, seed=1)
        assert backline.explain().library == "cudnn"
        with switches.scope({"only": ("cupy", "cublas")}), pytest.raises(NoKernel, match="leave out the same elements"):
            run("gru", call, seed=1)
        for switch in ({"deterministic": True}, {"cudnn.deterministic": True}):
            with switches.scope(switch):  # cuDNN promises nothing without the environment's word
                run("gru", call, seed=1)
                assert backline.explain().library == "cupy"
        call["dropout"] = 1.0  # cuDNN does not take it
        run("gru", call, seed=1)
        assert backline.explain().library == "cupy"


@pytest.mark.parametrize("mode", MODES)
def test_what_is_not_finite(mode: str, rng: np.random.Generator) -> None:
    call = make(rng, mode, 3, 4, 2, 3, dtype=np.float32)
    for n, value in enumerate((np.nan, np.inf, -np.inf)):
        call["input"][1, n, 0] = value
    with np.errstate(all="ignore"):
        found, wanted = run(mode, call), oracle(mode, call)
    for got, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-4)


def test_the_precision_of_products_counts(rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 3, 2, 3, 4, dtype=np.float32)
    with switches.scope({"cuda.matmul.fp32_precision": "tf32"}):
        run("lstm", call)
        assert backline.explain().effective_precision == "tf32"
        with switches.scope({"cudnn.rnn.fp32_precision": "ieee"}), pytest.raises(NoKernel, match=r"cudnn\.rnn\.fp32_precision"):
            run("lstm", call)
    with switches.scope({"cuda.matmul.fp32_precision": "ieee"}):
        run("lstm", call)
        assert backline.explain().effective_precision == "f32"


def test_nothing_multiplies(rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 3, 2, 3, 4)
    with switches.scope({"only": ("cupy",)}), pytest.raises(NoKernel, match="nothing for its products"):
        run("lstm", call)


def test_both_libraries_agree(rng: np.random.Generator) -> None:
    for mode, lengths in itertools.product(MODES, (None, np.array([2, 0, 4]))):
        call = make(rng, mode, 4, 3, 5, 6, layers=2, bidirectional=True)
        further = {} if lengths is None else {"lengths": lengths}
        grads = ones(mode, rng, call, lengths)
        found = []
        for enabled in (True, False):
            with switches.scope({"cudnn.enabled": enabled}):
                found.append((*run(mode, call, **further), *run_grad(mode, call, grads, **further)))
                assert backline.explain().library == ("cudnn" if enabled else "cupy")
        for one, other in zip(*found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)
