"""Learning while running, on a clock of its own: ``python benchmarks/online_simulated.py [--calls 50]``.

Every entry of the ranking of one class of processors (``--true intel-amx-2c``) is a Problem whose algorithms take the times
measured there, with noise, a slow first run each and now and then a call that another program interrupts. The ranking of another
class (``--class amd-avx512-2c``) chooses at first, and Backline's learner is told what the calls take, all Problems in turn.
So nothing depends on what else this machine does. Shown are the times of the first and of the learned choice over the best
algorithm's, by the time of a call, and what learning cost: in trials, and in all other work at what it takes on a quiet machine.
"""

from __future__ import annotations

import math
import random
import sys
from typing import Any

from backline.engine import predicted_times, ranking_files
from backline.engine.tuning.learning_costs import Costs
from backline.engine.tuning.online import Learner, Pace
from backline.native.processor_class import ProcessorClass
from backline.problems import Place
from side_by_side import geometric_mean

CANDIDATES = 10  # as benchmark_limit has it
NOISE = 0.03  # of the logarithm of a time
COLD = 30e-6  # seconds that the first run of an algorithm takes more
CHOOSING, LISTING, PREPARING = 0.7e-3, 1.5e-3, 0.3e-3
PARTS = (("all", 0.0, 1e9), ("under 20 us", 0.0, 2e-5), ("20 us to 1 ms", 2e-5, 1e-3), ("1 ms and more", 1e-3, 1e9))
rng = random.Random(3)
costs, paces = Costs(), dict[str, Pace]()


def option(name: str, default: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def named(name: str) -> ProcessorClass:
    found = ProcessorClass.parse(name)
    assert found is not None, "a class is named like amd-avx512-2c"
    return found


class Simulated:
    """Calls of one Problem."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self.times = {key: us * 1e-6 for key, us in zip(entry["order"], entry["microseconds"], strict=True)}
        place = Place(entry["op"], entry["dtype"], entry["class"], entry["size"])
        told = predicted_times.times_of(place)
        self.predicted = {key: told.get(key) for key in self.times}
        known = sorted((seconds, key) for key, seconds in self.predicted.items() if seconds is not None)
        self.first = known[0][1] if known else rng.choice(list(self.times))
        unknown = [key for key in self.times if self.predicted[key] is None]
        self.candidates = dict.fromkeys([self.first, *(key for _, key in known), *unknown][:CANDIDATES])
        self.learner = Learner(self.first, 0.03, costs, paces.setdefault(entry["op"], Pace()))
        self.key, self.after, self.left = self.first, 2, 2
        self.ran: set[str] = set()

    def seconds(self, key: str) -> float:
        taken = self.times[key] * math.exp(abs(rng.gauss(0.0, NOISE)))
        taken += 4e-3 * rng.random() if rng.random() < 0.01 else 0.0  # a time slice of another program
        taken += 0.0 if key in self.ran else COLD
        self.ran.add(key)
        return taken

    def begin(self) -> None:
        self.learner.begin(CHOOSING + self.seconds(self.first))
        self.left -= 1

    def call(self) -> None:
        learner = self.learner
        self.left -= 1
        if self.left:
            self.seconds(learner.choice)
            return
        learner.note(self.key, self.after, self.seconds(self.key))
        if learner.lists():
            learner.compare({key: self.predicted[key] for key in self.candidates})
            costs.took("listing", LISTING)
        self.key, self.after = learner.next()
        self.left = self.after
        if self.key not in learner.prepared:
            learner.prepared.add(self.key)
            costs.took("preparing", PREPARING)

    def regret(self, key: str) -> float:
        return self.times[key] / min(self.times.values())


def main() -> None:
    true, ours = named(option("--true", "intel-amx-2c")), named(option("--class", "amd-avx512-2c"))
    ranking_files.here = lambda: true
    entries = [entry for entry in ranking_files.shipped().entries if len(entry["order"]) > 1]
    ranking_files.here = lambda: ours
    problems = [Simulated(entry) for entry in entries]
    calls = int(option("--calls", "50"))
    for each in problems:
        each.begin()
    for _ in range(calls - 1):
        for each in problems:
            each.call()
    print(f"{calls} calls of each Problem of {true}, chosen first by {ours}")
    print(f"{'a call takes':<20}{'Problems':>9}{'':>10}{'mean':>8}{'>1.05':>8}{'>1.1':>8}{'>1.3':>8}{'worst':>8}")
    for name, low, high in PARTS:
        found = [each for each in problems if low <= min(each.times.values()) < high]
        for label, ratios in (
            ("at first", [each.regret(each.first) for each in found]),
            ("learned", [each.regret(each.learner.choice) for each in found]),
        ):
            over = "".join(f"{sum(r > most for r in ratios):>8}" for most in (1.05, 1.1, 1.3))
            print(f"{name:<20}{len(found):>9}{label:>10}{geometric_mean(ratios):>8.3f}{over}{max(ratios):>8.2f}")
    spent = costs.account.spent
    trials, work = 100 * costs.trials / spent, 100 * costs.account.cost / spent
    print(f"cost of learning: trials {trials:.2f} %, other work {work:.2f} % of {spent:.0f} s")


if __name__ == "__main__":
    main()
