"""Layers that own their weights: every library and algorithm against sums in the widest type, and what owning means.

The reference pads, looks through windows and adds products up; transposed convolutions are plain ones of images with zeros
between their points and the kernel turned round.
"""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import backline
from backline import _core, libraries, switches
from backline.engine import plan_caches, ranking
from backline.engine.choose import eligible
from backline.engine.tuning import record_store
from backline.engine.tuning.trace_script import pack, unpack
from backline.errors import BadType, BadValue, FallbackRefused, NoKernel
from backline.nn import functional as F
from backline.ops.prepacked import PackedLayer
from support import (
    BFLOAT16,
    LAYOUTS,
    algorithms,
    assert_close,
    clean,
    dtype_of,
    need,
    numpy_on_one_thread,
    python,
    random_array,
    rng,
    roundoff,
    seed,
    smallest,
    wide,
)  # fmt: skip

assert clean and numpy_on_one_thread and rng and seed  # fixtures: imported to be found by pytest
Array = Any
pytestmark = pytest.mark.usefixtures("clean", "numpy_on_one_thread")
LIBRARIES = ("onednn", "mkl", "openblas", "blis", "numpy")
DTYPES = ("float32", "float64", "bfloat16", "float16", "complex128")
F32 = np.dtype(np.float32)


# The reference --------------------------------------------------------------------------------------------------------


def each(value: Any, rank: int) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,) * rank


def sums(
    x: Array, w: Array, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, output_padding: Any = 0,
    *, transposed: bool = False,
) -> Array:  # fmt: skip
    """A convolution in the dtype of its operands."""
    rank = x.ndim - 2
    stride, dilation, extra = each(stride, rank), each(dilation, rank), each(output_padding, rank)
    reach = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
    sides = [(r // 2, r - r // 2) for r in reach] if padding == "same" else [(p, p) for p in each(padding, rank)]
    if transposed:
        apart = np.zeros((*x.shape[:2], *((n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True))), x.dtype)
        apart[(..., *(slice(None, None, s) for s in stride))] = x
        x, stride = apart, (1,) * rank
        sides = [(r - p, r - p + e) for r, (p, _), e in zip(reach, sides, extra, strict=True)]
        x = x[(..., *(slice(max(-a, 0), n + min(b, 0)) for n, (a, b) in zip(x.shape[2:], sides, strict=True)))]
        sides = [(max(a, 0), max(b, 0)) for a, b in sides]
        parts = [np.flip(v, tuple(range(2, 2 + rank))).swapaxes(0, 1) for v in np.split(w, groups)]
    else:
        parts = np.split(w, groups)
    padded = np.pad(x, ((0, 0), (0, 0), *sides))
    windows = sliding_window_view(padded, tuple(r + 1 for r in reach), tuple(range(2, 2 + rank)))
    windows = windows[(..., *(slice(None, None, s) for s in (*stride, *dilation)))]
    axes = [1, *range(2 + rank, 2 + 2 * rank)], [1, *range(2, 2 + rank)]
    found = [np.moveaxis(np.tensordot(a, v, axes), -1, 1) for a, v in zip(np.split(windows, groups, 1), parts, strict=True)]
    return np.concatenate(found, 1)


def check(
    result: Array, x: Array, w: Array, more: list[Array], reduce: Any, precision: str, what: str, relu: bool = False
) -> None:
    """The result against ``reduce(x, w)`` plus some arrays, componentwise."""
    dtype = x.dtype
    exact, size = reduce(wide(x), wide(w)), reduce(np.abs(wide(x)), np.abs(wide(w)))
    for m in more:
        exact, size = exact + wide(m), size + np.abs(wide(m))
    inner = F32 if dtype.name in ("float16", "bfloat16") else dtype
    n = w[0].size + w.shape[0] + 16
    u = roundoff(inner) * (3 if dtype.kind == "c" else 1)
    bound = (1.01 * n * u + (2 * 2.0**-8 + 2.0**-15 if precision == "bf16" else 0)) * size + 4 * n * smallest(inner)
    if inner != dtype:
        bound = bound + roundoff(dtype) * 1.01 * (np.abs(exact) + bound) + smallest(dtype)
    if relu:
        exact = np.maximum(exact, 0)
    assert result.dtype == dtype, what
    assert_close(result, exact, bound, what)


def run_layer(library: str, layer: PackedLayer, calls: list[tuple[Array, ...]], roles: tuple[str, ...] = ("input",)) -> Any:
    """Every algorithm of a library for a layer's Problem; one plan runs all the calls. Yields it and what it returned."""
    lib, mine = need(library), [a for a in (layer.weight, layer.bias) if a is not None]
    problem = layer.problem(**dict(zip(roles, calls[0], strict=True)))
    assert problem.packed and "packed=True" in problem.key
    for algorithm in algorithms(library, problem):
        plan = lib.prepare(problem, algorithm)
        yield algorithm, plan, [plan(*mine, *arrays) for arrays in calls]


# Every library --------------------------------------------------------------------------------------------------------

CONV: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ("conv2d", (2, 5, 6, 7), (4, 5, 3, 3), {"padding": 1}),
    "1x1": ("conv2d", (1, 8, 3, 3), (16, 8, 1, 1), {}),
    "whole vectors": ("conv2d", (1, 32, 9, 8), (48, 32, 3, 3), {"padding": 1}),
    "threaded": ("conv2d", (2, 16, 20, 20), (24, 16, 3, 3), {"padding": 1}),
    "first layer": ("conv2d", (1, 3, 15, 14), (16, 3, 7, 7), {"stride": 2, "padding": 3}),
    "stride above kernel": ("conv2d", (2, 3, 11, 11), (4, 3, 2, 2), {"stride": (5, 3)}),
    "kernel above image": ("conv2d", (1, 3, 3, 2), (4, 3, 5, 7), {"padding": (2, 3)}),
    "same, dilated": ("conv2d", (1, 4, 8, 9), (3, 4, 4, 2), {"padding": "same", "dilation": (2, 1)}),
    "groups": ("conv2d", (2, 6, 7, 7), (9, 2, 3, 3), {"groups": 3}),
    "depthwise": ("conv2d", (2, 16, 8, 8), (16, 1, 3, 3), {"groups": 16, "padding": 1}),
    "one": ("conv2d", (1, 1, 1, 1), (1, 1, 1, 1), {}),
    "signals": ("conv1d", (3, 8, 20), (12, 8, 5), {"padding": 2, "stride": 2}),
    "volumes": ("conv3d", (1, 4, 5, 4, 6), (6, 4, 3, 3, 3), {"padding": 1}),
    "transposed": ("conv_transpose2d", (1, 6, 5, 5), (6, 4, 4, 4), {"stride": 2, "padding": 1}),
    "transposed groups": ("conv_transpose2d", (2, 6, 4, 5), (6, 2, 3, 3), {"stride": 2, "groups": 2, "output_padding": 1}),
    "transposed signals": ("conv_transpose1d", (2, 3, 7), (3, 4, 3), {}),
    "transposed volumes": ("conv_transpose3d", (1, 2, 3, 3, 2), (2, 3, 2, 2, 2), {"stride": 2}),
}


def last(x: Array) -> Array:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_convolutions_of_every_library(library: str, dtype: str, rng: np.random.Generator) -> None:
    for name, (op, shape, weight, keywords) in CONV.items():
        kind = dtype_of(dtype)
        w, x, y = (random_array(rng, s, kind) for s in (weight, shape, shape))
        features = weight[1] * keywords.get("groups", 1) if "transpose" in op else weight[0]
        bias = random_array(rng, (features,), kind)
        relu = dtype != "complex128" and name != "groups"
        layer = getattr(F, f"prepack_{op}")(w, bias, **keywords, activation="relu" if relu else None)

        def reduce(a: Array, b: Array, keywords: Any = keywords, op: str = op) -> Array:
            return sums(a, b, **keywords, transposed="transpose" in op)

        along = bias.reshape(-1, *(1,) * (len(shape) - 2))
        for order in (np.copy, last):
            for way, _, results in run_layer(library, layer, [(order(x),), (order(y),)]):
                for given, result in zip((x, y), results, strict=True):
                    check(result, given, w, [along], reduce, way.precision, f"{way.key} {name}", relu)


@pytest.mark.parametrize("dtype", [*DTYPES, "int32"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_linear_layers_of_every_library(library: str, dtype: str, rng: np.random.Generator) -> None:
    kind = dtype_of(dtype)
    for shape, features in (
        ((1, 1), 1),
        ((3,), 4),
        ((1, 40), 50),
        ((16, 65), 31),
        ((128, 96), 112),
        ((2, 3, 7), 5),
        ((5, 64), 64),
    ):
        w, x, y = (random_array(rng, s, kind) for s in ((features, shape[-1]), shape, shape))
        bias, residual = random_array(rng, (features,), kind), random_array(rng, (*shape[:-1], features), kind)
        plain = kind.kind in "ci"
        for b, r, activation in ((None, None, None), (bias, None, None), *(((bias, residual, "relu"),) if not plain else ())):
            layer = F.prepack_linear(w, b, activation=activation)
            roles = ("input",) if r is None else ("input", "residual")
            calls = [(x,), (y,)] if r is None else [(x, r), (y, r)]
            for way, _, results in run_layer(library, layer, calls, roles):
                for (given, *_), result in zip(calls, results, strict=True):
                    more = [m for m in (b, r) if m is not None]
                    what = f"{way.key} {shape} {activation}"
                    if kind.kind == "i":
                        assert np.array_equal(result, given @ w.T + sum(more)), what
                    else:
                        check(result, given, w, more, lambda a, v: a @ v.T, way.precision, what, activation is not None)


def test_the_other_libraries_that_are_here(rng: np.random.Generator) -> None:
    """Whatever else has something for these Problems; algorithms by transforms have errors in the norm only."""
    for library in libraries.names():
        if library in LIBRARIES or not libraries.get(library).available():
            continue
        for op, shape, weight, keywords in (*CONV.values(), ("linear", (16, 65), (31, 65), {})):
            w, x, y = (random_array(rng, s, F32) for s in (weight, shape, shape))
            layer = getattr(F, f"prepack_{op}")(w, **keywords)
            for way, _, results in run_layer(library, layer, [(x,), (y,)]):
                for given, result in zip((x, y), results, strict=True):
                    exact = (
                        wide(given) @ wide(w).T
                        if op == "linear"
                        else sums(wide(given), wide(w), **keywords, transposed="transpose" in op)
                    )
                    error = float(np.abs(result - exact).max() / np.abs(exact).max())
                    assert error < (2e-2 if way.precision in ("bf16", "tf32") else 1e-4), f"{way.key} {op} {shape}: {error:.1e}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_inputs_and_of_the_weights_given(layout: str, rng: np.random.Generator) -> None:
    need("onednn")
    spread = LAYOUTS[layout]
    x, w, b = (random_array(rng, s, F32) for s in ((2, 8, 6, 5), (16, 8, 3, 3), (16,)))
    a, m = random_array(rng, (9, 24), F32), random_array(rng, (17, 24), F32)
    conv, linear = F.prepack_conv2d(spread(w), spread(b), padding=1), F.prepack_linear(spread(m))
    assert conv.weight.flags.c_contiguous and np.array_equal(conv.weight, w) and linear.weight.ctypes.data % 64 == 0
    out, lin = spread(np.zeros((2, 16, 6, 5), np.float32)), spread(np.zeros((9, 17), np.float32))
    for _ in range(2):
        assert conv(spread(x), out=out) is out and linear(spread(a), None, lin) is lin
        check(out, x, w, [b.reshape(-1, 1, 1)], lambda p, q: sums(p, q, padding=1), "", layout)
        check(lin, a, m, [], lambda p, q: p @ q.T, "", layout)
        out[...] = 0


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_relu_and_what_is_not_finite(kind: str, rng: np.random.Generator) -> None:
    """NaN stays, infinities have their signs, and the result may be the residual itself."""
    shape = (8, 40) if kind == "linear" else (1, 8, 5, 8)
    x = rng.standard_normal(shape).astype(np.float32)
    w = rng.standard_normal((40, 40) if kind == "linear" else (8, 8, 1, 1)).astype(np.float32)
    layer = (F.prepack_linear if kind == "linear" else F.prepack_conv2d)(w, activation="relu")
    for value in (np.nan, np.inf, -np.inf, 1e-40, 1.0):
        x.flat[5] = value
        residual = rng.standard_normal(shape).astype(np.float32)
        with np.errstate(all="ignore"):
            product = (
                x.astype(np.float64) @ w.T if kind == "linear" else np.einsum("nchw,oc->nohw", x.astype(float), w[:, :, 0, 0])
            )
            exact = np.maximum(product + residual, 0)
        for way, _, (first, again) in run_layer("onednn", layer, [(x, residual)] * 2, ("input", "residual")):
            if not way.precision:
                np.testing.assert_allclose(first, exact, rtol=1e-4, atol=1e-4, err_msg=f"{way.key} {value}")
                assert np.array_equal(first, again, equal_nan=True)
        added = residual.copy()
        assert layer(x, added, added) is added
        np.testing.assert_allclose(added, exact, rtol=1e-4, atol=1e-4)


def test_nothing_and_very_little(rng: np.random.Generator) -> None:
    layer = F.prepack_conv2d(np.ones((4, 2, 3, 3), np.float32), np.ones(4, np.float32), padding=1)
    assert layer(np.ones((0, 2, 5, 5), np.float32)).shape == (0, 4, 5, 5)
    assert layer(np.ones((2, 5, 5), np.float32)).shape == (4, 5, 5)  # one image without a batch
    into = np.zeros((4, 5, 5), np.float32)
    assert layer(np.ones((2, 5, 5), np.float32), out=into) is into and into[0, 1, 1] == 19
    assert F.prepack_conv2d(np.ones((0, 2, 3, 3), np.float32))(np.ones((1, 2, 4, 4), np.float32)).shape == (1, 0, 2, 2)
    assert np.array_equal(F.prepack_linear(np.ones((3, 0)), np.arange(3.0))(np.ones((2, 0))), [[0, 1, 2]] * 2)
    assert F.prepack_linear(np.ones((0, 3)))(np.ones((2, 3))).shape == (2, 0)
    assert F.prepack_linear(np.ones((2, 3)))(np.ones((0, 3))).shape == (0, 2)
    tiny, huge = np.full((2, 2), 1e-42, np.float32), np.full((2, 2), 3e38, np.float32)
    assert (F.prepack_linear(tiny)(np.ones((2, 2), np.float32)) > 0).all()
    assert np.isinf(F.prepack_linear(huge)(huge)).all()


# Owning ---------------------------------------------------------------------------------------------------------------


def test_weights_given_can_be_written_to_and_its_own_cannot(rng: np.random.Generator) -> None:
    w, b, x = (random_array(rng, s, F32) for s in ((8, 4, 3, 3), (8,), (1, 4, 6, 6)))
    layer = F.prepack_conv2d(w, b)
    expected = F.conv2d(x, w, b)
    w[:], b[:] = 0, 0
    fresh = F.prepack_conv2d(layer.weight, layer.bias)
    for _ in range(2):
        np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-5)
        assert np.array_equal(layer(x), fresh(x))
    for array in (layer.weight, layer.bias):
        assert array is not None and not array.flags.writeable
        base: Any = array
        while isinstance(base, np.ndarray):
            with pytest.raises(ValueError, match="WRITEABLE"):
                base.flags.writeable = True
            base = base.base
    with pytest.raises(AttributeError):
        layer.weight = w  # type: ignore[misc]  # refused on purpose


def test_plain_calls_still_read_the_weights_they_are_given(rng: np.random.Generator) -> None:
    w, x = random_array(rng, (64, 64), F32), random_array(rng, (16, 64), F32)
    layer, before = F.prepack_linear(w), F.linear(x, w)
    layer(x)
    w *= 2
    np.testing.assert_allclose(F.linear(x, w), 2 * before, rtol=1e-5, atol=1e-4)


def test_layers_of_one_shape_do_not_mix(rng: np.random.Generator) -> None:
    x = random_array(rng, (16, 128), F32)
    weights = [random_array(rng, (128, 128), F32) for _ in range(4)]
    layers = [F.prepack_linear(w) for w in weights]
    for _ in range(2):
        for w, layer in zip(weights, layers, strict=True):
            check(layer(x), x, w, [], lambda a, v: a @ v.T, "", "its own weights")


def test_a_plan_that_made_room_for_others_is_let_go() -> None:
    layer = F.prepack_conv2d(np.ones((2, 3, 3, 3), np.float32), max_plans=2)
    images = [np.ones((1, 3, size, 9), np.float32) for size in (7, 8, 9)]
    with backline.num_threads(1):
        layer(images[0])
        first = layer.own_plans()[0]
        layer(images[1])
        held = sys.getrefcount(first)
        layer(images[2])
    assert layer.plans == 2 and all(plan is not first for plan in layer.own_plans())
    assert sys.getrefcount(first) == held - 1, "the layer holds it no longer"


def test_memory_is_told_bounded_and_given_back(rng: np.random.Generator) -> None:
    need("onednn")
    w = random_array(rng, (128, 128), F32)
    layer = F.prepack_linear(w, max_plans=3)
    assert (layer.nbytes, layer.plans, layer.max_plans) == (w.nbytes, 0, 3)
    with backline.use("onednn"):
        for rows in (16, 17, 18, 19, 20):
            layer(np.ones((rows, 128), np.float32))
            assert layer.plans == min(rows - 15, 3)
        assert w.nbytes * 4 <= layer.nbytes < w.nbytes * 5
        kept = layer.own_plans()[0]
        layer(np.ones((18, 128), np.float32))  # used again: the next one to go is 19
        layer(np.ones((21, 128), np.float32))
        assert [p.choice.problem.m for p in layer.own_plans()] == [18, 20, 21] and kept.kept_bytes >= w.nbytes
        del kept
    gone, plan_gone = weakref.ref(layer), weakref.ref(layer.weight)
    memo, cached = _core.memo_info()["size"], plan_caches.cache("onednn").size
    gc.disable()
    try:
        del layer
        assert gone() is None and plan_gone() is None  # at once, without looking for cycles
    finally:
        gc.enable()
    assert (_core.memo_info()["size"], plan_caches.cache("onednn").size) == (memo, cached)


def test_clearing_plans_clears_those_of_layers(rng: np.random.Generator) -> None:
    layer, x = F.prepack_linear(random_array(rng, (64, 64), F32)), random_array(rng, (16, 64), F32)
    first = layer(x)
    for clear in (plan_caches.clear, _core.memo_clear):
        assert layer.plans == 1
        clear()
        assert layer.plans == 0 and layer.nbytes == layer.weight.nbytes
        assert np.array_equal(layer(x), first)


# Switches and reports ---------------------------------------------------------------------------------------------------


def test_switches_decide(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    need("onednn"), need("openblas")
    monkeypatch.setattr(ranking, "order_of", lambda problem, own=True: ())  # all threads first, whatever is faster on this machine
    w, x = random_array(rng, (32, 32, 3, 3), F32), random_array(rng, (1, 32, 12, 12), F32)
    layer = F.prepack_conv2d(w, padding=1)

    def ran() -> tuple[str, int]:
        check(layer(x), x, w, [], lambda p, q: sums(p, q, padding=1), "", "under switches")
        choice = backline.explain()
        assert choice.problem.packed
        return choice.chosen.library, choice.chosen.threads

    assert ran() == ("onednn", 2) and layer.plans == 1
    with switches.scope({"mkldnn.enabled": False}):
        assert ran()[0] != "onednn"
        refused = [c for c in backline.explain(layer, x).candidates if c.library == "onednn"]
        assert [c.switch for c in refused] == ["mkldnn.enabled"]
    with switches.scope(only=("openblas",)):
        assert ran()[0] == "openblas"
    with switches.scope(only=("numpy",)):
        assert ran()[0] == "numpy"
    with backline.num_threads(1):
        assert ran() == ("onednn", 1)
    with switches.scope(deterministic=True, determinism_level="threads"):
        assert ran()[0] and backline.explain().chosen.reaches("threads")
    before = layer.plans
    assert ran() == ("onednn", 2) and layer.plans == before  # the plan of the first call
    with switches.scope(only=("blis",), fallback="error"), pytest.raises((NoKernel, FallbackRefused)):
        F.prepack_linear(np.ones((2, 2), np.int32))(np.ones((2, 2), np.int32))


def test_reduced_precision_is_a_permission(rng: np.random.Generator) -> None:
    lib = need("onednn")
    w, x = random_array(rng, (64, 48), F32), random_array(rng, (40, 48), F32)
    layer = F.prepack_linear(w)
    plain = {c.algorithm for c in backline.explain(layer, x).candidates if c.verdict != "refused" and c.library == "onednn"}
    assert "bf16" not in plain
    with switches.scope({"mkldnn.matmul.fp32_precision": "bf16", "only": ("onednn",)}):
        names = {c.algorithm for c in backline.explain(layer, x).candidates if c.verdict != "refused"}
        assert ("bf16" in names) == lib.traits.engine.bf16
        layer(x)


def test_explain_and_trace_say_so(rng: np.random.Generator) -> None:
    need("onednn")
    layer, x = F.prepack_conv2d(random_array(rng, (16, 16, 3, 3), F32)), random_array(rng, (1, 16, 9, 9), F32)
    choice = backline.explain(layer, x)
    assert layer.plans == 0  # asking makes none
    text = str(choice)
    assert choice.problem.key == "conv f32 1x16x9x9 16x16x3x3 packed=True" and "weights packed once" in text
    with backline.trace() as events:
        layer(x)
    assert len(events) == 1 and events[0].choice.problem.packed
    assert backline.explain().problem == choice.problem
    with pytest.raises(BadType):
        backline.explain(layer, [1.0])


def test_measured_as_it_runs(rng: np.random.Generator) -> None:
    """A measurement uses weights of its own; the layer's stay what they are."""
    w, x = random_array(rng, (32, 64), F32), random_array(rng, (16, 64), F32)
    layer = F.prepack_linear(w)
    with switches.scope(benchmark=True, benchmark_limit=0):
        for _ in range(2):
            check(layer(x), x, w, [], lambda a, v: a @ v.T, "", "measured")
    record = record_store.find(layer.problem(x), 2)
    assert record is not None and record.key == "matmul f32 16x64 64x32:F packed=True" and not record.rejected
    assert record_store.find(backline.explain(F.linear, x, w).problem, 2) is None
    assert backline.explain(layer, x).basis == record.describe()
    check(layer(x), x, w, [], lambda a, v: a @ v.T, "", "as measured")
    problem = unpack(pack(layer.problem(x)))
    assert problem == layer.problem(x) and len(eligible(problem, 2)) > 1
    from backline.problems import Problem

    assert Problem.parse(record.key).packed and Problem.parse(record.key).key == record.key


def test_verbose_and_events_of_a_layer(rng: np.random.Generator) -> None:
    need("onednn")
    w, x = random_array(rng, (64, 64), F32), random_array(rng, (16, 64), F32)
    layer = F.prepack_linear(w)
    with backline.use("onednn"), backline.backends.mkldnn.verbose(1) as log:
        for _ in range(3):
            check(layer(x), x, w, [], lambda a, v: a @ v.T, "", "verbose")
        assert layer.nbytes >= 2 * w.nbytes
    reorders = [sum("reorder" in line for line in event.lines) for event in log]
    assert len(log) == 3 and reorders == [1, 0, 0]


# Calls ----------------------------------------------------------------------------------------------------------------


def test_ways_to_call(rng: np.random.Generator) -> None:
    w, x, r = (random_array(rng, s, F32) for s in ((8, 8), (4, 8), (4, 8)))
    layer = F.prepack_linear(w)
    expected, out = layer(x, r), np.empty((4, 8), np.float32)
    assert np.array_equal(layer(residual=r, input=x), expected)
    assert layer(out=out, residual=r, input=x) is out and np.array_equal(out, expected)
    assert np.array_equal(layer(x, residual=r, out=None), expected)
    assert np.array_equal(layer(x.astype(">f4"), r), expected)

    class Mine(np.ndarray):
        pass

    mine = np.zeros((4, 8), np.float32).view(Mine)
    assert type(layer(x.view(Mine), r)) is np.ndarray and layer(x, r, mine) is mine and np.array_equal(mine, expected)
    with switches.scope(only=("numpy",)):  # whose plans are Python functions
        np.testing.assert_allclose(layer(residual=r, input=x), expected, rtol=1e-5, atol=1e-5)
        assert layer(out=out, input=x, residual=r) is out
    assert list(inspect.signature(layer).parameters) == ["input", "residual", "out"]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: F.prepack_conv2d([1.0]), BadType, "weight must be a NumPy array"),
        (lambda: F.prepack_conv2d(np.ones((2, 2))), BadValue, "prepack_conv2d: weight must have 4 dimensions"),
        (lambda: F.prepack_conv2d(np.ones((2, 2, 0, 1))), BadValue, "kernel without elements"),
        (lambda: F.prepack_conv2d(np.ones((3, 2, 1, 1)), groups=2), BadValue, "groups=2 does not divide"),
        (lambda: F.prepack_conv2d(np.ones((3, 2, 1, 1)), groups=0), BadValue, "groups=0"),
        (lambda: F.prepack_conv2d(np.ones((3, 2, 1, 1)), groups="2"), BadType, "not an int"),
        (lambda: F.prepack_conv2d(np.ones((3, 2, 1, 1)), stride=0), BadValue, "stride=0"),
        (lambda: F.prepack_conv2d(np.ones((3, 2, 1, 1)), padding="sane"), BadValue, "padding"),
        (lambda: F.prepack_conv2d(np.ones((3, 2, 1, 1)), np.ones(2)), BadValue, "bias has shape"),
        (lambda: F.prepack_conv2d(np.ones((3, 2, 1, 1)), np.ones(3, np.float32)), BadType, "float32"),
        (lambda: F.prepack_conv2d(np.ones((3, 2, 1, 1)), activation="gelu"), BadValue, "activation"),
        (lambda: F.prepack_conv_transpose2d(np.ones((3, 2, 1, 1)), output_padding=1), BadValue, "output_padding"),
        (lambda: F.prepack_conv_transpose2d(np.ones((3, 2, 1, 1)), padding="same"), BadType, "padding"),
        (lambda: F.prepack_linear(np.ones((3, 2, 1))), BadValue, "weight must have shape"),
        (lambda: F.prepack_linear(np.float64(3)), BadType, "NumPy array"),
        (lambda: F.prepack_linear(np.array(3.0)), BadValue, "weight must have shape"),
        (lambda: F.prepack_linear(np.ones((3, 2)), np.ones(2)), BadValue, "bias has shape"),
        (lambda: F.prepack_linear(np.ones((3, 2)), activation="elu"), BadValue, "activation"),
        (lambda: F.prepack_linear(np.array([["a"]])), BadType, "not a number"),
        (lambda: F.prepack_linear(np.ones((3, 2)), max_plans=0), BadValue, "max_plans=0"),
        (lambda: F.prepack_linear(np.ones((3, 2)), max_plans=1.5), BadType, "max_plans=1.5"),
        (lambda: F.prepack_linear(np.ones((3, 2)), max_plans=True), BadType, "max_plans=True"),
        (lambda: F.prepack_linear(np.ones((3, 2)))(np.ones((4, 3))), BadValue, r"\(4, 3\).*\(3, 2\)"),
        (lambda: F.prepack_linear(np.ones((3, 2)))(np.ones((4, 2), np.float32)), BadType, "float32"),
        (lambda: F.prepack_linear(np.ones((3, 2)))(np.ma.ones((4, 2))), BadType, "MaskedArray"),
        (lambda: F.prepack_linear(np.ones((3, 2)))([[1.0, 2.0]]), BadType, "not list"),
        (lambda: F.prepack_linear(np.ones((3, 2)))(np.ones((4, 2)), np.ones((4, 2))), BadValue, "residual"),
        (lambda: F.prepack_linear(np.ones((3, 2)))(np.ones((4, 2)), out=np.ones((3, 4))), BadValue, "out"),
        (lambda: F.prepack_linear(np.ones((3, 2)))(np.ones((4, 2)), out=3), BadType, "out"),
        (lambda: F.prepack_conv2d(np.ones((3, 2, 3, 3)))(np.ones((1, 2, 2, 2))), BadValue, "kernel"),
        (lambda: F.prepack_conv2d(np.ones((3, 2, 1, 1)))(np.ones((1, 3, 2, 2))), BadValue, "channels"),
        (lambda: F.prepack_conv2d(np.ones((3, 2, 1, 1)))(np.ones((2, 2))), BadValue, "dimensions"),
        (lambda: F.prepack_linear(np.ones((3, 2)))(), TypeError, "takes an input"),
        (lambda: F.prepack_linear(np.ones((3, 2)))(None), TypeError, "takes an input"),
        (lambda: F.prepack_linear(np.ones((3, 2)))(np.ones((1, 2)), weight=1), TypeError, "weight"),
        (lambda: F.prepack_linear(np.ones((3, 2)))(np.ones((1, 2)), input=np.ones((1, 2))), TypeError, "input"),
        (lambda: F.prepack_linear(np.ones((3, 2)))(1, 2, 3, 4), TypeError, "4 arguments"),
    ],
)  # fmt: skip
def test_errors_say_what_is_wrong(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_an_output_that_overlaps_is_refused(rng: np.random.Generator) -> None:
    layer = F.prepack_linear(random_array(rng, (8, 8), F32))
    room = np.ones((5, 8), np.float32)
    for _ in range(2):
        with pytest.raises(BadValue, match="overlap"):
            layer(room[:4], out=room[1:])
    with pytest.raises(BadValue, match="read-only"):
        layer(room, out=np.frombuffer(bytes(160), np.float32).reshape(5, 8))


def test_copies_pickles_and_shows_itself(rng: np.random.Generator) -> None:
    w, b, x = (random_array(rng, s, F32) for s in ((6, 2, 3, 3), (6,), (1, 4, 6, 6)))
    layer = F.prepack_conv2d(w, b, (2, 1), [1, 0], groups=2, activation="relu", max_plans=5)
    expected = layer(x)
    for other in (pickle.loads(pickle.dumps(layer)), copy.copy(layer), copy.deepcopy(layer)):
        assert type(other) is PackedLayer and other is not layer and other.plans == 0
        assert np.array_equal(other(x), expected) and repr(other) == repr(layer)
        assert (other.settings, other.max_plans, other.operation) == (layer.settings, 5, "conv2d")
    assert repr(layer) == "<packed conv2d f32 6x2x3x3 bias stride=(2, 1) padding=(1, 0) groups=2 activation='relu'>"
    assert repr(F.prepack_linear(np.ones((2, 3)))) == "<packed linear f64 2x3>"
    half = F.prepack_linear(np.ones((2, 3), BFLOAT16))
    assert pickle.loads(pickle.dumps(half)).weight.dtype == BFLOAT16
    assert layer == layer and len({layer, copy.copy(layer)}) == 2  # by identity: it can be a key


# Threads ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [(16,), (3, 16, 17, 40)])
def test_threads_that_meet_in_the_first_call(rows: tuple[int, ...], rng: np.random.Generator) -> None:
    need("onednn")
    w = random_array(rng, (96, 96), F32)
    inputs = [random_array(rng, (n, 96), F32) for n in rows]
    wanted = [wide(x) @ wide(w).T for x in inputs]
    failed: list[str] = []
    for _ in range(5):
        layer = F.prepack_linear(w, max_plans=2)
        gate = threading.Barrier(6)

        def work(layer: Any = layer, gate: Any = gate) -> None:
            gate.wait()
            for i in range(40):
                x, exact = inputs[i % len(inputs)], wanted[i % len(inputs)]
                if float(np.abs(layer(x) - exact).max()) > 1e-2:
                    failed.append(f"{len(x)} rows")

        with backline.use("onednn"):
            import contextvars

            threads = [threading.Thread(target=contextvars.copy_context().run, args=(work,)) for _ in range(6)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        assert not failed and layer.plans <= 2


def test_a_forked_child_has_the_weights_too() -> None:
    need("onednn")
    program = """
        import os, warnings
        import numpy as np
        import backline
        from backline.nn import functional as F
        warnings.simplefilter("ignore")
        w = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float32)
        layer, x = F.prepack_linear(w), np.ones((16, 96), np.float32)
        wanted = x @ w.T
        assert np.allclose(layer(x), wanted, atol=1e-4)
        child = os.fork()
        if not child:
            os._exit(0 if np.allclose(layer(x), wanted, atol=1e-4) and np.allclose(layer(x[:9]), wanted[:9], atol=1e-4) else 3)
        assert os.waitpid(child, 0)[1] == 0
    """
    assert python(program).returncode == 0
    assert libraries.get("onednn").available()
