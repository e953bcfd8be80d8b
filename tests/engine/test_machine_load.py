"""Readings of how quiet the machine was, which are injected, and what a measurement makes of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, pairwise, repeat
from typing import Any

import numpy as np
import pytest

from backline import _core, libraries
from backline.engine.tuning import machine_load, measure, record_store, team_speedup
from backline.engine.tuning.machine_load import Quietness, Reading, between, in_turn
from backline.libraries.base import Algorithm, Library, PythonPlan, Refusal
from backline.native import thread_team
from backline.problems import Problem
from backline.problems.op_registry import operations

# The functions themselves: tests/conftest.py has quiet ones in their places.
from backline.engine.tuning.machine_load import read, spread  # isort: skip

STAT = """cpu  900 100 300 5000 20 5 15 60 0 0
cpu0 400 50 100 2500 10 5 5 20 0 0
cpu1 500 50 200 2500 10 0 10 40 0 0
cpu2 9 9 9 9 9 9 9 9 0 0
intr 560164 0 0
ctxt 1
"""


def injected(monkeypatch: pytest.MonkeyPatch, stat: str, load: str, cpus: tuple[int, ...] = (0, 1)) -> Reading:
    files = {"/proc/stat": stat, "/proc/loadavg": load}
    monkeypatch.setattr(machine_load, "read_text", lambda path: files[path])
    monkeypatch.setattr(machine_load, "usable_cpus", lambda: cpus)
    monkeypatch.setattr(machine_load, "_tick", lambda: 0.01)
    return read()


def test_counters_are_those_of_the_processors_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found = injected(monkeypatch, STAT, "6.49 4.16 1.99 11/170 13665\n")
    assert found.busy == pytest.approx(5.60 + 7.60) and found.stolen == pytest.approx(0.60) and found.load == 6.49
    assert injected(monkeypatch, STAT, "1 1 1 1/1 1", (1,)).busy == pytest.approx(7.60)


@pytest.mark.parametrize("stat", ["", "nothing\n", "cpu 1 2\n", "cpu0 1 2 3\ncpu1\n"])
def test_where_there_are_no_counters_nothing_is_known(stat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = injected(monkeypatch, stat, "")
    assert (found.busy, found.stolen, found.load) == (None, None, None)
    assert between(found, found, 2).disturbed == ""


def test_old_kernels_do_not_count_what_was_stolen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert injected(monkeypatch, "cpu0 100 0 0 0 0 0 0\n", "").stolen == 0.0


def test_a_reading_of_this_machine() -> None:
    before = read()
    after = read()
    assert after.at > before.at and after.own >= before.own
    assert isinstance(between(before, after, 1).disturbed, str)


def test_the_difference_of_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "usable_cpus", lambda: (0, 1))
    before = Reading(10.0, 3.0, 100.0, 5.0, 40, 1.0)
    found = between(before, Reading(12.0, 6.0, 104.5, 5.4, 50, 2.5), 2, 1.25)
    assert found == Quietness(2.0, 2, 2, 0.75, pytest.approx(0.1), 10, 2.5, 1.25)
    # What this process used is counted more exactly than what all did.
    assert between(before, Reading(12.0, 6.0, 102.9, 5.0), 2).others == 0.0


@pytest.mark.parametrize(("quietness", "reason"), [
    (Quietness(1.0, 2, 2, others=0.15, stolen=0.01, switches=20, load=1.9, spread=1.3), ""),
    (Quietness(1.0, 2, 2, others=0.3), "other programs took 0.3 of 2 processors"),
    (Quietness(1.0, 1, 2, others=0.9), ""),  # there is a processor for the one thread
    (Quietness(1.0, 1, 2, others=1.5), "other programs took 1.5 of 2 processors"),
    (Quietness(1.0, 4, 16, others=11.0, load=30.0), ""),
    (Quietness(1.0, 1, 1, others=0.2), "other programs took 0.2 of 1 processor"),
    (Quietness(1.0, 2, 2, stolen=0.2), "the hypervisor took 20 % of the time"),
    (Quietness(1.0, 2, 2, switches=120), "the measuring thread was interrupted 120 times a second"),
    (Quietness(0.05, 2, 2, switches=5), ""),  # too few to tell
    (Quietness(0.05, 2, 2, switches=9), "the measuring thread was interrupted 180 times a second"),
    (Quietness(0.05, 2, 2, others=1.9, stolen=0.5), ""),  # counters of 10 ms say nothing of so short a time
    (Quietness(0.05, 2, 2, others=1.9, load=6.5), "the load average was 6.5 on 2 processors"),
    (Quietness(0.05, 2, 2, load=3.5), ""),  # this process is in it, too
    (Quietness(1.0, 2, 2, load=6.5), "the load average was 6.5 on 2 processors"),
    (Quietness(1.0, 2, 2, others=0.0, load=6.5), ""),  # that was a minute ago
    (Quietness(1.0, 2, 2, spread=3.0), "samples spread over a factor of 3.0"),
    (Quietness(1.0, 2, 2, speedup=1.3, most=2.0), "2 threads were 1.3 times as fast as one, not 2.0 times"),
    (Quietness(1.0, 2, 2, speedup=1.5, most=2.0), ""),
    (Quietness(1.0, 2, 2, speedup=1.0, most=1.1), ""),  # two threads of one core never bring more
    (Quietness(1.0, 2, 2, most=2.0), ""),
])  # fmt: skip
def test_what_disturbs(quietness: Quietness, reason: str) -> None:
    assert quietness.disturbed == reason


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Gives what the core measures of the team, one after the other; nothing was measured before."""
    found: list[float] = []
    monkeypatch.setattr(team_speedup, "_last", {})
    monkeypatch.setattr(team_speedup, "_most", {})
    monkeypatch.setattr(team_speedup, "usable_cpus", lambda: (0, 1, 2))
    monkeypatch.setattr(thread_team, "name", lambda: "gomp")
    monkeypatch.setattr(thread_team, "forked", lambda: False)
    monkeypatch.setattr(_core, "team_speedup", lambda threads: found.pop(0))
    return found


def of_the_team(threads: int = 2) -> Reading:
    return Reading(0.0, 0.0, speedup=team_speedup.measured(threads))


def test_threads_are_compared_with_the_most_that_they_have_done(team: list[float]) -> None:
    team[:] = [1.0, 1.1]
    assert not between(of_the_team(), of_the_team(), 2).crowded  # nothing says that they can do more
    team[:] = [1.9, 1.1]
    assert not between(of_the_team(), of_the_team(), 2).crowded  # one reading may be wrong
    team[:] = [2.6, 2.7, 1.1, 1.9]
    readings = [of_the_team() for _ in range(4)]
    assert team_speedup.most(2) == 2.0  # more is an error of measurement
    assert [between(a, b, 2).crowded for a, b in pairwise(readings)] == [False, True, True]
    assert between(readings[2], readings[3], 2).disturbed == "2 threads were 1.1 times as fast as one, not 2.0 times"
    assert team_speedup.most(3) == 1.0


@pytest.mark.parametrize(("threads", "name", "forked"), [(1, "gomp", False), (2, "", False), (2, "gomp", True), (4, "gomp", False)])
def test_where_there_is_no_team_with_a_processor_for_each_nothing_is_measured(
    threads: int, name: str, forked: bool, team: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_team, "name", lambda: name)
    monkeypatch.setattr(thread_team, "forked", lambda: forked)
    assert not team_speedup.available(threads)
    assert team_speedup.measured(threads) is None and team_speedup.most(threads) == 1.0
    assert not between(of_the_team(threads), of_the_team(threads), threads).crowded


def test_threads_that_cannot_be_started_are_not_measured(team: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(threads: int) -> float:
        raise RuntimeError("a call on 2 threads cannot run")

    monkeypatch.setattr(_core, "team_speedup", refuse)
    assert team_speedup.available(2) and team_speedup.measured(2) is None


def test_threads_on_one_processor_bring_nothing() -> None:
    code = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
from backline import _core
from backline.native import thread_team
thread_team.bind()
print(*(_core.team_speedup(threads) for threads in (2, 1, 0, -1)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    two, *ones = map(float, found.split())
    assert 0 < two < 1.5, "they take turns there, whatever else runs"
    assert all(one > 0 for one in ones)


def test_one_candidate_that_varies_is_no_busy_machine() -> None:
    assert spread([[1.0, 9.0, 9.0], [1.0, 1.1, 1.2], [1.0, 1.0, 1.0]]) == 1.1
    assert spread([]) == spread([[3.0]]) == 1.0
    assert spread([[1.0, 3.0, 4.0], [2.0, 7.0, 9.0]]) == 3.25


def test_candidates_are_compared_round_by_round() -> None:
    """The machine is slower by 30 from the fourth round on: medians alone would call the one that left early the faster."""
    fast = [1.0, 1.1, 0.9, *[30.0] * 5]
    found = in_turn({"slow": [1.5, 1.65, 1.35], "fast": fast})
    assert found["slow"] == pytest.approx(1.5 * found["fast"])
    assert in_turn({}) == {} and in_turn({"a": [2.0, 3.0, 4.0]}) == {"a": 3.0}


def test_one_disturbed_round_changes_no_order() -> None:
    found = in_turn({"a": [1.0, 400.0, 1.0], "b": [2.0, 2.0, 2.0]})
    assert found == {"a": 1.0, "b": 2.0}


def test_threads_that_wait_for_a_processor_are_no_measure_of_others() -> None:
    """A pool of threads that took a thousand times as long, while another program ran, in all rounds of one that left early."""
    found = in_turn({"pool": [0.4, 0.3, 0.4, *[2e-4] * 4], "one": [55e-6, 56e-6, 55e-6], "short": [50e-6]})
    assert found == {"pool": pytest.approx(0.4), "one": 55e-6, "short": pytest.approx(50e-6)}


# What measuring makes of it -------------------------------------------------------------------------------------------


class Two(Library):
    """Two ways to multiply."""

    name = "fake"
    title = "A fake"

    def reason(self) -> str:
        return ""

    def version(self) -> str | None:
        return "1"

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm | Refusal]:
        yield from (Algorithm(library=self.name, name="one"), Algorithm(library=self.name, name="two"))

    def prepare(self, problem: Problem, algorithm: Algorithm) -> Any:
        return PythonPlan(lambda a, b: np.matmul(a, b))

    def report(self) -> dict[str, Any]:
        return {"name": self.name, "available": True}


@pytest.fixture
def two() -> Iterator[list[Algorithm]]:
    library = Two()
    libraries.register(library)
    yield [Algorithm(library="fake", name="one"), Algorithm(library="fake", name="two")]
    if "fake" in libraries.names():
        libraries.unregister("fake")
    _core.memo_clear()


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Injects how busy the machine is in each try; returns the pauses that were made."""
    pauses: list[float] = []

    def inject(*tries: float) -> list[float]:
        # Two readings a try: seconds, own, busy. The clock of the readings has nothing to do with what is timed.
        readings = chain.from_iterable((Reading(0.0, 0.0, 0.0), Reading(1.0, 0.0, others)) for others in tries)
        following = chain(readings, repeat(None))
        monkeypatch.setattr(machine_load, "read", lambda: next(following))
        monkeypatch.setattr(machine_load, "usable_cpus", lambda: (0, 1))
        monkeypatch.setattr(measure.time, "sleep", lambda seconds: pauses.append(seconds))
        return pauses

    return inject


def square(n: int = 8) -> Any:
    a = np.ones((n, n), np.float32)
    return operations["matmul"].build(a, a)


def test_on_a_quiet_machine_once_is_enough(two: list[Algorithm], busy: Any) -> None:
    pauses = busy(0.1)
    record = measure.measure_problem(square(), two, 2, budget=0.0)
    assert record.covered == ("fake.one@1", "fake.two@1") and record.disturbed == "" and measure.PAUSE not in pauses
    assert record_store.parse(record.line()) == record


def test_what_was_disturbed_is_timed_again(two: list[Algorithm], busy: Any) -> None:
    pauses = busy(1.4, 0.0)
    record = measure.measure_problem(square(), two, 2, budget=0.0)
    assert record.covered == ("fake.one@1", "fake.two@1") and record.disturbed == "" and pauses.count(measure.PAUSE) == 1
    assert set(record.medians) == {"fake.one@1", "fake.two@1"}


def test_that_ends_after_some_tries_and_the_record_says_so(two: list[Algorithm], busy: Any) -> None:
    pauses = busy(1.4, 1.2)
    record = measure.measure_problem(square(), two, 2, budget=0.0)
    assert record.covered == () and record.disturbed == "other programs took 1.2 of 2 processors"
    assert set(record.medians) == {"fake.one@1", "fake.two@1"} and pauses.count(measure.PAUSE) == measure.TRIES - 1
    assert record_store.parse(record.line()) == record
    assert record.describe().endswith("2 algorithms, timed on a busy machine")


@pytest.mark.parametrize(("speedups", "disturbed", "pauses"), [
    ([2.0, 1.9], "", 0),
    ([1.9, 1.0, 1.9, 1.9], "", 1),
    ([1.0, 1.9, 1.9, 1.1], "2 threads were 1.1 times as fast as one, not 1.9 times", 1),
])  # fmt: skip
def test_threads_that_share_a_core_disturb(
    speedups: list[float], disturbed: str, pauses: int, two: list[Algorithm], team: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    team[:] = [1.9, 1.9]
    of_the_team(), of_the_team()
    team[:] = speedups
    slept: list[float] = []
    monkeypatch.setattr(measure.time, "sleep", slept.append)
    record = measure.measure_problem(square(100), [two[0], replace(two[1], threads=2)], 2, budget=0.0)
    assert (record.disturbed, slept.count(measure.PAUSE), team) == (disturbed, pauses, [])
    assert bool(record.covered) == (not disturbed)


@pytest.mark.parametrize(("size", "threads"), [(100, 1), (50, 2)])
def test_what_needs_one_thread_does_not_ask_the_team(size: int, threads: int, two: list[Algorithm], team: list[float]) -> None:
    record = measure.measure_problem(square(size), [two[0], replace(two[1], threads=threads)], 2, budget=0.0)
    assert len(record.medians) == 2 and team == []


def test_the_counters_are_read_before_the_team_is_asked(two: list[Algorithm], team: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """The time in which threads stop spinning is no part of what was timed."""
    seen: list[str] = []
    monkeypatch.setattr(measure._Run, "time", lambda self, deadline: seen.append("time"))
    monkeypatch.setattr(measure.time, "sleep", lambda seconds: seen.append("sleep"))
    monkeypatch.setattr(machine_load, "read", lambda: seen.append("read") or Reading(0.0, 0.0))
    monkeypatch.setattr(_core, "team_speedup", lambda threads: seen.append("team") or 2.0)
    measure.measure_problem(square(100), [two[0], replace(two[1], threads=2)], 2, budget=0.0)
    assert [name for name in seen if name != "sleep"] == ["team", "read", "time", "read", "team"]
    assert "sleep" not in seen[seen.index("read") : len(seen) - 1 - seen[::-1].index("read")]


def test_one_try_and_no_time_for_a_second(two: list[Algorithm], busy: Any) -> None:
    pauses = busy(1.4)
    assert measure.measure_problem(square(), two, 2, budget=0.0, tries=1).disturbed
    busy(1.4)
    assert measure.measure_problem(square(), two, 2, budget=0.0, limit=time.perf_counter() * 0 + 1e-6).disturbed
    assert measure.PAUSE not in pauses


def test_an_error_is_a_verdict_on_any_machine(two: list[Algorithm], busy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    busy(1.4, 1.4)
    real = Two.prepare
    wrong = PythonPlan(lambda a, b: a @ b + 1)
    monkeypatch.setattr(Two, "prepare", lambda self, p, a: wrong if a.name == "three" else real(self, p, a))
    record = measure.measure_problem(square(), [*two, Algorithm(library="fake", name="three")], 2, budget=0.0)
    assert record.covered == ("fake.three@1",) and "wrong result" in record.rejected["fake.three@1"]


@pytest.mark.parametrize(("texts", "least", "read_so_often"), [
    (["1 1 1 1/170 9"], 1, 1), (["1 1 1 3/170 9", "1 1 1 1/170 9"], 1, 2), (["1 1 1 4/9 9", "1 1 1 2/9 9", *["1 1 1 3/9 9"] * 3], 2, 5),
    (["1 1 1 0/0 0"], 0, 1), ([""], None, 1), (["1 1 1"], None, 1), (["1 1 1 x 9"], None, 1),
])  # fmt: skip
def test_threads_that_run_now(texts: list[str], least: int | None, read_so_often: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter(texts)
    monkeypatch.setattr(machine_load, "read_text", lambda path: next(given))
    assert machine_load.running(apart=0.0) == least
    assert not list(given)
    assert len(texts) == read_so_often
