"""The bounded cache: values that are made once for several threads, bounds that move, and what a forked child does with it."""

from __future__ import annotations

import threading
from time import sleep

import pytest

from backline.native import bounded_cache
from backline.native.bounded_cache import BoundedCache


def test_threads_that_ask_for_one_key_share_its_value() -> None:
    cache, made = BoundedCache(8, once=True), []

    def make() -> object:
        made.append(object())
        sleep(0.02)
        return made[-1]

    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(cache.get("a", make))) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 1 and found == made * 6 and (cache.hits, cache.misses) == (5, 1)


def test_an_error_lets_the_next_one_try() -> None:
    cache = BoundedCache(8, once=True)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert cache.get("a", lambda: 3) == 3 and cache.contents() == {"a": 3}


def test_a_bound_that_moves_holds_when_the_cache_is_next_used() -> None:
    bound = 4
    cache = BoundedCache(lambda: bound)
    for key in "abcd":
        cache.get(key, object)
    bound = 2
    assert cache.size == 2 and list(cache.contents()) == ["c", "d"]
    bound = 0
    assert cache.get("e", lambda: 1) == 1 and cache.size == 0


def test_a_forked_child_does_not_wait_for_threads_that_it_does_not_have() -> None:
    cache = BoundedCache(2, once=True)
    with cache._lock:  # of a thread of the parent
        cache._making["a"] = threading.Lock()
        cache._making["a"].acquire()
        bounded_cache._new_locks()  # as in the child
        assert cache.get("a", lambda: 1) == 1
