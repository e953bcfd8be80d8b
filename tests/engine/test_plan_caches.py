"""Caches of Plans: bounded, least recently used first, counted."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import backline
from backline import _core
from backline.engine import plan_caches
from backline.errors import BadType, BadValue
from support import clean, need

pytestmark = pytest.mark.usefixtures("clean")
assert clean


def test_order_bound_and_counts() -> None:
    cache = plan_caches.PlanCache("example", max_size=3)
    made: list[str] = []

    def get(key: str) -> str:
        return str(cache.get(key, lambda: made.append(key) or key.upper()))

    for key in "abcab":
        assert get(key) == key.upper()
    assert made == ["a", "b", "c"] and (cache.hits, cache.misses, cache.size) == (2, 3, 3)
    get("d")  # c is the least recently used
    get("a"), get("b")
    assert made == ["a", "b", "c", "d"]
    get("c")
    assert made[-1] == "c" and cache.size == 3
    cache.max_size = 1
    assert cache.size == 1
    get("c")
    assert made[-1] == "c" and len(made) == 5
    cache.max_size = 0
    get("x"), get("x")
    assert made[-2:] == ["x", "x"] and cache.size == 0
    cache.max_size = 5
    get("y")
    cache.clear()
    assert cache.size == 0 and "0 of 5" in repr(cache)


@pytest.mark.parametrize(("value", "kind"), [(-1, BadValue), (1.5, BadType), ("3", BadType), (True, BadType), (None, BadType)])
def test_sizes_that_are_refused(value: object, kind: type[Exception]) -> None:
    cache = plan_caches.PlanCache("example", max_size=3)
    with pytest.raises(kind, match=r"example\.plan_cache\.max_size"):
        cache.max_size = value  # type: ignore[assignment]  # wrong on purpose
    assert cache.max_size == 3


def test_what_cannot_be_made_is_not_kept() -> None:
    cache = plan_caches.PlanCache("example")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            cache.get("a", lambda: 1 // 0)
    assert cache.size == 0 and cache.get("a", lambda: 3) == 3


def test_many_threads() -> None:
    cache = plan_caches.PlanCache("example", max_size=8)
    wrong: list[object] = []

    def work() -> None:
        for i in range(2000):
            if cache.get(i % 20, lambda i=i: i % 20) != i % 20 or cache.size > 8:
                wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_plans_of_calls_are_in_the_cache_of_their_library() -> None:
    need("openblas")
    with backline.use("openblas", only=True):
        cache = plan_caches.cache("openblas")
        assert cache.size == 0
        a = np.ones((5, 5))
        backline.mm(a, a)
        backline.matmul(a, a)  # the same Problem by another name
        assert cache.size == 1 and cache.hits >= 1
        backline.mm(a, a[:, :2])
        assert cache.size == 2
        cache.clear()
        assert _core.memo_info()["size"] == 0, "the Memo would lead to plans that were dropped"
        before = cache.misses
        backline.mm(a, a)
        assert cache.misses == before + 1


def test_alignment_is_part_of_the_problem() -> None:
    """A plan for aligned arrays hands them to the library as they are."""
    from support import misaligned

    need("openblas")
    with backline.use("openblas", only=True):
        a = np.ones((5, 5))
        backline.mm(a, a)
        assert (backline.mm(misaligned(a), a) == 5).all()
        assert plan_caches.cache("openblas").size == 2
