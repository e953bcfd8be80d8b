"""Scopes: what they change, who sees it, how they are left."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import types
import warnings

import pytest

from backline import backends, switches
from backline.errors import BadType, BadValue, UnknownName
from backline.switches.scope_state import states


def in_a_thread(function):
    result = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]


def test_the_scope_is_returned_on_entry_and_named_in_its_repr():
    scope = backends.mkl.flags(enabled=False)
    with scope as entered:
        assert entered is scope
    assert "mkl.flags(mkl.enabled=False)" in repr(scope)
    assert "test_scopes.py" in scope.where
    assert scope.values == {"mkl.enabled": False}


def test_an_exception_passes_through_and_the_scope_is_left():
    with pytest.raises(ZeroDivisionError), backends.flags(fallback="warn"):
        raise ZeroDivisionError
    assert backends.fallback == "allow"


def test_a_fresh_thread_sees_the_base_only():
    with backends.flags(fallback="warn"):
        assert in_a_thread(lambda: backends.fallback) == "allow"
        copied = contextvars.copy_context()
        assert in_a_thread(lambda: copied.run(lambda: backends.fallback)) == "warn"


def test_a_write_of_the_base_is_seen_in_other_threads_and_under_open_scopes():
    with backends.flags(benchmark_limit=3):
        in_a_thread(lambda: switches.assign("fallback", "error"))
        assert (backends.fallback, backends.benchmark_limit) == ("error", 3)
    assert backends.fallback == "error"


def test_writes_in_a_copied_context_do_not_leak_back():
    with backends.flags(fallback="warn"):
        copied = contextvars.copy_context()
        copied.run(switches.assign, "fallback", "error")
        assert backends.fallback == "warn"
        assert copied.run(lambda: backends.fallback) == "error"


def test_tasks_do_not_see_each_others_scopes():
    async def work(value: str, others: asyncio.Barrier) -> tuple[str, str]:
        with backends.flags(fallback=value):
            await others.wait()
            inside = backends.fallback
            await others.wait()
        return inside, backends.fallback

    async def main() -> list[tuple[str, str]]:
        others = asyncio.Barrier(2)
        return await asyncio.gather(work("warn", others), work("error", others))

    assert asyncio.run(main()) == [("warn", "allow"), ("error", "allow")]


def test_a_task_inherits_and_to_thread_too():
    async def write() -> str:
        seen = backends.fallback
        backends.fallback = "error"
        return seen

    async def main() -> tuple[str, str, str]:
        with backends.flags(fallback="warn"):
            seen = await asyncio.create_task(write())
            return seen, backends.fallback, await asyncio.to_thread(lambda: backends.fallback)

    assert asyncio.run(main()) == ("warn", "warn", "warn")


def test_many_threads_in_scopes_of_their_own_never_see_another_value():
    wrong: list[tuple[int, object]] = []
    ready = threading.Barrier(4)

    def work(number: int) -> None:
        ready.wait()
        for _ in range(300):
            with backends.flags(benchmark_limit=number):
                if backends.benchmark_limit != number:
                    wrong.append((number, backends.benchmark_limit))

    def write() -> None:
        ready.wait()
        for turn in range(300):
            backends.num_threads = 1 + turn % 3

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    threads.append(threading.Thread(target=write))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert backends.num_threads == 3
    assert backends.benchmark_limit == 10


def test_leaving_a_scope_that_is_not_open_warns_and_changes_nothing():
    scope = backends.flags(fallback="warn")
    with backends.flags(benchmark_limit=2):
        before = switches.current()
        with pytest.warns(RuntimeWarning, match=r"backends\.flags\(fallback='warn'\).*not open") as caught:
            scope.__exit__(None, None, None)
        assert switches.current() is before
    assert caught[0].filename == __file__


def test_leaving_twice_warns_the_second_time():
    scope = backends.flags(fallback="warn")
    scope.__enter__()
    scope.__exit__(None, None, None)
    with pytest.warns(RuntimeWarning, match="not open"):
        scope.__exit__(None, None, None)


def test_a_scope_entered_elsewhere_is_not_open_here():
    scope = backends.flags(fallback="warn")
    in_a_thread(scope.__enter__)
    with pytest.warns(RuntimeWarning, match="another thread"):
        scope.__exit__(None, None, None)


def test_a_scope_may_be_entered_again_while_open():
    scope = backends.flags(fallback="warn")
    with scope:
        with scope:
            backends.fallback = "error"
        assert backends.fallback == "warn"
    assert backends.fallback == "allow"


def test_a_scope_entered_twice_is_left_innermost_first_also_from_below_the_top():
    twice, other = backends.flags(fallback="warn"), backends.flags(benchmark=True)
    twice.__enter__()
    twice.__enter__()
    backends.num_threads = 5
    other.__enter__()
    twice.__exit__(None, None, None)
    assert (backends.fallback, backends.num_threads == 5, backends.benchmark) == ("warn", False, True)
    twice.__exit__(None, None, None)
    assert (backends.fallback, backends.benchmark) == ("allow", True)
    other.__exit__(None, None, None)
    assert backends.benchmark is False


def test_entering_and_leaving_after_a_write_of_the_base_elsewhere():
    with backends.flags(benchmark=True):
        in_a_thread(lambda: switches.assign("fallback", "warn"))
        with backends.flags(benchmark_limit=2):  # without a read in between
            assert (backends.fallback, backends.benchmark, backends.benchmark_limit) == ("warn", True, 2)
            in_a_thread(lambda: switches.assign("fallback", "error"))
        assert (backends.fallback, backends.benchmark) == ("error", True)
        in_a_thread(lambda: switches.assign("fallback", "warn"))
        backends.benchmark_limit = 3
        assert (backends.fallback, backends.benchmark, backends.benchmark_limit) == ("warn", True, 3)


def test_a_write_goes_to_the_innermost_scope_whichever_backend_opened_it():
    with backends.mkl.flags(enabled=False):
        backends.fallback = "warn"
        with backends.blis.flags(enabled=False):
            backends.fallback = "error"
        assert backends.fallback == "warn"
    assert backends.fallback == "allow"
    assert in_a_thread(lambda: backends.fallback) == "allow"


def test_a_dropped_scope_stays_open():
    backends.flags(fallback="warn").__enter__()
    assert backends.fallback == "warn"
    frame = states.get()
    frame.layers[-1][0].__exit__(None, None, None)
    assert backends.fallback == "allow"


def test_a_generator_in_the_same_context_may_close_in_any_order():
    def body(**values):
        with backends.flags(**values):
            yield

    first, second = body(fallback="warn"), body(benchmark_limit=2)
    next(first)
    next(second)
    first.close()
    assert (backends.fallback, backends.benchmark_limit) == ("allow", 2)
    second.close()
    assert (backends.fallback, backends.benchmark_limit) == ("allow", 10)


def test_scopes_decorate_functions():
    @backends.flags(fallback="warn")
    def work(depth: int) -> list[object]:
        """Doc."""
        seen: list[object] = [backends.fallback]
        backends.fallback = "error"  # of this call only
        return seen + (work(depth - 1) if depth else [])

    assert work(1) == ["warn", "warn"]
    assert (work.__name__, work.__doc__) == ("work", "Doc.")
    assert backends.fallback == "allow"


def test_scopes_decorate_coroutine_functions():
    @backends.flags(fallback="warn")
    async def work() -> object:
        await asyncio.sleep(0)
        return backends.fallback

    async def main() -> list[object]:
        return [*await asyncio.gather(work(), work()), backends.fallback]

    assert asyncio.run(main()) == ["warn", "warn", "allow"]


def test_each_call_of_a_decorated_function_has_a_layer_of_its_own():
    @types.coroutine
    def pause():
        yield

    @backends.flags(fallback="warn")
    async def work(write: bool) -> None:
        if write:
            backends.fallback = "error"
        await pause()

    first, second = work(False), work(True)  # driven by hand, so both run in this one context
    first.send(None)
    second.send(None)
    with pytest.raises(StopIteration):
        first.send(None)
    assert backends.fallback == "error"
    with pytest.raises(StopIteration):
        second.send(None)
    assert backends.fallback == "allow"


def test_scopes_decorate_objects_whose_call_is_a_coroutine_function():
    class Work:
        async def __call__(self) -> object:
            await asyncio.sleep(0)
            return backends.fallback

    assert asyncio.run(backends.flags(fallback="warn")(Work())()) == "warn"


@pytest.mark.parametrize("what", [int, 3, "f"])
def test_scopes_refuse_to_decorate_other_things(what):
    with pytest.raises(BadType, match="cannot decorate"):
        backends.flags(fallback="warn")(what)


def test_scopes_refuse_to_decorate_generator_functions():
    def numbers():
        yield 1

    async def later():
        yield 1

    for function in (numbers, later):
        with pytest.raises(BadType, match="generator"):
            backends.flags(fallback="warn")(function)


def test_one_bad_value_refuses_the_whole_scope():
    before = switches.current()
    with pytest.raises(BadValue, match="benchmark_limit"):
        switches.scope({"mkl.enabled": False}, fallback="warn", benchmark_limit=-1)
    with pytest.raises(UnknownName, match=r"mkl\.enabled"):
        switches.scope({"mkl.enabeld": False})
    assert switches.current() is before


def test_none_keeps_and_an_empty_scope_changes_nothing():
    before = switches.current()
    with backends.flags(fallback=None), backends.mkl.flags():
        assert switches.current() is before


def test_equal_values_are_the_same_snapshot_wherever_they_come_from():
    with backends.flags(fallback="warn", benchmark_limit=2):
        one = switches.current()
    with backends.flags(benchmark_limit=2), backends.flags(fallback="warn"):
        two = switches.current()
    backends.set_flags(_fallback="warn", _benchmark_limit=2)
    assert one is two is switches.current()


def test_the_tracer_belongs_to_the_context_and_outlives_scopes():
    marker = object()
    assert switches.set_tracer(marker) is None
    try:
        with backends.flags(fallback="warn"):
            assert switches.tracer() is marker
            backends.fallback = "error"
            assert switches.tracer() is marker
        assert switches.tracer() is marker
        assert in_a_thread(switches.tracer) is None
    finally:
        assert switches.set_tracer(None) is marker
    assert switches.tracer() is None


def test_many_different_values_do_not_pile_up():
    from backline.switches import snapshot

    before = len(snapshot._interned)  # left by other tests
    with backends.flags(benchmark=True):
        for number in range(3 * snapshot._KEPT):
            with backends.flags(max_error=1.0 + number):
                assert backends.max_error == 1.0 + number
    assert len(snapshot._overlays) <= snapshot._KEPT
    assert len(snapshot._interned) - before <= 2 * snapshot._KEPT + 10


def test_no_scope_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with backends.flags(fallback="warn"):
            backends.fallback = "error"
        assert backends.fallback == "allow"
