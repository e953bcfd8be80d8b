"""Shapes that keep changing: first calls of convolutions and poolings run on what is prepared soon, later ones on what is fastest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, backends
from backline.engine import first_sights, plan_caches, ranking
from backline.libraries.onednn.library import CONV_COMPILED_AFTER, POOL_COMPILED_AFTER, POOL_COMPILED_FLOPS
from backline.nn import functional
from support import clean, need

pytestmark = pytest.mark.usefixtures("clean")
assert clean

SEED = int(os.environ.get("BACKLINE_TEST_SEED", "0"))
Array = Any


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing was seen before, and oneDNN comes first, on any machine."""
    need("onednn")
    names = "onednn.nhwc", "openblas.im2col", "mkl.im2col", "blis.im2col", "onednn.primitive", "numpy.loops"
    keys = tuple(f"{name}@{count}" for name in names for count in "n1")
    monkeypatch.setattr(ranking, "order_of", lambda problem, own=True: keys)
    for known in (first_sights._known, first_sights._shapes):
        known.clear()
    plan_caches.clear()
    _core.memo_clear()
    yield
    plan_caches.clear()


def operands(n: int, dtype: str = "float32") -> tuple[Array, Array, Array]:
    rng = np.random.default_rng([SEED, n])
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in ((2, 3, 9 + n, 8), (5, 3, 3, 3), (5,)))  # type: ignore[return-value]  # there are three shapes


def exact(x: Array, w: Array, b: Array) -> Array:
    with backends.flags(only=("numpy",)):
        return functional.conv2d(*(a.astype(np.float64) for a in (x, w, b)), padding=1)


def test_a_shape_is_worth_code_of_its_own_after_so_many_calls() -> None:
    for n in range(first_sights.CHANGING):
        functional.conv2d(*operands(n), padding=1)
        assert backline.explain().library == "onednn", n
    given = operands(first_sights.CHANGING)
    wanted = exact(*given)
    for call in range(CONV_COMPILED_AFTER + 2):
        found = functional.conv2d(*given, padding=1)
        choice = backline.explain()
        assert (choice.library == "onednn") is (call >= CONV_COMPILED_AFTER), call
        assert np.abs(found - wanted).max() <= 27 * 2.0**-22 * np.abs(wanted).max()
        if call == 0:
            told = next(c for c in choice.candidates if c.library == "onednn")
            assert f"tried after {CONV_COMPILED_AFTER} calls" in str(told.reason)
    functional.conv2d(*operands(100), padding=1)
    assert backline.explain().library != "onednn"


@pytest.mark.parametrize("switches", [{"deterministic": True}, {"preferred_linalg_library": "default", "use": "onednn"}])
def test_where_more_than_the_ranking_decides_nothing_changes(switches: dict[str, Any]) -> None:
    preferred = switches.pop("use", None)
    for n in range(first_sights.CHANGING + 3):
        if preferred is not None:
            with backends.flags(only=(preferred,)):
                functional.conv2d(*operands(n), padding=1)
        else:
            with backends.flags(**switches):
                functional.conv2d(*operands(n), padding=1)
        assert backline.explain().library == "onednn", n


def test_large_and_packed_convolutions_are_compiled_at_once() -> None:
    rng = np.random.default_rng(SEED)
    for n in range(first_sights.CHANGING + 1):
        functional.conv2d(*operands(n), padding=1)
    layer = functional.prepack_conv2d(rng.standard_normal((5, 3, 3, 3), np.float32))
    layer(operands(0)[0])
    assert backline.explain().library == "onednn"
    functional.conv2d(rng.standard_normal((1, 64, 40, 40), np.float32), rng.standard_normal((64, 64, 3, 3), np.float32))
    assert backline.explain().library == "onednn"


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_sights, "MOST", 5)
    for n in range(12):
        functional.conv2d(*operands(n), padding=1)
    assert len(first_sights._known) == 5


@pytest.mark.parametrize("pool", [functional.max_pool2d, functional.avg_pool2d])
def test_a_pooling_is_worth_a_primitive_after_some_calls(pool: Any) -> None:
    rng = np.random.default_rng(SEED)
    images = [rng.standard_normal((2, 3, 9 + n, 8), np.float32) for n in range(first_sights.CHANGING + 1)]
    for n, x in enumerate(images[:-1]):
        pool(x, 2)
        assert backline.explain().library == "onednn", n
    wanted = pool(images[-1].astype(np.float64), 2)
    for call in range(POOL_COMPILED_AFTER + 3):
        found = pool(images[-1], 2)
        choice = backline.explain()
        assert (choice.library == "onednn") is (call >= POOL_COMPILED_AFTER), call
        assert np.abs(found - wanted).max() <= 4 * 2.0**-22 * np.abs(wanted).max()
        if call == 0:
            told = next(c for c in choice.candidates if c.library == "onednn")
            assert f"tried after {POOL_COMPILED_AFTER} calls" in str(told.reason)
    side = 2 * round((POOL_COMPILED_FLOPS / 4) ** 0.5)
    pool(rng.standard_normal((1, 4, side, side), np.float32), 2)
    assert backline.explain().library == "onednn", "a large one is worth it at once"


def test_a_plan_that_is_not_kept_gives_way_for_other_arrays_too() -> None:
    """Calls are counted by what they ask, whichever arrays they bring, and those of another Problem do not count."""
    rng = np.random.default_rng(SEED)
    for n in range(first_sights.CHANGING):
        functional.max_pool2d(rng.standard_normal((1, 2, 20 + n, 6), np.float32), 2)
    taken = []
    for _ in range(POOL_COMPILED_AFTER + 1):
        functional.max_pool2d(rng.standard_normal((1, 2, 50, 6), np.float32), 2)
        taken.append(str(backline.explain().library))
        functional.max_pool2d(rng.standard_normal((1, 2, 50, 7), np.float32), 3)
    assert taken == [*["numpy"] * POOL_COMPILED_AFTER, "onednn"]
