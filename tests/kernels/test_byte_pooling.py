"""Largest elements of windows of int8 and uint8: those that NumPy finds, for every window, layout and thread count."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import backline
from backline import _kernels, backends
from backline.errors import NoKernel
from backline.nn import functional
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean

SEED = int(os.environ.get("BACKLINE_TEST_SEED", "0"))
WINDOWS: tuple[dict[str, Any], ...] = (
    {"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": (1, 3), "stride": (2, 1)},
    {"kernel_size": (4, 2), "stride": 3, "padding": (2, 1), "ceil_mode": True}, {"kernel_size": 2, "dilation": (3, 2), "padding": 1},
    {"kernel_size": 5, "stride": 5, "padding": 2, "ceil_mode": True}, {"kernel_size": 2, "stride": 7},
)  # fmt: skip
SHAPES = ((1, 1, 9, 8), (2, 3, 11, 7), (3, 64, 8, 9), (20, 33, 12, 17), (1, 70, 6, 40))


def images(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Integers with channels last in memory."""
    count, channels, height, width = shape
    limits = np.iinfo(dtype)
    made = rng.integers(limits.min, limits.max, (count, height, width, channels), dtype, endpoint=True)
    return made.transpose(0, 3, 1, 2)


def both(x: Any, **window: Any) -> tuple[Any, Any]:
    with backends.flags(only=("kernels",)):
        found = functional.max_pool2d(x, **window)
        assert backline.explain().library == "kernels"
    with backends.flags(only=("numpy",)):
        return found, functional.max_pool2d(x, **window)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_window_has_its_largest_element(shape: tuple[int, ...], dtype: str, threads: int) -> None:
    rng = np.random.default_rng(SEED)
    with backline.num_threads(threads):
        for window in WINDOWS:
            x = images(rng, shape, dtype)
            found, wanted = both(x, **window)
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == x.dtype and (found.size <= 1 or found.transpose(0, 2, 3, 1).flags.c_contiguous)


def test_a_window_of_padding_alone_has_the_least_number() -> None:
    for dtype in ("int8", "uint8"):
        x = np.full((1, 2, 2, 2), 5, dtype).transpose(0, 3, 1, 2)
        found, wanted = both(x, kernel_size=2, dilation=3, padding=1)
        assert found.tolist() == wanted.tolist() == [[[[np.iinfo(dtype).min]]] * 2]


@pytest.mark.parametrize("level", range(_kernels.instruction_level + 1))
def test_instruction_sets_agree(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.engine import plan_caches
    from backline.libraries.kernels import pooling_loops

    monkeypatch.setattr(pooling_loops, "vector_level", lambda: level)
    plan_caches.clear()
    found, wanted = both(images(np.random.default_rng(SEED), (2, 50, 13, 9), "int8"), kernel_size=3, stride=2, padding=1)
    np.testing.assert_array_equal(found, wanted)
    plan_caches.clear()


def test_other_arrays_are_refused_with_a_reason() -> None:
    first = np.zeros((2, 3, 4, 4), np.uint8)
    for x, reason in ((first, "channels are not last"), (first.astype(np.float16), "int8, uint8, not float16"), (first[0], r"\(N, C, H, W\)")):
        with backends.flags(only=("kernels",)), pytest.raises(NoKernel, match=reason):
            functional.max_pool2d(x, 2)
