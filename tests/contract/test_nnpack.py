"""Convolutions by each algorithm of NNPACK, every layout, against the widest arithmetic.

By the copy inside PyTorch where that is installed, and by a stand-in, which shows that it gets what it is meant to get.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convolutions import CASES, IMAGES, exact_conv, some_layouts

import backline
from backline import libraries, switches
from backline.errors import BadValue, NoKernel
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.nnpack.library import NNPACK
from backline.native import thread_team
from backline.nn import functional as F
from stand_ins import NNPACK_SOURCE, compiled
from support import arrays_in, clean, misaligned, problem_of, python, random_array, rng, seed

assert clean and rng and seed  # fixtures: imported to be found by pytest
F32 = np.dtype(np.float32)
FN = "nn.functional."
# Of the largest result there could be: a transform's errors are relative to all that it mixes.
ERRORS = {"ft16x16": 5e-7, "ft8x8": 5e-7, "wt8x8": 2e-5, "implicit_gemm": 0.0, "direct": 0.0}
pytestmark = pytest.mark.usefixtures("clean", "library")


@pytest.fixture(scope="module", params=["stand-in", pytest.param("PyTorch's", marks=pytest.mark.torch)])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NNPACK]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "stand-in":
            folder: Path = tmp_path_factory.mktemp("nnpack")
            path = compiled(folder, "libstand_in.so", NNPACK_SOURCE, INITIALISED=0)
            patch.setenv("BACKLINE_NNPACK_LIBRARY", str(path))
        else:
            pytest.importorskip("torch")
        found = NNPACK()
        libraries.register(found)
        assert found.available(), found.reason()
        yield found
    libraries.unregister("nnpack")


def ways(op: str, *args: Any, threads: int = 2, **kwargs: Any) -> Iterator[tuple[Algorithm, Any, list[Any]]]:
    """Every algorithm for a call, its plan, and the arrays that it takes."""
    problem, lib = problem_of(op, *args, **kwargs), libraries.get("nnpack")
    for found in lib.algorithms(problem, threads):
        if isinstance(found, Algorithm):
            yield found, lib.prepare(problem, found), arrays_in(args, kwargs)


def reasons(op: str, *args: Any, **kwargs: Any) -> str:
    found = libraries.get("nnpack").algorithms(problem_of(op, *args, **kwargs), 2)
    return "; ".join(f"{f.name}: {f.reason}" for f in found if isinstance(f, Refusal))


@pytest.mark.parametrize("case", CASES)
def test_convolutions_in_every_layout(case: str, rng: np.random.Generator) -> None:
    shape, weight_shape, kwargs = CASES[case]
    x, w = (random_array(rng, s, F32) for s in (shape, weight_shape))
    exact, ran = exact_conv(x, w, **kwargs), set()
    for images, weights in some_layouts(rng):
        given = IMAGES[images](x), IMAGES[weights](w)
        for way, plan, arrays in ways(f"{FN}conv{x.ndim - 2}d", *given, **kwargs):
            exact.check(plan(*arrays), f"{way.key}, {images} images, {weights} weights", of_largest=ERRORS[way.name])
            ran.add(way.name)
    stride, dilation = np.max(kwargs.get("stride", 1)), np.max(kwargs.get("dilation", 1))
    padding = np.broadcast_to(kwargs.get("padding", 0), len(shape) - 2)
    if dilation > 1 or (padding >= weight_shape[2:]).any():
        assert not ran
    elif stride > 1 or np.max(weight_shape[2:]) == 1:
        assert "implicit_gemm" in ran
    else:
        assert {"ft16x16", "implicit_gemm"} <= ran
        assert ("wt8x8" in ran) == (weight_shape[2:] == (3, 3))


def test_bias_residual_relu_and_out(rng: np.random.Generator) -> None:
    x, w = random_array(rng, (2, 4, 6, 5), F32), random_array(rng, (6, 2, 3, 3), F32)
    kwargs: dict[str, Any] = {"groups": 2, "padding": 1}
    plain = exact_conv(x, w, **kwargs)
    bias, residual = random_array(rng, (6,), F32), random_array(rng, plain.value.shape, F32)
    names = list(IMAGES)
    for has_bias, has_residual, relu in itertools.product((False, True), repeat=3):
        exact = plain.add(bias[:, None, None]) if has_bias else plain
        exact = exact.add(residual) if has_residual else exact
        exact = exact.relu() if relu else exact
        for images, other, out in [
            ("C", "C", None), ("C", "C", "C"), ("channels last", "C", "channels last"), *zip(*rng.choice(names, (3, 4)), strict=True),
        ]:  # fmt: skip
            given = dict(kwargs) | ({"activation": "relu"} if relu else {})
            if has_bias:
                given["bias"] = IMAGES[other if other != "channels last" else "steps"](bias)
            if has_residual:
                given["residual"] = IMAGES[other](residual)
            if out:
                given["out"] = IMAGES[out](np.full(plain.value.shape, 7, F32))
            for way, plan, arrays in ways(f"{FN}conv2d", IMAGES[images](x), w, **given):
                result = plan(*arrays)
                what = f"{way.key}, {images}, {other}, out {out}, {sorted(given)}"
                exact.check(result, what, of_largest=ERRORS[way.name])
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
            exact.check(given, way.key, of_largest=ERRORS[way.name])
    for _, plan, arrays in ways(f"{FN}conv2d", x, w, padding=1, out=x):
        with pytest.raises(BadValue, match="overlaps an operand"):
            plan(*arrays)


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e-42])
def test_what_is_not_finite_stays_what_it_is_and_where(value: float, activation: str | None, rng: np.random.Generator) -> None:
    """A transform spreads it over its tile, which must not show."""
    x, w = rng.standard_normal((2, 3, 20, 19)).astype(F32), rng.standard_normal((4, 3, 3, 3)).astype(F32)
    x[1, 2, 7, 8] = value
    bias, residual = rng.standard_normal(4).astype(F32), rng.standard_normal((2, 4, 20, 19)).astype(F32)
    residual[0, 1, 2, 3] = np.inf
    with np.errstate(all="ignore"):
        exact = exact_conv(x, w, padding=1).add(bias[:, None, None]).add(residual).value.astype(F32)
        wanted = np.maximum(exact, 0) if activation else exact
    for out in (None, np.empty_like(residual), np.empty_like(residual).transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2)):
        for way, plan, arrays in ways(f"{FN}conv2d", x, w, bias, padding=1, residual=residual, activation=activation, out=out):
            tolerance = 1e-3 if way.precision else 1e-4
            np.testing.assert_allclose(plan(*arrays), wanted, rtol=tolerance, atol=tolerance, err_msg=way.key)


def test_an_overflow_in_a_transform_does_not_show(rng: np.random.Generator) -> None:
    x, w = np.full((1, 2, 20, 20), 3e37, F32), np.full((3, 2, 3, 3), 0.5, F32)
    exact = exact_conv(x, w, padding=1)
    for way, plan, arrays in ways(f"{FN}conv2d", x, w, padding=1):
        exact.check(plan(*arrays), way.key, of_largest=ERRORS[way.name])


def test_what_it_refuses() -> None:
    x, w = np.ones((1, 2, 6, 6), F32), np.ones((2, 2, 3, 3), F32)
    assert "no convolution of float64" in reasons(f"{FN}conv2d", x.astype(float), w.astype(float))
    assert "more than two dimensions" in reasons(f"{FN}conv3d", np.ones((1, 2, 4, 4, 4), F32), np.ones((2, 2, 3, 3, 3), F32))
    assert "an empty convolution" in reasons(f"{FN}conv2d", x[:0], w)
    assert "no dilation" in reasons(f"{FN}conv2d", x, w, dilation=2)
    assert "has no conv_grad_input" in reasons("nn.grad.conv2d_input", (1, 2, 6, 6), w, np.ones((1, 2, 4, 4), F32))
    assert "has no conv_transpose" in reasons(f"{FN}conv_transpose2d", x, w)
    said = reasons(f"{FN}conv2d", x, w, stride=2)
    assert said.count("strides of 1 only") == 3 and "direct: kernels up to 1x1 only" in said and "implicit_gemm" not in said
    assert reasons(f"{FN}conv2d", x, w, padding=3).count("padding that is not less than the kernel") == 4
    large = reasons(f"{FN}conv2d", np.ones((1, 2, 20, 20), F32), np.ones((2, 2, 17, 17), F32))
    assert "implicit_gemm: kernels up to 16x16 only" in large
    assert "wt8x8: NNPACK refuses it: unsupported by this algorithm (status 26)" in reasons(f"{FN}conv2d", x, w[:, :, :1, :1])


# What the engine makes of it --------------------------------------------------------------------------------------------------


def test_winograd_runs_only_where_less_than_float32_is_permitted() -> None:
    x, w = np.ones((1, 8, 40, 40), F32), np.ones((8, 8, 3, 3), F32)
    for wish, permitted in (("none", False), ("ieee", False), ("tf32", True), ("bf16", True)):
        with backline.use("nnpack", only=True), switches.scope({"mkldnn.conv.fp32_precision": wish}):
            choice = backline.explain(F.conv2d, x, w)
            named = {c.algorithm: c for c in choice.candidates}
            assert (named["wt8x8"].verdict != "refused") == permitted, wish
            if permitted:
                assert (choice.algorithm, choice.effective) == ("wt8x8", "winograd")
            else:
                assert "computes in winograd" in named["wt8x8"].reason and choice.algorithm == "ft16x16"
    with backline.use("nnpack", only=True), switches.scope({"mkldnn.conv.fp32_precision": "tf32", "emulate": True}):
        refused = [c for c in backline.explain(F.conv2d, x, w).candidates if c.algorithm == "wt8x8"]
        assert all("tf32" not in c.reason or c.verdict == "refused" for c in refused)


def test_its_switch_turns_it_off() -> None:
    x, w = np.ones((1, 2, 6, 6), F32), np.ones((2, 2, 3, 3), F32)
    with backline.use("nnpack", only=True):
        assert F.conv2d(x, w).shape == (1, 2, 4, 4)
        with backline.backends.nnpack.flags(enabled=False), pytest.raises(NoKernel, match=r"disabled by nnpack\.enabled"):
            F.conv2d(x, w)
    assert backline.backends.nnpack.is_available() and backline.backends.nnpack.version() is None


def test_images_are_divided_among_the_team_that_others_run_on(library: NNPACK) -> None:
    w = np.ones((16, 16, 3, 3), F32)
    for n, pool in ((1, library.pools.name), (2, thread_team.name()), (5, thread_team.name())):
        (first, *_) = [way for way, _, _ in ways(f"{FN}conv2d", np.ones((n, 16, 40, 40), F32), w)]
        assert (first.threads, first.pool) == (2, pool)
    with switches.scope({"openmp.enabled": False}):
        (first, *_) = [way for way, _, _ in ways(f"{FN}conv2d", np.ones((2, 16, 40, 40), F32), w)]
        assert (first.threads, first.pool) == (2, library.pools.name)


# Weights, threads -------------------------------------------------------------------------------------------------------------


def test_a_plan_reads_the_weights_of_each_call(rng: np.random.Generator) -> None:
    x, w = random_array(rng, (1, 3, 9, 9), F32), random_array(rng, (4, 3, 3, 3), F32)
    for way, plan, arrays in ways(f"{FN}conv2d", x, w):
        plan(*arrays)
        w *= -2
        exact_conv(x, w).check(plan(*arrays), way.key, of_largest=ERRORS[way.name])


@pytest.mark.parametrize("groups", [1, 3])
def test_packed_layers(groups: int, rng: np.random.Generator) -> None:
    w, bias = random_array(rng, (6, 6 // groups, 3, 3), F32), random_array(rng, (6,), F32)
    with backline.use("nnpack", only=True):
        layer = F.prepack_conv2d(w, bias, padding=1, groups=groups)
        for n in (1, 2, 1):
            x = random_array(rng, (n, 6, 12, 12), F32)
            exact = exact_conv(x, w, padding=1, groups=groups).add(bias[:, None, None])
            for given in (x, misaligned(x), IMAGES["channels last"](x)):
                exact.check(layer(given), f"{n} images", of_largest=ERRORS["ft16x16"])
        assert layer.nbytes > w.nbytes + bias.nbytes
    # And each algorithm, as the first call and as a later one.
    x = random_array(rng, (2, 6, 12, 12), F32)
    problem = problem_of(f"{FN}conv2d", x, w, padding=1, groups=groups)
    packed = replace(problem, parameters=(*problem.parameters, ("packed", True)))
    exact = exact_conv(x, w, padding=1, groups=groups)
    lib = libraries.get("nnpack")
    for way in lib.algorithms(packed, 2):
        if isinstance(way, Algorithm):
            plan, weights = lib.prepare(packed, way), w.copy()
            for _ in range(3):
                exact.check(plan(x, weights), way.key, of_largest=ERRORS[way.name])
                weights[...] = np.nan  # they are not looked at again
            assert "transformed by the first call" in way.note


def test_the_same_bits_on_any_number_of_threads(rng: np.random.Generator) -> None:
    for shape, kernel, padding in (
        ((2, 16, 40, 40), (24, 16, 3, 3), 1), ((1, 24, 30, 31), (20, 24, 5, 5), 2), ((1, 64, 20, 20), (48, 64, 1, 1), 0),
        ((3, 8, 33, 47), (7, 8, 9, 9), 4),
    ):  # fmt: skip
        x, w = rng.standard_normal(shape).astype(F32), rng.standard_normal(kernel).astype(F32)
        results: dict[str, list[Any]] = {}
        for n in (1, 2, 3):
            for way, plan, arrays in ways(f"{FN}conv2d", x, w, threads=n, padding=padding):
                results.setdefault(way.name, []).append(plan(*arrays))
        for name, each in results.items():
            assert len(each) == 5 and all(np.array_equal(each[0], r) for r in each), name


def test_one_plan_serves_many_threads_at_once(rng: np.random.Generator) -> None:
    shape, kernel = (1, 16, 40, 40), (24, 16, 3, 3)
    images, weights = ([random_array(rng, s, F32) for _ in range(4)] for s in (shape, kernel))
    for way, plan, _ in ways(f"{FN}conv2d", images[0], weights[0], padding=1):
        wanted = [plan(x, w) for x, w in zip(images, weights, strict=True)]
        wrong: list[int] = []

        def work(i: int, plan: Any = plan, wanted: Any = wanted, wrong: list[int] = wrong) -> None:
            for _ in range(5):
                if not np.array_equal(plan(images[i], weights[i]), wanted[i]):
                    wrong.append(i)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, way.key


def test_a_forked_child_computes_on_one_thread(library: NNPACK) -> None:
    assert library.finding is not None and library.finding.path is not None
    python(
        """
        import os, signal, numpy as np, backline
        from backline.nn import functional as F
        backline.backends.num_threads = 2
        x, w = np.ones((1, 32, 40, 40), np.float32), np.ones((32, 32, 3, 3), np.float32)
        with backline.use("nnpack", only=True):
            first = F.conv2d(x, w)
            assert backline.explain().chosen.threads == 2
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                ok = np.array_equal(F.conv2d(x, w), first) and backline.explain().chosen.threads == 1
                os._exit(0 if ok else 1)
            assert os.waitpid(child, 0)[1] == 0
        """,
        env={"BACKLINE_NNPACK_LIBRARY": library.finding.path, "PYTHONWARNINGS": "ignore"},
    )
