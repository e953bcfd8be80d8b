"""Knowledge of the algorithms that a Problem's calls ran, and of how long calls of an operation take here beside predictions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

__all__ = ["KEPT", "Pace", "Tried"]

KEPT = 15  # times kept of an algorithm


@dataclass(slots=True)
class Tried:
    """Knowledge of one algorithm.

    Attributes
    ----------
    expected
        Time by prediction, in proportion to the others'; None if nothing is known.
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

    def against(self, other: Tried) -> tuple[float, float]:
        """Returns the ratios of the least and of the median time to another's, the smaller first; of undisturbed times.

        What disturbs calls makes them longer. The least times tell what both take without it, if both had such a call; the
        medians tell what they usually take. Where both say the same, few calls are enough.

        Examples
        --------
        >>> Tried(times=deque([1.0, 1.1, 5.0])).against(Tried(times=deque([2.0, 2.2])))
        (0.5, 0.5238095238095238)
        """
        both = min(self.times) / min(other.times), median(self.times) / median(other.times)
        return min(both), max(both)

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
    """Ratios of measured to predicted times of candidates beside the choice, over the last Problems of one operation.

    Predictions are in proportion to each other, and may be of another machine. What was found of some Problems serves the others:
    where a candidate has been compared with this choice before, that counts, else what became of others beside this choice.

    Examples
    --------
    >>> pace = Pace()
    >>> for candidate, ratio in (("a", 0.5), ("a", 0.6), ("b", 0.4)):
    ...     pace.note("slow", candidate, ratio)
    >>> pace.usual("slow", "a"), pace.usual("slow", "b"), pace.usual("other", "a")
    (0.55, 0.5, 1.0)
    """

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, str], deque[float]] = {}

    def note(self, choice: str, candidate: str, ratio: float) -> None:
        """Counts a candidate's time over the choice's, over the ratio that was predicted."""
        for one in (candidate, ""):
            self._ratios.setdefault((choice, one), deque(maxlen=KEPT)).append(ratio)

    def usual(self, choice: str, candidate: str) -> float:
        """Median of a candidate beside a choice, or of all beside it; 1 where too little is known."""
        for one, enough in ((candidate, 2), ("", 3)):
            ratios = self._ratios.get((choice, one), ())
            if len(ratios) >= enough:
                return median(ratios)
        return 1.0
