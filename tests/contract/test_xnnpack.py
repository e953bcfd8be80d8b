"""XNNPACK's results: convolutions, transposed ones, products and linear layers, every layout, against the widest arithmetic.

By the library of the system, and by stand-ins with the interfaces of other generations.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from convolutions import CASES, IMAGES, exact_conv, some_layouts

import backline
from backline import libraries
from backline.errors import BadValue
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.xnnpack.interface import EXTRA, PAGE, Interface, has_slack
from backline.libraries.xnnpack.library import XNNPACK
from backline.nn import functional as F
from stand_ins import XNNPACK_SOURCE, compiled
from support import (
    LAYOUTS,
    arrays_in,
    assert_close,
    clean,
    misaligned,
    problem_of,
    python,
    random_array,
    rng,
    roundoff,
    seed,
    smallest,
    wide,
)  # fmt: skip

assert clean and rng and seed  # fixtures: imported to be found by pytest
Array = Any
F32 = np.dtype(np.float32)
FN = "nn.functional."
pytestmark = pytest.mark.usefixtures("clean", "library")

# The one that is installed, and one of each way in which newer ones are told the sizes.
OTHERS = {"newer": Interface(1, "workspace"), "first of the newer": Interface(2, "aligned workspace")}
NUMBERS = {"setup": 0, "reshape": 1, "workspace": 2, "aligned workspace": 3}


@pytest.fixture(scope="module", params=["installed", *OTHERS])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[XNNPACK]:
    name: str = request.param
    with pytest.MonkeyPatch.context() as patch:
        if name != "installed":
            made: Path = tmp_path_factory.mktemp("xnnpack")
            interface = OTHERS[name]
            path = compiled(made, "libstand_in.so", XNNPACK_SOURCE, CACHES=interface.caches, SIZES=NUMBERS[interface.sizes])
            patch.setenv("BACKLINE_XNNPACK_LIBRARY", str(path))
        found = XNNPACK()
        libraries.register(found)
        if not found.available():
            pytest.skip(f"xnnpack is not available: {found.reason()}")
        if name != "installed":
            assert found.xnn is not None and found.xnn.interface == OTHERS[name]
        yield found
    libraries.unregister("xnnpack")


def ways(op: str, *args: Any, threads: int = 2, **kwargs: Any) -> Iterator[tuple[Algorithm, Any, list[Array]]]:
    """Every algorithm for a call, its plan, and the arrays that it takes."""
    problem, lib = problem_of(op, *args, **kwargs), libraries.get("xnnpack")
    for found in lib.algorithms(problem, threads):
        if isinstance(found, Algorithm):
            yield found, lib.prepare(problem, found), arrays_in(args, kwargs)


def reasons(op: str, *args: Any, **kwargs: Any) -> str:
    found = libraries.get("xnnpack").algorithms(problem_of(op, *args, **kwargs), 2)
    return "; ".join(f.reason for f in found if isinstance(f, Refusal))


# Convolutions -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_convolutions_in_every_layout(case: str, rng: np.random.Generator) -> None:
    shape, weight_shape, kwargs = CASES[case]
    x, w = (random_array(rng, s, F32) for s in (shape, weight_shape))
    exact, ran = exact_conv(x, w, **kwargs), 0
    for images, weights in some_layouts(rng):
        given = IMAGES[images](x), IMAGES[weights](w)
        for way, plan, arrays in ways(f"{FN}conv{x.ndim - 2}d", *given, **kwargs):
            exact.check(plan(*arrays), f"{way.key}, {images} images, {weights} weights")
            ran += 1
    assert ran


@pytest.mark.parametrize("case", CASES)
def test_transposed_convolutions(case: str, rng: np.random.Generator) -> None:
    shape, weight_shape, kwargs = CASES[case]
    kwargs = {k: v if k != "padding" else min(np.min(v), np.min(weight_shape[2:]) // 2).item() for k, v in kwargs.items()}
    x = random_array(rng, shape, F32)
    w = random_array(rng, (x.shape[1], weight_shape[0] // kwargs.get("groups", 1), *weight_shape[2:]), F32)
    stride = np.max(kwargs.get("stride", 1))
    extra = int(stride) - 1 if np.min(kwargs.get("stride", 1)) == stride else 0
    exact = exact_conv(x, w, output_padding=extra, transposed=True, **kwargs)
    for images, weights in some_layouts(rng):
        given = IMAGES[images](x), IMAGES[weights](w)
        for way, plan, arrays in ways(f"{FN}conv_transpose{x.ndim - 2}d", *given, output_padding=extra, **kwargs):
            exact.check(plan(*arrays), f"{way.key}, {images} images, {weights} weights")


def test_output_padding_beyond_the_stride_comes_out_of_the_padding(rng: np.random.Generator) -> None:
    x, w = random_array(rng, (1, 3, 5, 5), F32), random_array(rng, (3, 4, 3, 3), F32)
    op = f"{FN}conv_transpose2d"
    options = {"dilation": 3, "output_padding": 2, "padding": 2}
    for way, plan, arrays in ways(op, x, w, **options):
        exact_conv(x, w, transposed=True, **options).check(plan(*arrays), way.key)
    assert "output_padding=(2, 2) is more than it can express" in reasons(op, x, w, dilation=3, output_padding=2)


@pytest.mark.parametrize("transposed", [False, True])
def test_bias_residual_relu_and_out(transposed: bool, rng: np.random.Generator) -> None:
    x, w = random_array(rng, (2, 4, 6, 5), F32), random_array(rng, (4, 3, 3, 3) if transposed else (6, 2, 3, 3), F32)
    kwargs: dict[str, Any] = {"groups": 2, "padding": 1}
    op = f"{FN}conv_transpose2d" if transposed else f"{FN}conv2d"
    plain = exact_conv(x, w, transposed=transposed, **kwargs)
    bias, residual = random_array(rng, (6,), F32), random_array(rng, plain.value.shape, F32)
    names = list(IMAGES)
    for has_bias, has_residual, relu in itertools.product((False, True), repeat=3):
        exact = plain.add(bias[:, None, None]) if has_bias else plain
        exact = exact.add(residual) if has_residual else exact
        exact = exact.relu() if relu else exact
        for images, other, out in [
            ("C", "C", None), ("channels last", "channels last", None), ("channels last", "C", "channels last"),
            *zip(*rng.choice(names, (3, 4)), strict=True),
        ]:  # fmt: skip
            given = dict(kwargs) | ({"activation": "relu"} if relu else {})
            if has_bias:
                given["bias"] = IMAGES[other if other != "channels last" else "steps"](bias)
            if has_residual:
                given["residual"] = IMAGES[other](residual)
            if out:
                given["out"] = IMAGES[out](np.full(plain.value.shape, 7, F32))
            for way, plan, arrays in ways(op, IMAGES[images](x), w, **given):
                result = plan(*arrays)
                exact.check(result, f"{way.key}, {images}, {other}, out {out}, {sorted(given)}")
                if out:
                    assert result is given["out"]
                    result[...] = 7


def test_out_may_be_the_residual_and_nothing_else(rng: np.random.Generator) -> None:
    x, w = random_array(rng, (1, 3, 5, 5), F32), random_array(rng, (3, 3, 3, 3), F32)
    residual = random_array(rng, (1, 3, 5, 5), F32)
    for layout in ("C", "channels last", "steps"):
        given = IMAGES[layout](residual)
        exact = exact_conv(x, w, padding=1).add(residual)
        for way, plan, arrays in ways(f"{FN}conv2d", x, w, padding=1, residual=given, out=given):
            given[...] = residual
            assert plan(*arrays) is given
            exact.check(given, way.key)
    for way, plan, arrays in ways(f"{FN}conv2d", x, w, padding=1, out=x):
        with pytest.raises(BadValue, match="overlaps an operand"):
            plan(*arrays)
        assert way


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 1e-42])
def test_what_is_not_finite_stays_what_it_is(value: float, activation: str | None, rng: np.random.Generator) -> None:
    """XNNPACK's own clamp makes infinities or zeros of NaN."""
    x, w = rng.standard_normal((2, 3, 6, 6)).astype(F32), rng.standard_normal((4, 3, 3, 3)).astype(F32)
    x[1, 2, 3, 3] = value
    with np.errstate(all="ignore"):
        exact = exact_conv(x, w, padding=1)
        wanted = exact.value.astype(F32)
        wanted = np.maximum(wanted, 0) if activation else wanted
    for images in ("C", "channels last"):
        for way, plan, arrays in ways(f"{FN}conv2d", IMAGES[images](x), w, padding=1, activation=activation):
            np.testing.assert_allclose(plan(*arrays), wanted, rtol=1e-5, atol=1e-5, err_msg=f"{way.key} {images}")
    a, b = rng.standard_normal((5, 7)).astype(F32), rng.standard_normal((6, 7)).astype(F32)
    a[2, 3] = value
    with np.errstate(all="ignore"):
        product = (wide(a) @ wide(b).T).astype(F32)
        product = np.maximum(product, 0) if activation else product
    for way, plan, arrays in ways(f"{FN}linear", a, b, activation=activation):
        np.testing.assert_allclose(plan(*arrays), product, rtol=1e-5, atol=1e-5, err_msg=way.key)


def test_what_it_refuses() -> None:
    x, w = np.ones((1, 2, 4, 4)), np.ones((2, 2, 3, 3))
    assert "no convolution of float64" in reasons(f"{FN}conv2d", x, w)
    half = np.dtype(ml_dtypes.bfloat16)
    assert "no convolution of bfloat16" in reasons(f"{FN}conv2d", x.astype(half), w.astype(half))
    assert "more than two dimensions" in reasons(f"{FN}conv3d", np.ones((1, 2, 4, 4, 4), F32), np.ones((2, 2, 3, 3, 3), F32))
    assert "an empty convolution" in reasons(f"{FN}conv2d", np.ones((0, 2, 4, 4), F32), np.ones((2, 2, 3, 3), F32))
    assert "no gradients" in reasons("nn.grad.conv2d_input", (1, 2, 4, 4), w.astype(F32), np.ones((1, 2, 2, 2), F32))
    a = np.ones((3, 3), F32)
    assert "no product of float64" in reasons("matmul", a.astype(float), a.astype(float))
    assert "an empty product" in reasons("matmul", np.ones((0, 3), F32), a)
    assert "more than one matrix" in reasons("matmul", np.ones((2, 3, 3), F32), np.ones((2, 3, 3), F32))
    assert "no factors" in reasons("addmm", a, a, a, alpha=2)
    assert "not one row" in reasons("addmm", a, a, a)
    assert "has no linalg.inv" in reasons("linalg.inv", a)


# Products and linear layers -----------------------------------------------------------------------------------------------------

SHAPES = {
    "one": ((1, 1), (1, 1)), "tiny": ((2, 3), (3, 4)), "kernel edges": ((17, 65), (65, 31)), "inner": ((1, 100), (100, 1)),
    "outer": ((37, 1), (1, 29)), "row": ((1, 40), (40, 50)), "column": ((40, 50), (50, 1)), "vectors": ((9,), (9, 4)),
    "batch": ((3, 4, 9, 8), (8, 7)), "threaded": ((128, 96), (96, 112)), "long": ((3, 3000), (3000, 9)),
}  # fmt: skip


def bound(terms: int, size: Array) -> Array:
    u = roundoff(F32)
    return 1.01 * (terms + 8) * u / (1 - (terms + 8) * u) * size + (terms + 8) * smallest(F32)


@pytest.mark.parametrize("case", SHAPES)
def test_products(case: str, rng: np.random.Generator) -> None:
    a, b = (random_array(rng, shape, F32) for shape in SHAPES[case])
    exact, size = np.matmul(wide(a), wide(b)), np.matmul(np.abs(wide(a)), np.abs(wide(b)))
    names = list(LAYOUTS)
    for left, right in {(n, n) for n in names} | {tuple(rng.choice(names, 2)) for _ in range(6)}:
        x, y = LAYOUTS[left](a), LAYOUTS[right](b)
        out = LAYOUTS[str(rng.choice(names))](np.full(exact.shape, np.nan, F32))
        for way, plan, arrays in ways("matmul", x, y):
            assert_close(plan(*arrays), exact, bound(a.shape[-1], size), f"{way.key}, A {left}, B {right}")
        for way, plan, arrays in ways("matmul", x, y, out=out):
            out[...] = np.nan
            assert plan(*arrays) is out
            assert_close(out, exact, bound(a.shape[-1], size), f"{way.key}, out {out.strides}")


def test_repeated_operands(rng: np.random.Generator) -> None:
    a, b = random_array(rng, (1, 6), F32), random_array(rng, (6, 5), F32)
    x, y = np.broadcast_to(a, (4, 3, 6)), np.broadcast_to(b, (4, 6, 5))
    exact, size = np.matmul(wide(x), wide(y)), np.matmul(np.abs(wide(x)), np.abs(wide(y)))
    for way, plan, arrays in ways("matmul", x, y):
        assert_close(plan(*arrays), exact, bound(6, size), way.key)


def test_a_row_that_is_added(rng: np.random.Generator) -> None:
    a, b = random_array(rng, (6, 7), F32), random_array(rng, (7, 5), F32)
    for shape in ((5,), (1, 5), (), (1, 1), (1,)):
        for layout in ("C", "steps", "negative columns"):
            c = random_array(rng, shape, F32)
            given = LAYOUTS[layout](c) if c.ndim else c
            exact, size = wide(a) @ wide(b) + wide(c), np.abs(wide(a)) @ np.abs(wide(b)) + np.abs(wide(c))
            for way, plan, arrays in ways("addmm", given, a, b):
                assert_close(plan(*arrays), exact, bound(8, size), f"{way.key}, C {shape} {layout}")
    row = random_array(rng, (1, 5), F32)
    exact, size = wide(a[:1]) @ wide(b) + wide(row), np.abs(wide(a[:1])) @ np.abs(wide(b)) + np.abs(wide(row))
    for way, plan, _ in ways("addmm", row, a[:1], b, out=row):
        kept = row.copy()
        assert plan(row, a[:1], b, row) is row
        assert_close(row, exact, bound(8, size), way.key)
        row[...] = kept


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"])
def test_linear_layers(activation: str | None, rng: np.random.Generator) -> None:
    for shape, outs in (((9, 20), 12), ((2, 3, 20), 5), ((20,), 6), ((96, 128), 96)):
        x, w = rng.standard_normal(shape).astype(F32), rng.standard_normal((outs, shape[-1])).astype(F32)
        b, r = rng.standard_normal(outs).astype(F32), rng.standard_normal((*shape[:-1], outs)).astype(F32)
        for bias, residual, layout in itertools.product((None, b), (None, r), ("C", "steps", "misaligned")):
            exact, size = wide(x) @ wide(w).T, np.abs(wide(x)) @ np.abs(wide(w)).T
            for more in (m for m in (bias, residual) if m is not None):
                exact, size = exact + wide(more), size + np.abs(wide(more))
            wanted = exact
            if activation:
                with backline.use("numpy", only=True):
                    word = {"gelu_tanh": ("gelu", {"approximate": "tanh"})}.get(activation, (activation, {}))
                    wanted = getattr(F, word[0])(exact.astype(np.float64), **word[1]).astype(np.longdouble)
            given = LAYOUTS[layout](x), LAYOUTS[layout](w)
            for way, plan, arrays in ways(f"{FN}linear", *given, bias, activation=activation, residual=residual):
                most = 1.2 * bound(shape[-1] + 2, size) + 16 * roundoff(F32) * np.maximum(np.abs(exact), 1)
                assert_close(plan(*arrays), wanted, most, f"{way.key} {shape} {layout}")


def test_an_overlap_is_refused(rng: np.random.Generator) -> None:
    a = random_array(rng, (6, 6), F32)
    for _, plan, arrays in ways("matmul", a, a, out=a):
        with pytest.raises(BadValue, match="overlaps an operand"):
            plan(*arrays)


# Memory ---------------------------------------------------------------------------------------------------------------------------


def at_the_edge(x: Array) -> tuple[Array, Any]:
    """A copy that ends where memory ends: what is read behind it kills the process."""
    pages = -(-x.nbytes // PAGE) + 1
    memory = mmap.mmap(-1, pages * PAGE)
    start = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    end = (pages - 1) * PAGE
    assert libc.mprotect(ctypes.c_void_p(start.ctypes.data + end), ctypes.c_size_t(PAGE), 0) == 0
    y = start[end - x.nbytes : end].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y, memory


def test_nothing_is_read_where_no_memory_is(rng: np.random.Generator) -> None:
    """Inputs may be read past their end, others may not: every one ends at the edge of memory here."""
    held = []
    for channels, features in ((3, 5), (7, 9), (16, 16), (1, 33)):
        x, w = random_array(rng, (2, 5, 4, channels), F32), random_array(rng, (features, 3, 3, channels), F32)
        bias = random_array(rng, (features,), F32)
        edge, wedge, bedge = (at_the_edge(a) for a in (x, w, bias))
        held += [edge, wedge, bedge]
        images, weights = np.moveaxis(edge[0], -1, 1), np.moveaxis(wedge[0], -1, 1)
        exact = exact_conv(np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1), padding=1).add(bias[:, None, None])
        for way, plan, arrays in ways(f"{FN}conv2d", images, weights, bedge[0], padding=1):
            exact.check(plan(*arrays), way.key)
        a, b = random_array(rng, (5, channels), F32), random_array(rng, (features, channels), F32)
        aedge, ledge = at_the_edge(a), at_the_edge(b)
        held += [aedge, ledge]
        for way, plan, arrays in ways(f"{FN}linear", aedge[0], ledge[0], bedge[0]):
            size = np.abs(wide(a)) @ np.abs(wide(b)).T + np.abs(wide(bias))
            assert_close(plan(*arrays), wide(a) @ wide(b).T + wide(bias), bound(channels + 1, size), way.key)


def test_what_lies_behind_an_operand_does_not_matter(rng: np.random.Generator) -> None:
    """Nor is anything written there."""
    for channels in (1, 3, 5, 17):
        base = np.full(2 * 4 * 4 * channels + EXTRA, np.nan, F32)
        x = base[: 2 * 4 * 4 * channels].reshape(2, 4, 4, channels)
        x[...] = random_array(rng, x.shape, F32)
        images, w = np.moveaxis(x, -1, 1), random_array(rng, (6, channels, 3, 3), F32)
        room = np.full(2 * 4 * 4 * 6 + EXTRA, 7, F32)
        out = np.moveaxis(room[: 2 * 4 * 4 * 6].reshape(2, 4, 4, 6), -1, 1)
        for way, plan, arrays in ways(f"{FN}conv2d", images, w, padding=1, out=out):
            plan(*arrays)
            exact_conv(images, w, padding=1).check(out, way.key)
            assert (room[2 * 4 * 4 * 6 :] == 7).all()


def test_slack_is_memory_on_the_same_page() -> None:
    assert has_slack(PAGE, PAGE - EXTRA) and not has_slack(PAGE, PAGE - EXTRA + 1) and has_slack(PAGE - 4, 8)


def test_an_input_is_copied_only_where_it_must(rng: np.random.Generator) -> None:
    """Not every processor's kernels read past the end: what is handed to them tells more than a crash."""
    edge, _memory = at_the_edge(random_array(rng, (4, 8), F32))
    inside = np.zeros(2 * PAGE, np.uint8)
    start = -inside.ctypes.data % PAGE
    inside = inside[start : start + 128].view(F32).reshape(4, 8)
    for _, plan, _ in ways("matmul", edge, random_array(rng, (8, 3), F32)):
        call = plan.function
        assert call.readable(inside, True) is inside
        copy = call.readable(edge, True)
        assert copy is not edge and np.array_equal(copy, edge) and copy.base.nbytes == edge.nbytes + EXTRA


# Weights, threads ---------------------------------------------------------------------------------------------------------------------


def test_a_plan_reads_the_weights_of_each_call(rng: np.random.Generator) -> None:
    x, w = random_array(rng, (1, 3, 5, 5), F32), random_array(rng, (4, 3, 3, 3), F32)
    for way, plan, arrays in ways(f"{FN}conv2d", x, w):
        plan(*arrays)
        w *= 2
        exact_conv(x, w).check(plan(*arrays), way.key)
    a, b = random_array(rng, (4, 3), F32), random_array(rng, (3, 5), F32)
    for way, plan, arrays in ways("matmul", a, b):
        plan(*arrays)
        b += 1
        assert_close(plan(*arrays), wide(a) @ wide(b), bound(3, np.abs(wide(a)) @ np.abs(wide(b))), way.key)


def test_the_same_bits_on_any_number_of_threads(rng: np.random.Generator) -> None:
    for shape, kernel, options in (
        ((2, 16, 20, 20), (24, 16, 3, 3), {"padding": 1}), ((1, 40, 20, 20), (48, 40, 1, 1), {}),
        ((1, 40, 60, 60), (40, 1, 3, 3), {"groups": 40}), ((1, 3, 70, 66), (16, 3, 7, 7), {"stride": 2}),
    ):  # fmt: skip
        x, w = rng.standard_normal(shape).astype(F32), rng.standard_normal(kernel).astype(F32)
        results = [plan(*arrays) for n in (1, 2, 3) for _, plan, arrays in ways(f"{FN}conv2d", x, w, threads=n, **options)]
        assert len(results) > 3 and all(np.array_equal(results[0], r) for r in results)
    for m, k, n in ((3, 5000, 40), (512, 100, 300), (1, 2000, 700)):
        a, b = rng.standard_normal((m, k)).astype(F32), rng.standard_normal((k, n)).astype(F32)
        results = [plan(*arrays) for t in (1, 2, 3) for _, plan, arrays in ways("matmul", a, b, threads=t)]
        assert len(results) == 5 and all(np.array_equal(results[0], r) for r in results)


def test_one_plan_serves_many_threads_at_once(rng: np.random.Generator) -> None:
    problem = problem_of(f"{FN}conv2d", np.zeros((1, 16, 24, 24), F32), np.zeros((24, 16, 3, 3), F32), padding=1)
    lib = libraries.get("xnnpack")
    images = [random_array(rng, (1, 16, 24, 24), F32) for _ in range(4)]
    weights = [random_array(rng, (24, 16, 3, 3), F32) for _ in range(4)]
    for way in lib.algorithms(problem, 2):
        assert isinstance(way, Algorithm)
        plan = lib.prepare(problem, way)
        wanted = [plan(x, w) for x, w in zip(images, weights, strict=True)]
        wrong: list[int] = []

        def work(i: int, plan: Any = plan, wanted: Any = wanted, wrong: list[int] = wrong) -> None:
            for _ in range(15):
                if not np.array_equal(plan(images[i], weights[i]), wanted[i]):
                    wrong.append(i)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, way.key


def test_packed_layers(rng: np.random.Generator) -> None:
    """The weights of the first call serve all; what is done to the array afterwards does not matter."""
    w, bias = random_array(rng, (4, 3, 3, 3), F32), random_array(rng, (4,), F32)
    with backline.use("xnnpack", only=True):
        layer = F.prepack_conv2d(w, bias, padding=1)
        for n in (1, 2, 1):
            x = random_array(rng, (n, 3, 6, 6), F32)
            exact = exact_conv(x, w, padding=1).add(bias[:, None, None])
            exact.check(layer(x), f"{n} images")
            exact.check(layer(misaligned(x)), f"{n} images")
        dense = F.prepack_linear(random_array(rng, (5, 7), F32))
        a = random_array(rng, (3, 7), F32)
        exact_product = wide(a) @ wide(dense.weight).T
        for _ in range(2):
            assert_close(dense(a), exact_product, bound(7, np.abs(wide(a)) @ np.abs(wide(dense.weight)).T), "linear")


def test_a_forked_child_computes_on_one_thread(library: XNNPACK) -> None:
    if library.finding is None or library.finding.path is None:
        pytest.fail("found nowhere")
    python(
        """
        import os, signal, numpy as np, backline
        from backline.nn import functional as F
        from backline.engine import ranking
        ranking.order_of = lambda problem, own=True: ()  # all threads first, whatever is faster on this machine
        backline.backends.num_threads = 2
        x, w = np.ones((1, 32, 40, 40), np.float32), np.ones((32, 32, 3, 3), np.float32)
        with backline.use("xnnpack", only=True):
            first = F.conv2d(x, w)
            assert backline.explain().chosen.threads == 2
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                ok = np.array_equal(F.conv2d(x, w), first) and backline.explain().chosen.threads == 1
                os._exit(0 if ok else 1)
            assert os.waitpid(child, 0)[1] == 0
        """,
        env={"BACKLINE_XNNPACK_LIBRARY": library.finding.path, "PYTHONWARNINGS": "ignore"},
    )
