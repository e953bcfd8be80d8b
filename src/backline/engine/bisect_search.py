"""The search of `backline bisect`: halving of a sorted list, along the borders between libraries where that costs no run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["BAD", "GOOD", "SKIP", "Call", "middle", "search"]

GOOD, BAD, SKIP = "good", "bad", "skip"


class Call(NamedTuple):
    """One call of the script, as bisect tells calls apart; sorted, the calls of a library and of its algorithms stand together.

    Attributes
    ----------
    library, algorithm
        What runs it.
    shape
        Key of its Problem, without layouts.
    number
        Its number among the calls of that Problem, from 1 on.
    """

    library: str
    algorithm: str
    shape: str
    number: int


def middle(calls: Sequence[Call], low: int, high: int) -> int:
    """Returns where to divide the calls after `low` up to `high`: at the border of the most that belongs together, near the half.

    A border counts only where the larger part takes no more halvings than half of the calls would.

    Examples
    --------
    >>> calls = [Call("a", "x", "p", i) for i in range(5)] + [Call("b", "x", "p", i) for i in range(4)]
    >>> middle(calls, 0, 9), middle(calls, 0, 5)
    (5, 2)
    """
    half = (low + high) // 2
    most = 1 << max((high - low - 1).bit_length() - 1, 0)  # of a part, so that the number of halvings stays what it is
    allowed = [at for at in range(low + 1, high) if at - low <= most and high - at <= most]
    for fields in (1, 2, 3):  # library, algorithm, Problem
        borders = [at for at in allowed if calls[at - 1][:fields] != calls[at][:fields]]
        if borders:
            return min(borders, key=lambda at: abs(at - half))
    return half


def search(calls: Sequence[Call], outcome: Callable[[int], str]) -> tuple[int, int]:
    """Halves the calls until one is left: with the first `low` as chosen the outcome is good, with the first `high` it is bad.

    Parameters
    ----------
    calls
        All calls, in order.
    outcome
        Tells what becomes of the script where so many of them run as chosen: `GOOD`, `BAD` or `SKIP`.

    Returns
    -------
    tuple of int
        The last `low` and `high`: more than one apart where outcomes were skipped.

    Examples
    --------
    >>> calls = [Call("a", "x", "p", i) for i in range(100)]
    >>> search(calls, lambda count: BAD if count > 41 else GOOD)
    (41, 42)
    """
    low, high = 0, len(calls)
    skipped: set[int] = set()
    while high - low > 1:
        at = middle(calls, low, high)
        if at in skipped:
            left = [each for each in range(low + 1, high) if each not in skipped]
            if not left:
                break
            wanted = at
            at = min(left, key=lambda each: abs(each - wanted))
        found = outcome(at)
        if found == SKIP:
            skipped.add(at)
            continue
        low, high = (at, high) if found == GOOD else (low, at)
    return low, high
