"""Results of layers held against float64: what is right is found right, what is spoilt is noticed, and large ones take their time."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import backline
from backline import libraries
from backline.engine import accuracy, accuracy_layers
from backline.engine.choose import eligible, planner
from backline.engine.tuning import sample_operands
from backline.engine.tuning.measure import measure_problem
from backline.libraries.base import planner_for
from backline.problems.op_registry import operations
from support import THREADS, algorithms, clean, problem_of

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and backline.nn.grad  # a fixture, imported to be found by pytest; operations

F, G = "nn.functional.", "nn.grad."
X = np.ones((4, 6, 8, 10), np.float32)
W, ROW = np.ones(6, np.float32), np.ones(10, np.float32)
FLOAT8 = np.ones((6, 10), ml_dtypes.float8_e4m3fn)
CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "gelu": (F + "gelu", (X,), {}),
    "softmax": (F + "softmax", (X, 1), {}),
    "softmax over the batch": (F + "softmax", (X, 0), {}),
    "log_softmax": (F + "log_softmax", (X, 1), {}),
    "layer_norm": (F + "layer_norm", (X, 10, ROW, ROW), {}),
    "layer_norm of all": (F + "layer_norm", (X, X.shape), {}),
    "rms_norm": (F + "rms_norm", (X, 10, ROW), {}),
    "rms_norm of all": (F + "rms_norm", (X, X.shape), {}),
    "batch_norm": (F + "batch_norm", (X, W, W, W, W), {}),
    "training": (F + "batch_norm", (X, None, None, W, W), {"training": True}),
    "max_pool": (F + "max_pool2d", (X, 3, 2, 1), {}),
    "avg_pool": (F + "avg_pool2d", (X, 3, 2, 1), {"ceil_mode": True}),
    "adaptive": (F + "adaptive_avg_pool2d", (X, (3, 4)), {}),
    "gelu gradient": (G + "gelu_input", (X, X), {}),
    "softmax gradient": (G + "softmax_input", (X, X, 1), {}),
    "pool gradient": (G + "avg_pool2d_input", (X.shape, X[:, :, ::2, ::2], 2), {}),
    "exp": ("exp", (X,), {}), "log": ("log", (np.abs(X),), {}),
    "linear": (F + "linear", (X, np.ones((5, 10), np.float32), np.ones(5, np.float32)), {"activation": "silu", "residual": X[..., :5]}),
    "conv": (F + "conv2d", (X, np.ones((5, 6, 3, 3), np.float32)), {"padding": 1}),
    "grouped conv": (F + "conv2d", (X, np.ones((6, 1, 3, 3), np.float32), W), {"groups": 6, "stride": 2}),
    "transposed conv": (F + "conv_transpose2d", (X, np.ones((6, 2, 3, 3), np.float32)), {"stride": 2}),
    "conv gradient": (G + "conv2d_input", (X.shape, np.ones((5, 6, 3, 3), np.float32), np.ones((4, 5, 6, 8), np.float32)), {}),
    "weight gradient": (G + "conv2d_weight", (X, (5, 6, 3, 3), np.ones((4, 5, 6, 8), np.float32)), {}),
    "attention": (F + "scaled_dot_product_attention", (X, X, X), {"is_causal": True}),
    "groups of rows": (F + "grouped_mm", (X[0, 0], np.ones((3, 10, 5), np.float32)), {"offs": np.array([3, 3, 8])}),
    "groups of terms": (F + "grouped_mm", (X[0, 0], X[0, :5].reshape(10, 40)), {"offs": np.array([4, 10], np.int32)}),
    "8-bit product": (F + "scaled_mm", (FLOAT8, FLOAT8.T, W[:1], "TensorWise", W[:1, None], "TensorWise"), {"output_dtype": "float32"}),
}


def results(problem: Any, arrays: list[Array]) -> list[tuple[str, Any, float]]:
    found = []
    for name in libraries.names():
        library = libraries.get(name)
        if library.available() and not (library.families and problem.family not in library.families):
            for a in algorithms(name, problem, THREADS):
                plan = library.prepare(problem, a, *planner_for(library, planner))
                found.append((a.key, plan(*arrays), accuracy.bound(problem, a.precision)))
    assert found
    return found


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_right_is_told_from_wrong(name: str, in_parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    op, args, keywords = CALLS[name]
    problem = problem_of(op, *args, **keywords)
    arrays = sample_operands.arrays_for(problem, 7)
    if in_parts:
        monkeypatch.setattr(accuracy_layers, "BYTES", 1)
    held = accuracy.Reference(problem, arrays)
    for key, result, most in results(problem, arrays):
        assert held.error(result) <= most, key
        parts = result if isinstance(result, tuple) else (result,)
        for number, part in enumerate(parts):
            for at in ((0,) * part.ndim, (-1,) * part.ndim):
                spoilt = part.copy()
                spoilt[at] += max(0.1 * float(np.abs(part).max()), 0.05)
                changed = (*parts[:number], spoilt, *parts[number + 1 :])
                assert held.error(changed if isinstance(result, tuple) else spoilt) > most, f"{key}: {at} of result {number}"
        hollow = parts[0].copy()
        hollow[(0,) * hollow.ndim] = np.nan
        assert held.error((hollow, *parts[1:]) if isinstance(result, tuple) else hollow) == np.inf


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("name", ["gelu", "softmax", "layer_norm", "rms_norm of all", "training", "avg_pool", "linear", "conv"])
def test_other_dtypes(name: str, dtype: Any) -> None:
    op, args, keywords = CALLS[name]

    def cast(v: Any) -> Any:
        return v.astype(dtype) if isinstance(v, np.ndarray) else v

    problem = problem_of(op, *map(cast, args), **{k: cast(v) for k, v in keywords.items()})
    arrays = sample_operands.arrays_for(problem, 3)
    held = accuracy.Reference(problem, arrays)
    for key, result, most in results(problem, arrays):
        assert held.error(result) <= most, key


def test_large_layers_are_compared_in_part() -> None:
    images = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (64, 64, 224, 224), (0, 0, 0, 0))
    weights = np.zeros((64, 64, 3, 3), np.float32)
    problem = problem_of(F + "conv2d", images, weights)
    taken = list(accuracy_layers.parts(problem, [images, weights]))
    assert len(taken) == 3 and {p.index[0].start for p in taken} >= {0, 63}
    rows, weight = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (1 << 20, 64), (0, 0)), weights[:, :, 0, 0]
    taken = list(accuracy_layers.parts(problem_of(F + "linear", rows, weight, activation="relu"), [rows, weight]))
    assert 3 <= len(taken) < 4000
    assert {0, (1 << 20) - 64} <= {p.index[0].start for p in taken}
    for length in (9_000_000, 40_000_001):  # one axis: no part for each of its elements
        line = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (length,), (4,), writeable=False)
        taken = list(accuracy_layers.parts(problem_of(F + "relu", line), [line]))
        assert 3 <= len(taken) <= 1024 and {0, length} <= {end for p in taken for end in (p.index[0].start, p.index[0].stop)}
        assert all(p.problem.result == p.arrays[0].shape == (p.index[0].stop - p.index[0].start,) for p in taken)


def test_variances_are_positive() -> None:
    problem = problem_of(F + "batch_norm", X, W, W)
    arrays = sample_operands.arrays_for(problem, 1)
    assert (arrays[2] >= 0.5).all() and (arrays[1] < 0.5).any()


def test_nothing_is_compared_where_there_is_nothing() -> None:
    empty = problem_of(F + "relu", X[:0])
    assert accuracy.error(empty, [X[:0]], X[:0]) == 0.0


def test_multi_head_attention_is_measured_like_any_layer() -> None:
    """Its last weights are no output of the call, and random weights do not make a choice of one of softmax."""
    x, packed, last = (np.zeros(shape, np.float32) for shape in ((2, 16, 32), (96, 32), (32, 32)))
    problem = operations["nn.functional.multi_head_attention"].build(x, x, x, 4, packed, None, last, None)
    able = eligible(problem, 2)
    record = measure_problem(problem, able, 2, timing=False, seed=1)
    assert len(able) >= 2 and not record.rejected, record.rejected
    assert set(record.errors) == {a.key for a in able}


def test_products_of_8_bits_are_judged_by_the_dtype_of_the_result() -> None:
    assert accuracy.bound(problem_of(*_scaled("float32"))) < accuracy.bound(problem_of(*_scaled("bfloat16"))) < 0.1
    a = np.full((2, 3), -128, np.int8)
    whole = problem_of("quantized.int_mm", a, a.T)
    exact = a.astype(np.int32) @ a.T.astype(np.int32)
    assert accuracy.bound(whole) == 0.0
    assert accuracy.error(whole, [a, a.T], exact) == 0.0 and accuracy.error(whole, [a, a.T], exact + 1) > 0.0


def _scaled(output: str) -> tuple[Any, ...]:
    one = W[:1]
    return F + "scaled_mm", FLOAT8, FLOAT8.T, one, "TensorWise", one, "TensorWise", None, None, None, output
