"""Convolutions whose first kernel in oneDNN is wrong on processors with AMX: the kernel that runs is another one, and right."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, backends, quantized
from backline.backends import quantized as backend
from backline.engine import first_sights, plan_caches
from backline.libraries import errata
from backline.libraries.onednn import abi, onednn_int8
from backline.libraries.onednn.primitives import DnnlError
from backline.nn import functional
from backline.problems.memory_layout import image_strides
from support import BFLOAT16, clean, need

pytestmark = pytest.mark.usefixtures("clean")
assert clean

SEED = int(os.environ.get("BACKLINE_TEST_SEED", "0"))
CASES = 24
Array = Any


def test_a_kernel_that_is_to_be_avoided_is_followed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = need("onednn").traits.engine
    f32 = np.dtype(np.float32)
    image, weight, result = (1, 8, 9, 9), (16, 8, 3, 3), (1, 16, 7, 7)

    def described(*avoided: str) -> str:
        source, target = (engine.desc(shape, f32, image_strides(shape, True)) for shape in (image, result))
        made = engine.primitive_desc(
            "convolution_forward", abi.Prop.FORWARD_INFERENCE, abi.Alg.CONVOLUTION_DIRECT, source, engine.desc(weight, f32), None,
            target, (1, 1), (0, 0), (0, 0), (0, 0), attr=engine.attributes(), avoided=avoided,
        )  # fmt: skip
        return str(made.implementation)

    first = described()
    second = described(first)
    assert described("no kernel") == first != second and described(first, second) not in (first, second)
    with pytest.raises(DnnlError, match="no further implementation") as raised:
        described("*")
    assert raised.value.unimplemented
    monkeypatch.setattr(errata, "kernels", lambda library, problem, algorithm: (first,))
    rng = np.random.default_rng(SEED)
    x, w = np.ascontiguousarray(rng.random((1, 9, 9, 8), np.float32)).transpose(0, 3, 1, 2), rng.random(weight, np.float32)
    with backends.flags(only=("onednn",), num_threads=1):
        y = functional.conv2d(x, w)
        assert backline.explain().algorithm == "nhwc" and first not in str([c.reason for c in backline.explain().candidates])
    wanted = np.einsum("ncyxij,ocij->noyx", np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3)), w, dtype=np.float64)
    np.testing.assert_allclose(y, wanted, 1e-5)


def sizes(rng: np.random.Generator, padded: bool) -> tuple[Any, ...]:
    """Image, weight, stride and padding of a convolution, many of them at the edges that rows of the errata name."""
    channels = int(rng.choice([16, 24, 32, 40, 48, 64, 80, 96, 160]))
    kernel = int(rng.choice([1, 2, 2, 3])), int(rng.choice([2, 2, 4, 3, 8]))
    stride = int(rng.choice([1, 2, 3, 4])), int(rng.choice([1, 2, 4, 8]))
    above = int(rng.integers(0, kernel[0])) if padded else 0
    points = int(rng.integers(2, 5)), int(rng.choice([7, 16, 33, 47]))
    height, width = ((n - 1) * s + k for n, s, k in zip(points, stride, kernel, strict=True))
    image = int(rng.integers(1, 3)), channels, max(height - 2 * above, kernel[0]), width
    return image, (int(rng.choice([16, 24, 32, 64])), channels, *kernel), stride, (above, 0)


@pytest.mark.cpu_kernel
@pytest.mark.parametrize("threads", [1, 2])
def test_convolutions_of_bfloat16_are_right(threads: int) -> None:
    if not need("onednn").traits.engine.bf16:
        pytest.skip("the processor has no instructions for bfloat16")
    rng = np.random.default_rng([SEED, threads])
    for n in range(CASES):
        image, weight, stride, padding = sizes(rng, padded=False)
        batch, channels, height, width = image
        x = rng.standard_normal((batch, height, width, channels)).astype(BFLOAT16).transpose(0, 3, 1, 2)
        w = rng.standard_normal(weight).astype(BFLOAT16)
        with backends.flags(only=("onednn",), num_threads=threads):
            found = functional.conv2d(x, w, stride=stride, padding=padding)
        with backends.flags(only=("numpy",)):
            wanted = functional.conv2d(x.astype(np.float64), w.astype(np.float64), stride=stride, padding=padding)
        case = f"{n}: {image} {weight} stride={stride} padding={padding}"
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=0.02, atol=0.02 * np.abs(wanted).max(), err_msg=case)


@pytest.mark.cpu_kernel
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_convolutions_of_int8_are_exact(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    if need("onednn").engine_reason("onednn"):
        pytest.skip(need("onednn").engine_reason("onednn"))
    monkeypatch.setattr(onednn_int8, "in_tiles", lambda engine, p: False)  # a loop of ours, which has no such defect
    rng = np.random.default_rng([SEED, dtype == "int8"])
    for n in range(CASES):
        image, weight, stride, padding = sizes(rng, padded=True)
        batch, channels, height, width = image
        x = rng.integers(0, 127, (batch, height, width, channels), dtype).transpose(0, 3, 1, 2)
        w = quantized.QArray(rng.integers(-127, 127, weight, "int8"), 0.02)
        given = quantized.QArray(x, 0.04, int(rng.choice([0, 100])))
        results = []
        for engine in ("onednn", "reference"):
            plan_caches.clear()
            first_sights.clear()
            _core.memo_clear()
            with backend.flags(engine=engine):
                packed = quantized.conv2d_prepack(w, None, stride, padding)
            results.append(quantized.conv2d(given, packed, 1.6, 5).int_repr)
        np.testing.assert_array_equal(*results, err_msg=f"{n}: {image} {weight} stride={stride} padding={padding}")
