"""Depthwise convolutions by our own loop: every dtype, layout and instruction set, and what it refuses."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
from convolutions import CASES, IMAGES, Exact, channels_last, exact_conv, some_layouts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import backline
from backline import libraries
from backline.errors import BadValue
from backline.libraries import capability
from backline.libraries.base import Refusal
from backline.native import thread_team
from backline.nn import functional as F
from support import algorithms, clean, problem_of, random_array, rng, run_each, seed

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed  # fixtures: imported to be found by pytest

FN = "nn.functional.conv"
DTYPES = ("float32", "float64")
#: Shapes of images and of weights, and what else the call has; past a million operations threads come in.
DEPTHWISE = {name: case for name, case in CASES.items() if "depthwise" in name} | {
    "3d": ((2, 3, 4, 5, 4), (3, 1, 2, 3, 2), {"padding": (1, 0, 1), "stride": (1, 2, 1), "groups": 3}),
    "padding past the kernel": ((1, 2, 3, 3), (2, 1, 2, 2), {"padding": 4, "stride": 3, "groups": 2}),
    "kernel larger than the image": ((2, 2, 2, 3), (2, 1, 4, 5), {"padding": 2, "groups": 2}),
    "dilated": ((1, 4, 9, 9), (4, 1, 3, 3), {"padding": 2, "dilation": (2, 1), "groups": 4}),
    "long rows": ((1, 2, 9, 150), (2, 1, 3, 5), {"padding": (1, 2), "groups": 2}),
    "long rows, strided": ((2, 2, 20, 90), (4, 1, 5, 5), {"padding": 2, "stride": 2, "groups": 2}),
    "steps of all sorts": ((1, 2, 17, 70), (2, 1, 3, 4), {"padding": (2, 3), "stride": (2, 3), "dilation": (3, 2), "groups": 2}),
    "many rows": ((1, 3, 30, 7), (3, 1, 3, 3), {"padding": 1, "groups": 3}),
    "more rows than lines have room for": ((1, 2, 300, 60), (2, 1, 3, 3), {"padding": 1, "groups": 2}),
    "more rows, strided": ((1, 2, 301, 70), (2, 1, 3, 3), {"padding": 1, "stride": 2, "groups": 2}),
    "7 rows of taps": ((1, 2, 11, 37), (2, 1, 7, 7), {"padding": 3, "groups": 2}),
    "7x7": ((1, 3, 7, 7), (3, 1, 5, 5), {"padding": 2, "groups": 3}),
    "14x14": ((1, 3, 14, 14), (3, 1, 5, 5), {"padding": 2, "groups": 3}),
    "too large for lines": ((1, 2, 9, 70), (2, 1, 3, 65), {"padding": (1, 32), "groups": 2}),
    "threaded": ((2, 40, 30, 28), (40, 1, 3, 3), {"groups": 40, "padding": 1}),
}


def prepared(*arrays: Array, threads: int = 2, **call: Any) -> Any:
    """Every algorithm of the loop for a call, with its plan."""
    problem, library = problem_of(f"{FN}{arrays[0].ndim - 2}d", *arrays, **call), libraries.get("kernels")
    for algorithm in algorithms("kernels", problem, threads):
        assert algorithm.name == "depthwise" and algorithm.level == "threads"
        yield algorithm, library.prepare(problem, algorithm)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", DEPTHWISE)
def test_every_layout(case: str, dtype: str, rng: np.random.Generator) -> None:
    shape, weight_shape, call = DEPTHWISE[case]
    x, w = (random_array(rng, s, np.dtype(dtype)) for s in (shape, weight_shape))
    exact = exact_conv(x, w, **call)
    for images, weights in some_layouts(rng):
        a = IMAGES[images](x)
        found = list(prepared(a, IMAGES[weights](w), **call))
        if images != "channels last" or len(w) == x.shape[1]:
            assert [algorithm.threads for algorithm, _ in found] == ([2, 1] if case == "threaded" else [1])
        for algorithm, plan in found:
            exact.check(plan(a, IMAGES[weights](w)), f"{algorithm.key}, {images} images, {weights} weights", dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.cpu_kernel
@pytest.mark.parametrize("word", ["default", "avx2", "avx512"])
def test_loops_for_every_processor(word: str, dtype: str, rng: np.random.Generator) -> None:
    """Channels past, at and below whole vectors; the cap decides which loop runs, and all are right."""
    if not capability.allows(word):
        pytest.skip(f"this processor has no {word}")
    for channels, width in ((3, 7), (16, 7), (37, 7), (70, 7), (2, 16), (3, 45), (2, 60), (4, 130)):
        x, w = (random_array(rng, shape, np.dtype(dtype)) for shape in ((2, channels, 6, width), (channels, 1, 3, 3)))
        for call in ({"padding": 1}, {"stride": 2, "padding": (2, 1)}, {"dilation": (1, 2)}):
            exact = exact_conv(x, w, groups=channels, **call)
            for layout in (np.copy, channels_last):
                with backline.backends.cpu.flags(capability=word):
                    results = list(run_each("kernels", f"{FN}2d", layout(x), w, groups=channels, **call))
                assert results
                for name, result in results:
                    exact.check(result, f"{name}, {word}", dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("each", [1, 2])
def test_bias_residual_relu_and_out(each: int, dtype: str, rng: np.random.Generator) -> None:
    """`each`: features of a channel."""
    kind = np.dtype(dtype)
    x, w = random_array(rng, (2, 4, 6, 5), kind), random_array(rng, (4 * each, 1, 3, 3), kind)
    plain = exact_conv(x, w, padding=1, groups=4)
    bias, residual = random_array(rng, (4 * each,), kind), random_array(rng, plain.value.shape, kind)
    for has_bias, has_residual, relu in itertools.product((False, True), repeat=3):
        exact: Exact = plain.add(bias[:, None, None]) if has_bias else plain
        exact = exact.add(residual) if has_residual else exact
        exact = exact.relu() if relu else exact
        for images, other, out in [
            ("C", "C", None), ("channels last", "C", "channels last"), *zip(*rng.choice([*IMAGES], (3, 4)), strict=True),
        ]:  # fmt: skip
            call: dict[str, Any] = {"padding": 1, "groups": 4, "activation": "relu" if relu else None}
            call |= {"bias": IMAGES[other if other != "channels last" else "steps"](bias)} if has_bias else {}
            call |= {"residual": IMAGES[other](residual)} if has_residual else {}
            call |= {"out": IMAGES[out](np.full(plain.value.shape, 7, kind))} if out else {}
            results = list(run_each("kernels", f"{FN}2d", IMAGES[images](x), w, **call))
            assert results or (images == "channels last" and each == 2)
            for name, result in results:
                exact.check(result, f"{name}, {images}, {other}, out {out}, {sorted(call)}", dtype=dtype)
                assert out is None or result is call["out"]


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_weights_that_are_not_finite_meet_no_padding(number: float, rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((1, 3, 8, 20)), rng.standard_normal((3, 1, 3, 3))
    w[1, 0, 0, 2] = number
    inside = np.isfinite(w)
    exact = exact_conv(x, np.where(inside, w, 0), padding=1, groups=3).value
    for _, result in run_each("kernels", f"{FN}2d", x, w, padding=1, groups=3):
        reached = np.zeros(result.shape, bool)
        reached[:, 1, 1:, :-1] = True  # the tap of row -1 and column +1 is outside the image in the first row and the last column
        assert np.isfinite(result[~reached]).all() and not np.isfinite(result[reached]).any()
        np.testing.assert_allclose(result[~reached], exact.astype(np.float64)[~reached], rtol=1e-12, atol=1e-12)


def test_repeated_and_reversed_bias(rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((2, 4, 5, 5)), rng.standard_normal((4, 1, 3, 3))
    exact = exact_conv(x, w, groups=4)
    for bias in (np.broadcast_to(np.array([0.5]), (4,)), np.arange(4.0)[::-1]):
        for layout in (np.copy, channels_last):
            ((name, result),) = run_each("kernels", f"{FN}2d", layout(x), w, bias, groups=4)
            exact.add(bias[:, None, None]).check(result, name, dtype="float64")


def test_out_may_be_the_residual_and_nothing_else(rng: np.random.Generator) -> None:
    x, w, residual = (rng.standard_normal(s) for s in ((2, 3, 5, 5), (3, 1, 3, 3), (2, 3, 5, 5)))
    exact = exact_conv(x, w, padding=1, groups=3).add(residual)
    for layout in ("C", "channels last", "steps"):
        out = IMAGES[layout](residual)
        ((algorithm, plan),) = prepared(x, w, padding=1, groups=3, residual=out, out=out)
        assert plan(x, w, out, out) is out
        exact.check(out, f"{algorithm.key}, {layout}", dtype="float64")
    ((_, plan),) = prepared(x, w, padding=1, groups=3, out=x)
    before = x.copy()
    with pytest.raises(BadValue, match="overlaps an operand"):
        plan(x, w, x)
    assert (x == before).all()


def test_a_residual_of_many_rows(rng: np.random.Generator) -> None:
    """A residual is added once, where rows are computed in parts that overlap otherwise."""
    x, w, residual = rng.standard_normal((1, 2, 260, 37)), rng.standard_normal((2, 1, 5, 5)), rng.standard_normal((1, 2, 260, 37))
    exact = exact_conv(x, w, padding=2, groups=2).add(residual)
    for name, result in run_each("kernels", f"{FN}2d", x, w, padding=2, groups=2, residual=residual):
        exact.check(result, name, dtype="float64")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_where_it_is(value: float, rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((2, 3, 7, 8)).astype(np.float32), np.abs(rng.standard_normal((3, 1, 3, 3))).astype(np.float32)
    x[1, 2, 3, 4] = value
    touched = np.zeros((2, 3, 7, 8), bool)
    touched[1, 2, 2:5, 3:6] = True
    for layout, relu in itertools.product((np.copy, channels_last), (None, "relu")):
        ((name, result),) = run_each("kernels", f"{FN}2d", layout(x), w, padding=1, groups=3, activation=relu)
        after = np.float32(0 if relu and value == -np.inf else value)
        np.testing.assert_array_equal(result[touched], np.full(touched.sum(), after), name)
        assert np.isfinite(result[~touched]).all(), name


@given(
    st.integers(1, 3), st.integers(2, 40), st.integers(1, 2), st.integers(1, 3), st.booleans(), st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_depthwise_convolution(rank: int, channels: int, each: int, batch: int, last: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel, stride, dilation, padding = (tuple(int(v) for v in rng.integers(*bounds, rank)) for bounds in ((1, 5), (1, 4), (1, 3), (0, 4)))
    image = tuple(max(d * (k - 1) + 1 - 2 * p, 1) + int(rng.integers(0, 6)) for d, k, p in zip(dilation, kernel, padding, strict=True))
    x, w = rng.standard_normal((batch, channels, *image)), rng.standard_normal((channels * each, 1, *kernel))
    call: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": channels}
    laid = channels_last(x) if last else x
    for algorithm, plan in prepared(laid, w, **call):
        exact_conv(x, w, **call).check(plan(laid, w), algorithm.key, dtype="float64")


# Threads ----------------------------------------------------------------------------------------------------------------


def test_bits_do_not_depend_on_threads(rng: np.random.Generator) -> None:
    shape, weight_shape, call = DEPTHWISE["threaded"]
    x, w = rng.standard_normal(shape), rng.standard_normal(weight_shape)
    for layout in (np.copy, channels_last):
        a = layout(x)
        found = [(algorithm, plan) for threads in (1, 2, 3, 5) for algorithm, plan in prepared(a, w, threads=threads, **call)]
        assert {algorithm.threads for algorithm, _ in found} == {1, 2, 3, 5}
        assert {algorithm.pool for algorithm, _ in found if algorithm.threads > 1} == {thread_team.name()}
        assert len({plan(a, w).tobytes() for _, plan in found for _ in range(2)}) == 1


def test_one_plan_in_several_threads(rng: np.random.Generator) -> None:
    shape, weight_shape, call = DEPTHWISE["threaded"]
    images, w = [channels_last(rng.standard_normal(shape)) for _ in range(4)], rng.standard_normal(weight_shape)
    for _, plan in prepared(images[0], w, **call):
        wanted = [plan(image, w) for image in images]
        wrong: list[int] = []

        def work(i: int, plan: Any = plan, wanted: Any = wanted, wrong: Any = wrong) -> None:
            for _ in range(10):
                if not np.array_equal(plan(images[i], w), wanted[i]):
                    wrong.append(i)

        workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not wrong


# What the engine makes of it ----------------------------------------------------------------------------------------------


def test_it_comes_before_products(rng: np.random.Generator) -> None:
    """On a machine that nobody tuned; with the libraries that have no kernel for depthwise convolutions."""
    shape, weight_shape, call = DEPTHWISE["threaded"]
    x, w = rng.standard_normal(shape), rng.standard_normal(weight_shape)
    with backline.trace() as events:
        F.conv2d(x, w, **call)
    assert [event.library for event in events] == ["kernels"]
    choice = backline.explain()
    assert (choice.library, choice.algorithm, choice.threads) == ("kernels", "depthwise", 2)
    for library in filter(lambda name: libraries.get(name).available(), ("mkl", "openblas", "blis")):
        with backline.use(library):
            assert backline.explain(F.conv2d, x, w, **call).library == library
        with backline.use(library, only=True):  # by products
            exact_conv(x, w, **call).check(F.conv2d(x, w, **call), library, dtype="float64")
            assert (backline.explain().library, backline.explain().algorithm) == (library, "im2col")
    with backline.backends.kernels.flags(enabled=False):
        refused = {c.reason for c in backline.explain(F.conv2d, x, w, **call).candidates if c.library == "kernels"}
        assert len(refused) == 1 and refused.pop().startswith("disabled by kernels.enabled")


def test_what_it_refuses() -> None:
    x, w = np.ones((1, 4, 6, 6)), np.ones((4, 1, 3, 3))

    def reasons(*arrays: Any, op: str = f"{FN}2d", **call: Any) -> str:
        found = libraries.get("kernels").algorithms(problem_of(op, *arrays, **call), 2)
        return "; ".join(f"{f.name}: {f.reason}" for f in found if isinstance(f, Refusal))

    assert reasons(x, w, groups=4) == ""
    assert reasons(x, np.ones((4, 4, 3, 3))) == "depthwise: its loop is for depthwise convolutions"
    assert reasons(x, np.ones((4, 2, 3, 3)), groups=2) == "depthwise: its loop is for depthwise convolutions"
    assert reasons(x.astype(complex), w.astype(complex), groups=4).endswith("for float32 and float64, not complex128")
    assert reasons(x[:0], w, groups=4) == "depthwise: an empty convolution needs no loop"
    assert reasons(channels_last(x), np.ones((8, 1, 3, 3)), groups=4).endswith("for one feature of each channel")
    assert reasons((1, 4, 6, 6), w, np.ones((1, 4, 4, 4)), op="nn.grad.conv2d_input", groups=4).endswith("loop for conv_grad_input")
    assert reasons(x, w, op="nn.functional.conv_transpose2d", groups=4) == "depthwise: there is no compiled loop for conv_transpose"


def test_packed_layers(rng: np.random.Generator) -> None:
    w, bias = rng.standard_normal((6, 1, 3, 3)), rng.standard_normal(6)
    with backline.use("kernels", only=True):
        layer = F.prepack_conv2d(w, bias, padding=1, groups=6)
        for n in (1, 2, 1):
            x = rng.standard_normal((n, 6, 12, 12))
            exact = exact_conv(x, w, padding=1, groups=6).add(bias[:, None, None])
            for laid in (x, channels_last(x), IMAGES["misaligned"](x)):
                exact.check(layer(laid), f"{n} images", dtype="float64")
        assert backline.explain().library == "kernels"
