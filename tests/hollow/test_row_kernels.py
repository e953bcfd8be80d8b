"""Softmax and normalisation as one kernel each: numbers against float64, bits for every alignment, and launches.

NVRTC compiles each kernel for an H100; the numbers are of the same source, compiled by g++, with threads that wait for each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.libraries.base import Algorithm
from backline.libraries.cuda.cupy import row_kernels
from backline.nn import functional as F
from backline.nn import grad as G
from backline.problems.op_registry import operations
from gpu.arrays import dtype_of
from hollow.nearness import DTYPES, drawn, near, wide

pytestmark = pytest.mark.cupy
LENGTHS = (1, 2, 3, 5, 17, 33, 127, 129, 520, 1000, 4099, 16388)
LONG = (70_001, 200_000)
Array = Any


def by_rows(call: Callable[[], Any]) -> Any:
    found = call()
    assert backline.explain().algorithm == "rows", backline.explain()
    return found


def softmax(x: Array, axis: int, log: bool = False) -> Array:
    with np.errstate(all="ignore"):
        moved = wide(x) - wide(x).max(axis, keepdims=True)
        total = np.exp(moved).sum(axis, keepdims=True)
        return moved - np.log(total) if log else np.exp(moved) / total


def layer_norm(x: Array, eps: float) -> Array:
    x = wide(x)
    with np.errstate(all="ignore"):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def terms(n: int) -> int:
    """Of the longest sum that one thread takes of a row, and of those that are combined."""
    return -(-n // 32) if n <= 4096 else n // 1024 + 40


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_length(here: Any, dtype: str) -> None:
    for n in LENGTHS[::2] if dtype != "float32" else (*LENGTHS, *LONG):
        rows = 3 if n > 1000 else 37
        x = drawn(rows, n, dtype=dtype, scale=3)
        there, t = here.xp.asarray(x), terms(n)
        size = 1 + np.abs(wide(x) - wide(x).max(1, keepdims=True))
        near(by_rows(lambda there=there: F.softmax(there, 1)), softmax(x, 1), dtype, t, softmax(x, 1) * size)
        near(by_rows(lambda there=there: F.log_softmax(there, 1)), softmax(x, 1, True), dtype, t, size)
        w, b = drawn(n, dtype=dtype), drawn(n, dtype=dtype, mean=1)
        normal = layer_norm(x, 0.01)
        near(by_rows(lambda there=there, n=n: F.layer_norm(there, n, eps=0.01)), normal, dtype, t, 1 + np.abs(normal))
        scaled = by_rows(lambda there=there, n=n, w=w, b=b: F.layer_norm(there, n, here.xp.asarray(w), here.xp.asarray(b), 0.01))
        near(scaled, normal * wide(w) + wide(b), dtype, t, (1 + np.abs(normal)) * np.abs(wide(w)) + np.abs(wide(b)))
        root = np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + 0.01)
        found = by_rows(lambda there=there, n=n, w=w: F.rms_norm(there, n, here.xp.asarray(w), eps=0.01))
        near(found, wide(x) / root * wide(w), dtype, t)


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns(here: Any, dtype: str) -> None:
    for shape, axis in (((2, 3, 5), 1), ((4, 70, 33), 1), ((300, 7), 0), ((2, 1, 9), 1), ((2, 2000, 3), 1)):
        x, g = drawn(*shape, dtype=dtype, scale=2), drawn(*shape, dtype=dtype, mean=1)
        there, t = here.xp.asarray(x), terms(shape[axis]) + 8
        want = softmax(x, axis)
        size = 1 + np.abs(wide(x) - wide(x).max(axis, keepdims=True))
        near(by_rows(lambda there=there, axis=axis: F.softmax(there, axis)), want, dtype, t, want * size)
        near(by_rows(lambda there=there, axis=axis: F.log_softmax(there, axis)), softmax(x, axis, True), dtype, t, size)
        y = want.astype(x.dtype)
        for log, function in ((False, G.softmax_input), (True, G.log_softmax_input)):
            y = softmax(x, axis, log).astype(x.dtype)
            found = by_rows(lambda y=y, g=g, axis=axis, function=function: function(here.xp.asarray(y), here.xp.asarray(g), axis))
            sums = (wide(g) if log else wide(y) * wide(g)).sum(axis, keepdims=True)
            most = (np.abs(wide(g)) if log else np.abs(wide(y) * wide(g))).sum(axis, keepdims=True)
            with np.errstate(over="ignore"):
                wanted = wide(g) - np.exp(wide(y)) * sums if log else wide(y) * (wide(g) - sums)
                near(found, wanted, dtype, t, np.abs(wide(g)) + np.exp(wide(y)) * most if log else wide(y) * (np.abs(wide(g)) + most))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_rows(here: Any, dtype: str) -> None:
    for n in (1, 5, 33, 300, 5000, 20_000):
        x, g = drawn(5, n, dtype=dtype), drawn(5, n, dtype=dtype, mean=1)
        for log, function in ((False, G.softmax_input), (True, G.log_softmax_input)):
            y = softmax(x, 1, log).astype(x.dtype)
            found = by_rows(lambda y=y, g=g, function=function: function(here.xp.asarray(y), here.xp.asarray(g), 1))
            sums = (wide(g) if log else wide(y) * wide(g)).sum(1, keepdims=True)
            most = (np.abs(wide(g)) if log else np.abs(wide(y) * wide(g))).sum(1, keepdims=True)
            wanted = wide(g) - np.exp(wide(y)) * sums if log else wide(y) * (wide(g) - sums)
            near(found, wanted, dtype, terms(n), np.abs(wide(g)) + np.exp(wide(y)) * most if log else wide(y) * (np.abs(wide(g)) + most))


@pytest.mark.parametrize("n", [4, 40, 6000, 40_000])
def test_nasty_rows_are_as_on_the_host(here: Any, n: int) -> None:
    rows = np.zeros((8, n), np.float32)
    rows[0, :2] = 1.0, np.inf
    rows[1, n // 2] = np.nan
    rows[2, 1:] = -np.inf
    rows[3] = -np.inf
    rows[4, :2] = 3e38, -3e38
    rows[5, -1] = np.inf
    rows[6, 0], rows[6, -1] = np.inf, -np.inf
    rows[7] = 1e-40  # subnormal
    there = here.xp.asarray(rows)
    for op in (lambda x: F.softmax(x, 1), lambda x: F.log_softmax(x, 1), lambda x: F.softmax(x.T, 0)):
        np.testing.assert_allclose(by_rows(lambda op=op: op(there)).get(), op(rows), rtol=1e-5, atol=1e-30)
    fits = rows[[0, 1, 2, 3, 5, 6, 7]]  # whose squares float32 has
    for op in (lambda x: F.layer_norm(x, n), lambda x: F.rms_norm(x, n), lambda x: F.layer_norm(x, n, eps=0.0)):
        np.testing.assert_allclose(by_rows(lambda op=op: op(here.xp.asarray(fits))).get(), op(fits), rtol=1e-5, atol=1e-30)


def test_a_large_mean_and_a_small_deviation(here: Any) -> None:
    for n, first in itertools.product((7, 100, 5000, 20_000), (1e4, 0.0, -1e6)):
        x = drawn(3, n, dtype="float32", scale=0.5, mean=1e4)
        x[:, 0] = first  # an outlier where every other element is compared with it
        normal = layer_norm(x, 1e-5)
        # The first element is subtracted exactly; what the mean loses is of its distance from it.
        away = np.abs(wide(x).mean(1, keepdims=True) - first) / wide(x).std(1, keepdims=True)
        near(by_rows(lambda x=x, n=n: F.layer_norm(here.xp.asarray(x), n)), normal, "float32", terms(n), 1 + np.abs(normal) + away)
        y, mean, variance = batch_norm(here, x.T.copy())
        near(y, normal.T, "float32", terms(n), (1 + np.abs(normal) + away).T)
        np.testing.assert_allclose(mean.get(), wide(x).mean(1), rtol=1e-6, atol=2.0**-22 * abs(first))
        np.testing.assert_allclose(variance.get(), wide(x).var(1), rtol=1e-5 * (1 + float(away.max()) / 10))


def plans(here: Any, name: str, *arrays: Array, **more: Any) -> dict[str, Any]:
    """The Plans of every algorithm that CuPy has for a call, by their names; each is a function of the arrays."""
    problem = operations[name].build(*arrays, **more)
    library = libraries.get("cupy")
    return {a.name: library.prepare(problem, a) for a in library.algorithms(problem, 1) if isinstance(a, Algorithm)}


def batch_norm(here: Any, x: Array, **more: Any) -> tuple[Array, Array, Array]:
    from backline.ops.normalization import _training

    found: tuple[Array, Array, Array] = by_rows(lambda: _training(here.xp.asarray(x), **more))
    return found


SHAPES = ((5, 3), (300, 40), (4, 3, 7), (3, 5, 8, 8), (2, 70, 5, 1), (6, 1, 4, 4), (2, 2, 64, 130), (70_000, 3))


def channels_last(xp: Any, x: Array) -> Array:
    """The same numbers with channels last in memory."""
    order = (0, *range(2, x.ndim), 1)
    return xp.asarray(np.ascontiguousarray(x.transpose(order))).transpose((0, x.ndim - 1, *range(1, x.ndim - 1)))


def steps(x: Array) -> list[int]:
    """Strides, but of axes of size 1, which may have any."""
    return [step for n, step in zip(x.shape, x.strides, strict=True) if n != 1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_norm(here: Any, dtype: str) -> None:
    from backline.ops.normalization import _training

    xp, held = here.xp, "float64" if dtype == "float64" else "float32"
    for shape, last in itertools.product(SHAPES, (False, True)):
        x, g = drawn(*shape, dtype=dtype, mean=2), drawn(*shape, dtype=dtype, scale=2)
        c, axes, along = shape[1], (0, *range(2, len(shape))), (1, -1) + (1,) * (len(shape) - 2)
        w, b = drawn(c, dtype=held), drawn(c, dtype=dtype, mean=1)
        each = x.size // c
        t = terms(each) + 40
        there, slope = ((channels_last(xp, a) if last else xp.asarray(a)) for a in (x, g))
        mean, variance = wide(x).mean(axes), wide(x).var(axes)
        normal = (wide(x) - mean.reshape(along)) / np.sqrt(variance + 0.1).reshape(along)
        wanted = normal * wide(w).reshape(along) + wide(b).reshape(along)
        y, *found = by_rows(lambda there=there, w=w, b=b: _training(there, xp.asarray(w), xp.asarray(b), 0.1))
        size = (1 + np.abs(normal)) * np.abs(wide(w)).reshape(along) + np.abs(wide(b)).reshape(along)
        near(y, wanted, dtype, t, size)
        assert steps(y) == steps(there)
        for got, want in zip(found, (mean, variance), strict=True):
            near(got, want, held, t, 5.0)
        given = [xp.asarray(v.astype(dtype_of(held))) for v in (mean, variance)]
        inferred = by_rows(lambda there=there, w=w, b=b, given=given: F.batch_norm(there, *given, xp.asarray(w), xp.asarray(b), eps=0.1))
        near(inferred, wanted, dtype, 40, size)
        assert steps(inferred) == steps(there)
        moved, by_weight, by_bias = by_rows(lambda there=there, slope=slope, w=w: G.batch_norm_backward(there, slope, xp.asarray(w), 0.1))
        sums, dots = wide(g).sum(axes), (wide(g) * normal).sum(axes)
        most = np.abs(wide(g)).sum(axes), (np.abs(wide(g)) * (1 + np.abs(normal))).sum(axes)
        near(by_weight, dots, dtype, t, most[1])
        near(by_bias, sums, dtype, t, most[0])
        scale = (wide(w) / np.sqrt(variance + 0.1)).reshape(along)
        exact = scale * (wide(g) - (sums / each).reshape(along) - normal * (dots / each).reshape(along))
        size = np.abs(scale) * (np.abs(wide(g)) + (most[0] / each).reshape(along) + (1 + np.abs(normal)) * (most[1] / each).reshape(along))
        near(moved, exact, dtype, t, size)
        assert steps(moved) == steps(there)


def test_infinities_in_a_channel_are_as_on_the_host(here: Any) -> None:
    x = np.ones((6, 4, 5), np.float32)
    x[0, 0, 0], x[3, 1, 2], x[2, 2, 2], x[5, 2, 2], x[1, 3, 1] = np.inf, -np.inf, np.inf, -np.inf, np.nan
    from backline.ops.normalization import _training

    for got, want in zip(batch_norm(here, x), _training(x), strict=True):
        np.testing.assert_array_equal(got.get(), want)


def test_the_same_bits_for_every_alignment_and_layout(here: Any) -> None:
    xp = here.xp
    for dtype, n in itertools.product(("float32", "bfloat16"), (12, 513, 4096, 40_000)):
        x = drawn(3, n, dtype=dtype)
        plain = xp.asarray(x)
        room = xp.zeros(x.size + 8, x.dtype)
        for op in (lambda a: F.softmax(a, -1), lambda a, n=n: F.layer_norm(a, n), lambda a, n=n: F.rms_norm(a, n)):
            wanted = by_rows(lambda op=op, plain=plain: op(plain)).get().tobytes()
            for begin in (1, 3, 4):
                moved = room[begin : begin + x.size].reshape(x.shape)
                moved[...] = plain
                assert by_rows(lambda op=op, moved=moved: op(moved)).get().tobytes() == wanted
            gaps, back = xp.zeros((3, 2 * n), x.dtype), xp.asarray(np.ascontiguousarray(x[::-1, ::-1]))
            gaps[:, ::2] = plain
            for view in (gaps[:, ::2], back[::-1, ::-1], xp.asarray(np.ascontiguousarray(x.T)).T):
                np.testing.assert_allclose(wide(op(view).get()), wide(op(plain).get()), rtol=0.02, atol=1e-5)


def test_more_rows_than_blocks(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, columns = drawn(70_000, 3, dtype="float32"), drawn(3, 2, 4000, dtype="float32")
    whole = F.softmax(here.xp.asarray(x), 1).get(), F.softmax(here.xp.asarray(columns), 1).get()
    np.testing.assert_allclose(whole[0], softmax(x, 1), rtol=1e-5)
    monkeypatch.setattr(row_kernels, "MOST_BLOCKS", 3)  # each block takes many rows
    for given, axis, wanted in ((x, 1, whole[0]), (columns, 1, whole[1])):
        found = plans(here, "nn.functional.softmax", here.xp.asarray(given), axis)["rows"](here.xp.asarray(given))
        assert found.get().tobytes() == wanted.tobytes()
    for n in (3, 5000):
        x = drawn(10, n, dtype="float32")
        found = plans(here, "nn.functional.layer_norm", here.xp.asarray(x), n)["rows"](here.xp.asarray(x))
        near(found, layer_norm(x, 1e-5), "float32", terms(n), 1 + np.abs(layer_norm(x, 1e-5)))


def test_places_beyond_32_bits_compile(here: Any) -> None:
    facts = {"COLUMNS": "0", "VECTOR": "0", "INDEX": "unsigned long long"}
    for name in ("batch_norm_train", "batch_norm_grad"):
        row_kernels.compiled(row_kernels.source("batch_norm_train", "float32", **facts), name)


def test_what_lies_together_in_no_order_is_refused(here: Any) -> None:
    x = here.xp.asarray(drawn(4, 5, 6, dtype="float32")).transpose(2, 1, 0)
    found = F.layer_norm(x, (5, 4))
    choice = backline.explain()
    assert choice.algorithm == "formula" and "do not lie together in memory" in str(choice)
    np.testing.assert_allclose(found.get(), F.layer_norm(x.get(), (5, 4)), atol=1e-5)


CALLS: dict[str, tuple[str, tuple[Any, ...], int]] = {
    "softmax": ("nn.functional.softmax", ("x", 1), 1), "log_softmax": ("nn.functional.log_softmax", ("x", 1), 1),
    "softmax_input": ("nn.grad.softmax_input", ("x", "x", 1), 1), "layer_norm": ("nn.functional.layer_norm", ("x", 32, "w", "w"), 1),
    "rms_norm": ("nn.functional.rms_norm", ("x", 32, "w"), 1),
    "batch_norm": ("nn.functional.batch_norm", ("x", "w", "w", "w", "w"), 1),
    "batch_norm, training": ("nn.functional.batch_norm", ("x", None, None, "w", "w", True), 1),
    "batch_norm_backward": ("nn.grad.batch_norm_gradients", ("x", "x", "w"), 1),
    "layer_norm_backward": ("nn.grad.layer_norm_gradients", ("x", "x", 32, "w"), 2),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_launches(here: Any, name: str, dtype: str, record_property: Any) -> None:
    operation, given, wanted = CALLS[name]
    known = {"x": here.xp.asarray(drawn(40, 32, dtype=dtype)), "w": here.xp.asarray(np.abs(drawn(32, dtype=dtype)))}
    arguments = [known.get(v, v) if isinstance(v, str) else v for v in given]
    arrays = [a for a in arguments if hasattr(a, "strides")]
    counts = {}
    for algorithm, plan in plans(here, operation, *arguments).items():
        plan(*arrays)
        before = here.device.hollow_launches()
        plan(*arrays)
        counts[algorithm] = here.device.hollow_launches() - before
    record_property("launches", counts)
    print(f"{name} {dtype}: {counts}")
    assert counts["rows"] == wanted and counts["formula"] >= 3


def test_a_channel_of_many_blocks_takes_few_launches(here: Any) -> None:
    x = here.xp.asarray(drawn(64, 2, 32, 32, dtype="float32"))
    for operation, arrays, wanted in (("nn.functional.batch_norm", (x, None, None, None, None, True), 2), ("nn.grad.batch_norm_gradients", (x, x), 3)):
        plan = plans(here, operation, *arrays)["rows"]
        given = [a for a in arrays if a is x]
        before = here.device.hollow_launches()
        plan(*given)
        assert here.device.hollow_launches() - before == wanted
