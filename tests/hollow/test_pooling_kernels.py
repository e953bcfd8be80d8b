"""Pooling and its gradients as one kernel each: numbers against NumPy, places of maxima, every layout, launches.

NVRTC compiles each kernel for an H100; the numbers are of the same source, compiled by g++.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.libraries.base import Algorithm
from backline.libraries.cuda.cupy import pooling_kernels
from backline.nn import functional as F
from backline.nn import grad as G
from backline.problems.op_registry import operations
from gpu.arrays import dtype_of
from hollow.nearness import DTYPES, drawn, generator, near, wide

pytestmark = pytest.mark.cupy
Array = Any
INTEGERS = ("int8", "uint16", "int32", "uint64")
# Shape of the images, kernel, stride, padding, dilation, ceil_mode.
MAXIMA: list[tuple[Any, ...]] = [
    ((2, 3, 11), 3, 2, 1, 1, False), ((3, 9), 2, 1, 0, 3, False), ((2, 3, 6, 5), 3, 2, 1, 1, True), ((4, 7, 6), (3, 2), (1, 3), (1, 0), 2, False),
    ((2, 3, 8, 9), 2, None, 0, 1, False), ((1, 2, 3, 4, 5), (2, 1, 3), 1, (0, 0, 1), 1, False), ((2, 5, 6, 4), (2, 2, 1), 3, (1, 1, 0), (1, 2, 1), True),
    ((2, 1, 1, 1), 3, 1, 1, 1, False), ((1, 4, 1, 6), 2, 1, 1, 1, False), ((2, 40, 3, 3), 1, 1, 0, 1, False), ((1, 1, 1), 2, 1, 1, 2, False),
    ((2, 2, 13, 12), 6, 1, 3, 1, False),
]  # fmt: skip
# Shape of the images, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override.
MEANS: list[tuple[Any, ...]] = [
    ((2, 3, 11), 3, 2, 1, False, True, None), ((3, 9), 2, 1, 1, True, False, None), ((2, 3, 6, 5), 3, 2, 1, True, False, None),
    ((2, 3, 6, 5), 3, 2, 1, True, True, None), ((4, 7, 6), (3, 2), (1, 3), (1, 0), False, True, -3), ((2, 3, 9, 8), 8, 1, 4, False, False, None),
    ((2, 5, 6, 4), (2, 2, 1), 3, (1, 1, 0), True, True, 7), ((1, 2, 3, 4, 5), (3, 3, 4), 1, 1, False, False, None), ((2, 40, 7, 7), 7, None, 0, False, True, None),
]  # fmt: skip
SPREAD: list[tuple[Any, ...]] = [
    ((2, 3, 11), 4), ((3, 5), 8), ((2, 3, 6, 5), (4, 3)), ((2, 33, 7, 7), 1), ((3, 7, 9), (None, 2)), ((1, 2, 3, 40, 70), (2, 1, 3)), ((1, 1, 90, 100), 1),
]  # fmt: skip


def layouts(x: Array) -> Iterator[tuple[str, Array]]:
    """The same numbers, with other strides."""
    yield "in order", x
    yield "axes backwards", np.asfortranarray(x)
    if x.ndim > 3:
        order = (0, *range(2, x.ndim), 1)
        yield "channels last", np.ascontiguousarray(x.transpose(order)).transpose((0, x.ndim - 1, *range(1, x.ndim - 1)))
    yield "read backwards", np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]
    gaps = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    gaps[..., ::2] = x
    yield "gaps", gaps[..., ::2]


def put(here: Any, x: Array) -> Array:
    """A copy on the device, of the same strides."""
    order = np.argsort([-abs(s) for s in x.strides], kind="stable")
    signs = tuple(slice(None, None, -1 if s < 0 else 1) for s in x.strides)
    base = here.xp.asarray(np.ascontiguousarray(x[signs].transpose(order))).transpose(np.argsort(order))[signs]
    return base


def on_host(function: Callable[..., Any], *args: Any) -> Any:
    with switches.scope({"only": ("numpy",)}):
        return function(*args)


def exact(function: Callable[..., Any], *args: Any) -> Any:
    """In float64."""
    return on_host(function, *(wide(a) if isinstance(a, np.ndarray) else a for a in args))


def one_kernel(here: Any, function: Callable[..., Any], *args: Any) -> Any:
    given = [put(here, a) if isinstance(a, np.ndarray) else a for a in args]
    function(*given)
    before = here.device.hollow_launches()
    found = function(*given)
    assert backline.explain().algorithm == "windows", backline.explain()
    assert here.device.hollow_launches() - before == 1
    return found


def tied(shape: tuple[int, ...], dtype: str) -> Array:
    """Few different numbers, so that windows have several maxima; NaN and infinities where the dtype has them."""
    rng = generator(*shape)
    x = rng.integers(0, 5, shape).astype(dtype_of(dtype))
    if dtype in DTYPES:
        flat = x.reshape(-1)
        for value in (np.nan, -np.inf, np.inf, -0.0):
            flat[rng.integers(0, x.size, max(x.size // 12, 1))] = value
    return x


def ranked(cases: list[tuple[Any, ...]]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The dimensions of the images of each case: kernels tell those without a batch."""
    for shape, *rest in cases:
        longest = max((len(v) for v in rest if isinstance(v, tuple)), default=0)
        yield longest or (1 if len(shape) < 4 else len(shape) - 2), (shape, *rest)


@pytest.mark.parametrize("dtype", DTYPES)
def test_maxima(here: Any, dtype: str) -> None:
    for rank, (shape, *rest) in ranked(MAXIMA):
        for name, x in layouts(tied(shape, dtype)):
            pool, grad = getattr(F, f"max_pool{rank}d"), getattr(G, f"max_pool{rank}d_input")
            wanted, places = on_host(pool, x, *rest, True)
            found = one_kernel(here, pool, x, *rest)
            assert found.get().tobytes() == wanted.tobytes() or np.array_equal(wide(found.get()), wide(wanted), equal_nan=True), (name, shape)
            assert shape.count(1) or found.strides == wanted.strides, (name, shape)
            again, at = one_kernel(here, pool, x, *rest, True)
            assert np.array_equal(wide(again.get()), wide(wanted), equal_nan=True) and at.dtype == np.int64
            assert np.array_equal(at.get(), places), (name, shape)
            g = drawn(*wanted.shape, dtype=dtype)
            moved = one_kernel(here, grad, x, g, *rest)
            near(moved, exact(grad, x, g, *rest), dtype, 40, exact(grad, x, np.abs(g), *rest))
            assert moved.shape == x.shape


def test_maxima_of_integers(here: Any) -> None:
    for dtype in INTEGERS:
        info = np.iinfo(dtype)
        x = generator(3).integers(info.min, info.max, (2, 3, 7, 6), dtype, endpoint=True)
        x[0, 0, :3, :3] = info.min
        wanted, places = on_host(F.max_pool2d, x, 3, 2, 1, 1, False, True)
        found, at = one_kernel(here, F.max_pool2d, x, 3, 2, 1, 1, False, True)
        assert found.dtype == x.dtype and np.array_equal(found.get(), wanted) and np.array_equal(at.get(), places)
        assert np.array_equal(one_kernel(here, F.max_pool2d, x, 3, 2, 1).get(), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_means(here: Any, dtype: str) -> None:
    for rank, (shape, *rest) in ranked(MEANS):
        more = rest if rank > 1 else rest[:-1]
        pool, grad = getattr(F, f"avg_pool{rank}d"), getattr(G, f"avg_pool{rank}d_input")
        check(here, dtype, pool, grad, shape, more)


@pytest.mark.parametrize("dtype", DTYPES)
def test_means_of_windows_that_are_spread(here: Any, dtype: str) -> None:
    for rank, (shape, *rest) in ranked(SPREAD):
        check(here, dtype, getattr(F, f"adaptive_avg_pool{rank}d"), getattr(G, f"adaptive_avg_pool{rank}d_input"), shape, rest)


def check(here: Any, dtype: str, pool: Any, grad: Any, shape: tuple[int, ...], more: Any) -> None:
    x = drawn(*shape, dtype=dtype, mean=0.5)
    wanted, size = exact(pool, x, *more), np.abs(exact(pool, np.abs(x), *more))
    g = drawn(*wanted.shape, dtype=dtype)
    moved, most = exact(grad, shape, g, *more), np.abs(exact(grad, shape, np.abs(g), *more))
    for (_, given), (_, slope) in zip(layouts(x), layouts(g), strict=True):
        near(one_kernel(here, pool, given, *more), wanted, dtype, 100, size)
        near(one_kernel(here, grad, shape, slope, *more), moved, dtype, 100, most)


def test_nan_and_infinities_in_means(here: Any) -> None:
    for shape in ((2, 2, 9, 8), (1, 33, 9, 8)):
        x = tied(shape, "float32")
        for function, *more in ((F.avg_pool2d, 3, 2, 1), (F.avg_pool2d, 8, 1, 2), (F.adaptive_avg_pool2d, (3, 5)), (F.adaptive_avg_pool2d, 1)):
            for _, given in layouts(x):
                np.testing.assert_allclose(one_kernel(here, function, given, *more).get(), on_host(function, given, *more), rtol=1e-5)
        g = tied((*shape[:2], 5, 4), "float32")
        found = one_kernel(here, G.avg_pool2d_input, shape, g, 3, 2, 1).get()
        np.testing.assert_allclose(found, on_host(G.avg_pool2d_input, shape, g, 3, 2, 1), rtol=1e-5)


def test_repeated_and_empty_images(here: Any) -> None:
    one = drawn(1, 4, 6, 5, dtype="float32")
    repeated = here.xp.broadcast_to(here.xp.asarray(one), (3, 4, 6, 5))
    for function, *more in ((F.max_pool2d, 3, 2, 1), (F.avg_pool2d, 3, 2, 1), (F.adaptive_avg_pool2d, 4)):
        found = function(repeated, *more)
        assert backline.explain().algorithm == "windows" and found.flags.c_contiguous
        np.testing.assert_allclose(found.get(), on_host(function, np.broadcast_to(one, (3, 4, 6, 5)), *more), rtol=1e-5)
    for shape in ((0, 4, 6, 5), (2, 0, 6, 5)):
        x = here.xp.zeros(shape, np.float32)
        values, places = F.max_pool2d(x, 2, return_indices=True)
        assert values.shape == places.shape == (*shape[:2], 3, 2) and (values.dtype, places.dtype) == (np.float32, np.int64)
        assert F.avg_pool2d(x, 2).shape == values.shape and G.max_pool2d_input(x, values, 2).shape == shape


def test_the_same_numbers_with_long_places_and_few_blocks(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(2, 6, 9, 8, dtype="float16")
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("nn.functional.max_pool2d", (x, 3, 2, 1, 1, False, True)), ("nn.functional.avg_pool2d", (x, 3, 1, 1)), ("nn.functional.avg_pool2d", (x, 8, 1)),
        ("nn.functional.adaptive_avg_pool2d", (x, (4, 3))), ("nn.grad.max_pool2d_input", (x, x[..., :4, :3], 3, 2)),
        ("nn.grad.avg_pool2d_input", (x.shape, x[..., :4, :3], 3, 2)),
    ]  # fmt: skip
    for last in (False, True):
        for name, args in calls:
            given = [put(here, dict(layouts(a))["channels last" if last else "in order"]) if isinstance(a, np.ndarray) else a for a in args]
            arrays = [a for a in given if hasattr(a, "strides")]

            def bits(name: str = name, given: Any = given, arrays: Any = arrays) -> list[bytes]:
                made = plans(name, *given)["windows"](*arrays)
                return [part.get().tobytes() for part in (made if isinstance(made, tuple) else (made,))]

            wanted = bits()
            with monkeypatch.context() as patched:
                patched.setattr(pooling_kernels, "SHORT", 1)
                assert bits() == wanted
                patched.setattr(pooling_kernels, "MOST_BLOCKS", 1)
                assert bits() == wanted


def plans(name: str, *args: Any) -> dict[str, Any]:
    """The Plans of every algorithm that CuPy has for a call, by their names."""
    problem, library = operations[name].build(*args), libraries.get("cupy")
    return {a.name: library.prepare(problem, a) for a in library.algorithms(problem, 1) if isinstance(a, Algorithm)}


def test_misaligned_images(here: Any) -> None:
    room = here.xp.zeros(2 * 3 * 6 * 5 * 4 + 4, np.uint8)
    moved = room[1:-3].view(np.float32).reshape(2, 3, 6, 5)
    x = drawn(2, 3, 6, 5, dtype="float32")
    moved[...] = here.xp.asarray(x)
    assert moved.data.ptr % 4
    assert np.array_equal(F.max_pool2d(moved, 3, 2, 1).get(), on_host(F.max_pool2d, x, 3, 2, 1))


LAUNCHES = {
    "max_pool2d": ("nn.functional.max_pool2d", ("x", 3, 2, 1)), "max_pool2d_input": ("nn.grad.max_pool2d_input", ("x", "y", 3, 2, 1)),
    "avg_pool2d": ("nn.functional.avg_pool2d", ("x", 3, 2, 1)), "avg_pool2d_input": ("nn.grad.avg_pool2d_input", ((4, 8, 16, 16), "y", 3, 2, 1)),
    "adaptive_avg_pool2d": ("nn.functional.adaptive_avg_pool2d", ("x", (5, 6))),
    "adaptive_avg_pool2d_input": ("nn.grad.adaptive_avg_pool2d_input", ((4, 8, 19, 17), "y", 8)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", LAUNCHES)
def test_launches(here: Any, name: str, dtype: str, record_property: Any) -> None:
    operation, given = LAUNCHES[name]
    known = {"x": here.xp.asarray(drawn(4, 8, 16, 16, dtype=dtype)), "y": here.xp.asarray(drawn(4, 8, 8, 8, dtype=dtype))}
    arguments = [known.get(v, v) if isinstance(v, str) else v for v in given]
    arrays, counts = [a for a in arguments if hasattr(a, "strides")], {}
    for algorithm, plan in plans(operation, *arguments).items():
        plan(*arrays)
        before = here.device.hollow_launches()
        plan(*arrays)
        counts[algorithm] = here.device.hollow_launches() - before
    record_property("launches", counts)
    print(f"{name} {dtype}: {counts}")
    assert counts["windows"] == 1 and counts["formula"] > 4


def test_shapes_of_one_layout_share_a_kernel(here: Any) -> None:
    from backline.libraries.cuda.cupy import row_kernels

    F.max_pool2d(put(here, drawn(2, 3, 6, 5, dtype="float64")), 2)
    before = len(row_kernels._kernels)
    for shape in ((4, 9, 8, 7), (1, 2, 30, 1), (5, 4, 4)):
        F.max_pool2d(put(here, drawn(*shape, dtype="float64")), 2, 1, 1)
    F.max_pool3d(put(here, drawn(2, 3, 4, 5, 6, dtype="float64")), 2)
    assert len(row_kernels._kernels) == before
