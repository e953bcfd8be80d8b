"""Learning while running: which algorithm a Problem's calls run is found out by timing real calls.

A `Learner` belongs to one Problem under one Snapshot. It is told what timed calls took, and says what the next one of them runs:
the choice, or a runner-up in its place. It knows keys of algorithms and times, neither Plans nor a clock.

Learning may take the part `benchmark_overhead` of the time that calls took so far. Three quarters of it are for trials, for
each Problem of the time of its own calls: what its trials took beyond the time of the choice. One quarter, of the time of all
calls, is for all other work: listing and preparing candidates, taking times, writing records. Time that was saved is not set off.
A trial begins when what it is expected to cost is within that; if it takes longer, no other is made of the Problem until that is
made good.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from .learning_costs import TRIALS, Account, Costs

__all__ = ["MARGIN", "Learner", "Pace", "Tried"]

SEEN = 8  # calls of a Problem before anything is tried
FEW = 3  # undisturbed times that a verdict needs,
MANY = 6  # or this many where calls take less than
SHORT = 20e-6  # seconds
LONG = 1e-3  # seconds of a call from which one time that is too long is enough
ATTEMPTS = 10  # runs of a candidate without a verdict after which it is given up
MARGIN = 0.97  # part of the choice's time that another may take at most to replace it
DISTURBED_MARGIN = 0.8  # where the times that tell so are disturbed ones
GIVE_UP = 1.1  # times the time of the choice, after which a candidate is given up at once
HOPELESS = 1.5  # the same for disturbed runs, after as many of them as a verdict needs
UNKNOWN = 1.5  # times the choice's time that is expected of a candidate that nothing is known of
UNCERTAIN = 0.25  # standard deviation of the logarithm of a time over the one that was predicted
MOST = 3.0  # times the choice's time: who is expected to take more is not tried
SLOWER = 2.0  # times what was expected of the choice: it has turned out wrong
REPORT = 4e-6  # seconds that timing one call and deciding takes
STEADY = 1e-3  # seconds between timed calls when there is nothing to find out
FARTHEST = 1 << 20  # calls between timed ones
WARM = 5e-3  # seconds of a call from which its first run counts: what is done once takes little of it
CLOSE = 1.3  # times the time of the choice, within which a candidate is tried again later
PATIENCE = 0.05  # part of the time spent so far that has to pass before everything is tried again
KEPT = 15  # times kept of an algorithm


@dataclass(slots=True)
class Tried:
    """Knowledge of one algorithm.

    Attributes
    ----------
    expected
        Seconds by prediction, in proportion to the others'; None if nothing is known.
    measured, least, counted
        Median of the times when the last verdict on it was given, the least, and their number; of undisturbed times, when nothing
        was slower than usual.
    times, disturbed
        Seconds of the last calls, and of those that something disturbed: these tell how long it takes at most.
    runs, attempts
        Timed calls, and those of the trial that is under way.
    verdict
        "" while it may be tried; "lost" to the choice, "unclear" where the machine was too busy, "failed" if it cannot run.
    """

    expected: float | None = None
    measured: float | None = None
    least: float = 0.0
    counted: int = 0
    times: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    disturbed: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    runs: int = 0
    attempts: int = 0
    verdict: str = ""

    def seconds(self) -> float | None:
        """Median time; that of disturbed calls if there are no others."""
        times = self.times or self.disturbed
        return median(times) if times else None

    def count(self) -> None:
        """Keeps what its undisturbed times say."""
        if self.times:
            self.measured, self.least, self.counted = median(self.times), min(self.times), len(self.times)

    def again(self) -> None:
        """Forgets its times, so that it is tried anew."""
        self.times.clear()
        self.disturbed.clear()
        self.attempts, self.verdict = 0, ""


class Pace:
    """The time of calls of one operation here, as a multiple of what is predicted, over the last Problems.

    Predictions may be of another machine. What was found of some Problems serves the others.

    Examples
    --------
    >>> pace = Pace()
    >>> for key, ratio in (("a", 2.0), ("a", 2.2), ("b", 9.0)):
    ...     pace.note(key, ratio)
    >>> pace.usual(), pace.usual("a"), pace.usual("b")
    (2.2, 2.1, None)
    """

    def __init__(self) -> None:
        self._ratios: dict[str, deque[float]] = {}

    def note(self, key: str, ratio: float) -> None:
        """Counts a time over the predicted one."""
        for one in ("", key):
            self._ratios.setdefault(one, deque(maxlen=KEPT)).append(ratio)

    def usual(self, key: str = "") -> float | None:
        """Median of an algorithm, or of all; None where too little is known."""
        ratios = list(self._ratios.get(key, ()))
        return median(ratios) if len(ratios) >= (2 if key else 3) else None


class Learner:
    """Learns which algorithm runs one Problem fastest, and decides which is tried next.

    Parameters
    ----------
    choice
        Key of the algorithm that calls run at first.
    overhead
        Part of the time that learning may take.
    costs
        What learning costs in this process.
    pace
        How long calls take here, beside predictions.

    Examples
    --------
    Calls of 20 ms, of which every one is timed. Another algorithm takes 10 ms.

    >>> learner = Learner("mkl.gemm@1", 0.03, Costs(), Pace())
    >>> seconds, key = {"mkl.gemm@1": 0.02, "blis.gemm@1": 0.01}, "mkl.gemm@1"
    >>> for _ in range(50):
    ...     learner.note(key, 1, seconds[key])
    ...     if learner.lists():
    ...         learner.compare({"mkl.gemm@1": None, "blis.gemm@1": None})
    ...     key, _ = learner.next()
    >>> learner.choice, learner.reason()
    ('blis.gemm@1', 'online: fastest of 2 tried')
    """

    def __init__(self, choice: str, overhead: float, costs: Costs, pace: Pace) -> None:
        self.choice = self.first = choice
        self.overhead, self.costs, self.pace = overhead, costs, pace
        self.account = Account()
        self.calls = 0
        self.tried: dict[str, Tried] = {choice: Tried()}
        self.listed = False
        self.more = 0.0  # seconds that listing what libraries have that are not loaded would take; 0 where there are none
        self.trial = ""  # key of the candidate that is being tried
        self.prepared: set[str] = {choice}
        self.lock = threading.Lock()
        self.busy = False  # verdicts are given while everything may be slower than usual
        self.changed = False  # something was found out that no record has yet
        self._recent: deque[float] = deque(maxlen=MANY)  # the last times of the choice, disturbed or not
        self._settled: tuple[float, float] | None = None  # time spent, and time of the choice, when all were tried
        self._quiet = True  # the last timed call of the choice was not disturbed
        self._before = 0.0  # time of the choice before it became slower
        self._turn = False  # the last timed call that was planned is one of the trial
        self._wait = 1
        self._demoted = ""

    # what is known --------------------------------------------------------------------------------------------------------

    def usual(self) -> float | None:
        """Median time of the choice, once there are enough times of it."""
        mine = self.tried[self.choice]
        return mine.seconds() if len(mine.times) + len(mine.disturbed) >= self._enough() else None

    def _enough(self) -> int:
        return MANY if (self.tried[self.choice].seconds() or 0.0) < SHORT else FEW

    def seconds(self, key: str) -> float | None:
        """Median time of an algorithm that was tried."""
        return (self.tried[key].seconds() or self.tried[key].measured) if key in self.tried else None

    def judged(self, key: str) -> bool:
        """Tells whether an algorithm has times enough to count, or far longer ones than the choice."""
        each, best = self.tried[key], self.tried[self.choice].measured
        return each.counted >= FEW or (each.counted > 0 and best is not None and each.least > HOPELESS * best)

    def reason(self, trying: str = "") -> str:
        """Returns what stands behind the choice, or behind the candidate that is tried in its place, in words."""
        if trying and trying != self.choice:
            return f"online: trying {trying} in the place of {self.choice}"
        count = sum(bool(each.runs) for each in self.tried.values())
        return f"online: fastest of {count} tried{self._demoted}" if count > 1 else "online: nothing else was tried yet"

    # what calls took ------------------------------------------------------------------------------------------------------

    def begin(self, seconds: float) -> None:
        """Counts a first call's time, that of choosing and preparing included."""
        self.calls += 1
        self.costs.charge(self.account, seconds)

    def note(self, key: str, calls: int, seconds: float, *, disturbed: bool = False) -> None:
        """Counts a timed call.

        Parameters
        ----------
        key
            Algorithm that it ran.
        calls
            Calls since the last one that was timed, this one included.
        seconds
            What it took.
        disturbed
            Something else than the algorithm took some of that, perhaps.
        """
        each = self.tried.setdefault(key, Tried())
        known = self.tried[self.choice].seconds()
        each.runs += 1
        first = each.runs == 1 and key != self.first  # what is done once takes some of it
        sound = not disturbed and (not first or seconds >= WARM or (known is not None and seconds <= known))
        (each.times if sound or (self.busy and not first) else each.disturbed).append(seconds)
        usual = min(known, seconds) if known is not None and key == self.choice else known or seconds
        cost = 0.0
        if key != self.choice:
            each.attempts += 1
            cost = max(seconds - (known or 0.0), 0.0)
        self.calls += calls
        self.costs.charge(self.account, seconds + (calls - 1) * usual, cost, REPORT)
        if key == self.trial:
            self._judge(key)
        elif key == self.choice:
            self._quiet = not disturbed
            self._recent.append(seconds)
            self._watch()

    def fails(self, key: str) -> None:
        """Notes that a candidate cannot run: it is not tried again."""
        self.tried.setdefault(key, Tried()).verdict = "failed"
        if self.trial == key:
            self.trial = ""

    def puts_off(self, key: str) -> None:
        """Leaves a candidate for later, when others are tried again."""
        self.tried[key].verdict = "unclear"
        if self.trial == key:
            self.trial = ""

    def _judge(self, key: str) -> None:
        """Ends a trial if there is a verdict."""
        each, base = self.tried[key], self.usual()
        if base is None:
            return
        enough, margin = self._enough(), DISTURBED_MARGIN if self.busy else MARGIN
        if len(each.times) >= enough:
            self._end(key, "" if median(each.times) < margin * base else "lost")
        elif base >= SHORT and len(each.times) > (base < LONG) and min(each.times) > GIVE_UP * base:
            self._end(key, "lost")
        elif len(each.disturbed) >= enough and median(each.disturbed) < DISTURBED_MARGIN * base:
            self._end(key, "")
        elif each.attempts >= ATTEMPTS or (len(each.disturbed) > enough and min(each.disturbed) > HOPELESS * base):
            self._end(key, "unclear")

    def _end(self, key: str, verdict: str) -> None:
        each, former = self.tried[key], self.tried[self.choice]
        each.verdict, each.attempts, self.trial = verdict, 0, ""
        if not self.busy and verdict != "unclear":
            self.changed = True
            each.count()
            former.count()
            if each.expected and each.times:
                self.pace.note(key, median(each.times) / each.expected)
        if not verdict:
            former.verdict = "lost"
            took, expected = former.seconds(), self._expected_of_choice()
            if took and expected and took > SLOWER * expected:
                self._demoted = f"; {self.choice} was demoted: it took {took / expected:.1f} times what was expected of it"
            self.choice = key
            self._recent.clear()

    def _expected_of_choice(self) -> float | None:
        if self.busy:
            return self._before
        usual, expected = self.pace.usual(), self.tried[self.choice].expected
        return usual * expected if usual is not None and expected is not None else None

    def _watch(self) -> None:
        """Has everything tried again where the choice has become much slower, and what was close after as long again."""
        if self._settled is None:
            return
        at, normal = self._settled
        grown = self.account.spent - at
        if min(self._recent) > SLOWER * normal:
            if len(self._recent) == MANY and grown > PATIENCE * at:
                self._again(busy=True, within=math.inf)
                self._before = normal
        elif grown > at and self._recent[-1] <= SLOWER * normal:
            self._again(busy=False, within=CLOSE)

    def _again(self, *, busy: bool, within: float) -> None:
        mine = self.tried[self.choice]
        base = mine.seconds() or 0.0
        self.busy, self._settled = busy, None
        for key, each in self.tried.items():
            seconds = each.measured or each.seconds()
            if key != self.choice and each.verdict != "failed" and (seconds is None or seconds <= within * base):
                each.again()
        mine.times.clear()
        mine.disturbed.clear()
        if busy:
            mine.times.extend(self._recent)

    # what comes next ------------------------------------------------------------------------------------------------------

    def lists(self) -> bool:
        """Tells whether the candidates are to be listed now."""
        if (self.listed and not self.more) or self.trial or self.calls < SEEN or self.usual() is None:
            return False
        return self.costs.room(self.overhead) >= (self.more if self.listed else self.costs.listing)

    def compare(self, expected: Mapping[str, float | None], more: float = 0.0) -> None:
        """Takes the candidates.

        Parameters
        ----------
        expected
            Predicted seconds of each, the choice among them; None where nothing is known.
        more
            Seconds that it would take to list those of further libraries.
        """
        base, mine = self.usual(), expected.get(self.choice)
        if base is not None and mine and not self.listed:
            self.pace.note(self.choice, base / mine)
        for key, seconds in expected.items():
            self.tried.setdefault(key, Tried()).expected = seconds
        self.listed, self.more = True, more

    def expected(self, key: str) -> float:
        """Seconds that a candidate is expected to take."""
        base, each, usual, own = self.usual() or 0.0, self.tried[key], self.pace.usual(), self.pace.usual(key)
        if each.measured is not None:
            return each.measured
        if each.expected is not None and own is not None:
            return own * each.expected
        mine = self.tried[self.choice].expected
        if each.expected is None or not mine:
            return UNKNOWN * base
        # The choice may be slower than was predicted, and the others not.
        return min(base / mine, math.inf if usual is None else usual) * each.expected

    def cost(self, key: str) -> float:
        """Seconds by which a run of a candidate is expected to take longer than the choice.

        A prediction is uncertain: of a candidate that is expected to take as long as the choice, half of the runs take longer.
        """
        base, expected = self.usual() or 0.0, self.expected(key)
        if self.tried[key].measured is not None or not base:
            return max(expected - base, 0.0)
        at = math.log(expected / base) / UNCERTAIN
        longer, much = 0.5 + 0.5 * math.erf(at / math.sqrt(2.0)), 0.5 + 0.5 * math.erf((at + UNCERTAIN) / math.sqrt(2.0))
        return expected * math.exp(0.5 * UNCERTAIN**2) * much - base * longer

    def waiting(self) -> list[str]:
        """Returns the candidates that are to be tried, the one expected to be fastest first."""
        base = self.usual()
        if base is None:
            return []
        found = {key: self.expected(key) for key, each in self.tried.items() if key != self.choice and not each.verdict}
        return sorted((key for key, seconds in found.items() if seconds <= MOST * base), key=found.__getitem__)

    def next(self) -> tuple[str, int]:
        """Returns the algorithm that the next timed call runs, and how many calls from now on it comes."""
        base = self.usual()
        if base is None:
            return self.choice, self._after(0.0, REPORT)
        if not self.listed:
            return self.choice, max(SEEN - self.calls, self._after(0.0, self.costs.listing + REPORT))
        if not self.trial:
            rest = self.waiting()
            if not rest:
                return self.choice, self._steady(base)
            if not self._quiet and not self.busy:
                return self.choice, self._after(0.0, REPORT)  # what is tried beside another program may take many times as long
            key = rest[0]
            cost = self.cost(key)
            after = self._after(cost, REPORT + (0.0 if key in self.prepared else self.costs.preparing))
            if after > 1:
                return self.choice, after
            self.trial, self._turn = key, False
        # The choice is timed in turn with the trial: load that comes or goes meanwhile is the same for both.
        self._turn = not self._turn
        if not self._turn:
            return self.choice, 1
        took = self.tried[self.trial].seconds()
        return self.trial, self._after(self.cost(self.trial) if took is None else max(took - base, 0.0), REPORT)

    def _steady(self, base: float) -> int:
        if self._settled is None:
            self._settled = self.account.spent, base
        return max(1, min(math.ceil(STEADY / base), FARTHEST))

    def _after(self, mine: float, shared: float) -> int:
        """Calls until so much may be spent on a trial, and so much on other work.

        How fast the time of all grows is not known: after as many calls as were waited for before, and again as many, one looks.
        """
        base, calls = self.tried[self.choice].seconds() or 0.0, 1
        lacking = mine - self.account.room(TRIALS * self.overhead)
        if mine > 0.0 and lacking > 0.0:
            calls = math.ceil(min(lacking / max(TRIALS * self.overhead * base, 1e-12), FARTHEST))
        if shared > self.costs.room(self.overhead):
            self._wait = min(2 * self._wait, max(1, math.ceil(STEADY / base)) if base else SEEN)
            calls = max(calls, self._wait)
        else:
            self._wait = 1
        return min(calls, FARTHEST)
