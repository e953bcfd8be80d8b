"""Events: what one execution did. `trace` collects them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .. import switches
from .choice import Choice

__all__ = ["Event", "Trace", "sources", "trace"]


SHOWN = 200  # events that a notebook shows, at the most

sources: list[Callable[[], Callable[[], Iterable[Event]] | None]] = []
"""Further sources of a trace: functions that are called when it begins.

Each returns None, or a function that returns its Events when the trace ends."""


@dataclass(frozen=True, slots=True, repr=False)
class Event:
    """One execution; prints as a line.

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

    def _cells(self) -> tuple[str, str, str]:
        """Time, what it ran on, what was computed."""
        chosen = self.choice.chosen
        how = f"{chosen.library} {chosen.name} x{chosen.threads}" if chosen else ""
        how += ", a trial" if self.choice.trial else ""
        return f"{self.seconds * 1e6:.1f} us", how, self.choice.problem.key

    def __str__(self) -> str:
        time, how, key = self._cells()
        return f"{time:>13}  {how:<24} {key}"

    def __repr__(self) -> str:
        time, how, key = self._cells()
        return f"<Event {key}: {how}, {time}>"


class Trace(list[Event]):
    """The Events of a scope, in order; prints as a table and shows as one in a notebook.

    A scope, for ``with`` and ``async with``: entering it starts collecting in this thread or task, leaving it ends that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._outer: list[Any] = []
        self._ends: list[list[Callable[[], Iterable[Event]]]] = []

    def __call__(self, op: str, plan: Any, nanoseconds: int) -> None:
        self.append(Event(op, plan.choice, nanoseconds * 1e-9))
        outer = self._outer[-1] if self._outer else None
        if outer is not None:
            outer(op, plan, nanoseconds)

    def __enter__(self) -> Trace:
        self._ends.append([end for begin in sources if (end := begin()) is not None])
        self._outer.append(switches.set_tracer(self))
        return self

    def __exit__(self, *exc: object) -> None:
        switches.set_tracer(self._outer.pop())
        for end in self._ends.pop():
            self.extend(end())

    async def __aenter__(self) -> Trace:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        self.__exit__(*exc)

    def by_library(self) -> dict[str, float]:
        """Seconds spent in each library."""
        found: dict[str, float] = {}
        for event in self:
            found[event.library or ""] = found.get(event.library or "", 0.0) + event.seconds
        return found

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no events"

    def __repr__(self) -> str:
        count, total = len(self), sum(event.seconds for event in self)
        return f"<Trace of {count} operation{'' if count == 1 else 's'}, {total * 1e3:.3g} ms; print() lists them>"

    def _repr_html_(self) -> str:
        from html import escape

        titles = "".join(f"<th>{title}</th>" for title in ("time", "runs on", "problem"))
        rows = ["".join(f"<td>{escape(cell)}</td>" for cell in event._cells()) for event in self[:SHOWN]]
        if len(self) > SHOWN:
            rows.append(f"<td colspan='3'>and {len(self) - SHOWN} more</td>")
        spent = "; ".join(f"{escape(name)} {seconds * 1e3:.3g} ms" for name, seconds in self.by_library().items())
        return f"<p>{spent or 'no events'}</p><table><tr>{titles}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


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
