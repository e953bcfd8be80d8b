"""Learning while running, on a clock of its own: ``python benchmarks/online_simulated.py [--calls 50]``.

Every entry of the ranking of one class of processors (``--true intel-amx-2c``) is a Problem whose algorithms take the times
measured there, with noise, a slow first run each and now and then a call that another program interrupts. The ranking of
another class (``--class amd-avx512-2c``) chooses at first; where it is the same class, the other entries of its ranking do.
Backline's learner is told what the calls take, all Problems in turn. So nothing depends on what else this machine does. Shown
are the times of the first and of the learned choice over the best algorithm's, by the time of a call; what kept those over 1.05
from the best; and what learning cost: in trials, and in all other work at what it takes on a quiet machine.

``--noise 0.1`` has times vary more, and ``--few N`` takes every Nth entry: how much learning can do rests on the time of all
calls.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from typing import Any

import numpy as np

from backline.engine import predicted_times, ranking_files
from backline.engine.effective_precision import fineness
from backline.engine.tuning.learning_costs import Costs
from backline.engine.tuning.online import MOST, Learner
from backline.engine.tuning.tried import Pace
from backline.native.processor_class import ProcessorClass
from backline.problems import Place
from side_by_side import geometric_mean

CANDIDATES = 10  # as benchmark_limit has it
COLD = 30e-6  # seconds that the first run of an algorithm takes more
SLICE, OFTEN = 4e-3, 0.01  # seconds at most that another program takes of a call, and of how many calls
CHOOSING, LISTING, PREPARING, TIMING = 0.5e-3, 0.2e-3, 0.15e-3, 2e-5
PARTS = (("all", 0.0, 1e9), ("under 20 us", 0.0, 2e-5), ("20 us to 1 ms", 2e-5, 1e-3), ("1 ms and more", 1e-3, 1e9))
costs, paces = Costs(), dict[str, Pace]()


def option(name: str, default: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


NOISE = float(option("--noise", "0.03"))  # of the logarithm of a time
rng = random.Random(int(option("--seed", "3")))


def named(name: str) -> ProcessorClass:
    found = ProcessorClass.parse(name)
    assert found is not None, "a class is named like amd-avx512-2c"
    return found


def predicted(place: Place, example: str) -> dict[str, float]:
    """Predicted times, without what was measured of the very Problem."""
    points, distances = predicted_times._near(ranking_files.here(), place, predicted_times.SHIPPED_ONLY)
    if points is None:
        return {}
    others = np.array([origin is None or origin[1] != example for origin in points.origins])
    if not others.any():
        return {}
    logs = points.predicted(np.where(others, distances, 1e3))
    return dict(zip(points.keys, (2.0**logs).tolist(), strict=True))


class Simulated:
    """Calls of one Problem."""

    def __init__(self, entry: dict[str, Any]) -> None:
        times = zip(entry["order"], entry["microseconds"], strict=True)
        self.times = {key: us * 1e-6 for key, us in times if fineness(key) == 2}
        self.best = min(self.times.values())
        self.example = entry["example"]
        place = Place(entry["op"], entry["dtype"], entry["class"], entry["size"]).sized_as(self.example)
        told = predicted(place, self.example)
        self.predicted = {key: told.get(key) for key in self.times}
        known = sorted((seconds, key) for key, seconds in self.predicted.items() if seconds is not None)
        self.first = known[0][1] if known else rng.choice(list(self.times))
        unknown = [key for key in self.times if self.predicted[key] is None]
        self.candidates = dict.fromkeys([self.first, *(key for _, key in known), *unknown][:CANDIDATES])
        self.learner = Learner(self.first, 0.03, costs, paces.setdefault(entry["op"], Pace()))
        self.key, self.after, self.left = self.first, 2, 2
        self.ran: set[str] = set()
        self.elapsed = 0.0

    def seconds(self, key: str) -> tuple[float, bool]:
        """Returns the seconds of a call, and whether Backline would see that it was disturbed."""
        taken = self.times[key] * math.exp(abs(rng.gauss(0.0, NOISE)))
        interrupted = rng.random() < OFTEN
        taken += SLICE * rng.random() if interrupted else 0.0
        taken += 0.0 if key in self.ran else COLD
        self.ran.add(key)
        self.elapsed += taken
        return taken, interrupted and key.endswith("@1")

    def begin(self) -> None:
        self.learner.begin(CHOOSING + self.seconds(self.first)[0])
        self.left -= 1

    def call(self) -> None:
        learner = self.learner
        self.left -= 1
        if self.left:
            self.seconds(learner.choice)
            return
        taken, disturbed = self.seconds(self.key)
        learner.note(self.key, self.after, taken, disturbed=disturbed)
        if learner.lists():
            learner.compare({key: self.predicted[key] for key in self.candidates})
            costs.took("listing", LISTING)
        self.key, self.after = learner.next()
        self.left = self.after
        costs.took("timing", TIMING)
        if self.key not in learner.prepared:
            learner.prepared.add(self.key)
            costs.took("preparing", PREPARING)

    def regret(self, key: str) -> float:
        return self.times[key] / self.best

    def why(self) -> str:
        """Names what kept the best algorithm from being learned."""
        learner, best = self.learner, min(self.times, key=self.times.__getitem__)
        if not learner.listed:
            return "not listed"
        if best not in self.candidates:
            return "beyond the limit"
        tried = learner.tried[best]
        if not tried.runs:
            return "not tried" if learner.expected(best) <= MOST * (learner.usual() or 0.0) else "expected to be much slower"
        return f"verdict {tried.verdict!r}" if tried.verdict else "under way"


def main() -> None:
    true, ours = named(option("--true", "intel-amx-2c")), named(option("--class", "amd-avx512-2c"))
    ranking_files.here = lambda: true
    precise = [e for e in ranking_files.shipped().entries() if sum(fineness(key) == 2 for key in e["order"]) > 1]
    ranking_files.here = lambda: ours
    problems = [Simulated(entry) for entry in precise[:: int(option("--few", "1"))]]
    calls = int(option("--calls", "50"))
    for each in problems:
        each.begin()
    for _ in range(calls - 1):
        for each in problems:
            each.call()
    print(f"{calls} calls of each Problem of {true}, chosen first by {ours}")
    print(f"{'a call takes':<20}{'Problems':>9}{'':>10}{'mean':>8}{'>1.05':>8}{'>1.1':>8}{'>1.3':>8}{'worst':>8}")
    for name, low, high in PARTS:
        found = [each for each in problems if low <= each.best < high]
        for label, ratios in (
            ("at first", [each.regret(each.first) for each in found]),
            ("learned", [each.regret(each.learner.choice) for each in found]),
        ):
            over = "".join(f"{sum(r > most for r in ratios):>8}" for most in (1.05, 1.1, 1.3))
            print(f"{name:<20}{len(found):>9}{label:>10}{geometric_mean(ratios):>8.3f}{over}{max(ratios):>8.2f}")
        left = Counter(each.why() for each in found if each.regret(each.learner.choice) > 1.05)
        print(f"{'':<20}over 1.05: " + (", ".join(f"{count} {why}" for why, count in left.most_common()) or "none"))
    account = costs.account
    trials, work = 100 * costs.trials / account.spent, 100 * (account.cost - costs.trials) / account.spent
    first, best = (calls * sum(map(each, problems)) for each in (lambda p: p.times[p.first], lambda p: p.best))
    print(f"time of all calls {sum(p.elapsed for p in problems):.1f} s; by the first choices {first:.1f}, by the best {best:.1f}")
    print(f"cost of learning: trials {trials:.2f} %, other work {work:.2f} % of {account.spent:.1f} s")


if __name__ == "__main__":
    main()
