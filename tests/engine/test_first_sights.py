"""Shapes that keep changing: a convolution's first calls run on what is prepared soon, and later ones on what is fastest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, backends
from backline.engine import first_sights, plan_caches, ranking
from backline.libraries.onednn.library import CONV_COMPILED_AFTER
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
    keys = tuple(f"{name}@{count}" for name in ("onednn.nhwc", "openblas.im2col", "mkl.im2col", "blis.im2col") for count in "n1")
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
