"""Learning while running, how near the best it comes and what it costs: ``python benchmarks/online.py [--calls 50]``.

Every Problem is called so many times with ``benchmark = "online"``, all Problems in turn. Then all algorithms that could have
been chosen are measured side by side. The columns: time of a call by the algorithm that came first (`at first`) and by the one
that was learned (`learned`), each over the best one's; what trials of the Problem cost, of the time of its calls; and whether the
learner had tried all that it wanted to. Then come the same figures from calls of all Problems in turn, in which each takes the
fastest algorithms one after the other: there calls of others come between two of one, and what it needs is not in the caches,
which is what the learner sees. A round in which the threads shared a core is made again. `best again` is what choices that are
always right would seem to take: the fastest algorithms' time in every other call, over that in the calls by which they are the
fastest. The last lines compare calls by what was learned and without it.

``--class amd-avx512-2c`` has the ranking of another class of processors decide at first: one that is wrong here. ``--small``
leaves out what takes more than a few milliseconds; ``--json`` keeps the figures. Run it where nothing else runs.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import backline
from backline import _core, backends, linalg, switches
from backline.engine import plan_caches, ranking_files
from backline.engine.calibration import least
from backline.engine.choose import eligible, planner, prepared
from backline.engine.tuning import learned_records, sample_operands
from backline.engine.tuning.measure import measure_problem
from backline.native.processor_class import ProcessorClass
from backline.nn import functional as F
from side_by_side import Table, geometric_mean, share_a_core, show, threads_asked

rng = np.random.default_rng(2)
threads = threads_asked()
Call = Callable[[], Any]
Facts = dict[str, float]
Ratios = dict[str, list[float]]  # of a Problem: the first choice's time and that of what was learned, over the best
NEAR = 1.03  # times the best one's time, from which on the difference is measured again
COMPARED = 4  # algorithms of a Problem that take turns: the fastest ones, the first choice and the one that was learned
ROUNDS = 50  # calls of each of them


def option(name: str, default: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


CALLS = int(option("--calls", "50"))
FILE = f"online{'_small' if '--small' in sys.argv else ''}_{ranking_files.here()}"  # of this machine, whichever ranking decides
if "--class" in sys.argv:
    FILE += f"_by_{option('--class', '')}"
    named = ProcessorClass.parse(option("--class", ""))
    assert named is not None, "a class is named like amd-avx512-2c"
    ranking_files.here = lambda: named


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return rng.standard_normal(shape).astype(dtype)


def problems() -> dict[str, Call]:
    """Calls whose shapes no ranking was measured with."""
    found: dict[str, Call] = {}
    sizes = [12, 48, 100, 220, 450] + ([] if "--small" in sys.argv else [900, 1700])
    for n in sizes:
        for dtype in (np.float32, np.float64):
            a, b = numbers(n, n, dtype=dtype), numbers(n, n, dtype=dtype)
            found[f"matmul {a.dtype.name} {n}"] = lambda a=a, b=b: backline.matmul(a, b)
            spd = a @ a.T + n * np.eye(n, dtype=dtype)
            if n <= 900:
                found[f"inv {a.dtype.name} {n}"] = lambda spd=spd: linalg.inv(spd)
                found[f"cholesky {a.dtype.name} {n}"] = lambda spd=spd: linalg.cholesky(spd)
                found[f"solve {a.dtype.name} {n}"] = lambda spd=spd, b=b: linalg.solve(spd, b)
            if n <= 220:
                found[f"eigh {a.dtype.name} {n}"] = lambda spd=spd: linalg.eigh(spd)
                found[f"svd {a.dtype.name} {n}"] = lambda a=a: linalg.svd(a)
    for batch, n in ((300, 10), (60, 70)):
        stack = numbers(batch, n, n)
        found[f"matmul float32 {batch}x{n}x{n}"] = lambda stack=stack: backline.matmul(stack, stack)
    for rows, n in ((1, 700), (50, 5000), (400, 3000)):
        x = numbers(rows, n).astype(np.complex64)
        found[f"fft complex64 {rows}x{n}"] = lambda x=x: backline.fft.fft(x)
    for rows, columns in ((40, 300), (900, 1100)):
        x = numbers(rows, columns)
        found[f"softmax float32 {rows}x{columns}"] = lambda x=x: F.softmax(x, -1)
        found[f"gelu float32 {rows}x{columns}"] = lambda x=x: F.gelu(x)
    image, weight = numbers(4, 24, 30, 30), numbers(32, 24, 3, 3)
    found["conv2d 4x24x30x30"] = lambda: F.conv2d(image, weight, padding=1)
    return found


def timed(calls: dict[str, Call], rounds: int = CALLS) -> dict[str, list[float]]:
    """Seconds of each call, all Problems in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return times


def total(times: dict[str, list[float]]) -> str:
    return show(sum(map(sum, times.values())))


def measured(choice: Any, tried: list[Any], shown: set[str]) -> dict[str, float]:
    """Seconds of algorithms, side by side; where one that is shown is not the best, the least of three measurements."""
    record = measure_problem(choice.problem, tried, choice.threads, planner=planner)
    for _ in range(2):
        times = record.medians
        if all(times.get(key, math.inf) <= NEAR * min(times.values()) for key in shown):
            break
        record = least(measure_problem(choice.problem, tried, choice.threads, planner=planner), record, tried)
    return dict(record.medians)


def verdict(learner: Any, times: dict[str, float]) -> str:
    """Returns what was found of the algorithm that is the best."""
    best = min(times, key=times.__getitem__)
    if learner is None or not learner.listed:
        return "nothing listed"
    if best == learner.choice:
        return ""
    one = learner.tried[best]
    took = f", {one.measured / learner.tried[learner.choice].seconds():.2f}" if one.measured else ""
    state = one.verdict or ("under way" if one.runs else "not tried")
    return f"{best} {state}, {one.runs} runs{took}, {times[learner.choice] / times[best]:.2f} here"


def compare_with_plain(calls: dict[str, Call]) -> None:
    """Prints how long calls take by what was learned and without it: a round of all Problems by one, then by the other."""
    learned: dict[str, list[float]] = {name: [] for name in calls}
    plain: dict[str, list[float]] = {name: [] for name in calls}
    last = {}
    for number in range(CALLS + 1):
        for times, switch in ((learned, "online"), (plain, False)):
            with backends.flags(benchmark=switch):
                for name, seconds in timed(calls, 1).items():
                    times[name] += seconds if number else []  # the first round has choices to make
                if switch and number == CALLS:
                    last = {name: chosen_by(call) for name, call in calls.items()}
    ratios = {name: median(learned[name]) / median(plain[name]) for name in calls}
    slower = [name for name, ratio in ratios.items() if ratio > 1.05]
    print(f"the next {CALLS} in turn: {total(learned)} by what was learned, {total(plain)} without")
    mean = geometric_mean([*ratios.values()])
    print(f"{mean:.3f} of the time without in the geometric mean; {len(slower)} over 1.05")
    for name in slower:
        print(f"  {name:<28}{show(median(plain[name])):>10}{ratios[name]:>10.2f}  {last[name]}")


def compare_algorithms(plans: dict[str, dict[str, Call]], judged: dict[str, tuple[str, str]]) -> tuple[dict[str, Facts], Ratios]:
    """Prints how long the first choices and what was learned take over the best, where algorithms and Problems take turns.

    Returns it as well, in sum and of each Problem.
    """
    times: dict[str, dict[str, list[float]]] = {name: {key: [] for key in by_key} for name, by_key in plans.items()}
    done = again = 0
    before = share_a_core()
    while done < COMPARED * ROUNDS:
        took_now: list[tuple[str, str, float]] = []
        for name, by_key in plans.items():
            key = [*by_key][done % len(by_key)]
            begin = time.perf_counter()
            by_key[key]()
            took_now.append((name, key, time.perf_counter() - begin))
        spoilt, before = before, share_a_core()
        if (spoilt or before) and again < COMPARED * ROUNDS:  # where two threads are no faster than one, one is the best
            again += 1
            continue
        for name, key, seconds in took_now:
            times[name][key].append(seconds)
        done += 1
    took, once_more = (
        {name: {key: median(each[half::2]) for key, each in by_key.items()} for name, by_key in times.items()} for half in (0, 1)
    )
    print(f"\nin turn, as the program calls them; {again} of {done + again} rounds made again, in which threads shared a core:")
    every = {name: [took[name][key] / min(took[name].values()) for key in judged[name]] for name in plans}
    labels = "at first", "learned"
    facts = {label: summary(label, [each[which] for each in every.values()]) for which, label in enumerate(labels)}
    fastest = {name: min(of, key=of.__getitem__) for name, of in took.items()}
    facts["best again"] = summary("best again", [once_more[name][key] / took[name][key] for name, key in fastest.items()])
    for name, (first, learned) in every.items():
        if learned > 1.05:
            best = fastest[name]
            print(f"  {name:<28}{show(took[name][best]):>10}{first:>10.2f}{learned:>10.2f}  {judged[name][1]}; best {best}")
    return facts, every


def summary(label: str, ratios: list[float]) -> Facts:
    """Prints how far from the best times are, and returns it."""
    counts = {most: sum(r > most for r in ratios) for most in (1.05, 1.1, 1.3)}
    over = ", ".join(f"{count} over {most}" for most, count in counts.items())
    mean = geometric_mean(ratios)
    print(f"{label:<10} {mean:.3f} of the best in the geometric mean; of {len(ratios)} Problems {over}")
    return {"mean": round(mean, 4), "problems": len(ratios), **{f"over {most}": count for most, count in counts.items()}}


def best_few(choice: Any, algorithms: list[Any], times: dict[str, float], judged: tuple[str, str]) -> dict[str, Call]:
    """Returns calls of those algorithms of a Problem that take turns, on operands of its own."""
    arrays = sample_operands.arrays_for(choice.problem, 0)
    keys = dict.fromkeys([*judged, *sorted(times, key=times.__getitem__)])
    by_key = {a.key: a for a in algorithms if a.pool != "numpy" or a.key in judged}  # what follows would suffer by its threads
    return {
        key: partial(prepared(choice.problem, by_key[key], switches.current()), *arrays)
        for key in [key for key in keys if key in by_key][:COMPARED]
    }


def chosen_by(call: Call) -> str:
    call()
    chosen = backline.explain().chosen
    return chosen.key if chosen else ""


def main() -> None:
    calls = problems()
    for call in calls.values():  # libraries are loaded, first calls made
        call()
    without = timed(calls)
    with backends.flags(benchmark="online"):
        within = timed(calls)
        choices = {}
        for name, call in calls.items():
            call()
            choices[name] = backline.explain()
    by_problem = {one.problem: one for one in learned_records.every()}
    costs = learned_records.costs
    spent, cost, trials = costs.account.spent, costs.account.cost, costs.trials
    _core.memo_clear()
    plan_caches.clear()
    rows: list[tuple[str, float, float]] = []
    plans: dict[str, dict[str, Call]] = {}
    judged: dict[str, tuple[str, str]] = {}
    print(f"{'':<30}{'best':>10}{'at first':>10}{'learned':>10}{'cost':>8}  done  algorithm")
    for name, choice in choices.items():
        one = by_problem.get(choice.problem)
        key = choice.chosen.key if choice.chosen else ""
        learner = one.learner if one is not None and len(one.algorithms) > 1 else None
        tried = (
            list(one.algorithms.values()) if one is not None and learner is not None else eligible(choice.problem, choice.threads)
        )
        began, ended = (learner.first, learner.choice) if learner is not None else (key, key)
        times = measured(choice, tried, {began, ended})
        if ended not in times or began not in times:
            print(f"{name:<30} not measured")
            continue
        best = min(times.values())
        rows.append((name, times[began] / best, times[ended] / best))
        judged[name] = began, ended
        plans[name] = best_few(choice, tried, times, judged[name])
        paid = "" if learner is None else f"{100 * learner.account.cost / learner.account.spent:.1f}%"
        waits = one is not None and (not one.learner.listed or one.learner.trial or one.learner.waiting())
        print(
            f"{name:<30}{show(best):>10}{rows[-1][1]:>10.2f}{rows[-1][2]:>10.2f}{paid:>8}  {'no' if waits else 'yes':<4}  "
            f"{choice.library} {choice.algorithm} x{choice.chosen.threads if choice.chosen else 0}"
            + (f"; best {verdict(learner, times)}" if rows[-1][2] > NEAR else ""),
            flush=True,
        )
    alone = {label: summary(label, [row[column] for row in rows]) for column, label in ((1, "at first"), (2, "learned"))}
    in_turn, each_in_turn = compare_algorithms(plans, judged)
    print(f"cost of learning: {show(cost)} of {show(spent)}, {100 * cost / spent:.2f} %, of which trials {show(trials)}")
    print(f"{CALLS} calls of {len(calls)} Problems: {total(without)} without learning, {total(within)} with it")
    compare_with_plain(calls)
    if "--json" in sys.argv:
        table = Table(FILE, [])
        table.rows = [
            {"row": name, "alone": [round(first, 3), round(learned, 3)], "in_turn": [round(r, 3) for r in each_in_turn[name]]}
            for name, first, learned in rows
        ]
        table.save(alone=alone, in_turn=in_turn, cost=round(cost / spent, 4), trials=round(trials / spent, 4))


if __name__ == "__main__":
    main()
