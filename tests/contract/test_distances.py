"""Distances between rows, and the loss of connectionist temporal classification: against plain loops, and by torch's rules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline.errors import BadType, BadValue
from backline.nn.functional import ctc_loss
from support import LAYOUTS, assert_close, clean, dtype_of, random_array, rng, roundoff, seed, wide

Array = Any
INF = math.inf
MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed


def exact(x: Array, y: Array, p: float) -> Array:
    size = np.abs(wide(x)[..., :, None, :] - wide(y)[..., None, :, :])
    if p == 0:
        return (size != 0).sum(-1).astype(np.longdouble)
    if math.isinf(p):
        return size.max(-1) if size.shape[-1] else np.zeros(size.shape[:-1], np.longdouble)
    return (size ** np.longdouble(p)).sum(-1) ** (1 / np.longdouble(p))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("p", [0, 0.5, 1, 1.5, 2, 2.0, 3, 7.5, INF])
def test_distances(p: float, dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    for first, second in (((3, 4), (5, 4)), ((2, 1, 3, 4), (5, 2, 4)), ((30, 2), (4, 2)), ((1, 1), (1, 1))):
        x, y = random_array(rng, first, kind), random_array(rng, second, kind)
        y[..., 0, :] = x[..., 0, :] if y[..., 0, :].shape == x[..., 0, :].shape else y[..., 0, :]
        wanted = exact(x, y, p)
        for layout in LAYOUTS.values():
            got = backline.cdist(layout(x), layout(y), p, compute_mode=MODES[2])
            assert got.dtype == kind and got.dtype.isnative
            assert_close(got, wanted, 100 * max(1, 1 / max(p, 0.1)) * roundoff(kind) * wanted + 1e-40, str(first))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_euclidean_distances_by_a_product(dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    for m, n, mode, product in ((25, 25, MODES[0], False), (26, 1, MODES[0], True), (1, 26, MODES[0], True), (2, 2, MODES[1], True), (40, 40, MODES[2], False)):
        x, y = random_array(rng, (2, m, 6), kind), random_array(rng, (n, 6), kind)
        with backline.trace() as events:
            got = backline.cdist(x, y, compute_mode=mode)
        assert ("matmul" in [e.op for e in events]) is product
        wanted, largest = exact(x, y, 2), np.abs(x).max() + np.abs(y).max()
        assert got.dtype == kind and got.shape == (2, m, n)
        # Of squares that cancel, the root of a rounding error of the lengths is left.
        assert_close(got**2, wanted**2, 200 * roundoff(kind) * largest**2, mode)
    with backline.trace() as events:
        backline.cdist(np.ones((40, 2)), np.ones((40, 2)), p=1)
    assert not events


def test_distances_without_rows_or_columns_and_of_what_is_not_finite() -> None:
    assert backline.cdist(np.ones((0, 3)), np.ones((2, 3))).shape == (0, 2)
    assert np.array_equal(backline.cdist(np.ones((2, 0)), np.ones((3, 0))), np.zeros((2, 3)))
    assert backline.cdist(np.ones((2, 0, 3)), np.ones((2, 4, 3))).shape == (2, 0, 4)
    x = np.array([[np.nan, 1], [np.inf, 1], [1, 1]])
    with np.errstate(all="raise"):
        for p in (1, 2, 3, INF):
            got = backline.cdist(x, x[1:], p)
            assert np.isnan(got[0]).all() and np.isnan(got[1, 0]) and got[1, 1] == INF and got[2, 1] == 0


ROWS = np.ones((2, 3))
BAD_DISTANCES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: backline.cdist(ROWS.astype(int), ROWS), BadType, "cdist only supports floating-point dtypes, X1 got: int64"),
    (lambda: backline.cdist(ROWS, ROWS + 1j), BadType, "X2 got: complex128"),
    (lambda: backline.cdist(ROWS[0], ROWS), BadValue, "cdist only supports at least 2D tensors, X1 got: 1D"),
    (lambda: backline.cdist(ROWS, ROWS[:, :2]), BadValue, "X1 and X2 must have the same number of columns. X1: 3 X2: 2"),
    (lambda: backline.cdist(ROWS, ROWS, -1), BadValue, "cdist only supports non-negative p values"),
    (lambda: backline.cdist(ROWS, ROWS, math.nan), BadValue, "cdist only supports non-negative p values"),
    (lambda: backline.cdist(ROWS, ROWS, "2"), BadType, "p is a number"),
    (lambda: backline.cdist(ROWS, ROWS, 10**400), BadValue, "p is an int of 1329 bits"),
    (lambda: backline.cdist(ROWS, ROWS, True), BadType, "p is a number"),
    (lambda: backline.cdist(ROWS, ROWS, 2, "fast"), BadValue, "'fast' is not a valid value for compute_mode"),
    (lambda: backline.cdist(ROWS, ROWS, 2, None), BadValue, "not a valid value for compute_mode"),
    (lambda: backline.cdist(ROWS, ROWS.astype("f")), BadType, "float32"),
    (lambda: backline.cdist(np.ones((2, 2, 3)), np.ones((5, 2, 3))), BadValue, "do not broadcast"),
    (lambda: backline.cdist(None, ROWS), BadType, "x1 must be a NumPy array"),
]  # fmt: skip


# The loss -------------------------------------------------------------------------------------------------------------


def by_all_paths(x: Array, target: list[int], blank: int) -> float:
    """Minus the logarithm of the sum over every sequence of labels that the target is what is left of."""
    total = 0.0
    for path in itertools.product(range(x.shape[1]), repeat=len(x)):
        left = [label for label, _ in itertools.groupby(path) if label != blank]
        if left == target:
            total += math.exp(sum(x[t, label] for t, label in enumerate(path)))
    return -math.log(total) if total else INF


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("blank", [0, 2])
def test_the_loss_is_the_sum_over_all_alignments(blank: int, dtype: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 6, 3))
    x = (x - np.log(np.exp(x).sum(-1, keepdims=True))).astype(dtype)
    one, two = (label for label in range(3) if label != blank)
    targets = np.array([[one, two, one], [one, one, two], [two, blank, blank], [blank] * 3, [one, one, one], [two, two, two]])
    inputs, lengths = np.array([5, 4, 3, 2, 5, 4]), np.array([3, 3, 1, 0, 3, 3], np.int32)
    rows = [[int(v) for v in row[:n]] for row, n in zip(targets, lengths, strict=True)]
    wanted = np.array([by_all_paths(x[:n, i].astype(float), rows[i], blank) for i, n in enumerate(inputs)])
    assert np.isinf(wanted[5])  # three equal labels want two blanks between them
    near = {"rtol": 1e-5 if dtype == "float32" else 1e-12}
    for layout in LAYOUTS.values():
        got = ctc_loss(layout(x), layout(targets), layout(inputs), lengths, blank, "none")
        assert got.dtype == dtype and got.dtype.isnative and np.allclose(got, wanted, **near)
    joined = np.concatenate(rows).astype(np.uint8)
    assert np.allclose(ctc_loss(x, joined, list(inputs), tuple(lengths), blank, "none"), wanted, **near)
    finite = np.where(np.isinf(wanted), 0, wanted)
    assert np.allclose(ctc_loss(x, targets, inputs, lengths, blank, "none", True), finite, **near)
    assert np.isclose(ctc_loss(x, targets, inputs, lengths, blank, "sum", True), finite.sum(), **near)
    assert np.isclose(ctc_loss(x, targets, inputs, lengths, blank, zero_infinity=True), np.mean(finite / np.maximum(lengths, 1)), **near)
    assert ctc_loss(x, targets, inputs, lengths, blank) == INF
    alone = ctc_loss(x[:, 0], targets[0], np.array(5), np.array(3), blank, "none")
    assert np.ndim(alone) == 0 and np.isclose(alone, wanted[0], **near)
    assert np.isclose(ctc_loss(x[:, 0], targets[0].astype("f"), (5,), (3,), blank), wanted[0] / 3, **near)


def test_sequences_of_no_time_and_of_no_label() -> None:
    x = np.log(np.full((2, 3, 2), 0.5))
    got = ctc_loss(x, np.ones((3, 1), int), [0, 0, 2], [1, 0, 0], reduction="none")
    assert got[0] == INF and got[1] == 0 and np.isclose(got[2], 2 * math.log(2))
    assert np.allclose(ctc_loss(x, np.ones((3, 0), int), [2, 2, 2], [0, 0, 0], reduction="none"), 2 * math.log(2))
    assert np.isnan(ctc_loss(x * np.nan, np.ones((3, 1), int), [2, 2, 2], [1, 1, 1]))


X, T = np.zeros((4, 2, 3)), np.ones((2, 2), int)
BAD_LOSSES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: ctc_loss(X[0, 0], T, [4, 4], [2, 2]), BadValue, "log_probs must have 3 dimensions"),
    (lambda: ctc_loss(X[:0], T, [0, 0], [2, 2]), BadValue, "log_probs tensor must not be empty"),
    (lambda: ctc_loss(X.astype(int), T, [4, 4], [2, 2]), BadType, "log_probs has dtype int64"),
    (lambda: ctc_loss(X, T[:1], [4, 4], [2, 2]), BadValue, "Expected targets of shape"),
    (lambda: ctc_loss(X, T, [4, 4], [3, 2]), BadValue, "Expected targets of shape"),
    (lambda: ctc_loss(X, T, [4, 4], [2**40, 2]), BadValue, "Expected targets of shape"),
    (lambda: ctc_loss(X, T[0], [4, 4], [2**62, 2**62]), BadValue, "Expected targets to have size 9223372036854775808"),
    (lambda: ctc_loss(X, T[0], [4, 4], [2, 1]), BadValue, "Expected targets to have size 3 at dimension 0, but got size 2"),
    (lambda: ctc_loss(X, T[None], [4, 4], [2, 2]), BadValue, "targets must have 1 or 2 dimensions"),
    (lambda: ctc_loss(X, T + 2, [4, 4], [2, 2]), BadValue, "not from 0 to 2"),
    (lambda: ctc_loss(X, -T, [4, 4], [2, 2]), BadValue, "not from 0 to 2"),
    (lambda: ctc_loss(X, T + 0.5, [4, 4], [2, 2]), BadType, "targets must be integral"),
    (lambda: ctc_loss(X, T, [5, 4], [2, 2]), BadValue, "Expected input_lengths to have value at most 4, but got value 5"),
    (lambda: ctc_loss(X, T, [-1, 4], [2, 2]), BadValue, "Expected input_lengths to have value at least 0, but got value -1"),
    (lambda: ctc_loss(X, T, [4, 4], [-1, 2]), BadValue, "Expected target_lengths to have value at least 0"),
    (lambda: ctc_loss(X, T, [4, 2**100], [2, 2]), BadValue, "at most 4"),
    (lambda: ctc_loss(X, T, [4], [2, 2]), BadValue, "input_lengths must be of size batch_size"),
    (lambda: ctc_loss(X, T, [4, 4], np.array([2.0, 2.0])), BadType, "target_lengths must be integral"),
    (lambda: ctc_loss(X, T, [4, 4.0], [2, 2]), BadType, "input_lengths must be integral"),
    (lambda: ctc_loss(X, T, None, [2, 2]), BadType, "input_lengths must be a NumPy array"),
    (lambda: ctc_loss(X, T, [4, 4], [2, 2], 3), BadValue, "blank must be in label range"),
    (lambda: ctc_loss(X, T, [4, 4], [2, 2], True), BadType, "blank is an int"),
    (lambda: ctc_loss(X, T, [4, 4], [2, 2], 0, "max"), BadValue, "reduction='max'"),
    (lambda: ctc_loss(X, T, [4, 4], [2, 2], zero_infinity=1), BadType, "zero_infinity is True or False"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD_DISTANCES) + len(BAD_LOSSES)))
def test_what_is_refused(number: int) -> None:
    call, kind, text = [*BAD_DISTANCES, *BAD_LOSSES][number]
    with pytest.raises(kind, match=text):
        call()
