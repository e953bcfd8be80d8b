"""Operations between products: activations, softmax, normalisation, pooling, their gradients, dropout, linear layers' ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import backline
from backline.nn import functional as F
from backline.nn import grad as G
from backline.problems.neural_problem import ELEMENTARY
from gpu.arrays import dtype_of, normal, wide
from gpu.layers import LAYOUTS, NASTY, away, host, laid, layers

HALVES = ("float16", "bfloat16")
DTYPES = (*HALVES, "float32", "float64")
TIMES = 4.0  # what is near, as layers add up and gradients multiply

Call = Callable[..., Any]


def on_device(xp: Any, layout: str, args: tuple[Any, ...]) -> list[Any]:
    """Arguments with arrays on the device; only the images, not the parameters, in the layout."""
    return [laid(xp, a, layout if a.ndim > 2 else "C") if isinstance(a, np.ndarray) else a for a in args]


@pytest.fixture(scope="module")
def compiled(_check: Any, size: Any) -> None:
    """All kernels, made at once by several threads, for each takes a while: calls from them must not be in each other's way."""
    xp = _check.machine.cupy()
    calls = [call for dtype in DTYPES for call in layers(dtype)]

    def run(call: tuple[Any, ...]) -> None:
        function, *args = call
        function(*on_device(xp, "C", tuple(args)))

    with ThreadPoolExecutor(size(12, 1)) as pool:
        list(pool.map(run, calls))


@pytest.mark.gpu(row="ELEM-1")
@pytest.mark.parametrize(
    ("dtype", "layout"), [(d, "C") for d in DTYPES] + [("float32", lay) for lay in LAYOUTS[1:]] + [("bfloat16", "F")]
)
def test_layers(row: Any, xp: Any, compiled: None, dtype: str, layout: str) -> None:
    row.expect(
        "activations, softmax, norms, pooling and their gradients are near those of float64, in every layout, in the arrays' dtype"
    )
    worst = {}
    for function, *args in layers(dtype):
        found = function(*on_device(xp, layout, tuple(args)))
        name = function.__name__
        expected = host(function, *args)
        worst[name] = max(worst.get(name, 0.0), away(found, expected, dtype, f"{name} {dtype} {layout}"))
        first = found[0] if isinstance(found, tuple) else found
        assert first.dtype == dtype_of(dtype), name
    name = max(worst, key=lambda each: worst[each])
    row.observe(f"{dtype} {layout}: {len(worst)} functions", f"farthest: {name}, {worst[name]:.2g} of {TIMES:g}")
    assert worst[name] < TIMES, f"{name}: {worst[name]}"


@pytest.mark.gpu(row="ELEM-1")
@pytest.mark.parametrize("dtype", DTYPES)
def test_nasty_numbers(row: Any, xp: Any, compiled: None, dtype: str) -> None:
    row.expect("NaN, infinities, zeros and large numbers come out as on the host")
    x = np.array(NASTY, np.float64).astype(dtype_of(dtype))
    rows = np.array([[1.0, np.inf], [np.nan, 0.0], [-np.inf, 1.0], [-np.inf, -np.inf], [30000.0, -30000.0]]).astype(x.dtype)
    image = np.array([[[1.0, np.nan, 3.0, -np.inf, np.inf, 2.0, -np.inf]]]).astype(x.dtype)
    calls: list[tuple[Any, ...]] = [(F.softmax, rows, 1), (F.log_softmax, rows, 1), (F.layer_norm, rows, 2)]
    for name in ("relu", "gelu", "silu", "tanh", "sigmoid"):
        calls += [(getattr(F, name), x), (getattr(G, f"{name}_input"), x, np.ones_like(x))]
    calls += [(getattr(backline, name), x) for name in ELEMENTARY]
    for window in ((2,), (3, 1, 1)):
        pooled = host(F.max_pool1d, image, *window)
        calls += [(F.max_pool1d, image, *window), (G.max_pool1d_input, image, np.ones(pooled.shape).astype(x.dtype), *window)]
    for function, *args in calls:
        assert away(function(*on_device(xp, "C", tuple(args))), host(function, *args), dtype, function.__name__) < 1, (
            function.__name__
        )
    row.observe(f"{dtype}: {len(calls)} calls")


@pytest.mark.gpu(row="ELEM-1")
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_length(row: Any, xp: Any, size: Any, dtype: str) -> None:
    row.expect("softmax and normalisation are one kernel for rows of every length, near float64; the same bits for every alignment")
    farthest = 0.0
    for n in size((1, 5, 129, 1000, 4099, 40_000), (5,)):
        x, w = normal((7, n), dtype, n), normal((n,), dtype, 1)
        for function, *more in ((F.softmax, 1), (F.log_softmax, 1), (F.layer_norm, n, w, w), (F.rms_norm, n, w)):
            found = function(*on_device(xp, "C", (x, *more)))
            assert backline.explain().algorithm == "rows"
            farthest = max(farthest, away(found, host(function, x, *more), dtype, f"{function.__name__} {n}"))
            room = xp.zeros(x.size + 1, x.dtype)
            moved = room[1:].reshape(x.shape)
            moved[...] = xp.asarray(x)
            assert function(moved, *on_device(xp, "C", tuple(more))).get().tobytes() == found.get().tobytes()
        g = normal((7, n), dtype, 3)
        found = G.layer_norm_backward(*on_device(xp, "C", (x, g)), n, xp.asarray(w))
        assert backline.explain().algorithm == "rows"
        farthest = max(farthest, away(found[1:], host(G.layer_norm_backward, x, g, n, w)[1:], dtype, f"layer_norm_backward {n}"))
    large = normal(size((64, 6, 40, 40), (4, 6, 4, 4)), dtype, 2)  # few channels of many elements: several blocks share one
    for last in (False, True):
        there = xp.asarray(np.ascontiguousarray(large.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2) if last else xp.asarray(large)
        found = F.batch_norm(there, None, None, training=True)
        assert backline.explain().algorithm == "rows" and found.strides == there.strides
        farthest = max(farthest, away(found, host(F.batch_norm, large, None, None, training=True), dtype, "batch_norm"))
        found = G.batch_norm_backward(there, there)
        farthest = max(farthest, away(found[:1], host(G.batch_norm_backward, large, large)[:1], dtype, "batch_norm_backward"))
    row.observe(f"{dtype}: {farthest:.2g} of {TIMES:g}")
    assert farthest < TIMES


@pytest.mark.gpu(row="ELEM-1")
@pytest.mark.parametrize("dtype", DTYPES)
def test_pooling_by_windows(row: Any, xp: Any, dtype: str) -> None:
    row.expect("pooling is one kernel in every layout: maxima, their places and gradients as on the host, means near float64")
    x, farthest = normal((2, 35, 17, 18), dtype, 4), 0.0
    wanted, places = F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True)
    g = normal(wanted.shape, dtype, 5)
    for last in (False, True):
        there, slope = (
            xp.asarray(np.ascontiguousarray(a.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2) if last else xp.asarray(a) for a in (x, g)
        )
        found, at = F.max_pool2d(there, 3, 2, 1, ceil_mode=True, return_indices=True)
        assert backline.explain().algorithm == "windows" and np.array_equal(at.get(), places)
        assert found.get().tobytes() == wanted.tobytes() and (found.strides[1] == found.itemsize) is last
        calls: list[tuple[Call, tuple[Any, ...], tuple[Any, ...]]] = [
            (G.max_pool2d_input, (there, slope, 3, 2, 1, 1, True), (x, g, 3, 2, 1, 1, True)),
            (G.avg_pool2d_input, (x.shape, slope, 3, 2, 1, True), (x.shape, g, 3, 2, 1, True)),
        ]
        for more in ((3, 2, 1), (9, 1), (17, 1)):  # the largest windows are shared by several threads
            calls.append((F.avg_pool2d, (there, *more), (x, *more)))
        calls.append((F.adaptive_avg_pool2d, (there, 1), (x, 1)))
        for function, args, same in calls:
            made = function(*args)
            assert backline.explain().algorithm == "windows"
            farthest = max(farthest, away(made, host(function, *same), dtype, function.__name__))
            assert function(*args).get().tobytes() == made.get().tobytes()
    row.observe(f"{dtype}: {farthest:.2g} of {TIMES:g}")
    assert farthest < TIMES


@pytest.mark.gpu(row="ELEM-1")
def test_shapes_at_the_edge(row: Any, xp: Any) -> None:
    row.expect("no axis, no elements, repeated elements, and more elements than 32 bits count are right")
    for shape in ((), (0,), (3, 0), (1,)):
        x = xp.ones(shape, np.float32)
        assert F.gelu(x).shape == shape and F.dropout(x, 0.5, seed=1).shape == shape
        assert G.relu_input(x, x).shape == shape
    for shape in ((0, 4, 6, 5), (2, 0, 6, 5)):
        x = xp.zeros(shape, np.float32)
        for function, *args in ((F.softmax, 1), (F.layer_norm, 5), (F.max_pool2d, 2), (F.avg_pool2d, 2)):
            assert function(x, *args).shape == host(function, x.get(), *args).shape
    one = normal((1, 4, 6, 5), seed=3)
    repeated = xp.broadcast_to(xp.asarray(one), (3, 4, 6, 5))
    for function, *args in ((F.relu,), (F.softmax, 1), (F.layer_norm, 5), (F.max_pool2d, 3, 2, 1)):
        assert (
            away(
                function(repeated, *args), host(function, np.broadcast_to(one, (3, 4, 6, 5)), *args), "float32", function.__name__
            )
            < TIMES
        )
    row.observe("as on the host")


@pytest.mark.gpu(row="ELEM-1")
def test_more_elements_than_an_int_counts(row: Any, xp: Any, size: Any, rehearsed: bool) -> None:
    row.expect("relu and dropout reach the last of 2**31 + 9 elements")
    count = size((1 << 31) + 9, 1009)
    if not rehearsed and xp.cuda.runtime.memGetInfo()[0] < 5 * 2 * count:
        row.observe("too little memory for it")
        return
    x = xp.ones(count, np.float16)
    made = F.relu(x)
    assert float(made[-1]) == 1.0 and float(made[0]) == 1.0
    del made
    dropped = F.dropout(x, 0.25, seed=7)[-9:].get()
    bits = np.random.default_rng(7).bit_generator
    bits.advance(count - 9)
    kept = np.random.Generator(bits).random(9) >= 0.25
    row.observe(f"{count} elements, the last dropped as on the host")
    assert np.array_equal(dropped, np.where(kept, np.float16(1 / 0.75), np.float16(0)))


@pytest.mark.gpu(row="ELEM-1")
def test_dropout_drops_the_same_elements_as_on_the_host(row: Any, xp: Any) -> None:
    row.expect("dropout leaves out, and scales, what it does on the host; the generator moves on as there")
    ours, theirs = np.random.default_rng(3), np.random.default_rng(3)
    for generator in (ours, theirs):
        generator.integers(0, 10, 3, dtype=np.uint32)  # leaves half a number over
    for dtype in DTYPES:
        x = normal((40, 7), dtype)
        assert np.array_equal(wide(F.dropout(xp.asarray(x), 0.4, seed=ours)), wide(F.dropout(x, 0.4, seed=theirs))), dtype
        assert np.array_equal(wide(F.dropout(xp.asarray(x).T, 0.4, seed=5)), wide(F.dropout(x.T, 0.4, seed=5))), dtype
    assert ours.integers(0, 1000, 3, dtype=np.uint32).tolist() == theirs.integers(0, 1000, 3, dtype=np.uint32).tolist()
    row.observe("the same elements")


@pytest.mark.gpu(row="ELEM-1")
def test_results_repeat_on_every_stream(row: Any, xp: Any, compiled: None) -> None:
    row.expect("the same bits in every run, on streams of their own")
    calls = [call for call in layers("float32") if call[0].__name__ in ("softmax", "layer_norm_backward", "batch_norm_backward",
                                                                       "avg_pool2d", "max_pool2d_input", "linear_bias")]  # fmt: skip
    for function, *args in calls:
        given = on_device(xp, "C", tuple(args))
        xp.cuda.get_current_stream().synchronize()
        runs = []
        for _ in range(3):
            stream = xp.cuda.Stream()
            with stream:
                made = function(*given)
            stream.synchronize()
            runs.append([part.get().tobytes() for part in (made if isinstance(made, tuple) else (made,))])
        assert runs[0] == runs[1] == runs[2], function.__name__
    row.observe(f"{len(calls)} functions repeat")


@pytest.mark.gpu(row="ELEM-1")
def test_running_statistics(row: Any, xp: Any) -> None:
    row.expect("batch_norm in training updates the running statistics on the device as on the host")
    for dtype in (*HALVES, "float32"):
        x = normal((5, 4, 6), dtype)
        there = xp.zeros(4, np.float32), xp.ones(4, np.float32)
        here = np.zeros(4), np.ones(4)
        F.batch_norm(xp.asarray(x), *there, training=True)
        F.batch_norm(wide(x), *here, training=True)
        assert max(away(a, b, "float32", dtype) for a, b in zip(there, here, strict=True)) < TIMES
    row.observe("updated")


# --- linear layers ----------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="ELEM-3")
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_follows_a_product(row: Any, xp: Any, size: Any, dtype: str) -> None:
    row.expect(
        "bias, residual and activation after cuBLAS's product: near float64; halves rounded once, at the end; "
        "cuBLASLt rounds them before it adds a residual too, and how often that shows is told"
    )
    m, k, n = size((96, 512, 160), (9, 64, 20))
    x, weight, bias, residual = (normal(s, dtype, i) for i, s in enumerate(((2, m, k), (n, k), (n,), (2, m, n))))
    weight = (weight.astype(np.float64) / k**0.5).astype(weight.dtype)
    exact, added, worst = 1.0, 1.0, 0.0
    cases = itertools.product(("gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "relu"), (False, True), (False, True))
    for activation, biased, more in cases:
        given = {"residual": residual} if more else {}
        arrays = x, weight, bias if biased else None
        expected = host(F.linear, *arrays, activation=activation, **given)
        found = F.linear(*on_device(xp, "C", arrays), activation=activation, **{name: xp.asarray(a) for name, a in given.items()})
        choice = backline.explain()
        if activation == "gelu_tanh" and choice.library == "cublaslt":
            continue  # by the formula of that library; how near it is, LT-3 says
        worst = max(worst, away(found, expected, dtype, f"{activation} {dtype}"))
        if dtype in HALVES:
            share = float(np.mean(wide(found) == wide(expected.astype(found.dtype))))
            if more and choice.library == "cublaslt":
                added = min(added, share)
            else:
                exact = min(exact, share)
        if activation not in ("relu",):
            assert choice.library == "cublas" and choice.algorithm.endswith("_pointwise"), choice.chosen.key
    shares = f"; {exact:.1%} of all elements are the nearest, {added:.1%} by cuBLASLt with a residual" if dtype in HALVES else ""
    row.observe(f"{dtype}: {worst:.2g} of {TIMES:g} away{shares}", choice.chosen.key)
    assert worst < TIMES
    assert exact > 0.95, "a half that is rounded twice is not the nearest more often"


@pytest.mark.gpu(row="ELEM-3")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("library", ["cublas", "cublaslt"])
def test_what_a_product_is_added_to(row: Any, xp: Any, size: Any, dtype: str, library: str) -> None:
    row.expect("addmm of halves: near float64; how many of its elements are the nearest, as of those that are rounded once, is told")
    m, k, n = size((192, 512, 160), (9, 64, 20))
    c, a, b = normal((m, n), dtype, 1), normal((m, k), dtype, 2), normal((k, n), dtype, 3)
    b = (b.astype(np.float64) / k**0.5).astype(b.dtype)
    expected = host(backline.addmm, c, a, b)
    with backline.switches.scope({"cuda.preferred_blas_library": library}):
        found = backline.addmm(*map(xp.asarray, (c, a, b)))
        choice = backline.explain()
    far, share = away(found, expected, dtype, "addmm"), float(np.mean(wide(found) == wide(expected.astype(found.dtype))))
    row.observe(f"{library} {dtype}: {far:.2g} of {TIMES:g} away; {share:.1%} of all elements are the nearest", choice.chosen.key)
    assert choice.library == library and far < TIMES


@pytest.mark.gpu(row="ELEM-3")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_output_that_is_given(row: Any, xp: Any, dtype: str) -> None:
    row.expect("results are written where the call says, to the residual itself too")
    x, weight, residual = normal((2, 3, 16), dtype), normal((8, 16), dtype, 1), normal((2, 3, 8), dtype, 2)
    expected = host(F.linear, x, weight, activation="tanh", residual=residual)
    for out in (xp.zeros((2, 3, 8), residual.dtype), xp.zeros((2, 6, 8), residual.dtype)[:, ::-2]):
        assert F.linear(xp.asarray(x), xp.asarray(weight), activation="tanh", residual=xp.asarray(residual), out=out) is out
        assert away(out, expected, dtype, "out") < TIMES
    target = xp.asarray(residual)
    assert F.linear(xp.asarray(x), xp.asarray(weight), activation="tanh", residual=target, out=target) is target
    assert away(target, expected, dtype, "residual") < TIMES
    with pytest.raises(backline.errors.BadValue, match="overlap"):
        F.linear(xp.asarray(x), xp.asarray(weight), activation="tanh", residual=target[:, ::-1], out=target)
    row.observe(f"{dtype}: written in place")


@pytest.mark.gpu(row="ELEM-3")
def test_gradients_of_linear_layers(row: Any, xp: Any, size: Any) -> None:
    row.expect("linear_input, linear_weight and bilinear are products; near float64")
    k = size(256, 16)
    for dtype in ("float32", "float64", "float16"):
        x, w, g = normal((3, 5, k), dtype), normal((12, k), dtype, 1), normal((3, 5, 12), dtype, 2)
        bilinear = x[..., :4].copy(), normal((3, 5, 6), dtype, 3), normal((8, 4, 6), dtype, 4), normal((8,), dtype, 5)
        for function, *args in ((G.linear_input, w, g), (G.linear_weight, x, g), (F.bilinear, *bilinear)):
            found = function(*on_device(xp, "C", tuple(args)))
            library = backline.explain().library
            far = away(found, host(function, *args), dtype, function.__name__)
            row.observe(f"{function.__name__} {dtype}: {far:.2g} away")
            assert far < 8 and library == "cublas"
