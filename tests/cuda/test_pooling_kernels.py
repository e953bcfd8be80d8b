"""Pooling on CUDA arrays: which kernel runs it, what that is compiled for and given; gradients of transposed convolutions as one plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import switches
from backline.errors import BadValue
from backline.libraries.cuda.cupy import pooling_kernels, row_kernels
from backline.nn import functional as F
from backline.nn import grad as G
from backline.problems import Operand, operand
from backline.problems.neural_problem import NeuralProblem
from fakes.cupy_standin import ndarray
from fakes.gpu_machine import GpuMachine
from fakes.host_kernels import host_library
from fakes.insert import inserted
from fakes.solver_machine import real_types
from support import clean

real_types()
pytestmark = pytest.mark.usefixtures("clean", "machine")
assert clean
FIRST, LAST = (4, 3, 2, 1, 0), (1, 4, 3, 2, 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GpuMachine:
    return GpuMachine(tmp_path_factory.mktemp("machine"))


@pytest.fixture
def machine(made: GpuMachine) -> Iterator[None]:
    with inserted(**made.modules()):
        yield


def described(shape: tuple[int, ...], order: tuple[int, ...] | None = None, dtype: Any = np.float32) -> Operand:
    """Images of a shape, dense, their axes in an order in memory; without memory."""
    order = tuple(range(len(shape))) if order is None else order
    steps, step = [0] * len(shape), np.dtype(dtype).itemsize
    for axis in reversed(order):
        steps[axis], step = step, step * shape[axis]
    return Operand("input", np.dtype(dtype), shape, tuple(steps))


def pool(op: str, o: Operand, result: tuple[int, ...], **parameters: Any) -> NeuralProblem:
    rank = len(parameters.get("kernel", parameters.get("output", ())))
    usual = {} if "output" in parameters else {"stride": (2,) * rank, "padding": ((0, 0),) * rank}
    return NeuralProblem(op, (o,), tuple(sorted((usual | parameters).items())), "neural", device="cuda:0", result=result)


def compiled_for(monkeypatch: pytest.MonkeyPatch, p: NeuralProblem) -> dict[str, str]:
    """Returns the constants that the kernel of a Problem is compiled for, by name."""
    texts: list[str] = []
    monkeypatch.setattr(pooling_kernels, "compiled", lambda text, name: texts.append(text))
    pooling_kernels.function(p)
    lines = itertools.takewhile(lambda line: line.startswith("#define"), texts[0].splitlines())
    return {name: value for _, name, value in (line.split(" ", 2) for line in lines)}


def test_threads_cover_every_element() -> None:
    for count, taps, last in itertools.product((1, 31, 1000, 1 << 40), (1, 31, 32, 49, 255, 256, 257, 3136, 1 << 20, 1 << 40), (False, True)):
        share, blocks, (x, y) = pooling_kernels.average_launch(count, taps, last)
        beside = y if share == 1 else x
        assert blocks == min(-(-count // beside), row_kernels.MOST_BLOCKS) and x * y <= 1024 and x * y % 32 == 0
        if taps < pooling_kernels.FEW:
            assert (share, x, y) == (0, 256, 1)
        elif last:
            assert share == 2 and x == 32 and y <= 16 and y & (y - 1) == 0
        else:
            assert share == 1 and x & (x - 1) == 0 and (x <= 32 or y == 1)


def test_orders_of_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    for shape, order, wanted in (
        ((2, 3, 8, 9), None, FIRST), ((2, 3, 8, 9), (0, 2, 3, 1), LAST), ((2, 3, 4, 8, 9), (0, 2, 3, 4, 1), LAST), ((3, 8, 9), None, FIRST),
        ((8, 9, 4), (1, 2, 0), LAST), ((1, 3, 8, 9), (0, 2, 3, 1), LAST), ((2, 1, 8, 9), (0, 2, 3, 1), FIRST), ((2, 3, 8, 9), (1, 0, 3, 2), (3, 4, 0, 1, 2)),
    ):  # fmt: skip
        rank = max(len(shape) - 2, 2)
        p = pool("max_pool", described(shape, order), (*shape[:-rank], *(n // 2 for n in shape[-rank:])), kernel=(2,) * rank)
        assert compiled_for(monkeypatch, p)["ORDER"] == ", ".join(map(str, wanted)), (shape, order)


def test_results_lie_as_images_do() -> None:
    assert pooling_kernels.result_order(described((2, 3, 1, 1), (0, 2, 3, 1))) == (0, 2, 3, 1)
    assert pooling_kernels.result_order(described((2, 3, 1, 1))) == (0, 1, 2, 3)
    assert pooling_kernels.result_order(operand("input", np.broadcast_to(np.zeros((1, 3, 4, 5)), (2, 3, 4, 5)))) == (0, 1, 2, 3)
    assert pooling_kernels.result_order(operand("input", np.zeros((2, 3, 4, 5))[:, :, ::-1, ::-1])) == (0, 1, 2, 3)


def test_places_take_64_bits_where_they_must(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = {"PLACE": "unsigned", "STEP": "int"}, {"PLACE": "unsigned long long", "STEP": "long long"}
    side, point = 1 << 15, ((0, 0),) * 2
    for o, more, wanted in (
        (described((1, 1, side, side)), {"kernel": (2, 2)}, short), (described((1, 2, side, side)), {"kernel": (2, 2)}, long),
        (described((1, 1, 1, 1)), {"kernel": (1 << 30, 1), "padding": ((1 << 29, 1 << 29), (0, 0))}, long),
        (Operand("input", np.dtype(np.float32), (2, 1, 4, 4), (4 << 31, 64, 16, 4)), {"kernel": (2, 2)}, long),
        (Operand("input", np.dtype(np.float32), (1, 1, 4, 4), (4 << 31, 64, 16, 4)), {"kernel": (2, 2), "padding": point}, short),
        (Operand("input", np.dtype(np.float32), (1 << 20, 1, 64, 64), (0, 0, 256, 4)), {"kernel": (2, 2)}, long),
    ):  # fmt: skip
        result = (*o.shape[:2], *(max(n // 2, 1) for n in o.shape[2:]))
        for op in ("max_pool", "avg_pool"):
            found = compiled_for(monkeypatch, pool(op, o, result, **more))
            assert wanted.items() <= found.items(), (op, o.shape, found)


def test_what_there_is_no_kernel_for_is_refused() -> None:
    refusal = pooling_kernels.refusal
    image = described((1, 1, 4, 4))
    assert "no kernel for softmax" in refusal(NeuralProblem("softmax", (image,), (("axis", 1),), "neural", result=image.shape))
    for op, dtype, legal in (("max_pool", np.int16, True), ("max_pool", np.complex64, False), ("avg_pool", np.int16, False), ("max_pool", bool, False)):
        p = pool(op, described((1, 1, 4, 4), dtype=dtype), (1, 1, 2, 2), kernel=(2, 2))
        assert (refusal(p) == "") is legal and (legal or f"not {np.dtype(dtype).name}" in refusal(p))


def test_the_kernel_comes_before_the_formula(made: GpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(48, dtype=np.float32).reshape(1, 3, 4, 4) % 7
    found, places = F.max_pool2d(ndarray(x), 2, return_indices=True)
    assert [c.algorithm for c in backline.explain().candidates if c.library == "cupy"] == ["windows"]
    wanted = F.max_pool2d(x, 2, return_indices=True)
    assert np.array_equal(found.host, wanted[0]) and np.array_equal(places.host, wanted[1])
    g = np.ones((1, 3, 2, 2), np.float32)
    moved = G.max_pool2d_input(ndarray(x), ndarray(g), 2)
    assert [c.algorithm for c in backline.explain().candidates if c.library == "cupy"] == ["windows", "formula"]
    assert np.array_equal(moved.host, G.max_pool2d_input(x, g, 2))

    def fails(*args: Any) -> Any:
        raise ValueError("NVRTC says no")

    monkeypatch.setattr(made.cupy, "RawKernel", fails, raising=False)
    monkeypatch.setattr(row_kernels, "_kernels", {})
    with switches.scope({"fallback": "warn"}), pytest.warns(RuntimeWarning, match="NVRTC says no"):
        found = F.max_pool2d(ndarray(x[..., :3]), 2)
    assert backline.explain().algorithm == "formula"
    assert np.array_equal(found.host, F.max_pool2d(x[..., :3], 2))


def test_the_gradient_of_layer_norm_is_of_rows(made: GpuMachine) -> None:
    rng = np.random.default_rng(5)
    x, g, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 33), (6, 33), (33,)))
    G.layer_norm_backward(ndarray(x), ndarray(g), 33, ndarray(w))
    before = len(made.log)
    found = G.layer_norm_backward(ndarray(x), ndarray(g), 33, ndarray(w))
    assert backline.explain().algorithm == "rows"
    assert [name for name, _ in made.log[before:]] == ["layer_norm_grad", "layer_norm_sums"]
    for got, want in zip(found, G.layer_norm_backward(x.astype(np.float64), g.astype(np.float64), 33, w.astype(np.float64)), strict=True):
        np.testing.assert_allclose(got.host, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keywords", [False, True])
def test_gradients_of_transposed_convolutions_are_one_plan(keywords: bool) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 4, 5, 6)), rng.standard_normal((4, 3, 3, 2))
    g = rng.standard_normal(F.conv_transpose2d(x, w, stride=2, padding=1).shape)
    x, w, g = (a.astype(np.float32) for a in (x, w, g))
    for function, args, other in ((G.conv_transpose2d_weight, (x, w.shape), "weight_size"), (G.conv_transpose2d_input, (x.shape, w), "input_size")):
        there = [ndarray(a) if isinstance(a, np.ndarray) else a for a in args]
        given = dict(zip(("input", other) if function is G.conv_transpose2d_weight else (other, "weight"), there, strict=True))
        with switches.scope({"cudnn.allow_tf32": False}), backline.trace() as events:
            if keywords:
                found = function(grad_output=ndarray(g), stride=2, padding=1, **given)
            else:
                found = function(*there, ndarray(g), 2, 1)
        assert [event.op for event in events] == [function.__name__]
        wanted = function(*args, g, 2, 1)
        np.testing.assert_allclose(found.host, wanted, rtol=1e-4, atol=1e-4)


def test_what_takes_several_steps_is_composed() -> None:
    x, w = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 2, 2), np.float32)
    more = {"stride": 1, "dilation": 2, "output_padding": 1}
    g = np.ones(F.conv_transpose2d(x, w, **more).shape, np.float32)
    with backline.trace() as events:
        found = G.conv_transpose2d_weight(ndarray(x), w.shape, ndarray(g), **more)
    assert [event.op for event in events] == ["conv2d_weight"]
    np.testing.assert_allclose(found.host, G.conv_transpose2d_weight(x, w.shape, g, **more))
    with pytest.raises(BadValue, match=r"conv_transpose2d_weight is made of other operations here: nn\.grad\.conv2d_weight"):
        backline.explain(G.conv_transpose2d_weight, x, w.shape, g, **more)
    assert backline.explain(G.conv_transpose2d_input, x.shape, w, np.ones((1, 1, 4, 4), np.float32)).problem.op == "conv"


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64])
def test_what_kernels_share_takes_integers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: type[np.generic]) -> None:
    made = []
    monkeypatch.setattr(pooling_kernels, "compiled", lambda text, name: made.append((text, name)) or (lambda *given: None))
    F.max_pool2d(ndarray(np.zeros((2, 3, 7, 6), dtype)), 3)
    ((text, name),) = made
    assert host_library(text, [name], tmp_path).exists()
