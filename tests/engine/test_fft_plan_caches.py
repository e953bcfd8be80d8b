"""Caches of plans of Fourier transforms: what is kept, what goes first, how much, and from many threads."""

import gc
import threading
import weakref

import numpy as np
import pytest

import backline
from backline import backends, libraries
from backline.engine import fft_plan_caches
from backline.engine.fft_plan_caches import FftPlanCache
from backline.errors import BadType, BadValue, ReadOnly

LIBRARIES = [name for name in ("mkl", "fftw", "scipy", "numpy") if libraries.get(name).available()]


class Plan:
    """Stands for a plan that its caller, or the Memo, runs."""

    clock = 0

    def __init__(self, nbytes: int = 0) -> None:
        self.used = self.runs = 0
        self.keep = (self,)
        self.nbytes = nbytes

    def run(self) -> None:
        Plan.clock += 1
        self.used = Plan.clock
        self.runs += 1


class TestCache:
    def test_hits_and_misses(self):
        cache = FftPlanCache("test")
        plans = [cache.get(key, Plan) for key in "abab"]
        assert plans[0] is plans[2] and plans[1] is plans[3]
        assert (cache.size, cache.hits, cache.misses) == (2, 2, 2)

    def test_runs_that_did_not_come_by_count(self):
        cache = FftPlanCache("test", max_size=1)
        plan = cache.get("a", Plan)
        for _ in range(10):
            plan.run()
        assert cache.hits == 9
        cache.get("b", Plan)  # what was counted stays counted
        assert (cache.size, cache.hits, cache.misses) == (1, 9, 2)

    def test_least_recently_asked_for_goes_first(self):
        cache = FftPlanCache("test", max_size=3)
        kept = {key: cache.get(key, Plan) for key in "abc"}
        cache.get("a", Plan)
        cache.get("d", Plan)
        assert [cache.keeps(kept[key]) for key in "abc"] == [True, False, True]

    def test_least_recently_run_goes_first(self):
        cache = FftPlanCache("test", max_size=3)
        kept = {key: cache.get(key, Plan) for key in "abc"}
        for key in "bca":  # by the Memo
            kept[key].run()
        new = [cache.get("d", Plan)]
        assert [cache.keeps(kept[key]) for key in "abc"] == [True, False, True]
        new[0].run()
        kept["c"].run()
        cache.get("e", Plan)
        assert [cache.keeps(kept[key]) for key in "abc"] == [False, False, True]

    def test_memory_is_bounded(self):
        size = 10_000 - fft_plan_caches.OWN_BYTES
        cache = FftPlanCache("test", max_bytes=30_000)
        kept = [cache.get(key, lambda: Plan(size)) for key in "abc"]
        assert (cache.size, cache.nbytes) == (3, 3 * (size + fft_plan_caches.OWN_BYTES))
        fourth = cache.get("d", lambda: Plan(10 + size))
        assert (cache.size, cache.nbytes) == (2, 20_010)  # a little too much: two have to go
        assert [cache.keeps(plan) for plan in (*kept, fourth)] == [False, False, True, True]
        cache.max_bytes = 15_000
        assert cache.size == 1 and cache.keeps(fourth)

    def test_too_large_a_plan_is_not_kept_and_drops_no_other(self):
        cache = FftPlanCache("test", max_bytes=10_000)
        small, large = cache.get("a", Plan), cache.get("b", lambda: Plan(20_000))
        assert cache.keeps(small) and not cache.keeps(large) and cache.misses == 2

    def test_size_zero_makes_a_plan_each_time(self):
        cache = FftPlanCache("test", max_size=0)
        assert cache.get("a", Plan) is not cache.get("a", Plan)
        assert (cache.size, cache.hits, cache.misses) == (0, 0, 2)
        cache = FftPlanCache("test", max_bytes=0)
        assert cache.get("a", Plan) is not cache.get("a", Plan)

    def test_lowering_the_bound_drops_the_oldest(self):
        cache = FftPlanCache("test")
        kept = [cache.get(key, Plan) for key in "abcd"]
        cache.max_size = 2
        assert [cache.keeps(plan) for plan in kept] == [False, False, True, True]

    def test_clear(self):
        cache = FftPlanCache("test")
        gone = weakref.ref(cache.get("a", Plan))
        cache.clear()
        gc.collect()
        assert (cache.size, cache.nbytes, gone()) == (0, 0, None)

    def test_a_failed_plan_is_made_anew(self):
        cache = FftPlanCache("test")
        first = cache.get("a", Plan)
        first.failed = True
        assert cache.get("a", Plan) is not first and cache.size == 1 and cache.misses == 2

    def test_seconds(self):
        cache = FftPlanCache("test")
        plan = cache.get("a", Plan)
        assert 0 <= cache.seconds(plan) < 1 and cache.seconds(Plan()) is None

    @pytest.mark.parametrize("name", ["max_size", "max_bytes"])
    def test_illegal_bounds(self, name):
        cache = FftPlanCache("test")
        for value in (True, 1.0, "1", None):
            with pytest.raises(BadType, match=f"test.fft_plan_cache.{name} takes an int"):
                setattr(cache, name, value)
        with pytest.raises(BadValue, match="0 or more"):
            setattr(cache, name, -1)

    def test_many_threads(self):
        cache = FftPlanCache("test", max_size=8, max_bytes=20 * fft_plan_caches.OWN_BYTES)
        rounds, wrong = 300, []

        def run(seed):
            rng = np.random.default_rng(seed)
            for key in rng.integers(0, 16, rounds).tolist():
                plan = cache.get(key, lambda: Plan(100))
                plan.run()
                if cache.size > 8 or cache.nbytes > 20 * fft_plan_caches.OWN_BYTES:
                    wrong.append(cache.size)
                if key == 3:
                    cache.clear()
                if key == 5:
                    cache.max_size = 8

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong and cache.misses <= 6 * rounds


@pytest.mark.parametrize("name", LIBRARIES)
class TestOfTheLibraries:
    @pytest.fixture(autouse=True)
    def fresh(self, name):
        cache = getattr(backends, name).fft_plan_cache
        former = cache.max_size, cache.max_bytes
        cache.clear()
        with backends.flags(only=(name,)):
            yield
        cache.max_size, cache.max_bytes = former

    def test_calls_share_a_plan(self, name):
        cache = getattr(backends, name).fft_plan_cache
        x = np.ones(48, np.complex64)
        backline.fft.fft(x)
        before = cache.size, cache.misses
        for _ in range(5):
            backline.fft.fft(np.ones(48, np.complex64))
        assert (cache.size, cache.misses) == before and cache.size == 1
        backline.fft.fft(np.ones(49, np.complex64))
        assert cache.size == 2 and cache.nbytes > 0

    def test_size_zero_plans_each_call(self, name):
        cache = getattr(backends, name).fft_plan_cache
        cache.max_size = 0
        before = cache.misses
        for _ in range(3):
            backline.fft.fft(np.ones(48, np.complex64))
        assert (cache.size, cache.misses - before) == (0, 3)

    def test_the_oldest_is_freed_though_the_memo_led_to_it(self, name):
        cache = getattr(backends, name).fft_plan_cache
        cache.max_size = 2
        for n in (8, 9, 10):
            for _ in range(3):
                backline.fft.fft(np.ones(n, np.complex64))
        before = cache.misses
        backline.fft.fft(np.ones(10, np.complex64))
        backline.fft.fft(np.ones(9, np.complex64))
        assert (cache.size, cache.misses) == (2, before)
        backline.fft.fft(np.ones(8, np.complex64))
        assert (cache.size, cache.misses) == (2, before + 1)

    def test_what_the_memo_ran_last_stays(self, name):
        if name not in ("mkl", "fftw"):
            return  # plans in Python do not tell when they ran
        cache = getattr(backends, name).fft_plan_cache
        cache.max_size = 2
        for n in (8, 9, 8, 10):
            backline.fft.fft(np.ones(n, np.complex64))
        before = cache.misses
        backline.fft.fft(np.ones(8, np.complex64))
        assert cache.misses == before
        assert cache.hits >= 1

    def test_what_planning_took_is_explained(self, name):
        x = np.ones(52, np.complex64)
        backline.fft.fft(x)
        assert any(label == "planned" and text.startswith("in ") for label, text in backline.explain().lines())

    def test_read_only(self, name):
        with pytest.raises(ReadOnly, match="fft_plan_cache"):
            getattr(backends, name).fft_plan_cache = None
        assert repr(getattr(backends, name).fft_plan_cache).startswith(f"<FftPlanCache {name}: ")


def test_other_plans_are_elsewhere():
    before = fft_plan_caches.cache("numpy").size
    backline.matmul(np.eye(3), np.eye(3))
    assert fft_plan_caches.cache("numpy").size == before
