"""The order of candidates where more than their times counts: preferences, and the same bits on any number of threads."""

from __future__ import annotations

from typing import Any

from ..libraries.base import Algorithm
from ..problems import Problem
from . import policy, ranking

__all__ = ["for_any_threads", "put_first"]


def put_first(order: list[Algorithm], prefer: tuple[str, ...], snapshot: Any) -> None:
    """Sorts by what switches give precedence, then by the libraries that are preferred."""
    order.sort(key=lambda a: policy.priority(a, snapshot))
    if prefer:
        order.sort(key=lambda a: prefer.index(a.library) if a.library in prefer else len(prefer))


def _kind(a: Algorithm) -> tuple[str, str]:
    """Returns what algorithms have in common that give the same bits: of a batch that is divided, each item is computed alone."""
    return a.library, a.name.replace("_items", "")


def for_any_threads(
    order: list[Algorithm], problem: Problem, alone: list[Algorithm], shared: list[Algorithm], prefer: tuple[str, ...],
    snapshot: Any,
) -> list[Algorithm]:  # fmt: skip
    """Puts first what comes first among what runs both `alone`, on one thread, and `shared` among several with the same bits.

    Each candidate promises the same bits for any thread count; two of them do not promise the same bits as each other. So the
    number of threads that a call may use must not decide between them: they are compared as they would run on several, and what
    only runs on one thread takes part as such.
    """
    on_one = {_kind(a) for a in alone}
    both = ranking.sort(problem, [a for a in (*shared, *alone) if _kind(a) in on_one], own=False)
    put_first(both, prefer, snapshot)
    if not both:
        return order
    kind = _kind(both[0])
    same = [a for a in order if _kind(a) == kind] or [a for a in alone if _kind(a) == kind]
    same.sort(key=lambda a: not a.scaled)
    return [*same, *(a for a in order if a not in same)]
