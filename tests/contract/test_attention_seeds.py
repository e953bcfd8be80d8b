"""The seed of attention's dropout is given with the arrays: one Plan runs every step, and nothing else is evicted for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core
from backline.errors import BadType, BadValue
from backline.nn import functional, grad
from support import clean

__all__ = ["clean"]

pytestmark = pytest.mark.usefixtures("clean")
Array = Any
X = np.random.default_rng(3).standard_normal((2, 2, 5, 4)).astype(np.float32)
W, O = np.random.default_rng(4).standard_normal((12, 4)).astype(np.float32), np.eye(4, dtype=np.float32)
CALLS: dict[str, Callable[..., Any]] = {
    "attention": lambda **given: functional.scaled_dot_product_attention(X, X, X, None, 0.5, **given),
    "gradients": lambda **given: grad.scaled_dot_product_attention_backward(X, X, X, X, None, 0.5, **given).query,
    "multi-head": lambda **given: functional.multi_head_attention(X[0], X[0], X[0], 2, W, None, O, None, dropout_p=0.5, **given).output,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _seeded() -> None:
    backline.manual_seed(1)


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return CALLS[request.param]



@pytest.mark.parametrize("drawn", [False, True])
def test_a_hundred_steps_are_one_plan(call: Callable[..., Any], drawn: bool) -> None:
    call(**({} if drawn else {"seed": 1000}))
    before = _core.memo_info()
    plan = _core.last_plan()
    found = {call(**({} if drawn else {"seed": seed})).tobytes() for seed in range(100)}
    after = _core.memo_info()
    assert len(found) > 90, "each step leaves out other weights"
    assert after["misses"] == before["misses"] and after["size"] == before["size"]
    assert _core.last_plan() is plan


def test_the_same_seed_leaves_out_the_same(call: Callable[..., Any]) -> None:
    for seed in (0, 7, 2**63, 2**64 + 3, 2**200, np.uint64(7)):
        assert call(seed=seed).tobytes() == call(seed=int(seed)).tobytes()
    assert call(seed=7).tobytes() != call(seed=8).tobytes()


def test_weights_are_those_of_the_generator() -> None:
    x, eye = np.zeros((3, 4, 8)), np.broadcast_to(np.eye(4), (3, 4, 4))
    for seed in (5, 2**70):
        kept = np.random.default_rng(seed).random((3, 4, 4)) >= 0.25
        found = functional.scaled_dot_product_attention(x, x, eye, dropout_p=0.25, seed=seed)
        assert np.array_equal(found, 0.25 * (kept * (1 / 0.75)))


def test_drawn_seeds_are_the_next_of_the_generator(call: Callable[..., Any]) -> None:
    generator = np.random.default_rng(1)
    for _ in range(3):
        assert call().tobytes() == call(seed=int(generator.integers(2**63))).tobytes()


def test_a_call_without_dropout_draws_nothing() -> None:
    functional.scaled_dot_product_attention(X, X, X)
    functional.scaled_dot_product_attention(X, X, X, seed=3)
    backline.explain(functional.scaled_dot_product_attention, X, X, X, None, 0.5)
    first = CALLS["attention"]()
    backline.manual_seed(1)
    assert first.tobytes() == CALLS["attention"]().tobytes()


@pytest.mark.parametrize(("seed", "error"), [(-1, BadValue), (-(2**70), BadValue), (1.5, BadType), (True, BadType), ("1", BadType)])
def test_a_kept_plan_lets_no_wrong_seed_by(call: Callable[..., Any], seed: Any, error: type[Exception]) -> None:
    call(seed=1)
    with pytest.raises(error, match="seed"):
        call(seed=seed)


def test_arrays_that_are_converted_or_of_a_class_of_their_own() -> None:
    class Own(np.ndarray):
        pass

    wanted = CALLS["attention"](seed=9)
    given = X.view(Own)
    assert functional.scaled_dot_product_attention(given, given, given, None, 0.5, seed=9).tobytes() == wanted.tobytes()
    functional.scaled_dot_product_attention(given, given, given, None, 0.5)
    with backline.backends.flags(promote="numpy"):
        found = functional.scaled_dot_product_attention(X, X.astype(np.float64), X, None, 0.5, seed=9)
    assert found.dtype == np.float64 and np.allclose(found, wanted, atol=1e-5)


def test_tracing_shadows_and_trials_run_what_the_call_runs() -> None:
    wanted = [CALLS["attention"](seed=s).tobytes() for s in range(4)]
    with backline.trace() as events:
        assert [CALLS["attention"](seed=s).tobytes() for s in range(4)] == wanted
    assert len(events) == 4
    with backline.shadow("numpy", every=1, budget=None) as shadow:
        assert [CALLS["attention"](seed=s).tobytes() for s in range(4)] == wanted
        backline.manual_seed(2)
        drawn = [CALLS["attention"]().tobytes() for _ in range(3)]
    assert not shadow.drifted
    backline.manual_seed(2)
    assert [CALLS["attention"]().tobytes() for _ in range(3)] == drawn
    with backline.backends.flags(benchmark="online"):
        assert [CALLS["attention"](seed=s).tobytes() for s in range(4)] == wanted


def test_the_text_of_a_problem_has_no_seed() -> None:
    problem = backline.explain(functional.scaled_dot_product_attention, X, X, X, None, 0.5, seed=3).problem
    assert problem.scalars == ("seed",) and "seed" not in problem.key
    assert str(type(problem).parse(problem.key)) == problem.key
    assert str(type(problem).parse(problem.key + " seed=4")) == problem.key, "as records of earlier versions have it"


def test_a_plan_that_is_given_no_seed_says_so() -> None:
    problem = backline.explain(functional.scaled_dot_product_attention, X, X, X, None, 0.5, seed=3).problem
    library = backline.libraries.get("numpy")
    algorithm = next(a for a in library.algorithms(problem, 1) if not isinstance(a, backline.libraries.base.Refusal))
    with pytest.raises(TypeError, match="seed"):
        library.prepare(problem, algorithm)(X, X, X)
