"""Values that a plan keeps from its first call, and operations that own some of their arrays."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from backline import _core, switches
from backline.native.plan_builder import Builder
from backline.problems import Problem, operand

Array = np.ndarray[Any, Any]


def keeps(n: int = 64, *, checked: bool = False, release_gil: bool = False, told: list[Any] | None = None) -> _core.PreparedCall:
    """A plan of (weights, input): copies the weights once, then returns that copy; the input is only looked at."""
    x = np.zeros(n)
    b = Builder(Problem("kept", (operand("w", x), operand("x", x))))
    weights, kept = b.argument("w"), b.kept(8 * n)
    info = b.info(1) if checked else None
    with b.first():
        if info is not None:
            b.finite((1, n), (0, 8), x.dtype, weights, info, -3)
        with b.first():  # one inside the other is the same
            b.copy((1, n), weights, (0, 8), kept, (0, 8), 8)
    result = b.result(x.dtype, (n,))
    if info is not None:
        b.copy((1, 1), b.constant(bytes(4)), (0, 0), info, (0, 0), 4)
        b.finite((1, n), (0, 8), x.dtype, b.argument("x"), info, -4)
    b.copy((1, n), kept, (0, 8), result, (0, 8), 8)

    def on_info(plan: Any, infos: list[int], arrays: Any, results: Any) -> None:
        assert told is not None
        told.extend(infos)

    plan: _core.PreparedCall = b.plan(result, release_gil=release_gil, on_info=on_info)
    return plan


def test_what_the_first_call_writes_stays() -> None:
    plan, w, x = keeps(), np.arange(64.0), np.zeros(64)
    assert plan.kept_bytes == 512
    assert np.array_equal(plan(w, x), np.arange(64.0))
    w[:] = 7
    assert np.array_equal(plan(w, x), np.arange(64.0))
    assert np.array_equal(keeps()(w, x), np.full(64, 7.0))  # another plan, another first call


def test_a_first_call_that_fails_is_not_the_first() -> None:
    told: list[Any] = []
    plan, x = keeps(checked=True, told=told), np.zeros(64)
    assert plan(np.full(64, np.nan), x) is None and told == [-3]
    assert plan(np.full(64, np.inf), x) is None and told == [-3, -3]
    assert np.array_equal(plan(np.ones(64), x), np.ones(64))
    assert np.array_equal(plan(np.full(64, np.nan), x), np.ones(64)) and told == [-3, -3]
    assert plan(x, np.full(64, np.nan)) is None and told == [-3, -3, -4]


def test_kept_memory_is_aligned_and_may_be_empty_or_impossible() -> None:
    assert np.array_equal(keeps(0)(np.empty(0), np.empty(0)), np.empty(0))
    for size in (2**62, 2**63, 2**64 - 1):
        with pytest.raises((MemoryError, OverflowError)):
            _core.PreparedCall(0, [("kept", size)], [], [], [])
    with pytest.raises((OverflowError, ValueError)):
        _core.PreparedCall(0, [("kept", -1)], [], [], [])
    with pytest.raises(ValueError, match="only arguments and results"):
        _core.PreparedCall(0, [("kept", 8)], [], [0], [])
    with pytest.raises(ValueError, match="with all its fields"):
        _core.PreparedCall(0, [("kept", 8)], [], [], [], first=[(1, 1, [("copy", 2)])])
    with pytest.raises(TypeError):
        _core.PreparedCall(0, [("kept", 8)], [], [], [], first=3)  # type: ignore[arg-type]  # wrong on purpose


def test_one_of_many_threads_makes_the_first_call() -> None:
    for release in (False, True):
        for _ in range(20):
            plan, gate, wrong = keeps(50_000, release_gil=release), threading.Barrier(4), []

            def work(i: int, plan: Any = plan, gate: Any = gate, wrong: Any = wrong) -> None:
                w, x = np.full(50_000, float(i)), np.zeros(50_000)
                gate.wait()
                results = [plan(w, x) for _ in range(5)]
                wrong.extend(r for r in results if not (r == r[0]).all() or r[0] != results[0][0])

            threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert not wrong


# Operations with arrays of their own ------------------------------------------------------------------------------------


def owning(made: list[Any], *, most: int = 8, bound: Any = None, plan: Any = None) -> Any:
    def resolve(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made.append(args)
        return plan() if plan else keeps()

    def general(*args: Any, **kwargs: Any) -> Any:
        return "general"

    return _core.Operation("own", ("x", "y"), resolve, general, (np.arange(64.0),) if bound is None else bound, most)


def test_bound_arrays_come_before_those_of_the_call() -> None:
    made: list[Any] = []
    op = owning(made)
    for _ in range(3):
        assert np.array_equal(op(np.zeros(64)), np.arange(64.0))
    assert len(made) == 1 and len(op.own_plans()) == 1 and op([1]) == "general"
    seen: list[Any] = []

    def python_plan(*args: Any, **kwargs: Any) -> None:
        seen.append((len(args), args[0][1], args[1:], kwargs))

    other = owning([], plan=lambda: python_plan)
    other(1, y=2)
    other(y=None)
    assert seen == [(2, 1.0, (1,), {"y": 2}), (1, 1.0, (), {"y": None})]


def test_plans_are_few_and_the_least_recently_used_goes_first() -> None:
    made: list[Any] = []
    op = owning(made, most=2, plan=lambda: lambda *args: args[1:])
    for key in (1, 2, 1, 3, 1, 2):
        assert op(key) == (key,)
    assert [args[0] for args in made] == [1, 2, 3, 2] and len(op.own_plans()) == 2
    with switches.scope(num_threads=1):
        op(2)
    assert len(made) == 5  # under other switches another plan
    _core.memo_clear()
    assert op.own_plans() == []


def test_a_plan_that_is_not_to_be_kept_is_not() -> None:
    made: list[Any] = []
    op = owning(made, plan=lambda: (lambda *args: 5,))
    assert (op(1), op(1), len(made), op.own_plans()) == (5, 5, 2, [])


def test_everything_goes_with_the_operation() -> None:
    class Mine(_core.Operation):
        pass

    class Plan:
        def __call__(self, *args: Any) -> Any:
            return args

    plan = Plan()
    gone = weakref.ref(plan)
    op: Any = Mine("own", ("x",), lambda args, kwargs, plan=plan: plan, lambda *args: None, (np.zeros(3),))
    size = _core.memo_info()["size"]
    op(1)
    owning([], plan=lambda: lambda *args: None)(1)  # what this thread ran last is remembered: not ours any more
    assert _core.memo_info()["size"] == size
    plan.op = op  # type: ignore[attr-defined]  # a cycle through its plans
    del op, plan
    gc.collect()
    assert gone() is None


def test_a_class_of_its_own_can_be_called_as_fast() -> None:
    class Mine(_core.Operation):
        __slots__ = ("more",)

        def __repr__(self) -> str:
            return "mine"

    made: list[Any] = []
    base = owning(made)
    op: Any = Mine("own", ("x",), base.resolve, base.general, (np.arange(64.0),))
    op.more = 1
    assert repr(op) == "mine" and np.array_equal(op(x=np.zeros(64)), np.arange(64.0))
    assert np.array_equal(op(np.zeros(64)), np.arange(64.0)) and len(made) == 2
    vectorcall = 1 << 11
    assert Mine.__flags__ & vectorcall


@pytest.mark.parametrize(
    ("bound", "most", "words"), [((1,), 8, "are arrays"), ((np.zeros(1),) * 9, 8, "few bound"), ((), 0, "one plan or more")]
)
def test_what_cannot_be_bound(bound: Any, most: int, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        owning([], bound=bound, most=most)
