"""Recurrent networks: by cuDNN's C interface, and step by step; against loops over single sequences in float64 on the host."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest

import backline
from backline import nn, switches
from backline.backends import cudnn
from backline.errors import NoKernel, NotDeterministic
from backline.nn import grad as G
from gpu.arrays import dtype_of, error, wide
from gpu.rows import AMPERE
from recurrent import MODES, make, oracle

DTYPES = ("float16", "bfloat16", "float32", "float64")
BFLOAT16 = pytest.mark.gpu(needs=("cudnn >= 91300", AMPERE))
NEAR = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-12}
TF32 = 2e-2  # 10 bits of each factor, over several steps
# Of gradients through relu, where a state that is rounded to the other side of 0 has another gradient: few elements, by all of it.
KINKED = {"float16": 0.1, "bfloat16": 0.3}
FORMS = ((1, False, True, False), (1, True, False, True), (3, True, True, False))


def moved(xp: Any, value: Any) -> Any:
    """A value with arrays of the host on the device."""
    if isinstance(value, tuple):
        return tuple(moved(xp, v) for v in value)
    return xp.asarray(value) if isinstance(value, np.ndarray) else value


def both(xp: Any, mode: str, call: dict[str, Any], grads: list[Any], **further: Any) -> tuple[list[Any], list[Any]]:
    """Results and gradients on the device."""
    values, given = [moved(xp, v) for v in call.values()], {name: moved(xp, v) for name, v in further.items()}
    results = getattr(nn, mode)(*values, **given)
    changes = getattr(G, f"{mode}_backward")(*values[:3], *(moved(xp, g) for g in grads), *values[3:], **given)
    return list(results), list(changes)


def right(mode: str, call: dict[str, Any], grads: list[Any], lengths: Any = None) -> tuple[list[Any], list[Any]]:
    """The same in float64 on the host."""

    def widened(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(widened(v) for v in value)
        return wide(value) if isinstance(value, np.ndarray) else value

    values = [widened(v) for v in call.values()]
    given = {} if lengths is None else {"lengths": lengths}
    with switches.scope({"only": ("numpy",)}):
        changes = getattr(G, f"{mode}_backward")(*values[:3], *map(widened, grads), *values[3:], **given)
    return list(oracle(mode, call, lengths)), list(changes)


def by_results(mode: str, call: dict[str, Any], dtype: str, rng: np.random.Generator, lengths: Any = None) -> list[Any]:
    return [rng.standard_normal(part.shape).astype(dtype_of(dtype)) for part in oracle(mode, call, lengths)]


def farthest(found: list[Any], expected: list[Any], what: str) -> float:
    """Distance in the largest element of each array, relative to that of what is expected, or to 1."""
    assert len(found) == len(expected), what
    most = 0.0
    for got, want in zip(found, expected, strict=True):
        got = wide(got)
        assert got.shape == want.shape and np.isfinite(got).all(), what
        most = max(most, float(np.abs(got - want).max(initial=0) / max(np.abs(want).max(initial=0), 1.0)))
    return most


def gradients_off(mode: str, dtype: str, found: list[Any], expected: list[Any], what: str) -> tuple[float, float]:
    """The distance of gradients, and how far they may be."""
    assert all(np.isfinite(wide(each)).all() for each in found), what
    if mode == "rnn_relu" and dtype in KINKED:
        return max(error(got, want) for got, want in zip(found, expected, strict=True)), KINKED[dtype]
    return farthest(found, expected, what), 40 * NEAR[dtype]


@pytest.mark.gpu(row="RNN-1")
@pytest.mark.parametrize("dtype", [pytest.param(d, marks=BFLOAT16 if d == "bfloat16" else []) for d in DTYPES])
def test_numbers(row: Any, xp: Any, size: Any, dtype: str) -> None:
    row.expect("results and gradients of all cells, by every algorithm of cuDNN that runs, are near those of float64")
    rng = np.random.default_rng(1)
    hiddens, steps = size((33, 128, 256), (6,)), size(12, 3)
    with cudnn.rnn.flags(fp32_precision="ieee"):
        for mode, hidden, (layers, two, biases, first) in itertools.product(MODES, hiddens, FORMS):
            call = make(rng, mode, steps, 8, hidden, hidden, layers=layers, bidirectional=two, biases=biases, batch_first=first, dtype=dtype_of(dtype))
            grads = by_results(mode, call, dtype, rng)
            results, changes = both(xp, mode, call, grads)
            choice = backline.explain()
            assert choice.library == "cudnn"
            wanted, wanted_changes = right(mode, call, grads)
            name = f"{mode} {dtype} {hidden} {layers} {two} {choice.algorithm}"
            far, (off, most) = farthest(results, wanted, name), gradients_off(mode, dtype, changes, wanted_changes, name)
            row.observe(name, f"{far:.2g}, gradients {off:.2g}")
            assert far < 4 * NEAR[dtype] and off < most, name


@pytest.mark.gpu(row="RNN-2")
def test_precision(row: Any, xp: Any, size: Any) -> None:
    row.expect("cudnn.rnn.fp32_precision decides: ieee is near float64, tf32 may be farther, and no farther than its bits")
    rng = np.random.default_rng(2)
    call = make(rng, "lstm", size(20, 2), 16, 256, 256, dtype=np.float32)
    wanted = list(oracle("lstm", call))
    found = {}
    for word in ("ieee", "tf32"):
        with cudnn.rnn.flags(fp32_precision=word):
            results = list(nn.lstm(*(moved(xp, v) for v in call.values())))
            found[word] = farthest(results, wanted, word)
            assert backline.explain().effective_precision == ("f32" if word == "ieee" else word)
    row.observe("ieee and tf32", f"{found['ieee']:.2g}, {found['tf32']:.2g}")
    assert found["ieee"] < 4 * NEAR["float32"] and found["tf32"] < TF32


@pytest.mark.gpu(row="RNN-3")
@pytest.mark.parametrize("first", [False, True])
def test_lengths(row: Any, xp: Any, first: bool) -> None:
    row.expect("behind the end of a sequence nothing is read, and results and gradients are zeros; a sequence may have no step")
    rng, lengths = np.random.default_rng(3), np.array([3, 0, 7, 1, 7, 2])
    behind = np.arange(7)[:, None] >= lengths[None, :]
    behind = behind.T if first else behind
    for mode, layers in itertools.product(MODES, (1, 2)):
        call = make(rng, mode, 7, 6, 20, 24, layers=layers, bidirectional=True, batch_first=first)
        grads = by_results(mode, call, "float64", rng, lengths)
        wanted, wanted_changes = right(mode, call, grads, lengths)
        call["input"][behind], grads[0][behind] = np.nan, np.nan
        results, changes = both(xp, mode, call, grads, lengths=lengths)
        assert backline.explain().library == "cudnn"
        far = max(farthest(results, wanted, mode), farthest(changes, wanted_changes, mode))
        row.observe(f"{mode}, {layers} layers", f"{far:.2g}")
        assert far < 40 * NEAR["float64"], mode
        assert not wide(results[0])[behind].any() and not wide(changes[0])[behind].any()


@pytest.mark.gpu(row="RNN-4")
def test_dropout(row: Any, xp: Any, size: Any) -> None:
    row.expect("a seed leaves out the same elements each time, about as many as asked, and gradients are those of the same network")
    rng = np.random.default_rng(4)
    # A second layer that passes on what it reads: what is left out can be counted.
    hidden = 64
    first = np.zeros((hidden, 1)), np.zeros((hidden, hidden)), np.ones(hidden), np.zeros(hidden)
    second = np.eye(hidden), np.zeros((hidden, hidden)), np.zeros(hidden), np.zeros(hidden)
    x, h, params = (moved(xp, v) for v in (np.ones((50, 32, 1)), np.zeros((2, 32, hidden)), first + second))
    settings = (True, 2, 0.25, True, False, False)
    outputs = [wide(nn.rnn_relu(x, h, params, *settings, seed=seed)[0]) for seed in (5, 5, 6)]
    assert np.array_equal(outputs[0], outputs[1]) and not np.array_equal(outputs[0], outputs[2])
    np.testing.assert_allclose(np.unique(outputs[0]), [0, 4 / 3])
    count, dropped = outputs[0].size, int((outputs[0] == 0).sum())
    row.observe("left out of a quarter", f"{dropped / count:.4f}")
    assert abs(dropped - count / 4) < 6 * (count * 3 / 16) ** 0.5
    call = make(rng, "lstm", 3, 2, 4, 5, layers=2, bidirectional=True) | {"dropout": 0.4, "train": True}
    grads = by_results("lstm", call, "float64", rng)
    _, changes = both(xp, "lstm", call, grads, seed=9)

    def loss() -> float:
        results = nn.lstm(*(moved(xp, v) for v in call.values()), seed=9)
        return sum(float((g * wide(part)).sum()) for g, part in zip(grads, results, strict=True))

    arrays = [call["input"], *call["hx"], *call["params"]]
    for array, change in zip(arrays, changes, strict=True):
        at = tuple(int(rng.integers(n)) for n in array.shape)
        kept, sums = array[at], []
        for step in (1e-5, -1e-5):
            array[at] = kept + step
            sums.append(loss())
        array[at] = kept
        assert abs(wide(change)[at] - (sums[0] - sums[1]) / 2e-5) < 1e-5


@pytest.mark.gpu(row="RNN-5")
def test_the_same_bits(row: Any, xp: Any, size: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    row.expect("under `deterministic` cuDNN is refused without CUBLAS_WORKSPACE_CONFIG, and what runs gives the same bits each time")
    rng = np.random.default_rng(5)
    call = make(rng, "lstm", size(30, 2), 32, 96, 200, layers=2, bidirectional=True, dtype=np.float32)
    grads = by_results("lstm", call, "float32", rng)
    row.observe("CUBLAS_WORKSPACE_CONFIG", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    with switches.scope({"deterministic": True}):
        runs = [[wide(part) for half in both(xp, "lstm", call, grads) for part in half] for _ in range(5)]
        row.observe("who ran", str(backline.explain().library))
    for other in runs[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(runs[0], other, strict=True))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    with switches.scope({"deterministic": True, "only": ("cudnn",)}), pytest.raises((NoKernel, NotDeterministic)):
        nn.gru(*(moved(xp, v) for v in make(rng, "gru", 2, 3, 4, 5, dtype=np.float32).values()))


@pytest.mark.gpu(row="RNN-6")
@pytest.mark.parametrize("dtype", DTYPES)
def test_step_by_step(row: Any, xp: Any, dtype: str) -> None:
    row.expect("without cuDNN the steps are products and elementwise kernels, near float64")
    rng, lengths = np.random.default_rng(6), np.array([5, 0, 2])
    with cudnn.flags(enabled=False):
        for mode in MODES:
            call = make(rng, mode, 5, 3, 20, 24, layers=2, bidirectional=True, dtype=dtype_of(dtype))
            grads = by_results(mode, call, dtype, rng, lengths)
            results, changes = both(xp, mode, call, grads, lengths=lengths)
            assert backline.explain().library == "cupy"
            wanted, wanted_changes = right(mode, call, grads, lengths)
            far = max(farthest(results, wanted, mode), farthest(changes, wanted_changes, mode))
            row.observe(f"{mode} {dtype}", f"{far:.2g}")
            assert far < 40 * NEAR[dtype], mode
