"""Attention whose lengths keep changing: cuDNN, which compiles a plan for each, is passed over on the device where it comes first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, libraries, switches
from backline.engine import device_leader, first_sights
from backline.engine.choice import Choice
from backline.engine.choose import planner
from backline.engine.early_plan import EarlyPlan
from backline.engine.first_sights import CHANGING_ON_DEVICES
from backline.errors import LibraryFailed
from backline.libraries import devices, errata, errata_table
from backline.libraries.base import Handler
from backline.libraries.cuda.cudnn import sdpa_graphs as sdpa
from backline.nn import functional, grad
from backline.nn.attention import SDPBackend, sdpa_kernel
from fakes.cupy_standin import ndarray
from support import clean

pytest.importorskip("cudnn")
pytest.importorskip("nvmath")
from fakes.cudnn_machine import aligned
from fakes.gpu_machine import GpuMachine

pytestmark = pytest.mark.usefixtures("clean", "machine")
assert clean and GpuMachine

SEED = int(os.environ.get("BACKLINE_TEST_SEED", "0"))
CUDNN, FLASH, MATH = (SDPBackend[name] for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "MATH"))


@pytest.fixture(autouse=True)
def no_errata(clean: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No version of cuDNN is refused anything by them; after `clean`, which would else keep the empty table and put it back."""
    monkeypatch.setattr(errata_table, "TABLE", ())
    errata.clear()
    yield
    errata.clear()


def qkv(keys: int, queries: int = 1, heads: int = 2, dim: int = 64) -> tuple[ndarray, ndarray, ndarray]:
    """A query, or some, and as many keys and values as have come."""
    rng = np.random.default_rng([SEED, keys, queries])
    shapes = (1, heads, queries, dim), (1, heads, keys, dim), (1, heads, keys, dim)
    q, k, v = (aligned(rng.standard_normal(shape).astype(np.float16)) for shape in shapes)
    return q, k, v


def wide(*arrays: ndarray) -> list[np.ndarray[Any, Any]]:
    return [array.host.astype(np.float64) for array in arrays]


def attended(keys: int, **given: Any) -> Choice:
    """Attends to so many keys, compares the result with that of float64, and returns the Choice."""
    arrays = qkv(keys)
    found = functional.scaled_dot_product_attention(*arrays, **given)
    choice = backline.explain()
    if "dropout_p" not in given:
        q, k, v = wide(*arrays)
        weights = np.exp(q @ k.swapaxes(-1, -2) / 8)
        np.testing.assert_allclose(found.host, weights / weights.sum(-1, keepdims=True) @ v, rtol=4e-3, atol=4e-3)
    return choice


def attend(keys: int, **given: Any) -> str:
    """The library that attended to so many keys."""
    return str(attended(keys, **given).library)


def test_a_growing_cache_pays_for_two_plans_only() -> None:
    taken = [attend(keys) for keys in range(20, 28)]
    assert taken == ["cudnn"] * CHANGING_ON_DEVICES + ["triton"] * (8 - CHANGING_ON_DEVICES)
    choice = attended(28)
    told = next(c for c in choice.candidates if c.library == "cudnn" and c.algorithm == "sdpa")
    assert "calls of one shape: shapes keep changing here" in str(told.reason) and "keep changing" in str(choice)


def test_a_length_that_comes_again_is_found_at_once() -> None:
    for keys in range(20, 24):
        attend(keys)
    before = _core.memo_info()["misses"]
    for _ in range(3):  # as the layers of a network do
        functional.scaled_dot_product_attention(*qkv(23))
        plan = _core.last_plan()
    assert isinstance(plan, EarlyPlan) and _core.memo_info()["misses"] == before


def test_lengths_that_came_first_stay_on_their_plans() -> None:
    taken = [attend(keys) for keys in range(20, 24)]
    for _ in range(3):
        assert [attend(keys) for keys in range(20, 24)] == taken
    assert taken == ["cudnn", "cudnn", "triton", "triton"]


def test_a_shape_that_comes_often_enough_gets_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "calls", lambda self, problem: 3)
    for keys in range(20, 20 + CHANGING_ON_DEVICES):
        attend(keys)
    assert [attend(30) for _ in range(6)] == ["triton"] * 3 + ["cudnn"] * 3
    _core.memo_clear()
    assert attend(30) == "cudnn" and attend(31) == "triton"


def test_what_is_dropped_from_the_memo_goes_on_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """More lengths come by than it has room for, again and again."""
    monkeypatch.setattr(Handler, "calls", lambda self, problem: 50)
    for keys in range(20, 24):
        attend(keys)
    for _ in range(5):
        _core.memo_clear()
        assert attend(23) == "triton"


@pytest.mark.parametrize("known", [False, True])
def test_gradients_pass_it_over_too(known: bool) -> None:
    taken = []
    for keys in range(20, 26):
        q, k, v = qkv(keys, queries=keys)
        dy = aligned(np.random.default_rng([SEED, keys]).standard_normal(q.host.shape).astype(np.float16))
        given: dict[str, Any] = {}
        if known:
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, return_lse=True)
            given = {"output": attended.output, "lse": attended.lse}
        found = grad.scaled_dot_product_attention_backward(q, k, v, dy, is_causal=True, **given)
        taken.append(backline.explain().library)
        expected = grad.scaled_dot_product_attention_backward(*wide(q, k, v, dy), is_causal=True)
        for one, of in zip(found[:3], expected[:3], strict=True):
            np.testing.assert_allclose(one.host, of, rtol=2e-2, atol=2e-2)
    assert taken == ["cudnn"] * CHANGING_ON_DEVICES + ["triton"] * (6 - CHANGING_ON_DEVICES)


@pytest.mark.parametrize(
    "values",
    [{"only": ("cudnn",)}, {"prefer": ("cudnn",)}, {"sdp_priority": ("cudnn_attention", "flash_attention")}, {"dropout": True}],
    ids=lambda values: next(iter(values)),
)  # fmt: skip
def test_what_somebody_asks_for_holds(values: dict[str, Any]) -> None:
    given = {"dropout_p": 0.25, "seed": 3} if values.pop("dropout", False) else {}
    with switches.scope(values):
        for keys in range(20, 26):
            q, k, v = qkv(keys, queries=3)
            functional.scaled_dot_product_attention(q, k, v, **given)
            assert backline.explain().library == "cudnn", keys


def test_kernels_that_are_chosen_by_name() -> None:
    for kernel in (CUDNN, FLASH, MATH):
        with sdpa_kernel(kernel):
            taken = {attend(keys) for keys in range(20, 26)}
        assert len(taken) == 1, (kernel, taken)
    with sdpa_kernel([CUDNN, FLASH], set_priority=True):
        assert {attend(keys) for keys in range(20, 26)} == {"cudnn"}


@pytest.mark.parametrize("values", [{"deterministic": True}, {"benchmark": True}], ids=lambda values: next(iter(values)))
def test_where_more_than_the_order_decides_nothing_is_passed_over(values: dict[str, Any]) -> None:
    with switches.scope(values):
        for keys in range(20, 26):
            problem = backline.explain(functional.scaled_dot_product_attention, *qkv(keys)).problem
            assert first_sights.at_first_sight(problem, switches.current(), planner) is None


def test_products_and_a_softmax_take_its_place_where_scores_are_few() -> None:
    """A kernel that holds no scores may be needed for many of them."""
    few = backline.explain(functional.scaled_dot_product_attention, *qkv(60)).problem
    shapes = [o.shape for o in few.operands]
    long = int(device_leader.UNFUSED_FLOPS / (4 * 64 * 2 * 60)) + 1
    many = replace(
        few, operands=tuple(replace(o, shape=(1, 2, n, 64)) for o, n in zip(few.operands, (60, long, long), strict=True))
    )
    assert [o.shape for o in few.operands] == shapes and many.flops > device_leader.UNFUSED_FLOPS > few.flops
    with switches.scope({"cuda.flash_sdp": False, "cuda.mem_efficient_sdp": False}):
        snapshot = switches.current()
        taken = {}
        for problem in (few, many):
            found = device_leader.device_leader(problem, snapshot, planner, changing=True)
            assert found is not None
            taken[problem.flops] = found.algorithm.traits[0], dict(found.passed)
    assert taken[few.flops] == ("math", {"cudnn": libraries.get("cudnn").handlers[type(few)].calls(few)})
    assert taken[many.flops] == (sdpa.KERNEL, {})


def test_nothing_is_counted_where_it_does_not_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_capabilities", lambda path: ((8, 0), (8, 0)))
    problem = backline.explain(functional.scaled_dot_product_attention, *qkv(20)).problem
    assert (
        sdpa.waits(problem, (9, 0), False)
        and not sdpa.waits(problem, (9, 0), True)
        and not sdpa.waits(problem, (8, 0), False)
        and not sdpa.waits(problem, None, False)
    )
    other = backline.explain(functional.scaled_dot_product_attention, *qkv(20, dim=48)).problem
    assert not device_leader.waits(other, switches.current())
    for keys in range(20, 26):
        functional.scaled_dot_product_attention(*qkv(keys, dim=48))
    assert not first_sights._known and backline.explain().library == "triton"


def test_the_calls_that_a_plan_is_worth() -> None:
    """About the time of the plan, in what its kernel saves: never for one query, soon for thousands."""
    problem = backline.explain(functional.scaled_dot_product_attention, *qkv(20)).problem
    handler = libraries.get("cudnn").handlers[type(problem)]

    def calls(heads: int, queries: int, keys: int, dim: int) -> int:
        lengths = (queries, keys, keys)
        return handler.calls(replace(problem, operands=tuple(
            replace(o, shape=(1, heads, n, dim)) for o, n in zip(problem.operands, lengths, strict=True))))  # fmt: skip

    assert calls(32, 1, 8192, 128) > 10**6
    assert calls(32, 8192, 8192, 128) < 1000
    assert calls(64, 1 << 17, 1 << 17, 128) == sdpa.COMPILED_AFTER


def test_a_plan_that_cannot_be_renewed_goes_on() -> None:
    class Plan:
        choice, failed, scalars = "first", False, ("seed",)

        def __call__(self, x: int, seed: int = 0) -> int:
            return x + seed

    class Later(Plan):
        choice, failed = "second", True

    tries = []

    def renew() -> Plan:
        tries.append(1)
        if len(tries) == 1:
            raise LibraryFailed("not now")
        return Later()

    early = EarlyPlan(Plan(), 1, renew)
    assert early(1, seed=2) == 3 and (early.choice, early.failed, early.scalars) == ("first", False, ("seed",))
    with pytest.raises(LibraryFailed):
        early(1)
    assert early(1) == 1 and (early.choice, early.failed, len(tries)) == ("second", True, 2)
    assert early(4) == 4 and len(tries) == 2
