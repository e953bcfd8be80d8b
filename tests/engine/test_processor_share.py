"""Calls use fewer threads while others keep processors busy: by readings that are given, never by those of this machine."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, linalg, switches
from backline.engine import processor_share, ranking
from backline.engine.processor_share import ThreadClocks, Watch, room
from backline.engine.tuning.machine_load import Reading, used_by_others
from backline.nn import functional
from backline.switches.starting_values import MOST_THREADS
from support import clean, need, python, rng, seed

pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed


class Machine:
    """Counters, processors and a quota that a test moves on."""

    def __init__(self, processors: int = 4, quota: float | None = None) -> None:
        self.at, self.own, self.busy, self.polite = 0.0, 0.0, 0.0, 0.0
        self.processors, self.quota, self.readings = processors, quota, 0
        self.told = True
        self.running: int | None = None
        self.watch = Watch(
            self.read, lambda: range(self.processors), lambda: self.quota, ThreadClocks((), lambda thread: 0.0), lambda: self.running
        )
        self.watch._clocks.note = lambda team: None  # type: ignore[method-assign]  # nothing inside of this process

    def read(self) -> Reading:
        self.readings += 1
        return Reading(self.at, self.own, self.busy if self.told else None, polite=self.polite)

    def passes(self, seconds: float, others: float, own: float = 1.0, polite: float = 0.0) -> int:
        """Some time at a load; returns the threads to use then."""
        self.at += seconds
        self.own += own * seconds
        self.polite += polite * seconds
        self.busy += (own + others + polite) * seconds
        self.watch._next = self.at - max(seconds - processor_share.INTERVAL, 0.0)
        self.watch._next = min(self.watch._next, time.perf_counter())
        return self.watch.look()[0]


@pytest.mark.parametrize(("processors", "others", "quota", "threads"), [
    (2, 0.0, None, 2), (2, 0.39, None, 2), (2, 0.41, None, 1), (2, 1.0, None, 1), (2, 5.0, None, 1), (1, 1.0, None, 1),
    (8, 1.0, None, 7), (8, 1.45, None, 6), (64, 63.0, None, 1),
    (4, 0.0, 1.0, 1), (4, 0.0, 1.5, 1), (4, 0.0, 2.5, 2), (4, 0.0, 0.2, 1), (4, 0.0, 9.0, 4), (4, 3.0, 2.0, 1),
])  # fmt: skip
def test_room(processors: int, others: float, quota: float | None, threads: int) -> None:
    assert room(processors, others, quota) == threads


def test_fewer_at_once_and_more_after_a_while() -> None:
    machine = Machine()
    assert machine.passes(0.0, 0.0) == MOST_THREADS  # nothing to compare with yet
    assert machine.passes(0.1, 0.0) == MOST_THREADS
    assert machine.passes(0.1, 1.0) == 3
    assert machine.passes(0.1, 2.0) == 2
    assert machine.passes(0.1, 0.0) == 2  # a pause may be short
    assert machine.passes(0.1, 2.0) == 2
    assert machine.passes(0.2, 0.0) == 2
    assert machine.passes(0.2, 1.0) == 2
    assert machine.passes(0.2, 0.0) == 3  # for half a second there was room for three at the least
    assert machine.passes(0.3, 0.0) == 3
    assert machine.passes(0.3, 0.0) == MOST_THREADS


def test_a_long_quiet_time_counts_as_such() -> None:
    machine = Machine()
    machine.passes(0.0, 0.0)
    assert machine.passes(0.1, 3.0) == 1
    assert machine.passes(60.0, 0.0) == MOST_THREADS


@pytest.mark.parametrize(("running", "threads"), [(1, MOST_THREADS), (2, 3), (3, 2), (9, 1), (0, MOST_THREADS), (None, 1)])
def test_after_a_pause_those_that_run_now_count(running: int | None, threads: int) -> None:
    machine = Machine()
    machine.passes(0.0, 0.0)
    machine.running = running
    assert machine.passes(0.4, 3.5) == threads
    machine.running = 1
    assert machine.passes(0.1, 3.5) == 1  # calls follow each other: what was used meanwhile counts
    assert machine.passes(0.4, 3.5) == 1  # until it has been so for a while
    assert machine.passes(0.8, 3.5) == MOST_THREADS


def test_a_program_that_has_computed_little_has_paused() -> None:
    machine = Machine(2)
    machine.passes(0.0, 0.0)
    machine.running = 1
    assert machine.passes(0.1, 0.9, own=0.4) == MOST_THREADS
    assert machine.passes(0.1, 0.9, own=0.6) == 1


def test_what_ran_for_a_moment_after_a_pause_is_not_made_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, now = Machine(2), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    machine.passes(0.0, 0.0)
    machine.running = 2
    now[0] = 0.9
    assert machine.passes(0.8, 0.9) == 1
    checked = []
    for _ in range(3 * processor_share.CHECKS):
        now[0] += processor_share.CHECK_INTERVAL / 2
        checked.append(machine.watch.look())
    assert {threads for threads, _ in checked} == {1}  # it runs on
    assert machine.watch._checks == 0 and checked[-1][1] > checked[0][1]  # and is believed to

    now[0] = 2.0
    assert machine.passes(0.8, 0.9) == 1
    now[0] += processor_share.CHECK_INTERVAL
    machine.running = 1
    assert machine.watch.look()[0] == MOST_THREADS and machine.watch._checks == 0


def test_programs_of_lower_priority_are_not_made_room_for() -> None:
    machine = Machine(2)
    machine.passes(0.0, 0.0)
    assert machine.passes(0.1, 0.0, polite=1.0) == MOST_THREADS
    assert machine.passes(0.1, 1.0, polite=1.0) == 1


def test_a_system_without_counters_tells_nothing() -> None:
    machine = Machine(2)
    machine.told = False
    assert [machine.passes(0.1, 2.0) for _ in range(3)] == [MOST_THREADS] * 3
    assert used_by_others(Reading(0.0, 0.0), Reading(1.0, 0.0)) == 0.0


def test_a_quota_that_changes_while_the_program_runs() -> None:
    machine = Machine(4)
    machine.passes(0.0, 0.0)
    machine.quota = 1.5
    assert machine.passes(1.0, 0.0) == MOST_THREADS  # not read every time
    assert machine.passes(1.0, 0.0) == 1
    machine.quota = 3.0
    assert machine.passes(2.0, 0.0) == 3
    machine.quota = None
    assert machine.passes(2.0, 0.0) == MOST_THREADS


def test_a_quota_below_the_start_holds_from_the_first_call() -> None:
    assert Machine(4, 1.0).passes(0.0, 0.0) == 1


def test_processors_that_are_taken_away_while_the_program_runs() -> None:
    machine = Machine(4)
    machine.passes(0.0, 0.0)
    machine.processors = 1
    assert machine.passes(0.1, 0.0) == 1
    machine.processors = 4
    assert machine.passes(0.6, 0.0) == MOST_THREADS


def test_reading_takes_a_small_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(processor_share.time, "perf_counter", lambda: now[0])
    cost = [1e-5]

    def read() -> Reading:
        now[0] += cost[0]
        return Reading(now[0], 0.0, 0.0)

    watch = Watch(read, lambda: range(2), lambda: None, ThreadClocks((), lambda thread: 0.0))
    assert watch.look()[1] == pytest.approx(processor_share.INTERVAL)
    cost[0], now[0] = 0.01, 1.0  # the text of very many processors
    assert watch.look()[1] == pytest.approx(0.01 * processor_share.COST)
    before = now[0]
    watch.look()
    assert now[0] == before  # not due


# --- threads of this process ------------------------------------------------------------------------------------------------


class Threads:
    """Clocks of threads; those in `run` go on with every reading."""

    def __init__(self, *threads: int) -> None:
        self.clocks = dict.fromkeys(threads, 0.0)
        self.run: set[int] = set()

    def read(self, thread: int) -> float:
        if thread not in self.clocks:
            raise OSError("no such thread")
        if thread in self.run:
            self.clocks[thread] += 0.01
        return self.clocks[thread]


def test_threads_that_ran_lately_are_looked_at_closely() -> None:
    system = Threads(7, 8, 9)
    clocks = ThreadClocks((7, 8, 9), system.read)
    clocks.note(())
    assert clocks.active == () and clocks.running() == 0
    system.run = {8, 9}
    clocks.note({9})  # of the team
    clocks.note({9})
    assert clocks.active == (8,) and clocks.running() == 1
    system.run = set()
    assert clocks.running() == 0  # it has stopped
    del system.clocks[8]
    assert clocks.running() == 0  # and ended
    clocks.note({9})
    assert clocks.active == ()


def test_the_thread_that_asks_is_no_other_one() -> None:
    here = threading.get_native_id()
    system = Threads(here)
    system.run = {here}
    clocks = ThreadClocks((), system.read)
    clocks.note(())
    clocks.note(())
    assert clocks.running() == 0


@pytest.mark.parametrize(
    ("processors", "running", "threads"), [(2, 1, 1), (2, 0, MOST_THREADS), (8, 7, 1), (8, 4, 4), (8, 1, MOST_THREADS)]
)
def test_a_pool_that_spins_is_made_room_for(processors: int, running: int, threads: int) -> None:
    system = Threads(*range(100, 100 + processors))
    system.run = set(range(100, 100 + running))
    clocks = ThreadClocks(system.clocks, system.read)
    watch = Watch(lambda: Reading(0.0, 0.0, 0.0), lambda: range(processors), lambda: None, clocks)
    watch.look()
    watch._next = -math.inf
    found, again = watch.look()
    assert found == threads
    assert again > 0.0  # calls do not all pay for a look


def test_the_clock_of_a_thread_that_runs_and_of_one_that_has_ended() -> None:
    assert processor_share._processor_seconds(threading.get_native_id()) > 0
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert thread.native_id is not None
    gone(thread.native_id)
    clocks = ThreadClocks((thread.native_id,), processor_share._processor_seconds, processor_share._waits)
    clocks.active = (thread.native_id,)
    assert clocks.running() == 0


def gone(thread: int) -> None:
    """Waits for the system to have ended a thread that Python has joined."""
    end = time.monotonic() + 60
    while Path(f"/proc/self/task/{thread}").exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_state_of_a_thread() -> None:
    assert processor_share._waits(threading.get_native_id())
    sleeping = threading.Event()
    thread = threading.Thread(target=sleeping.wait)
    thread.start()
    assert thread.native_id is not None
    end = time.monotonic() + 60
    while processor_share._waits(thread.native_id):
        assert time.monotonic() < end
        time.sleep(0.01)
    sleeping.set()
    thread.join()
    gone(thread.native_id)
    assert not processor_share._waits(thread.native_id)


def test_a_thread_that_has_just_given_up_its_processor_counts() -> None:
    system = Threads(7)
    clocks = ThreadClocks((7,), system.read, lambda thread: thread == 7)
    clocks.active = (7, 8)
    assert clocks.running() == 1


# --- calls ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Calls are told to use so many threads, at every look; large ones use all of them, whatever was measured of their kind."""
    monkeypatch.setattr(ranking, "order_of", lambda problem, own=True: ())
    _core.memo_clear()

    def say(threads: int) -> None:
        _core.share_processors(lambda: (threads, 0.0), processor_share.on_fewer)

    with switches.scope(share_processors=True, num_threads=2):
        yield say
    _core.share_processors(None, None)
    _core.memo_clear()


def squares(n: int = 600) -> Any:
    return np.random.default_rng(3).standard_normal((n, n))


CALLS: dict[str, Callable[[], Any]] = {
    "matmul": lambda: backline.matmul(squares(), squares()),
    "cholesky": lambda: linalg.cholesky(squares(700) @ squares(700).T + 700 * np.eye(700)),
    "linear": lambda: functional.linear(squares().astype("f"), squares().astype("f")),
    "softmax": lambda: functional.softmax(np.ones((3000, 1000), np.float32), dim=-1),
    "einsum": lambda: backline.einsum("bij,bjk->bik", np.ones((8, 200, 200)), np.ones((8, 200, 200))),
    "keywords": lambda: backline.matmul(squares(), other=squares()),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_runs_on_fewer_threads(name: str, busy: Callable[[int], None]) -> None:
    busy(2)
    CALLS[name]()
    quiet = backline.explain().chosen
    assert quiet is not None and quiet.threads == 2
    busy(1)
    with backline.trace() as events:
        result = CALLS[name]()
    assert backline.explain().threads == 1
    assert all(each.choice.chosen.threads == 1 for each in events if each.choice.chosen) and events
    with backline.num_threads(1):
        expected = CALLS[name]()
    assert np.array_equal(np.asarray(result), np.asarray(expected))
    busy(2)
    CALLS[name]()
    assert backline.explain().threads == 2


def test_a_layer_with_packed_weights(busy: Callable[[int], None]) -> None:
    layer = backline.nn.functional.prepack_linear(squares().astype("f")) if hasattr(functional, "prepack_linear") else None
    if layer is None:
        from backline.ops.prepacked import prepack_linear

        layer = prepack_linear(squares().astype("f"))
    x = squares().astype("f")
    busy(2)
    whole = layer(x)
    busy(1)
    np.testing.assert_allclose(layer(x), whole, rtol=1e-4, atol=1e-3)
    assert backline.explain().threads == 1


def test_threads_of_numpys_own_are_no_reason_for_fewer_of_them(
    busy: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = squares()
    busy(1)  # what is seen after each product of NumPy's: its second thread spins
    with backline.use("numpy", only=True):
        backline.matmul(x, x)
        assert backline.explain().threads == 2
        monkeypatch.setattr(processor_share.watch, "threads", 1)  # other programs are at work
        backline.matmul(x, x)
        assert backline.explain().threads == 1
    with backline.use("openblas", only=True):
        backline.matmul(x, x)
        assert backline.explain().threads == 1


def test_pools_of_other_libraries_make_room(busy: Callable[[int], None]) -> None:
    need("xnnpack")
    x = squares().astype("f")
    busy(1)
    with backline.use("xnnpack", only=True):
        functional.linear(x, x)
        assert backline.explain().threads == 1


@pytest.mark.parametrize(("pool", "threads"), [("numpy", None), ("openblas", 1), ("pthreadpool", 1), ("gomp", 1)])
def test_which_pools_are_exempt(pool: str, threads: int | None, busy: Callable[[int], None]) -> None:
    chosen, problem = SimpleNamespace(pool=pool), SimpleNamespace(flops=1e9)
    plan = SimpleNamespace(choice=SimpleNamespace(chosen=chosen, problem=problem))
    ran = processor_share.on_fewer(lambda: switches.get("num_threads"), plan, 1, (), {})
    assert ran == (NotImplemented if threads is None else threads)


def test_the_explanation_says_why(busy: Callable[[int], None]) -> None:
    busy(1)
    backline.matmul(squares(), squares())
    value, origin = backline.explain().switches["num_threads"]
    assert value == "1" and "busy with other work" in origin


def test_what_would_run_is_told_for_this_load(busy: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    a = squares()
    assert backline.explain(backline.matmul, a, a).threads == 2
    monkeypatch.setattr(processor_share.watch, "threads", 1)
    assert backline.explain(backline.matmul, a, a).threads == 1
    with switches.scope(share_processors=False):
        assert backline.explain(backline.matmul, a, a).threads == 2


@pytest.mark.parametrize("values", [
    {"share_processors": False}, {"num_threads": 1}, {"deterministic": True}, {"mkldnn.deterministic": True},
])  # fmt: skip
def test_switches_that_keep_the_threads(values: dict[str, Any], busy: Callable[[int], None]) -> None:
    a = squares()
    with switches.scope(values):
        busy(2)
        quiet = backline.matmul(a, a)
        threads = backline.explain().threads
        busy(1)
        assert backline.matmul(a, a).tobytes() == quiet.tobytes()
        assert backline.explain().threads == threads == switches.get("num_threads")


def test_the_same_bits_where_they_are_asked_for_with_any_thread_count(busy: Callable[[int], None]) -> None:
    a = squares()
    with switches.scope(deterministic=True, determinism_level="threads"):
        busy(2)
        quiet = backline.matmul(a, a)
        busy(1)
        assert backline.matmul(a, a).tobytes() == quiet.tobytes()


def test_a_number_of_threads_that_was_asked_for_is_not_exceeded(busy: Callable[[int], None]) -> None:
    a = squares()
    busy(5)
    backline.matmul(a, a)
    assert backline.explain().threads == 2
    with backline.num_threads(1):
        backline.matmul(a, a)
        assert backline.explain().threads == 1


def test_small_calls_do_not_look(busy: Callable[[int], None]) -> None:
    a = np.eye(8)
    backline.matmul(a, a)
    busy(1)
    before = _core.share_looks()
    for _ in range(10):
        backline.matmul(a, a)
    assert _core.share_looks() == before
    backline.matmul(squares(), squares())
    assert _core.share_looks() > before


def test_calls_inside_of_a_call_do_not_look_again(busy: Callable[[int], None]) -> None:
    busy(1)
    before = _core.share_looks()
    backline.einsum("ij,jk,kl->il", squares(), squares(), squares())
    assert _core.share_looks() <= before + 1


def test_what_is_drawn_does_not_depend_on_the_load(busy: Callable[[int], None]) -> None:
    q = np.random.default_rng(4).standard_normal((2, 8, 128, 64), np.float32)

    def drawn() -> list[bytes]:
        backline.manual_seed(7)
        return [functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5).tobytes() for _ in range(3)]

    busy(2)
    quiet = drawn()
    busy(1)
    assert drawn() == quiet and len(set(quiet)) == 3


def test_an_error_in_a_call_on_fewer_threads_is_that_of_the_call(busy: Callable[[int], None]) -> None:
    busy(1)
    with pytest.raises(np.linalg.LinAlgError):
        linalg.inv(np.zeros((600, 600)))


def test_what_looking_raises_is_raised(busy: Callable[[int], None]) -> None:
    def interrupted() -> tuple[int, float]:
        raise KeyboardInterrupt

    _core.share_processors(interrupted, processor_share.on_fewer)
    a = squares()
    with pytest.raises(KeyboardInterrupt):
        backline.matmul(a, a)
    _core.share_processors(lambda: ("many", None), processor_share.on_fewer)  # type: ignore[arg-type, return-value]  # wrong on purpose
    with pytest.raises(TypeError):
        backline.matmul(a, a)
    _core.share_processors(None, None)
    backline.matmul(a, a)
    assert backline.explain().threads == 2


def test_nothing_is_measured_beside_other_work(busy: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.engine.tuning import benchmark

    def measured(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("measured")

    monkeypatch.setattr(benchmark, "measure_once", measured)
    busy(1)
    a = squares(650)
    with switches.scope(benchmark=True), pytest.raises(AssertionError, match="measured"):
        backline.matmul(a, a)  # a first call is chosen for all threads


def test_a_forked_child_does_not_look() -> None:
    need("openblas")
    python(
        """
import os
import numpy as np
import backline
from backline import _core
a = np.ones((600, 600))
backline.matmul(a, a)
_core.share_processors(lambda: 1 / 0, lambda *args: 1 / 0)
child = os.fork()
if child == 0:
    try:
        import warnings
        warnings.simplefilter("ignore")
        ok = bool((backline.matmul(a, a) == 600).all())
    except BaseException:
        ok = False
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
""",
        env={"BACKLINE_SHARE_PROCESSORS": "1", "BACKLINE_NUM_THREADS": "2"},
    )


def test_threads_at_work_in_turn() -> None:
    """Looks of several threads at once neither wait for each other nor fail."""
    machine = Machine(4)
    machine.watch._next = -math.inf
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(200):
                machine.watch._next = -math.inf
                assert machine.watch.look()[0] >= 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
