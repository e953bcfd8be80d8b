"""The run-time scalar of an Operation: a number that plans are given by keyword, and that no key has."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from backline import _core

X = np.zeros(3)


class Plan:
    """Remembers how it was called."""

    def __init__(self, scalars: tuple[str, ...] = ("seed",)) -> None:
        self.scalars = scalars
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        self.calls.append((args, kwargs))
        return len(self.calls)


def operation(plan: Any, drawn: Any = None, **more: Any) -> tuple[Any, list[Any]]:
    """An Operation that has one plan, and the calls that asked for it."""
    asked: list[Any] = []

    def resolve(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        asked.append((args, kwargs))
        return plan

    def general(*args: Any, **kwargs: Any) -> str:
        return "general"

    return _core.Operation("toy", ("x", "p", "seed"), resolve, general, scalar="seed", draw=drawn, **more), asked


def test_other_numbers_are_the_same_call() -> None:
    plan = Plan()
    op, asked = operation(plan)
    for seed in (0, 1, 2**31, 2**63, 2**64, 2**500):
        op(X, 0.5, seed=seed)
        assert plan.calls[-1] == ((X,), {"seed": seed})
        op(X, 0.5, seed)
        assert plan.calls[-1] == ((X,), {"seed": seed})
    assert len(asked) == 2, "by position, and by name"


@pytest.mark.parametrize("seed", [-1, -(2**70), 0.5, True, None, "1"])
def test_what_is_no_number_from_zero_on_is_part_of_the_key(seed: Any) -> None:
    op, asked = operation(Plan())
    op(X, 0.5, seed=1)
    result = op(X, 0.5, seed=seed)
    assert result == "general" if seed == -(2**70) else len(asked) == 2


def test_a_plan_that_takes_none_is_called_as_ever() -> None:
    plan = Plan(())
    op, asked = operation(plan)
    for seed in (1, 2):
        op(X, 0.0, seed=seed)
        assert plan.calls[-1] == ((X, 0.0), {"seed": seed})
    assert len(asked) == 1


def test_a_number_is_drawn_for_each_call_that_gives_none() -> None:
    numbers = iter(range(100))
    plan = Plan()
    op, asked = operation(plan, lambda: next(numbers))
    for _ in range(3):
        op(X, 0.5)
        op(X, 0.5, seed=None)
    assert [call[1]["seed"] for call in plan.calls] == list(range(6)) and len(asked) == 2
    op(X, 0.5, seed=77)
    assert plan.calls[-1][1] == {"seed": 77} and next(numbers) == 6
    quiet = Plan(())
    operation(quiet, lambda: next(numbers))[0](X, 0.0)
    assert next(numbers) == 7


def test_an_error_of_drawing_is_that_of_the_call() -> None:
    def fails() -> int:
        raise LookupError("nobody has seeded it")

    op, _ = operation(Plan(), fails)
    with pytest.raises(LookupError, match="seeded"):
        op(X, 0.5)


def test_bound_arrays_come_first() -> None:
    plan, own = Plan(), np.ones(2)
    op, _ = operation(plan, bound=(own,))
    op(X, 0.5, seed=4)
    (args, kwargs) = plan.calls[0]
    assert args[0] is own and args[1] is X and kwargs == {"seed": 4}


def test_a_scalar_is_a_parameter() -> None:
    with pytest.raises(ValueError, match="one of its parameters"):
        _core.Operation("toy", ("x",), None, None, scalar="seed")


def test_run_passes_keywords_on() -> None:
    plan = Plan()
    assert _core.run("toy", plan, X, seed=3) == 1 and plan.calls == [((X,), {"seed": 3})]


def test_nothing_is_left_over() -> None:
    plan, seed = Plan(), 2**80
    op, _ = operation(plan, lambda: 2**81)
    op(X, 0.5, seed=seed)
    plan.calls.clear()
    before = sys.getrefcount(seed)
    for _ in range(10):
        op(X, 0.5, seed=seed)
        op(X, 0.5)
    plan.calls.clear()
    assert sys.getrefcount(seed) == before
