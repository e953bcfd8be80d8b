"""Softmax and normalisation as one kernel each: which launch a shape takes, what is refused, and numbers on CuPy's stand-in.

``tests/hollow/test_row_kernels.py`` has the rest of the numbers, and counts launches.
"""

from __future__ import annotations

import itertools
import os
from math import prod
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.engine import policy
from backline.libraries.base import LEADS, Algorithm
from backline.libraries.cuda.common.dense_views import is_dense, memory_order, new, order_of, seen
from backline.libraries.cuda.cupy import row_kernels, row_source
from backline.nn import functional as F
from backline.problems import Operand, operand
from backline.problems.neural_problem import NeuralProblem
from fakes.cupy_standin import ndarray
from fakes.gpu_machine import GpuMachine
from fakes.solver_machine import real_types
from support import clean

real_types()
pytestmark = pytest.mark.usefixtures("clean", "machine")
assert clean


def problem(op: str, x: Any, **parameters: Any) -> NeuralProblem:
    return NeuralProblem(op, (operand("input", x),), tuple(sorted(parameters.items())), "neural", device="cuda:0", result=x.shape)


def images(*shape: int, order: tuple[int, ...] | None = None) -> Any:
    order = tuple(range(len(shape))) if order is None else order
    made = np.zeros([shape[axis] for axis in order], np.float32)
    return made.transpose([order.index(axis) for axis in range(len(shape))])


GEOMETRIES: list[tuple[str, Any, dict[str, Any], tuple[int, int, int] | None]] = [
    ("softmax", images(4, 6), {"axis": 1}, (4, 6, 1)), ("softmax", images(4, 6), {"axis": 0}, (1, 4, 6)),
    ("softmax", images(2, 3, 4, 5), {"axis": 1}, (2, 3, 20)), ("softmax", images(2, 3, 4, 5, order=(0, 2, 3, 1)), {"axis": 1}, (40, 3, 1)),
    ("softmax", images(2, 1, 4), {"axis": 1}, (8, 1, 1)), ("softmax", np.zeros((), np.float32), {"axis": 0}, (1, 1, 1)),
    ("softmax", np.broadcast_to(images(1, 3), (4, 3)), {"axis": 1}, (4, 3, 1)), ("softmax", images(4, 6)[:, ::-2], {"axis": 1}, (4, 3, 1)),
    ("layer_norm", images(2, 3, 4), {"axes": 2}, (2, 12, 1)), ("layer_norm", images(2, 3, 4), {"axes": 3}, (1, 24, 1)),
    ("layer_norm", images(2, 3, 4, order=(1, 2, 0)), {"axes": 2}, (1, 12, 2)), ("layer_norm", images(2, 3, 4, order=(0, 2, 1)), {"axes": 2}, None),
    ("rms_norm", images(2, 3, 4, order=(1, 0, 2)), {"axes": 2}, None), ("layer_norm", images(2, 1, 4, order=(0, 2, 1)), {"axes": 2}, (2, 4, 1)),
    ("batch_norm_train", images(2, 3, 4, 5), {}, (2, 3, 20)), ("batch_norm_train", images(2, 3, 4, 5, order=(0, 2, 3, 1)), {}, (40, 3, 1)),
    ("batch_norm", images(7, 3), {}, (7, 3, 1)), ("batch_norm", images(7, 1, 5), {}, (35, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "x", "parameters", "expected"), GEOMETRIES)
def test_where_the_elements_of_a_row_are(op: str, x: Any, parameters: dict[str, Any], expected: Any) -> None:
    p = problem(op, x, **parameters)
    found = row_kernels.geometry(p)
    assert (None if found is None else (found.outer, found.n, found.inner)) == expected
    assert bool(row_kernels.refusal(p)) is (expected is None)
    assert found is None or found.outer * found.n * found.inner == x.size


def test_what_there_is_no_kernel_for_is_refused() -> None:
    assert "no kernel for max_pool" in row_kernels.refusal(problem("max_pool", images(2, 3)))
    assert "not complex64" in row_kernels.refusal(problem("softmax", images(2, 3).astype(np.complex64), axis=1))


def test_every_launch_covers_its_rows() -> None:
    lengths = (*range(1, 70), 127, 128, 129, 511, 512, 513, 1024, 4096, 8192, 8193, 16384, 16385, 32768, 32769, 200_000)
    for rows, n, inner, itemsize, two in itertools.product((1, 31, 1000, 1 << 40), lengths, (1, 5), (2, 4, 8), (False, True)):
        body, blocks, (x, y) = row_kernels.rows_launch(rows, n, inner, itemsize, two)
        assert 1 <= blocks <= row_kernels.MOST_BLOCKS and x * y <= 1024 and x * y % 32 == 0
        if inner > 1:
            assert x == 32 and y <= 16 and y & (y - 1) == 0 and blocks == min(-(-rows // 32), row_kernels.MOST_BLOCKS)
            continue
        kept = int(body.partition(", ")[2].rstrip(">"))
        assert (x % 32 == 0 and y == 1) or x in (1, 2, 4, 8, 16, 32)
        assert blocks == min(-(-rows // y), row_kernels.MOST_BLOCKS)
        if kept:
            assert kept <= row_kernels.CHUNKS[two] and x * kept * (16 // itemsize) >= n
        else:
            assert x == 1024 and n > 1024 * row_kernels.CHUNKS[two] * (16 // itemsize)


def test_blocks_share_a_channel_where_there_are_few_channels() -> None:
    for order, (shape, several) in itertools.product(
        ((0, 1, 2, 3), (0, 2, 3, 1)), (((64, 2, 64, 64), True), ((2, 4000, 64, 64), False), ((2, 2, 3, 3), False), ((64, 6000, 64, 64), False))
    ):
        # An array of these strides; none of its memory is touched.
        strides = np.cumprod([4, *(shape[axis] for axis in reversed(order[1:]))])[::-1]
        o = Operand("input", np.dtype(np.float32), shape, tuple(int(strides[order.index(axis)]) for axis in range(4)))
        where = row_kernels.geometry(NeuralProblem("batch_norm_train", (o,), (), "neural", result=shape))
        assert where is not None and where.outer * where.n * where.inner == prod(shape)
        (tiles, parts), (x, y), columns = row_kernels.batch_norm_launch(where, 4, 132)
        assert columns is (order[-1] == 1) and tiles == (-(-shape[1] // 32) if columns else shape[1])
        assert x * y <= 1024 and parts < 65536 and (not columns or y <= 16)
        if several or (columns and prod(shape) > 1 << 20 and tiles < 132):
            assert parts > 1 and tiles * parts <= 4 * 132
        else:
            assert parts == 1


def test_sources_name_each_operation_and_dtype() -> None:
    for op, dtype in itertools.product((op for op, name in row_kernels.OPERATIONS.items() if name), row_source.TYPES):
        text = row_kernels.source(op, dtype, "by_rows<{}, 4>")
        name = row_kernels.KEPT.get(op, row_kernels.OPERATIONS[op])
        assert f"typedef {row_source.TYPES[dtype][0]} T;" in text and f"by_rows<{name}, 4>(p)" in text
        for body in ("by_rows<{}, 0>", "by_columns<{}>"):
            assert f"{body.format(row_kernels.OPERATIONS[op])}(p)" in row_kernels.source(op, dtype, body)


def test_views_as_arrays_lie() -> None:
    rng = np.random.default_rng(int(os.environ.get("BACKLINE_TEST_SEED", "0")))
    for _ in range(50):
        shape = tuple(int(n) for n in rng.integers(1, 4, rng.integers(1, 6)))
        order = tuple(int(axis) for axis in rng.permutation(len(shape)))
        x = images(*shape, order=order)
        found = memory_order(x.shape, x.strides)
        assert is_dense(operand("x", x), found) and x.transpose(found).flags.c_contiguous
        again = new(np, x.shape, x.dtype, found)
        assert again.shape == x.shape and all(n == 1 or a == b for n, a, b in zip(shape, again.strides, x.strides, strict=True))
        if order_of(x) is not None:
            assert not x.flags.c_contiguous and seen(x, found).flags.c_contiguous
        small = np.arange(shape[-1], dtype=np.float32)
        np.testing.assert_array_equal(seen(x, found) + seen(small, found), (x + small).transpose(found))
    assert order_of(images(4, 6)[:, ::2]) is None and order_of(np.zeros(3)) is None


def test_a_kernel_walks_over_channels_last_as_they_lie(made: GpuMachine) -> None:
    rng = np.random.default_rng(0)
    last = rng.standard_normal((2, 5, 6, 3)).astype(np.float32).transpose(0, 3, 1, 2)
    for function in (F.gelu, F.relu):
        found = function(ndarray(last))
        np.testing.assert_allclose(found.host, function(last), rtol=1e-6)
        assert found.strides == last.strides
    x, w, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 4, 6, 6), (4, 1, 3, 3), (4,)))
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    residual = np.ones((2, 4, 4, 4), np.float32)
    for enabled in (True, False):
        with switches.scope({"cudnn.enabled": enabled, "prefer": ("cudnn",), "cudnn.allow_tf32": False}):
            found = F.conv2d(ndarray(x), ndarray(w), ndarray(bias), groups=4, activation="relu", residual=ndarray(residual))
            assert backline.explain().library == ("cudnn" if enabled else "cublas")
        np.testing.assert_allclose(found.host, F.conv2d(x, w, bias, groups=4, activation="relu", residual=residual), atol=1e-5)
        assert found.strides[1] == 4


def test_numbers_on_the_stand_in() -> None:
    rng = np.random.default_rng(int(os.environ.get("BACKLINE_TEST_SEED", "0")))
    for shape, axis in (((3, 70), 1), ((2, 9, 4), 1), ((2, 17_000), 1)):
        x = rng.standard_normal(shape).astype(np.float32)
        exact = np.exp(x.astype(np.float64))
        np.testing.assert_allclose(F.softmax(ndarray(x), axis).host, exact / exact.sum(axis, keepdims=True), rtol=1e-5)
        assert backline.explain().algorithm == "rows"


def test_a_kernel_that_does_not_compile_leaves_the_formula(made: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise ValueError("NVRTC says no")

    monkeypatch.setattr(made.cupy, "RawKernel", fails, raising=False)
    monkeypatch.setattr(row_kernels, "_kernels", {})
    x = np.ones((2, 11), np.float32)
    with switches.scope({"fallback": "warn"}), pytest.warns(RuntimeWarning, match="NVRTC says no"):
        np.testing.assert_allclose(F.softmax(ndarray(x), 1).host, 1 / 11, rtol=1e-6)
    assert backline.explain().algorithm == "formula"


def test_depthwise_float32_comes_before_cudnn_unless_it_is_preferred() -> None:
    x, w = ndarray(np.ones((1, 4, 6, 6), np.float32)), ndarray(np.ones((4, 1, 3, 3), np.float32))
    assert backline.explain(F.conv2d, x, w, groups=4).chosen.key == "cublas.depthwise@1"
    with backline.use("cudnn"):
        assert backline.explain(F.conv2d, x, w, groups=4).library == "cudnn"
    assert backline.explain(F.conv2d, x, ndarray(np.ones((8, 4, 3, 3), np.float32))).library == "cudnn"
    half = [ndarray(np.ones(shape, np.float16)) for shape in ((1, 4, 6, 6), (4, 1, 3, 3))]
    assert backline.explain(F.conv2d, *half, groups=4).library == "cudnn"


def test_cudnn_attention_leads_on_hopper_for_two_sizes_of_heads() -> None:
    def first(dim: int, **scope: Any) -> str:
        q = ndarray(np.ones((1, 2, 256, dim), np.float16))
        with switches.scope(scope):
            return str(backline.explain(F.scaled_dot_product_attention, q, q, q).library)

    assert (first(64), first(128)) == ("cudnn", "cudnn") and first(32) != "cudnn" != first(96)
    assert first(64, **{"cuda.cudnn_sdp": False}) != "cudnn" != first(64, sdp_priority=("flash_attention",))
    assert first(96, sdp_priority=("cudnn_attention",)) == "cudnn"
    assert all(LEADS not in a.traits for a in libraries.get("triton").algorithms(attention(64), 1) if isinstance(a, Algorithm))


def attention(dim: int) -> Any:
    from dataclasses import replace

    from backline.problems.attention_problem import attention_problem

    q = np.ones((1, 2, 256, dim), np.float16)
    return replace(attention_problem(q, q, q), device="cuda:0")


def test_what_leads_comes_after_what_somebody_registered() -> None:
    snapshot = switches.current()
    override, leading, other = (
        Algorithm(library="x", name="x", traits=traits) for traits in (("override",), ("cudnn_attention", LEADS), ("flash_attention",))
    )
    places = [policy.priority(a, snapshot) for a in (override, leading, other)]
    assert places == sorted(places) and len(set(places)) == 3
    assert policy.priority(Algorithm(library="x", name="x", traits=(LEADS,)), snapshot) == 0
