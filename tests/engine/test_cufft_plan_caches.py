"""The cuFFT plans of each device: bounds from switches, least recently used first, threads."""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backline import switches
from backline.engine import cufft_plan_caches, plan_caches
from backline.engine.cufft_plan_caches import DevicePlans, cufft_plans, max_size_of, switch_of
from backline.errors import BadType, BadValue
from backline.libraries import presence
from backline.switches import store
from backline.switches.switch_registry import remove

pytestmark = pytest.mark.usefixtures("driver")
EVERY = "cuda.cufft_plan_cache.max_size"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that reports devices, without which the general bound cannot be set."""
    found = presence.Found("", (), "/fake/libcuda.so.1", {"devices": 100})
    fake = presence.Presence(presence.registry.LibraryInfo("cuda", "the CUDA driver"), lambda row: found)
    monkeypatch.setitem(presence._presences, "cuda", fake)


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    store._restart()
    yield
    store._restart()


def filled(number: int, index: int = 0) -> DevicePlans:
    cache = DevicePlans(index)
    for key in range(number):
        cache.get(key, object)
    return cache


def test_a_plan_is_made_once_and_kept():
    made = []
    cache = DevicePlans(0)
    plan = cache.get("a", lambda: made.append(1) or object())
    assert cache.get("a", lambda: made.append(1) or object()) is plan
    assert made == [1] and (cache.size, cache.hits, cache.misses) == (1, 1, 1)


def test_each_device_has_one_cache_for_all_threads():
    found = set()
    threads = [threading.Thread(target=lambda: found.add(id(cufft_plans(71)))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {id(cufft_plans(71))} and cufft_plans(71) is not cufft_plans(72)


def test_the_default_holds_for_every_device():
    assert [max_size_of(index) for index in (0, 1, 5)] == [4096] * 3


def test_the_general_bound_holds_for_devices_without_their_own():
    with switches.scope({EVERY: 7, switch_of(1): 3}):
        assert [max_size_of(index) for index in (0, 1)] == [7, 3]
    assert [max_size_of(index) for index in (0, 1)] == [4096, 4096]


def test_one_devices_bound_leaves_the_others_alone():
    DevicePlans(0).max_size = 5
    with switches.scope({switch_of(1): 6}):
        assert [max_size_of(index) for index in range(3)] == [5, 6, 4096]
        DevicePlans(2).max_size = 9  # into the scope
        assert [max_size_of(index) for index in range(3)] == [5, 6, 9]
    assert [max_size_of(index) for index in range(3)] == [5, 4096, 4096]


def test_lowering_the_bound_drops_the_least_recently_used_at_once():
    cache = filled(5)
    cache.get(0, object)  # the most recently used now
    cache.max_size = 2
    assert list(cache.contents()) == [4, 0] and cache.size == 2


def test_a_bound_of_zero_makes_a_plan_for_each_call():
    cache = filled(3)
    cache.max_size = 0
    assert cache.size == 0
    first, second = cache.get("a", object), cache.get("a", object)
    assert first is not second and cache.size == 0


def test_the_bound_of_a_scope_holds_while_it_is_used():
    cache = filled(4)
    with switches.scope({switch_of(0): 2}):
        cache.get("new", object)
        assert cache.size == 2
    cache.get("newer", object)
    assert cache.size == 3


def test_never_more_is_kept_than_the_bound_that_reads_here():
    cache = filled(4)
    with switches.scope({EVERY: 1}):
        assert (cache.size, cache.max_size) == (1, 1)


@pytest.mark.parametrize(("value", "error"), [(-1, BadValue), ("4", BadType), (2.0, BadType), (True, BadType), (None, BadType)])
def test_a_bad_bound_is_refused_and_changes_nothing(value, error):
    cache = filled(3)
    with pytest.raises(error, match=r"cuda\.cufft_plan_cache\.device0\.max_size"):
        cache.max_size = value
    assert (cache.max_size, cache.size) == (4096, 3)


def test_clearing_drops_the_plans_of_one_device_only():
    one, other = filled(3, 0), filled(3, 1)
    one.clear()
    assert (one.size, other.size) == (0, 3)


def test_clearing_every_librarys_plans_clears_these():
    cufft_plans(73).get("a", object)
    plan_caches.clear()
    assert cufft_plans(73).size == 0


def test_declaring_the_switch_of_a_device_disturbs_no_open_scope():
    with switches.scope(fallback="warn"):
        assert max_size_of(99) == 4096
        assert switches.get("fallback") == "warn"
    assert switches.get("fallback") == "allow"


def test_the_environment_sets_all_devices_or_one(monkeypatch):
    monkeypatch.setenv("BACKLINE_CUDA_CUFFT_PLAN_CACHE_MAX_SIZE", "100")
    monkeypatch.setenv("BACKLINE_CUDA_CUFFT_PLAN_CACHE_BY_DEVICE", "31=10, 7=1")
    store._restart()
    assert [max_size_of(index) for index in (30, 31, 7)] == [100, 10, 1]


def test_a_bad_text_in_the_environment_is_said_and_ignored(monkeypatch):
    monkeypatch.setenv("BACKLINE_CUDA_CUFFT_PLAN_CACHE_BY_DEVICE", "one")
    store._restart()
    with pytest.warns(RuntimeWarning, match="BY_DEVICE = 'one' is ignored; legal values: texts of a device's index"):
        assert max_size_of(0) == 4096


def test_a_snapshot_with_bounds_can_be_read_where_the_device_was_never_used():
    name = switch_of(41)
    with switches.scope({name: 8}):
        packed = pickle.dumps(switches.current())
    remove(name)
    store._restart()
    with pickle.loads(packed).apply():
        assert max_size_of(41) == 8


def test_many_threads_keep_the_bound_and_get_what_they_asked_for():
    cache = DevicePlans(0)
    cache.max_size = 8
    wrong = []

    def work(seed: int) -> None:
        for i in range(300):
            key = (seed * 7 + i * 3) % 20
            plan = cache.get(key, lambda key=key: [key])
            if plan != [key] or cache.size > 8:
                wrong.append((plan, key, cache.size))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


ACTIONS = st.one_of(
    st.tuples(st.just("get"), st.integers(0, 6)), st.tuples(st.just("bound"), st.integers(0, 5)), st.tuples(st.just("clear"), st.just(0))
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=30))
def test_it_does_what_a_simple_model_does(actions):
    store._restart()
    cache, model, bound = DevicePlans(0), OrderedDict(), 4096
    for action, number in actions:
        if action == "get":
            plan = cache.get(number, lambda number=number: [number])
            held = model.pop(number, None)
            assert plan == [number] and (held is None or plan is held)
            model[number] = plan
        elif action == "bound":
            cache.max_size = bound = number
        else:
            cache.clear()
            model.clear()
        while len(model) > bound:
            model.popitem(last=False)
        assert (list(cache.contents()), cache.max_size) == (list(model), bound)


def test_it_says_what_it_is():
    assert repr(filled(2, 1)) == "<DevicePlans cufft on cuda:1: 2 of 4096>"
    assert {"DevicePlans", "cufft_plans"} <= set(cufft_plan_caches.__all__)
