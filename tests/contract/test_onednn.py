"""oneDNN's results: every operation it is asked for, each of its algorithms, dtype and layout, against float64.

The references here are written for these tests: sums over the places of a kernel, formulas of the standard library.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import backline
from backline import libraries, switches
from backline.errors import OutOfMemory
from backline.libraries import errata
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.onednn import abi
from backline.nn import functional as F
from backline.nn import grad as G
from support import (
    BFLOAT16,
    LAYOUTS,
    arrays_in,
    assert_close,
    clean,
    dtype_of,
    need,
    problem_of,
    python,
    random_array,
    rng,
    roundoff,
    seed,
    wide,
)  # fmt: skip

assert F and G and clean and rng and seed  # operations are known once imported; fixtures: imported to be found by pytest
Array = Any
THREADS = 2
FN, GRAD = "nn.functional.", "nn.grad."
pytestmark = pytest.mark.usefixtures("clean")
U = 2.0**-24


@pytest.fixture(scope="module", autouse=True)
def library() -> Any:
    return need("onednn")


def ways(op: str, *args: Any, threads: int = THREADS, **kwargs: Any) -> Iterator[tuple[Algorithm, Any, list[Array]]]:
    """Every algorithm for a call that no erratum refuses, its plan, and the arrays that it takes."""
    problem, lib = problem_of(op, *args, **kwargs), libraries.get("onednn")
    for found in lib.algorithms(problem, threads):
        if isinstance(found, Algorithm) and not errata.refusal(lib, problem, found):
            yield found, lib.prepare(problem, found), arrays_in(args, kwargs)


def reasons(op: str, *args: Any, **kwargs: Any) -> str:
    found = libraries.get("onednn").algorithms(problem_of(op, *args, **kwargs), THREADS)
    return "; ".join(f.reason for f in found if isinstance(f, Refusal))


def lacks(dtype: str, reason: str) -> bool:
    """Tells whether a dtype is refused for want of a kernel, which oneDNN has for bfloat16 on processors with AVX-512 only."""
    return dtype == "bfloat16" and not libraries.get("onednn").traits.engine.bf16 and "no implementation" in reason


def precision_of(way: Algorithm, dtype: np.dtype[Any]) -> float:
    """Relative error of a product of two operands: each rounded once where the arithmetic is bfloat16."""
    return 2 * 2.0**-8 + 2.0**-16 if way.precision == "bf16" else 0.0


def bound_of(way: Algorithm, terms: int, size: Array, exact: Array, dtype: np.dtype[Any]) -> Array:
    """Componentwise: the sum of `terms` products of absolute sum `size`, then one rounding into a half."""
    n = terms + 8
    bound = 1.01 * (n * U / (1 - n * U) + precision_of(way, dtype)) * size + 1e-37
    if dtype == BFLOAT16:
        bound = bound + roundoff(dtype) * 1.01 * (np.abs(exact) + bound)
    return bound


def last(x: Array) -> Array:
    """A copy with channels last in memory."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)).transpose(0, x.ndim - 1, *range(1, x.ndim - 1))


IMAGES: dict[str, Callable[[Array], Array]] = {
    "first": lambda x: x.copy(), "last": last,
    **{name: LAYOUTS[name] for name in ("steps", "negative columns", "misaligned", "batch last")},
}  # fmt: skip


# Products -------------------------------------------------------------------------------------------------------------------

SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "one": ((1, 1), (1, 1)),
    "tiny": ((2, 3), (3, 4)),
    "kernel edges": ((17, 65), (65, 31)),
    "inner product": ((1, 100), (100, 1)),
    "outer product": ((37, 1), (1, 29)),
    "row": ((1, 40), (40, 50)),
    "column": ((40, 50), (50, 1)),
    "batch": ((5, 6, 7), (5, 7, 8)),
    "broadcast batch": ((2, 1, 6, 7), (3, 7, 5)),
    "shared right": ((4, 9, 8), (8, 7)),
    "batch of rows": ((3, 1, 20), (3, 20, 30)),
    "threaded": ((128, 96), (96, 112)),
    "threaded batch": ((9, 48, 40), (9, 40, 44)),
    "long": ((3, 5000), (5000, 9)),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", SHAPES)
def test_products(case: str, dtype: str, rng: np.random.Generator) -> None:
    a, b = (random_array(rng, shape, dtype_of(dtype)) for shape in SHAPES[case])
    exact, size = np.matmul(wide(a), wide(b)), np.matmul(np.abs(wide(a)), np.abs(wide(b)))
    names = list(LAYOUTS)
    for left, right in {(n, n) for n in names} | {tuple(rng.choice(names, 2)) for _ in range(6)}:
        x, y = LAYOUTS[left](a), LAYOUTS[right](b)
        out = LAYOUTS[str(rng.choice(names))](np.full(exact.shape, np.nan, a.dtype))
        for way, plan, arrays in ways("matmul", x, y):
            bound = bound_of(way, a.shape[-1], size, exact, a.dtype)
            result = plan(*arrays)
            assert result.dtype == a.dtype
            assert_close(result, exact, bound, f"{way.key}, A {left}, B {right}")
        for way, plan, arrays in ways("matmul", x, y, out=out):
            out[...] = np.nan
            assert plan(*arrays) is out
            assert_close(out, exact, bound_of(way, a.shape[-1], size, exact, a.dtype), f"{way.key}, out {out.strides}")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (-0.5, 2), (3, 0), (1, 0.25), (2, 1)])
def test_products_that_add_to_something(dtype: str, alpha: float, beta: float, rng: np.random.Generator) -> None:
    a, b = (random_array(rng, shape, dtype_of(dtype)) for shape in ((6, 7), (7, 5)))
    for shape in ((6, 5), (5,), (1, 5), (6, 1), ()):
        c = random_array(rng, shape, dtype_of(dtype))
        exact = alpha * np.matmul(wide(a), wide(b)) + beta * wide(c)
        size = abs(alpha) * np.matmul(np.abs(wide(a)), np.abs(wide(b))) + np.abs(beta * wide(c))
        for layout in ("C", "F", "negative rows", "steps"):
            given = LAYOUTS[layout](c) if c.ndim else c
            for way, plan, arrays in ways("addmm", given, a, b, beta=beta, alpha=alpha):
                assert_close(plan(*arrays), exact, bound_of(way, 9, size, exact, a.dtype), f"{way.key}, C {shape} {layout}")


def test_an_accumulator_is_updated_in_place(rng: np.random.Generator) -> None:
    a, b, c = (random_array(rng, (6, 6), np.dtype(np.float32)) for _ in range(3))
    exact, size = wide(a) @ wide(b) + wide(c), np.abs(wide(a)) @ np.abs(wide(b)) + np.abs(wide(c))
    for way, plan, _ in ways("addmm", c, a, b, out=c):
        kept = c.copy()
        assert plan(c, a, b, c) is c
        assert_close(c, exact, bound_of(way, 7, size, exact, c.dtype), way.key)
        c[...] = kept


def test_alpha_of_zero_is_refused_and_numpy_does_it() -> None:
    a, c = np.full((4, 4), np.nan, np.float32), np.ones((4, 4), np.float32)
    assert "alpha = 0" in reasons("addmm", c, a, a, alpha=0)
    assert np.array_equal(backline.addmm(c, a, a, alpha=0), c)


def test_bf16_rounds_operands_and_nothing_else(rng: np.random.Generator) -> None:
    """Numbers of 8 bits are multiplied exactly, longer ones are not: it is what the processor has, not float32 by another name."""
    if not libraries.get("onednn").traits.engine.bf16:
        assert "no instructions for bfloat16" in reasons("matmul", *(np.ones((4, 4), np.float32),) * 2)
        return
    short = rng.integers(-8, 8, (40, 60)).astype(np.float32)
    fine = np.full((60, 40), 1 + 2.0**-9, np.float32)
    (*_, (way, plan, arrays)) = ways("matmul", short, fine)
    assert (way.name, way.precision, way.isa) == ("bf16", "bf16", "avx512")
    assert np.array_equal(plan(*arrays), short @ np.ones_like(fine))
    (*_, (_, plan, arrays)) = ways("matmul", short, np.ones_like(fine))
    assert np.array_equal(plan(*arrays), short @ np.ones_like(fine))
    large = np.full((4, 4), 3e38, np.float32)  # the range is float32's
    (*_, (_, plan, arrays)) = ways("matmul", large, np.eye(4, dtype=np.float32))
    assert np.isfinite(plan(*arrays)).all()


def test_bf16_runs_only_where_it_is_permitted() -> None:
    a = np.ones((64, 64), np.float32)
    for wish in ("ieee", "tf32", "bf16"):
        with backline.use("onednn", only=True), switches.scope({"mkldnn.matmul.fp32_precision": wish}):
            ran = {c.algorithm for c in backline.explain(backline.matmul, a, a).candidates if c.verdict in ("chosen", "next")}
        could = libraries.get("onednn").traits.engine.bf16
        assert ("bf16" in ran) == (wish == "bf16" and could)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_products_keep_what_is_not_finite(value: float, rng: np.random.Generator) -> None:
    a, b = (random_array(rng, (20, 20), np.dtype(np.float32)) for _ in range(2))
    a[3, 4] = value
    with np.errstate(invalid="ignore"):
        exact = a.astype(np.float64) @ b
    for way, plan, arrays in ways("matmul", a, b):
        np.testing.assert_allclose(plan(*arrays), exact, rtol=0.1, atol=1.0, err_msg=way.key)


def test_a_product_of_nothing_and_other_dtypes_are_refused() -> None:
    assert "empty" in reasons("matmul", np.ones((0, 3), np.float32), np.ones((3, 4), np.float32))
    for dtype in ("float64", "complex64", "int32"):
        assert f"no product of {dtype}" in reasons("matmul", np.ones((3, 3), dtype), np.ones((3, 3), dtype))


# Linear layers ----------------------------------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0), "gelu": lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)), "tanh": math.tanh, "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}  # fmt: skip


def each(name: str, x: Array) -> Array:
    """An activation of float64 numbers."""
    return np.vectorize(ACTIVATIONS[name], otypes=[np.float64])(np.asarray(x, np.float64))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_linear_layers(activation: str | None, dtype: str, rng: np.random.Generator) -> None:
    for shape, out_features in (((9, 20), 12), ((2, 3, 20), 5), ((64, 128), 96), ((1, 30), 40)):
        x, w, b, r = (
            rng.standard_normal(s).astype(dtype_of(dtype))
            for s in (shape, (out_features, shape[-1]), (out_features,), (*shape[:-1], out_features))
        )
        for bias, residual in itertools.product((None, b), (None, r)):
            exact, size = wide(x) @ wide(w).T, np.abs(wide(x)) @ np.abs(wide(w)).T
            for more in (m for m in (bias, residual) if m is not None):
                exact, size = exact + wide(more), size + np.abs(wide(more))
            wanted = exact if activation is None else each(activation, exact)
            for way, plan, arrays in ways(f"{FN}linear", x, w, bias, activation=activation, residual=residual):
                # No activation is steeper than 1.13; their own errors are some units of their largest value here.
                bound = 1.2 * bound_of(way, shape[-1] + 2, size, exact, np.dtype(np.float32)) + 16 * U * np.maximum(
                    np.abs(exact), 1
                )
                if dtype == "bfloat16":
                    bound = bound + 1.01 * roundoff(x.dtype) * (np.abs(wanted) + bound)
                assert_close(plan(*arrays), wanted, bound, f"{way.key} {shape} {activation}")


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("target", ["new", "out", "residual", "strided", "strided residual"])
def test_relu_in_the_kernel_keeps_what_it_must(kind: str, target: str, rng: np.random.Generator) -> None:
    """NaN stays NaN and minus infinity becomes 0, whether the result is new, given, the residual itself, or full of gaps."""
    shape = (8, 40) if kind == "linear" else (1, 8, 5, 8)
    x = rng.standard_normal(shape).astype(np.float32)
    w = rng.standard_normal((40, 40) if kind == "linear" else (8, 8, 1, 1)).astype(np.float32)
    values: dict[str, float] = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "overflow": 3e38, "finite": 1.0}
    for name, value in values.items():
        x.flat[5] = value
        r = rng.standard_normal(shape).astype(np.float32)
        with np.errstate(all="ignore"):
            if kind == "linear":
                exact = np.maximum(x.astype(np.float64) @ w.T.astype(np.float64) + r, 0)
            else:
                exact = np.maximum(np.einsum("nchw,oc->nohw", x.astype(np.float64), w[:, :, 0, 0].astype(np.float64)) + r, 0)
            exact = exact.astype(np.float32)
        room = np.zeros((*shape[:-1], 2 * shape[-1]), np.float32)[..., ::2]
        out = None if target == "new" else room if target.startswith("strided") else np.empty(shape, np.float32)
        added = out if target.endswith("residual") else r.copy()
        op = f"{FN}linear" if kind == "linear" else f"{FN}conv2d"
        for way, plan, arrays in ways(op, x, w, activation="relu", residual=added, out=out):
            added[...] = r
            result = plan(*arrays)
            assert out is None or result is out
            if way.precision == "bf16" and name == "overflow":
                continue  # rounding may or may not go over the edge
            tolerance = 0.2 if way.precision == "bf16" else 1e-4
            np.testing.assert_allclose(result, exact, rtol=tolerance, atol=tolerance, err_msg=f"{way.key}, {name}")


# Convolutions -----------------------------------------------------------------------------------------------------------------


def pairs(n: Any, rank: int) -> tuple[Any, ...]:
    return n if isinstance(n, tuple) else (n,) * rank


def conv(
    x: Array, w: Array, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, output_padding: Any = 0,
    *, transposed: bool = False,
) -> Array:  # fmt: skip
    """A convolution or a transposed one: for each element of the kernel a product, at the places where it falls."""
    rank = x.ndim - 2
    stride, dilation, extra = pairs(stride, rank), pairs(dilation, rank), pairs(output_padding, rank)
    kernel = w.shape[2:]
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        sides = [(t // 2, t - t // 2) for t in total]
    else:
        sides = [(p, p) for p in pairs(padding, rank)]
    shape = zip(x.shape[2:], kernel, stride, sides, dilation, extra, strict=True)
    if transposed:
        points = tuple((n - 1) * s - a - b + d * (k - 1) + 1 + e for n, k, s, (a, b), d, e in shape)
        features = w.shape[1] * groups
    else:
        points = tuple((n + a + b - d * (k - 1) - 1) // s + 1 for n, k, s, (a, b), d, _ in shape)
        features = w.shape[0]
    result = np.zeros((x.shape[0], features, *points), x.dtype)
    channels = x.shape[1] // groups
    size = features // groups
    for tap in np.ndindex(kernel):
        # Along each axis: which places of the smaller grid and of the larger one meet at this element of the kernel.
        meets = []
        for axis in range(rank):
            small, large = (x.shape[2 + axis], points[axis]) if transposed else (points[axis], x.shape[2 + axis])
            at = np.arange(small) * stride[axis] - sides[axis][0] + tap[axis] * dilation[axis]
            inside = (at >= 0) & (at < large)
            meets.append((np.flatnonzero(inside), at[inside]))
        small_at, large_at = (np.ix_(*(m[i] for m in meets)) for i in (0, 1))
        for g in range(groups):
            cs, fs = slice(g * channels, (g + 1) * channels), slice(g * size, (g + 1) * size)
            if transposed:
                part = np.einsum("nc...,co->no...", x[:, cs][(..., *small_at)], w[cs][(slice(None), slice(None), *tap)])
                view = result[:, fs]
                view[(..., *large_at)] += part
            else:
                part = np.einsum("nc...,oc->no...", x[:, cs][(..., *large_at)], w[fs][(slice(None), slice(None), *tap)])
                view = result[:, fs]
                view[(..., *small_at)] += part
    return result


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1x1": ((2, 5, 6, 7), (4, 5, 1, 1), {}),
    "3x3": ((2, 5, 6, 7), (4, 5, 3, 3), {"padding": 1}),
    "channels of whole vectors": ((1, 32, 9, 8), (48, 32, 3, 3), {"padding": 1}),
    "threaded": ((2, 16, 20, 20), (24, 16, 3, 3), {"padding": 1}),
    "first layer": ((1, 3, 21, 20), (16, 3, 7, 7), {"stride": 2, "padding": 3}),
    "stride above kernel": ((2, 3, 11, 11), (4, 3, 2, 2), {"stride": (5, 3)}),
    "kernel above image": ((1, 3, 3, 2), (4, 3, 5, 7), {"padding": (2, 3)}),
    "all padding": ((1, 2, 1, 1), (3, 2, 3, 3), {"padding": 4}),
    "asymmetric padding": ((1, 3, 6, 6), (2, 3, 4, 2), {"padding": "same"}),
    "dilated": ((1, 4, 12, 12), (4, 4, 3, 3), {"dilation": (3, 2), "padding": 2}),
    "groups": ((2, 6, 7, 7), (9, 2, 3, 3), {"groups": 3}),
    "groups of whole vectors": ((1, 64, 6, 6), (64, 16, 3, 3), {"groups": 4, "padding": 1}),
    "depthwise": ((2, 16, 8, 8), (16, 1, 3, 3), {"groups": 16, "padding": 1}),
    "depthwise, odd": ((1, 7, 8, 8), (7, 1, 3, 3), {"groups": 7, "stride": 2}),
    "depthwise, multiplied": ((1, 5, 8, 8), (15, 1, 3, 3), {"groups": 5}),
    "one channel": ((3, 1, 9, 9), (8, 1, 3, 3), {}),
    "one dimension": ((3, 8, 50), (12, 8, 5), {"padding": 2, "stride": 2}),
    "one dimension, groups": ((1, 8, 30), (8, 1, 3), {"groups": 8, "dilation": 4}),
    "three dimensions": ((1, 4, 5, 6, 7), (6, 4, 3, 3, 3), {"padding": 1}),
    "three dimensions, stride": ((2, 2, 6, 5, 7), (4, 1, 2, 2, 2), {"stride": (2, 1, 3), "groups": 2}),
}


def made(case: str, dtype: str, rng: np.random.Generator, *, transposed: bool = False) -> tuple[Array, Array, dict[str, Any]]:
    shape, kernel, options = CASES[case]
    if transposed:
        groups = options.get("groups", 1)
        kernel = (shape[1], max(kernel[0] // groups, 1), *kernel[2:])
        if options.get("padding") == "same":
            options = {**options, "padding": 1}
    return *(rng.standard_normal(s).astype(dtype_of(dtype)) for s in (shape, kernel)), options


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_convolutions(case: str, dtype: str, rng: np.random.Generator) -> None:
    x, w, options = made(case, dtype, rng)
    rank, terms = x.ndim - 2, w[0].size
    exact, size = conv(wide(x), wide(w), **options), conv(np.abs(wide(x)), np.abs(wide(w)), **options)
    b, r = (rng.standard_normal(s).astype(x.dtype) for s in ((exact.shape[1],), exact.shape))
    column = wide(b).reshape(-1, *[1] * rank)
    ran = 0
    for name, layout in IMAGES.items():
        for bias, residual, relu in itertools.product((None, b), (None, r), (None, "relu")):
            if name != "last" and (bias is None) != (residual is None):
                continue
            wanted, most = exact, size
            if bias is not None:
                wanted, most = wanted + column, most + np.abs(column)
            if residual is not None:
                wanted, most = wanted + wide(r), most + np.abs(wide(r))
            given = layout(r) if residual is not None else None
            for way, plan, arrays in ways(f"{FN}conv{rank}d", layout(x), w, bias, activation=relu, residual=given, **options):
                bound = bound_of(way, terms + 2, most, wanted, x.dtype)
                result = plan(*arrays)
                assert result.dtype == x.dtype
                assert_close(result, np.maximum(wanted, 0) if relu else wanted, bound, f"{way.key} ({way.note}), {name}")
                ran += 1
    assert ran or dtype == "bfloat16", reasons(f"{FN}conv{rank}d", x, w, **options)


@pytest.mark.cpu_kernel
def test_kernels_for_every_processor_do_not_add_to_what_is_not_aligned() -> None:
    """Instructions of SSE4.1 want their operands in memory aligned; where they are not, the processor ends the program."""
    python("""
        import numpy as np, backline
        from backline.nn import functional as F
        rng = np.random.default_rng(0)
        def somewhere(a):
            memory = np.zeros(a.nbytes + 64, np.uint8)
            start = -memory.ctypes.data % 64 + 4
            there = memory[start : start + a.nbytes].view(a.dtype).reshape(a.shape[0], *a.shape[2:], a.shape[1]).transpose(0, 3, 1, 2)
            there[...] = a
            return there
        backline.backends.cpu.set_flags(_capability="default")
        for groups, channels, size in ((8, 8, 3), (7, 7, 3), (1, 8, 3), (1, 16, 1), (2, 16, 3)):
            x = somewhere(rng.standard_normal((2, channels, 10, 10)).astype("f"))
            w = rng.standard_normal((channels, channels // groups, size, size)).astype("f")
            plain = F.conv2d(x.astype("d"), w.astype("d"), groups=groups)
            residual, out = somewhere(np.ones(plain.shape, "f")), somewhere(np.zeros(plain.shape, "f"))
            for threads in (1, 2):
                with backline.num_threads(threads), backline.use("onednn"):
                    F.conv2d(x, w, groups=groups, residual=residual, out=out)
                np.testing.assert_allclose(out, plain + 1, rtol=1e-4, atol=1e-4)
                assert "sse41" not in backline.explain().chosen.note
                assert groups < channels or "crashes where the result it adds to is not aligned" in str(backline.explain())
    """)


@pytest.mark.parametrize("case", CASES)
def test_transposed_convolutions(case: str, rng: np.random.Generator) -> None:
    x, w, options = made(case, "float32", rng, transposed=True)
    rank = x.ndim - 2
    stride, dilation = pairs(options.get("stride", 1), rank), pairs(options.get("dilation", 1), rank)
    largest = tuple(max(s, d) - 1 for s, d in zip(stride, dilation, strict=True))
    ran = 0
    for extra in {(0,) * rank, largest}:
        keywords = {**options, "output_padding": extra}
        try:
            problem_of(f"{FN}conv_transpose{rank}d", x, w, **keywords)
        except backline.errors.BadValue:  # padding that leaves nothing
            ran += 1
            continue
        exact = conv(wide(x), wide(w), transposed=True, **keywords)
        size = conv(np.abs(wide(x)), np.abs(wide(w)), transposed=True, **keywords)
        b, r = (rng.standard_normal(s).astype(np.float32) for s in ((exact.shape[1],), exact.shape))
        column = wide(b).reshape(-1, *[1] * rank)
        for name, layout in IMAGES.items():
            for bias, residual, relu in ((None, None, None), (b, None, "relu"), (b, r, "relu")):
                wanted = exact + (0 if bias is None else column) + (0 if residual is None else wide(r))
                most = size + (0 if bias is None else np.abs(column)) + (0 if residual is None else np.abs(wide(r)))
                for way, plan, arrays in ways(
                    f"{FN}conv_transpose{rank}d", layout(x), w, bias, activation=relu, residual=residual, **keywords
                ):
                    bound = bound_of(way, w.size // w.shape[1] + 2, most, wanted, x.dtype)
                    assert_close(
                        plan(*arrays), np.maximum(wanted, 0) if relu else wanted, bound, f"{way.key} ({way.note}), {name}"
                    )
                    ran += 1
        if extra == (0,) * rank:
            assert ran, reasons(f"{FN}conv_transpose{rank}d", x, w, **keywords)


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_convolutions(case: str, rng: np.random.Generator) -> None:
    x, w, options = made(case, "float32", rng)
    rank = x.ndim - 2
    grad = rng.standard_normal(conv(x, w, **options).shape).astype(np.float32)
    by_input, by_weight = gradients(wide(x), wide(w), wide(grad), options)
    most_input, most_weight = gradients(np.abs(wide(x)), np.abs(wide(w)), np.abs(wide(grad)), options)
    for name, layout in IMAGES.items():
        for way, plan, arrays in ways(f"{GRAD}conv{rank}d_input", x.shape, w, layout(grad), **options):
            bound = bound_of(way, w.size // w.shape[1], most_input, by_input, x.dtype)
            assert_close(plan(*arrays), by_input, bound, f"{way.key} ({way.note}), by input, {name}")
        for way, plan, arrays in ways(f"{GRAD}conv{rank}d_weight", layout(x), w.shape, layout(grad), **options):
            bound = bound_of(way, grad.size // grad.shape[1], most_weight, by_weight, x.dtype)
            result = plan(*arrays)
            assert result.flags.c_contiguous
            assert_close(result, by_weight, bound, f"{way.key} ({way.note}), by weight, {name}")


def gradients(x: Array, w: Array, grad: Array, options: dict[str, Any]) -> tuple[Array, Array]:
    """Of sum(grad * conv(x, w)), which is linear in x and in w: its values at the unit vectors, those of one place together."""
    rank, groups = x.ndim - 2, options.get("groups", 1)
    by_weight = np.zeros_like(w)
    channels, features = x.shape[1] // groups, w.shape[0] // groups
    for tap in np.ndindex(w.shape[2:]):
        unit = np.zeros((1, 1, *w.shape[2:]), w.dtype)
        unit[(0, 0, *tap)] = 1
        moved = np.stack([conv(x[:, c : c + 1], unit, **{**options, "groups": 1})[:, 0] for c in range(x.shape[1])], 1)
        for o in range(w.shape[0]):
            g = o // features
            part = moved[:, g * channels : (g + 1) * channels] * grad[:, o : o + 1]
            by_weight[(o, slice(None), *tap)] = part.sum(axis=(0, *range(2, part.ndim)))
    # The gradient by the input is the transposed convolution, on the points that the input has.
    padding = options.get("padding", 0)
    kernel, stride, dilation = w.shape[2:], pairs(options.get("stride", 1), rank), pairs(options.get("dilation", 1), rank)
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    before = [t // 2 for t in total] if padding == "same" else list(pairs(padding, rank))
    full = conv(grad, w, stride=stride, dilation=dilation, groups=groups, transposed=True)
    by_input = np.zeros_like(x)
    kept = [min(n, m - b) for n, m, b in zip(x.shape[2:], full.shape[2:], before, strict=True)]
    by_input[(..., *(slice(0, k) for k in kept))] = full[(..., *(slice(b, b + k) for b, k in zip(before, kept, strict=True)))]
    return by_input, by_weight


@pytest.mark.parametrize("target", ["first", "last", "steps", "negative columns", "batch last"])
def test_given_results(target: str, rng: np.random.Generator) -> None:
    x, w, options = made("3x3", "float32", rng)
    exact, size = conv(wide(x), wide(w), **options), conv(np.abs(wide(x)), np.abs(wide(w)), **options)
    out = IMAGES[target](np.full(exact.shape, np.nan, np.float32))
    for layout in (IMAGES["first"], last):
        for way, plan, arrays in ways(f"{FN}conv2d", layout(x), w, out=out, **options):
            out[...] = np.nan
            assert plan(*arrays) is out
            assert_close(out, exact, bound_of(way, w[0].size, size, exact, x.dtype), f"{way.key}, out {target}")


def test_the_result_lies_as_the_input_does(rng: np.random.Generator) -> None:
    x, w, options = made("3x3", "float32", rng)
    for _, plan, arrays in ways(f"{FN}conv2d", x, w, **options):
        assert plan(*arrays).flags.c_contiguous
    for _, plan, arrays in ways(f"{FN}conv2d", last(x), w, **options):
        assert plan(*arrays).transpose(0, 2, 3, 1).flags.c_contiguous
    grad = rng.standard_normal(conv(x, w, **options).shape).astype(np.float32)
    for _, plan, arrays in ways(f"{GRAD}conv2d_input", x.shape, w, last(grad), **options):
        assert plan(*arrays).transpose(0, 2, 3, 1).flags.c_contiguous


#: Images: for one thread, for as many threads as images divide by, and in pieces with and without a rest.
TRANSPOSED = (
    (2, 40, 30), (4, 16, 60, 60), (1, 16, 64, 70), (3, 24, 40, 41), (1, 8, 20, 21, 22), (1, 5000, 5, 3), (17, 8, 25, 25),
    (5, 1, 120, 120), (1, 1, 90, 1), (2, 3, 1, 1),
)  # fmt: skip


def test_onednn_moves_channels_beside_another_pool(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    x, w, options = made("threaded", "float32", rng)
    ours = {(way.key, way.threads): plan(*arrays) for way, plan, arrays in ways(f"{FN}conv2d", x, w, **options)}
    monkeypatch.setattr(libraries.get("onednn").traits.engine, "pool", "another OpenMP runtime")
    for way, plan, arrays in ways(f"{FN}conv2d", x, w, **options):
        assert plan(*arrays).tobytes() == ours[way.key, way.threads].tobytes(), way.key


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failure_is_told_though_channels_are_moved_after_it(
    failing: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Weights are brought into order, images moved, and the kernel runs; then the result is moved."""
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 16, 12, 12), (32, 16, 3, 3)))
    native, run = libraries.get("onednn").traits.engine.native, 0
    signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    execute = signature(native.address("dnnl_primitive_execute"))

    def some(*arguments: Any) -> int:
        nonlocal run
        run += 1
        return abi.OUT_OF_MEMORY if run == failing else execute(*arguments)

    address, failed = native.address, signature(some)
    place = ctypes.cast(failed, ctypes.c_void_p).value
    monkeypatch.setattr(native, "address", lambda name: place if name == "dnnl_primitive_execute" else address(name))
    tried = 0
    for way, plan, arrays in ways(f"{FN}conv2d", x, w, threads=1):
        if way.name == "nhwc":
            run, tried = 0, tried + 1
            with pytest.raises(OutOfMemory, match="oneDNN failed to run conv"):
                plan(*arrays)
            assert run == 2
    assert tried == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", TRANSPOSED, ids=str)
def test_bits_do_not_depend_on_where_channels_lie(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> None:
    dims = len(shape) - 2
    x = random_array(rng, shape, dtype_of(dtype))
    w = random_array(rng, (3 if shape[1] > 1000 else 8, shape[1], *(min(n, 2) for n in shape[2:])), dtype_of(dtype))
    compared = 0
    for threads in (1, 2, 3):
        results = [
            {(way.key, way.threads): plan(*arrays) for way, plan, arrays in ways(f"{FN}conv{dims}d", layout(x), w, threads=threads)}
            for layout in (IMAGES["first"], last)
        ]
        for key in results[0].keys() & results[1].keys():
            compared += 1
            assert results[0][key].tobytes() == results[1][key].tobytes(), key
    assert compared or (dtype == "bfloat16" and not libraries.get("onednn").traits.engine.bf16)


@pytest.mark.parametrize("layout", ["C", "F", "negative rows", "negative columns", "steps", "misaligned", "batch last"])
def test_weights_in_any_layout(layout: str, rng: np.random.Generator) -> None:
    for case in ("3x3", "groups", "depthwise", "threaded"):
        x, w, options = made(case, "float32", rng)
        exact, size = conv(wide(x), wide(w), **options), conv(np.abs(wide(x)), np.abs(wide(w)), **options)
        b = rng.standard_normal(2 * exact.shape[1]).astype(np.float32)[::-2]
        for way, plan, arrays in ways(f"{FN}conv2d", x, LAYOUTS[layout](w), b, **options):
            wanted = exact + wide(b).reshape(-1, 1, 1)
            bound = bound_of(way, w[0].size + 1, size + np.abs(wide(b)).reshape(-1, 1, 1), wanted, x.dtype)
            assert_close(plan(*arrays), wanted, bound, f"{way.key}, {case}")


def test_a_plan_reads_the_weights_of_the_call(rng: np.random.Generator) -> None:
    """No copy of weights stays behind in a plan."""
    x, w, options = made("threaded", "float32", rng)
    for way, plan, arrays in ways(f"{FN}conv2d", x, w, **options):
        before = plan(*arrays).copy()
        w *= 2
        assert np.array_equal(plan(*arrays), 2 * before), way.key
        w /= 2


def test_bf16_convolutions_are_of_rounded_operands(rng: np.random.Generator) -> None:
    if not libraries.get("onednn").traits.engine.bf16:
        assert "no instructions for bfloat16" in reasons(f"{FN}conv2d", *(np.ones((4, 4, 4, 4), np.float32),) * 2)
        return
    x, w = np.full((1, 8, 6, 6), 1 + 2.0**-9, np.float32), rng.integers(-8, 8, (8, 8, 3, 3)).astype(np.float32)
    (reduced,) = [p for way, p, _ in ways(f"{FN}conv2d", x, w) if way.precision == "bf16"]
    assert np.array_equal(reduced(x, w), conv(np.ones_like(x), w))


def test_what_convolutions_are_refused() -> None:
    x, w = np.ones((2, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
    assert "empty" in reasons(f"{FN}conv2d", x[:0], w)
    assert "empty" in reasons(f"{FN}conv2d", x[:, :0], w[:, :0])
    for dtype in ("float64", "complex64", "int32"):
        assert f"no convolution of {dtype}" in reasons(f"{FN}conv2d", x.astype(dtype), w.astype(dtype))
    if not need("onednn").traits.engine.f16:
        assert "no instructions for float16" in reasons(f"{FN}conv2d", x.astype("float16"), w.astype("float16"))
    assert "more than oneDNN can express" in reasons(f"{FN}conv_transpose2d", x, w[:3], dilation=4, output_padding=3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_convolutions_keep_what_is_not_finite(value: float, rng: np.random.Generator) -> None:
    x, w, _ = made("threaded", "float32", rng)
    x[0, 3, 10, 10] = value
    with np.errstate(invalid="ignore"):
        exact = conv(x.astype(np.float64), w.astype(np.float64))
    for layout in (IMAGES["first"], last):
        for way, plan, arrays in ways(f"{FN}conv2d", layout(x), w):
            np.testing.assert_allclose(plan(*arrays), exact, rtol=0.1, atol=1.0, err_msg=way.key)


@st.composite
def convolutions(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    rank, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3, 8]))
    channels, features = groups * draw(st.integers(1, 9)), groups * draw(st.integers(1, 9))
    sizes = [draw(st.integers(1, 12 if rank < 3 else 6)) for _ in range(rank)]
    kernel, stride, dilation, padding = [], [], [], []
    for n in sizes:
        kernel.append(draw(st.integers(1, 5)))
        dilation.append(draw(st.integers(1, 3)))
        stride.append(draw(st.integers(1, 4)))
        least = max(0, -(-(dilation[-1] * (kernel[-1] - 1) + 1 - n) // 2))
        padding.append(draw(st.integers(least, least + 4)))
    options = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation), "groups": groups}
    return (draw(st.integers(1, 3)), channels, *sizes), (features, channels // groups, *kernel), options


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(convolutions(), st.sampled_from(list(IMAGES)), st.booleans(), st.integers(0, 2**32 - 1))
def test_any_convolution(
    sizes: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], layout: str, relu: bool, number: int
) -> None:
    rng = np.random.default_rng(number)
    shape, kernel, options = sizes
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (shape, kernel))
    exact, size = conv(wide(x), wide(w), **options), conv(np.abs(wide(x)), np.abs(wide(w)), **options)
    wanted = np.maximum(exact, 0) if relu else exact
    for way, plan, arrays in ways(f"{FN}conv{x.ndim - 2}d", IMAGES[layout](x), w, activation="relu" if relu else None, **options):
        assert_close(plan(*arrays), wanted, bound_of(way, w[0].size, size, exact, x.dtype), f"{way.key} ({way.note})")


# Activations, softmax, normalisation, pooling -----------------------------------------------------------------------------------


def call_of(name: str) -> tuple[str, dict[str, Any]]:
    return (f"{FN}gelu", {"approximate": "tanh"}) if name == "gelu_tanh" else (f"{FN}{name}", {})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, dtype: str, rng: np.random.Generator) -> None:
    op, keywords = call_of(name)
    ran = 0
    for shape in ((1,), (7,), (3, 5, 7), (2, 3, 40, 40), (5, 4000)):
        x = (4 * rng.standard_normal(shape)).astype(dtype_of(dtype))
        exact = each(name, wide(x))
        for layout in ("C", "F", "steps", "negative columns", "misaligned", "batch last"):
            given = LAYOUTS[layout](x)
            for way, plan, arrays in ways(op, given, **keywords):
                result = plan(*arrays)
                # gelu and silu cancel where x is negative: the error is that of a number of the size of x.
                bound = (0 if name == "relu" else 8 * U) * np.maximum(np.abs(wide(x)), 1)
                if dtype == "bfloat16":
                    bound = bound + 1.01 * roundoff(x.dtype) * (np.abs(exact) + bound)
                assert_close(result, exact.astype(np.longdouble), bound, f"{way.key}, {layout}")
                alike = np.empty_like(given)
                assert all(a == b or n == 1 for a, b, n in zip(result.strides, alike.strides, x.shape, strict=True))
                ran += 1
    assert ran or (name, dtype) == ("relu", "bfloat16") or lacks(dtype, reasons(op, np.ones(9, dtype_of(dtype)), **keywords))


NOT_FINITE = {
    "relu": [math.nan, math.inf, 0, 0], "gelu_tanh": [math.nan, math.inf, math.nan, 0], "silu": [math.nan, math.inf, math.nan, 0],
    "tanh": [math.nan, 1, -1, 0], "sigmoid": [math.nan, 1, 0, 0.5], "gelu": [math.nan, math.inf, math.nan, 0],
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_what_is_not_finite(name: str) -> None:
    """As the formulas say."""
    op, keywords = call_of(name)
    for size in (4, 40_000):
        x = np.ones(size, np.float32)
        x[-4:] = [math.nan, math.inf, -math.inf, -0.0]
        for way, plan, arrays in ways(op, x, **keywords):
            result = plan(*arrays)
            np.testing.assert_array_equal(result[-4:], NOT_FINITE[name], err_msg=way.key)
            assert np.isfinite(result[:-4]).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_large_numbers_is_the_number(dtype: str, approximate: str) -> None:
    large = np.array([1, 3e38, 1.8e38, math.inf, 2], dtype_of(dtype))
    for size in (5, 40_000):
        x = np.resize(large, size)
        for way, plan, arrays in ways(f"{FN}gelu", x, approximate=approximate):
            np.testing.assert_array_equal(plan(*arrays)[x > 1e38], x[x > 1e38], err_msg=way.key)


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("shape", [(6, 50), (2, 3, 17, 19), (9,), (3, 1), (4, 8, 30, 30), (2, 20_000)])
def test_softmax(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x = (5 * rng.standard_normal(shape)).astype(np.float32)
    for axis in range(len(shape)):
        exact, n = softmax(wide(x), axis), shape[axis]
        for layout in ("C", "F", "steps", "batch last"):
            for way, plan, arrays in ways(f"{FN}softmax", LAYOUTS[layout](x), axis):
                assert_close(plan(*arrays), exact, (n + 64) * U * exact + 1e-37, f"{way.key}, axis {axis}, {layout}")
            for way, plan, arrays in ways(f"{FN}log_softmax", LAYOUTS[layout](x), axis):
                bound = (n + 64) * U * np.maximum(np.abs(np.log(exact)), 1)
                assert_close(plan(*arrays), np.log(exact), bound, f"{way.key}, axis {axis}, {layout}")


def test_softmax_of_extremes() -> None:
    nan, inf = math.nan, math.inf
    x = np.array([[1e38, -1e38, 0.0], [-inf, 0, -inf], [nan, 0, 0], [inf, 0, 0], [-inf, -inf, -inf], [1, 1, 1]], np.float32)
    wanted = np.array([[1, 0, 0], [0, 1, 0], [nan] * 3, [nan] * 3, [nan] * 3, [1 / 3] * 3], np.float32)
    for laid, axis in ((x, 1), (x.T.copy(), 0), (np.asfortranarray(x), 1)):
        for _, plan, arrays in ways(f"{FN}softmax", laid, axis):
            np.testing.assert_allclose(plan(*arrays), wanted if axis else wanted.T, rtol=1e-6)
    for _, plan, arrays in ways(f"{FN}log_softmax", x[1:], 1):
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(plan(*arrays), np.log(wanted[1:]), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layer_norm(dtype: str, rng: np.random.Generator) -> None:
    ran = 0
    for shape, count in (((5, 40), 1), ((3, 4, 5), 2), ((2, 3, 4), 3), ((7,), 1), ((64, 300), 1)):
        x = (rng.standard_normal(shape) + 3).astype(dtype_of(dtype))
        w, b = (rng.standard_normal(shape[-count:]).astype(x.dtype) for _ in range(2))
        axes = tuple(range(-count, 0))
        y = wide(x) - wide(x).mean(axes, keepdims=True)
        plain = y / np.sqrt((y * y).mean(axes, keepdims=True) + np.longdouble(1e-3))
        for weight, bias in itertools.product((None, w, w[..., ::-1]), (None, b)):
            exact = plain * (1 if weight is None else wide(weight)) + (0 if bias is None else wide(bias))
            for layout in ("C", "steps", "misaligned"):
                for way, plan, arrays in ways(f"{FN}layer_norm", LAYOUTS[layout](x), shape[-count:], weight, bias, 1e-3):
                    bound = 64 * U * (np.abs(plain) + 3) * (1 if weight is None else np.abs(wide(weight)) + 1) + 1e-6
                    if dtype == "bfloat16":
                        bound = bound + 1.01 * roundoff(x.dtype) * (np.abs(exact) + bound)
                    assert_close(plan(*arrays), exact, bound, f"{way.key} {shape} {layout}")
                    ran += 1
    assert ran or lacks(dtype, reasons(f"{FN}layer_norm", np.ones((2, 9), dtype_of(dtype)), (9,)))
    turned = np.asfortranarray(rng.standard_normal((4, 5)).astype(np.float32))
    assert "innermost" in reasons(f"{FN}layer_norm", turned, (5,))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(6, 5), (2, 16, 9), (3, 7, 5, 6), (2, 4, 3, 4, 5), (4, 64, 12, 12)])
def test_batch_norm(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape).astype(dtype_of(dtype))
    mean, w, b = (rng.standard_normal(shape[1]).astype(x.dtype) for _ in range(3))
    variance = rng.uniform(0.5, 2, shape[1]).astype(x.dtype)
    over = tuple(v.reshape(-1, *[1] * (len(shape) - 2)) for v in map(wide, (mean, variance, w, b)))
    for weight, bias in ((None, None), (w, b), (w, None), (None, b)):
        scale, shift = over[2] if weight is not None else 1, over[3] if bias is not None else 0
        exact = (wide(x) - over[0]) / np.sqrt(over[1] + np.longdouble(1e-5)) * scale + shift
        for layout in ("first", "last", "steps"):
            for way, plan, arrays in ways(f"{FN}batch_norm", IMAGES[layout](x), mean, variance, weight, bias):
                bound = 32 * U * (np.abs(wide(x)) + np.abs(over[0]) + 1) * (np.abs(scale) + 1) * 2 + 32 * U * np.abs(shift)
                if dtype == "bfloat16":
                    bound = bound + 1.01 * roundoff(x.dtype) * (np.abs(exact) + bound)
                assert_close(plan(*arrays), exact, bound, f"{way.key}, {layout}")


def windows(x: Array, kernel: Any, stride: Any, padding: Any, fill: float) -> tuple[Array, Array]:
    """Every window as the last axis, outside filled, and how many of each are inside; the sizes round up where they must."""
    rank = len(kernel)
    points = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(x.shape[-rank:], kernel, stride, padding, strict=True)]
    padded = np.pad(x, [(0, 0)] * (x.ndim - rank) + [(p, p) for p in padding], constant_values=fill)
    inside = np.pad(np.ones(x.shape[-rank:]), [(p, p) for p in padding])
    found, counts = [], []
    for tap in np.ndindex(kernel):
        cut = tuple(slice(t, t + (n - 1) * s + 1, s) for t, n, s in zip(tap, points, stride, strict=True))
        found.append(padded[(..., *cut)])
        counts.append(inside[cut])
    return np.stack(found, -1), sum(counts)


POOLS: list[tuple[tuple[int, ...], Any, Any, Any]] = [
    ((2, 3, 10), (3,), (2,), (1,)),
    ((2, 16, 9, 8), (3, 2), (2, 2), (1, 0)),
    ((3, 5, 6, 6), (2, 2), (3, 4), (1, 1)),
    ((4, 6, 6), (2, 2), (2, 2), (0, 0)),
    ((1, 4, 5, 6, 7), (2, 3, 2), (2, 1, 2), (0, 1, 1)),
    ((2, 32, 40, 40), (3, 3), (1, 1), (1, 1)),
]


@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), POOLS)
def test_pooling(shape: tuple[int, ...], kernel: Any, stride: Any, padding: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape).astype(np.float32)
    rank = len(kernel)
    highest, inside = windows(wide(x), kernel, stride, padding, -np.inf)
    zeros, _ = windows(wide(x), kernel, stride, padding, 0.0)
    means = {True: zeros.mean(-1), False: zeros.sum(-1) / inside}
    size = np.abs(zeros).mean(-1) * 4
    for layout in ("first", "last", "steps") if len(shape) > rank + 1 else ("first",):
        given = IMAGES[layout](x)
        ran = 0
        for way, plan, arrays in ways(f"{FN}max_pool{rank}d", given, kernel, stride, padding):
            assert np.array_equal(plan(*arrays), highest.max(-1)), f"{way.key}, {layout}"
            ran += 1
        for counted, exact in means.items():
            more = {"count_include_pad": counted}
            for way, plan, arrays in ways(f"{FN}avg_pool{rank}d", given, kernel, stride, padding, **more):
                assert_close(plan(*arrays), exact, 32 * U * size, f"{way.key}, {layout}, {counted}")
                ran += 1
        assert ran >= 3


def test_pooling_of_what_is_not_finite_or_large() -> None:
    nan, inf = math.nan, math.inf
    for size in (8, 200):
        x = np.zeros((1, 8, size, size), np.float32)
        x[0, 0, 0, 0], x[0, 1], x[0, 2, 1, 1], x[0, 3] = nan, -inf, inf, 3e38
        for layout in (IMAGES["first"], last):
            for _, plan, arrays in ways(f"{FN}max_pool2d", layout(x), 2):
                result = plan(*arrays)
                np.testing.assert_array_equal(result[0, :4, 0, 0], np.array([nan, -inf, inf, 3e38], np.float32))
                assert (result[0, 1] == -inf).all() and not np.isnan(result[0, 1:]).any()
            for _, plan, arrays in ways(f"{FN}avg_pool2d", layout(x), 2):
                np.testing.assert_array_equal(plan(*arrays)[0, :4, 0, 0], np.array([nan, -inf, inf, 3e38], np.float32))


def test_what_layers_are_refused() -> None:
    x = np.ones((2, 3, 4, 4), np.float32)
    assert "empty" in reasons(f"{FN}relu", x[:0])
    assert "no relu of float64" in reasons(f"{FN}relu", x.astype(np.float64))
    for name, more in (("relu", ()), ("softmax", (1,)), ("avg_pool2d", (2,))):
        assert "of bfloat16 is not safe" in reasons(f"{FN}{name}", x.astype(BFLOAT16), *more)
    assert "of float16 is not safe" in reasons(f"{FN}max_pool2d", x.astype(np.float16), 2)
    assert "strides of 0" in reasons(f"{FN}relu", np.broadcast_to(np.float32(1), (3, 4)))
    assert "reference code" in reasons(f"{FN}max_pool2d", x, 2, dilation=2)
    assert "not asked for" in reasons("nn.grad.relu_input", x, x)


# Threads, bits, forks -----------------------------------------------------------------------------------------------------------


def sample(rng: np.random.Generator) -> dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """A call of each kind that threads take part in."""
    x, w, options = made("threaded", "float32", rng)
    grad = rng.standard_normal((2, 24, 20, 20)).astype(np.float32)
    a, b = (rng.standard_normal((200, 200)).astype(np.float32) for _ in range(2))
    return {
        "product": ("matmul", (a, b), {}),
        "linear": (f"{FN}linear", (a, b, b[0].copy()), {"activation": "relu"}),
        "convolution": (f"{FN}conv2d", (x, w), {**options, "activation": "relu"}),
        "channels last": (f"{FN}conv2d", (last(x), w), options),
        "transposed": (f"{FN}conv_transpose2d", (x, np.ascontiguousarray(w.swapaxes(0, 1))), {"stride": 2}),
        "by input": (f"{GRAD}conv2d_input", (x.shape, w, grad), options),
        "by weight": (f"{GRAD}conv2d_weight", (x, w.shape, grad), options),
        "gelu": (f"{FN}gelu", (a,), {}),
        "relu": (f"{FN}relu", (a,), {}),
        "softmax": (f"{FN}softmax", (a, 1), {}),
        "layer norm": (f"{FN}layer_norm", (a, (200,)), {}),
        "max pool": (f"{FN}max_pool2d", (np.concatenate([x, x, x]), 2), {}),
    }


KINDS = tuple(sample(np.random.default_rng(0)))


@pytest.mark.parametrize("kind", KINDS)
def test_bits_are_the_same_again_and_as_promised(kind: str, rng: np.random.Generator) -> None:
    """The same from run to run; from thread count to thread count where an algorithm says so, in plans made anew each time."""
    op, args, kwargs = sample(rng)[kind]
    by_name: dict[str, list[tuple[Algorithm, bytes]]] = {}
    for threads in (1, 2, 3):
        for way, plan, arrays in ways(op, *args, threads=threads, **kwargs):
            results = {plan(*arrays).tobytes() for _ in range(5)}
            assert len(results) == 1, way.key
            by_name.setdefault(way.name, []).append((way, results.pop()))
    assert any(way.threads == 3 for found in by_name.values() for way, _ in found)
    for name, found in by_name.items():
        for basis in (1, 0):  # on one thread, and of those that promise as much on several
            promised = {bits for way, bits in found if way.level == "threads" and (way.threads == 1 or not basis)}
            assert len(promised) == 1, f"{name}: {len(promised)} results"
    if kind == "by weight":
        assert all(way.level == "run" for found in by_name.values() for way, _ in found if way.threads > 1)


@pytest.mark.parametrize("kind", KINDS)
def test_two_threads_in_one_plan(kind: str, rng: np.random.Generator) -> None:
    op, args, kwargs = sample(rng)[kind]
    others = sample(np.random.default_rng(1))[kind][1]
    for way, plan, arrays in ways(op, *args, **kwargs):
        different = arrays_in(others, kwargs)
        wanted = [plan(*given).copy() for given in (arrays, different)]
        wrong: list[str] = []
        start = threading.Barrier(2)

        def work(
            which: int, given: list[Array], plan: Any = plan, wanted: Any = wanted, wrong: Any = wrong, start: Any = start
        ) -> None:
            start.wait()
            for _ in range(30):
                if not np.array_equal(plan(*given), wanted[which]):
                    wrong.append(f"thread {which}")

        threads = [threading.Thread(target=work, args=(i, given)) for i, given in enumerate((arrays, different))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong, f"{way.key}: {len(wrong)} of 60 wrong"


def test_threads_prepare_at_the_same_time(rng: np.random.Generator) -> None:
    x, w, _ = made("threaded", "float32", rng)
    exact = conv(x.astype(np.float64), w.astype(np.float64))
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for padding in range(3):
                for _, plan, arrays in ways(f"{FN}conv2d", x, w[: 20 + number % 2], padding=padding):
                    middle = plan(*arrays)[..., padding : padding + 18, padding : padding + 18]
                    np.testing.assert_allclose(middle, exact[:, : 20 + number % 2], rtol=0.1, atol=1)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed[0]


FORKED = """
import os, signal, threading, warnings
import numpy as np, backline
from backline.nn import functional as F
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
a, x, w = (rng.standard_normal(s).astype(np.float32) for s in ((300, 300), (2, 16, 20, 20), (24, 16, 3, 3)))
def right():
    with backline.use("onednn", only=True):
        ok = np.allclose(backline.mm(a, a)[:2], np.einsum("ij,jk->ik", a[:2].astype(float), a), atol=1e-3)
        ok &= np.allclose(backline.mm(a[:4, :4], a[:4, :4]), np.einsum("ij,jk->ik", a[:4, :4], a[:4, :4]), atol=1e-4)
        ok &= np.allclose(F.conv2d(x, w)[0, 0, 0, 0], np.sum(x[0, :, :3, :3] * w[0]), atol=1e-3)
        ok &= np.array_equal(F.relu(a), np.maximum(a, 0))
    return bool(ok)
def run_child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # a child that hangs dies
        os._exit(0 if work() else 1)
    return os.waitpid(pid, 0)[1]
def in_thread():
    found = []
    t = threading.Thread(target=lambda: found.append(right()))
    t.start(); t.join()
    return found == [True]
with backline.num_threads(2):
    assert right()
    with backline.use("onednn", only=True):
        assert backline.explain(backline.mm, a, a).chosen.threads == 2
    for work in (right, in_thread, lambda: right() and run_child(right) == 0):
        status = run_child(work)
        assert status == 0, status
    assert right(), "the parent after its children"
"""


def test_forked_children_compute_on_one_thread() -> None:
    python(FORKED)


def test_a_child_of_a_parent_that_only_loaded_it() -> None:
    python(FORKED.replace("    assert right()\n", "    backline.libraries.get('onednn').available()\n", 1))


# Through the front door ---------------------------------------------------------------------------------------------------------


def test_operations_run_on_it_and_say_so(rng: np.random.Generator) -> None:
    x, w, options = made("threaded", "float32", rng)
    with backline.use("onednn", only=True):
        result = F.conv2d(last(x), w, **options)
        choice = backline.explain(F.conv2d, last(x), w, **options)
        assert (choice.library, choice.algorithm) == ("onednn", "nhwc")
        assert any("conv" in c.reason or "jit" in c.reason for c in choice.candidates if c.verdict == "chosen")
        np.testing.assert_allclose(result, conv(x.astype(np.float64), w, **options), atol=1e-3)
        bits = F.softmax(x, 1).tobytes()
        with backline.backends.flags(deterministic=True, determinism_level="threads"):
            assert F.softmax(x, 1).tobytes() == bits
            assert backline.explain(backline.matmul, x[0, 0], x[0, 0]).chosen.threads == 1


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("shape,kernel,stride,padding", [((4, 32, 17, 16), 2, 2, 0), ((2, 5, 9, 9), 3, 2, 1), ((3, 64, 8, 8), (2, 3), 1, 1)])
def test_the_largest_bytes_of_windows(shape: Any, kernel: Any, stride: int, padding: int, dtype: str, rng: np.random.Generator) -> None:
    x = last(np.frombuffer(rng.bytes(int(np.prod(shape))), dtype).reshape(shape))
    with backline.use("numpy", only=True):
        wanted = backline.nn.functional.max_pool2d(x, kernel, stride, padding)
    made = list(ways("nn.functional.max_pool2d", x, kernel, stride, padding))
    assert made
    for way, plan, arrays in made:
        got = plan(*arrays)
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted, err_msg=way.key)
