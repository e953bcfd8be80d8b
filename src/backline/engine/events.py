"""Events: what one execution did. `trace` collects them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import switches
from .choice import Choice

__all__ = ["Event", "Trace", "trace"]


@dataclass(frozen=True, slots=True)
class Event:
    """One execution.

    Attributes
    ----------
    op
        Name of the operation.
    choice
        The Choice it ran by.
    seconds
        Wall time of the Plan, without the work of choosing.
    """

    op: str
    choice: Choice
    seconds: float

    @property
    def library(self) -> str | None:
        return self.choice.library

    @property
    def bytes(self) -> int:
        return self.choice.problem.bytes

    def __str__(self) -> str:
        chosen = self.choice.chosen
        how = f"{chosen.library} {chosen.name} x{chosen.threads}" if chosen else ""
        return f"{self.seconds * 1e6:10.1f} us  {how:<24} {self.choice.problem.key}"


class Trace(list[Event]):
    """The Events of a scope, in order; prints as a table.

    A scope: entering it starts collecting in this thread or task, leaving it ends that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._outer: list[Any] = []

    def __call__(self, op: str, plan: Any, nanoseconds: int) -> None:
        self.append(Event(op, plan.choice, nanoseconds * 1e-9))
        outer = self._outer[-1] if self._outer else None
        if outer is not None:
            outer(op, plan, nanoseconds)

    def __enter__(self) -> Trace:
        self._outer.append(switches.set_tracer(self))
        return self

    def __exit__(self, *exc: object) -> None:
        switches.set_tracer(self._outer.pop())

    def by_library(self) -> dict[str, float]:
        """Seconds spent in each library."""
        found: dict[str, float] = {}
        for event in self:
            found[event.library or ""] = found.get(event.library or "", 0.0) + event.seconds
        return found

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no events"


def trace() -> Trace:
    """Return a scope that collects an Event for every operation run inside it, by this thread or task.

    Examples
    --------
    >>> import numpy as np, backline
    >>> with backline.trace() as events:
    ...     _ = backline.matmul(np.eye(3), np.eye(3))
    >>> [e.op for e in events]
    ['matmul']
    """
    return Trace()
