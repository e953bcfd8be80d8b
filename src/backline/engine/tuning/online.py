"""Learning while running: which algorithm a Problem's calls run is found out by timing real calls.

A `Learner` belongs to one Problem under one Snapshot. It is told what timed calls took, and says what the next one of them runs:
the choice, or a runner-up in its place. It knows keys of algorithms and times, neither Plans nor a clock.

Learning may take the part `benchmark_overhead` of the time that all calls took so far: what trials took beyond the time of the
choice, listing and preparing candidates, taking times, writing records. Time that was saved is not set off. A Problem may use
that part of the time of its own calls, and beyond it half of what others left, up to ten times its part: small Problems learn
what large ones pay for. A trial begins when what it is expected to cost is within that; if it takes longer, no other is made
until that is made good.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from statistics import median

from .learning_costs import Account, Costs
from .tried import Pace, Tried

__all__ = ["MARGIN", "Learner"]

SEEN = 8  # calls of a Problem before anything is tried
FEW = 3  # undisturbed times that a verdict needs,
MANY = 6  # or this many where calls take less than
SHORT = 20e-6  # seconds
FINAL = 8  # times of the choice and of each one that is about as fast, before all is settled
RIVAL = 1.1  # times the choice's time, up to which one is about as fast
LONG = 1e-3  # seconds of a call from which one time that is too long is enough
ATTEMPTS = 10  # runs of a candidate without a verdict after which it is given up
MARGIN = 0.97  # part of the choice's time that another may take at most to replace it
DISTURBED_MARGIN = 0.8  # where the times that tell so are disturbed ones
GIVE_UP = 1.1  # times the time of the choice, after which a candidate is given up at once
HOPELESS = 1.5  # the same for disturbed runs, after as many of them as a verdict needs
UNKNOWN = 1.5  # times the choice's time that is expected of a candidate that nothing is known of
UNCERTAIN = 0.35  # standard deviation of the logarithm of a time over the one that was predicted
MOST = 3.0  # times the choice's time: who is expected to take more is not tried
SLOWER = 2.0  # times what was expected of the choice: it has turned out wrong
STEADY = 0.005  # part of the time that timing calls takes when there is nothing to find out
FARTHEST = 1 << 20  # calls between timed ones
WARM = 5e-3  # seconds of a call from which its first run counts: what is done once takes little of it
CLOSE = 1.3  # times the time of the choice, within which a candidate is tried again later
PATIENCE = 0.05  # part of the time spent so far that has to pass before everything is tried again
RULE = 3  # calls in a row of the choice that began beside waiting threads, after which that is how this program runs


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
        How long candidates took beside choices in other Problems.

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
        self._beside: deque[bool] = deque(maxlen=RULE)  # whether its last calls began beside threads that waited for work
        self._final = False  # all were tried once; who is about as fast as the choice is compared with it by more calls
        self._settled: tuple[float, float] | None = None  # time spent, and time of the choice, when all were tried
        self._quiet = True  # the last timed call of the choice was not disturbed
        self._before = 0.0  # time of the choice before it became slower
        self._turn = False  # the last timed call that was planned is one of the trial
        self._wait = 1
        self._planned = 0.0  # what the trial of the next timed call is expected to cost
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

    def note(self, key: str, calls: int, seconds: float, *, disturbed: bool = False, contended: bool = False) -> None:
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
        contended
            It began while threads of another library waited for work. Where the calls of the choice do so as a rule, that is what
            calls take in this program, whatever they run; else it is a disturbance.
        """
        each = self.tried.setdefault(key, Tried())
        known = self.tried[self.choice].seconds()
        each.runs += 1
        if key == self.choice:
            self._beside.append(contended)
        disturbed = disturbed or (contended and not (len(self._beside) == RULE and all(self._beside)))
        first = each.runs == 1 and key != self.first  # what is done once takes some of it
        sound = not disturbed and (not first or seconds >= WARM or (known is not None and seconds <= known))
        (each.times if sound or (self.busy and not first) else each.disturbed).append(seconds)
        usual = min(known, seconds) if known is not None and key == self.choice else known or seconds
        cost = 0.0
        if key != self.choice:
            each.attempts += 1
            cost = max(seconds - (known or 0.0), 0.0)
        self.calls += calls
        self.costs.charge(self.account, seconds + (calls - 1) * usual, cost)
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
        each, mine, base = self.tried[key], self.tried[self.choice], self.usual()
        if base is None:
            return
        enough, margin = self._enough(), DISTURBED_MARGIN if self.busy else MARGIN
        wanted = FINAL if self._final and not self.busy else enough
        if len(each.times) >= wanted and mine.times:
            low, high = each.against(mine)
            late = max(len(each.times), each.attempts) >= min(2 * wanted, ATTEMPTS)
            if high < margin or (late and low * high < margin * margin):
                self._end(key, "")
            elif low >= margin or late:
                self._end(key, "lost")
        elif base >= SHORT and each.times and min(each.times) > self._hopeless(len(each.times), base) * base:
            self._end(key, "lost")
        elif len(each.disturbed) >= enough and median(each.disturbed) < DISTURBED_MARGIN * base:
            self._end(key, "")
        elif each.attempts >= ATTEMPTS or (len(each.disturbed) > enough and min(each.disturbed) > HOPELESS * base):
            self._end(key, "unclear")

    def _hopeless(self, count: int, base: float) -> float:
        """Times the choice's time, above which so many times of a candidate are enough."""
        return GIVE_UP if count > 1 else CLOSE if base >= LONG else math.inf

    def _end(self, key: str, verdict: str) -> None:
        each, former = self.tried[key], self.tried[self.choice]
        each.verdict, each.attempts, self.trial = verdict, 0, ""
        if not self.busy and verdict != "unclear":
            self.changed = True
            each.count()
            former.count()
            took, mine = each.seconds(), former.seconds()
            if each.expected and former.expected and took and mine and not self._final:
                self.pace.note(self.choice, key, (took / mine) / (each.expected / former.expected))
        if not verdict:
            former.verdict = "lost"
            much = self._beyond_expected(former, each)
            if much > SLOWER:
                self._demoted = f"; {self.choice} was demoted: it took {much:.1f} times what was expected of it"
            self.choice = key
            self._recent.clear()

    def _beyond_expected(self, former: Tried, new: Tried) -> float:
        """Returns what the choice took over what was expected of it, by its times before or by those of what replaces it."""
        took, beside = former.seconds() or 0.0, new.seconds() or 0.0
        if self.busy:
            return took / self._before if self._before else 0.0
        if not (former.expected and new.expected and beside):
            return 0.0
        return took / (beside * former.expected / new.expected)

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
        self.busy, self._settled, self._final = busy, None, busy
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
            Predicted time of each, the choice among them, in one unit; None where nothing is known.
        more
            Seconds that it would take to list those of further libraries.
        """
        for key, seconds in expected.items():
            self.tried.setdefault(key, Tried()).expected = seconds
        self.listed, self.more, self._settled = True, more, None

    def expected(self, key: str) -> float:
        """Seconds that a candidate is expected to take."""
        base, each, mine = self.usual() or 0.0, self.tried[key], self.tried[self.choice].expected
        if each.measured is not None:
            return each.measured
        if not each.expected or not mine:
            return UNKNOWN * base
        return base * (each.expected / mine) * self.pace.usual(self.choice, key)

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

    def _pays(self, key: str) -> bool:
        """Tells whether a few runs of a candidate may gain more than they cost, if as many calls come as there were."""
        base, expected = self.usual() or 0.0, self.expected(key)
        if self.tried[key].measured is not None:
            return expected <= RIVAL * base
        cost = self.cost(key)
        gain = cost - (expected * math.exp(0.5 * UNCERTAIN**2) - base)
        return gain * self.calls >= cost

    def waiting(self) -> list[str]:
        """Returns the candidates that are to be tried, the one expected to be fastest first."""
        base = self.usual()
        if base is None:
            return []
        found = {key: self.expected(key) for key, each in self.tried.items() if key != self.choice and not each.verdict}
        return sorted((key for key, seconds in found.items() if seconds <= MOST * base), key=found.__getitem__)

    def next(self) -> tuple[str, int]:
        """Returns the algorithm that the next timed call runs, and how many calls from now on it comes."""
        self._plan(0.0)
        base = self.usual()
        if base is None:
            return self.choice, 1 if self._affords() else self._later()
        if not self.listed:
            soon = self._affords(work=self.costs.listing)
            return self.choice, max(SEEN - self.calls, 1 if soon else self._later())
        if not self.trial:
            rest = [] if self._settled else self.waiting() or self._rivals()
            if not rest:
                return self.choice, self._steady(base)
            if not self._quiet and not self.busy:  # what is tried beside another program may take many times as long
                return self.choice, 1 if self._affords() else self._later()
            key = rest[0]
            work = 0.0 if key in self.prepared else self.costs.preparing
            if not self._affords(self.cost(key), work, borrows=self._pays(key)):
                return self.choice, self._later()
            self.trial, self._turn = key, False
        # The choice is timed in turn with the trial: load that comes or goes meanwhile is the same for both.
        self._turn = not self._turn
        if not self._turn:
            return self.choice, 1
        took = self.tried[self.trial].seconds()
        cost = self.cost(self.trial) if took is None else max(took - base, 0.0)
        if not self._affords(cost):
            self._turn = False
            return self.choice, self._later()
        self._plan(cost)
        return self.trial, 1

    def _plan(self, seconds: float) -> None:
        self.costs.plan(seconds - self._planned)
        self._planned = seconds

    def _rivals(self) -> list[str]:
        """Returns, when all were tried once, who is about as fast as the choice: few calls do not tell which is faster."""
        mine = self.tried[self.choice]
        if self._final or not mine.times:
            return []
        self._final = True
        for key, each in self.tried.items():
            if key != self.choice and each.verdict == "lost" and 0 < len(each.times) < FINAL:
                low, high = each.against(mine)
                if low * high <= RIVAL * RIVAL:
                    each.verdict, each.attempts = "", 0
        return self.waiting()

    def _steady(self, base: float) -> int:
        if self._settled is None:
            self._settled = self.account.spent, base
        return self._calls(base)

    def _calls(self, base: float) -> int:
        """Calls from one that is timed to the next where timing them may take little."""
        return max(1, min(math.ceil(self.costs.timing / (STEADY * base)), FARTHEST))

    def _affords(self, trial: float = 0.0, work: float = 0.0, *, borrows: bool = True) -> bool:
        """Tells whether so much may be spent now on a trial, and on other work."""
        if trial + work + self.costs.timing > self.costs.room(self.overhead):
            return False
        if trial > 0.0 and trial > self.costs.room(self.overhead, self.account, borrows=borrows):
            return False
        self._wait = 1
        return True

    def _later(self) -> int:
        """Calls after which one looks again whether there is room for more.

        How fast the time of all grows is not known: they are twice as many as the last time.
        """
        base = self.tried[self.choice].seconds() or 0.0
        self._wait = min(2 * self._wait, self._calls(base) if base else SEEN)
        return self._wait
