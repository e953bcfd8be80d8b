"""Events: what one execution did. `trace` collects them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import get_ident
from time import time_ns
from typing import Any, cast

from .. import switches
from ..errors import BadType
from ..switches.scope_state import states
from . import trace_export, trace_facts
from .choice import Choice
from .text_table import SHOWN, TextTable

__all__ = ["Event", "Trace", "sources", "trace"]


sources: list[Callable[[], Callable[[], Iterable[Event]] | None]] = []
"""Further sources of a trace: functions that are called when it begins.

Each returns None, or a function that returns its Events when the trace ends."""

_scope_state = states.get


@dataclass(frozen=True, slots=True, repr=False)
class Event:
    """One execution; prints as a line. What is more than a time and a reference is worked out when it is read.

    Attributes
    ----------
    op
        Name of the operation.
    choice
        The Choice it ran by.
    seconds
        Wall time of the Plan, without the work of choosing.
    ended
        When it ended, in nanoseconds since 1970; 0 where the event stands for several calls.
    thread
        Number of the thread that ran it, as `threading.get_ident` has it.
    planned
        True where its Plan was made for this call, False where it was there already.
    """

    op: str
    _source: Any
    seconds: float
    ended: int = 0
    thread: int = 0
    planned: bool = False
    _state: Any = field(default=None, compare=False)

    @property
    def choice(self) -> Choice:
        source = self._source
        if type(source) is tuple:  # of a template's Plan: it takes longer to write down than the call may have taken
            function, argument = source
            source = function(argument)
            object.__setattr__(self, "_source", source)
        return cast(Choice, source)

    @property
    def library(self) -> str | None:
        return self.choice.library

    @property
    def bytes(self) -> int:
        """Bytes of all arrays of the call."""
        return self.choice.problem.bytes

    @property
    def flops(self) -> float:
        """Floating-point operations of the usual algorithm; 0 where they are not counted."""
        return trace_facts.flops(self.choice)

    @property
    def gflops(self) -> float | None:
        """10^9 floating-point operations a second; None where they are not counted."""
        return trace_facts.gflops(self.flops, self.seconds)

    @property
    def of_peak(self) -> float | None:
        """The rate as a part of the highest that was measured on this machine; None where that was not measured."""
        return trace_facts.of_peak(self.choice, self.gflops)

    @property
    def precision(self) -> str:
        """The precision that it was computed in."""
        return self.choice.effective_precision

    @property
    def determinism(self) -> str:
        """The level that the algorithm reaches: "off", "run" or "threads"."""
        return self.choice.chosen.level if self.choice.chosen else "off"

    @property
    def provenance(self) -> dict[str, tuple[str, str]]:
        """Switches that differed from their defaults: name to value and origin, which is a scope, an assignment, a file, ..."""
        return trace_facts.provenance(self._state)

    def as_dict(self) -> dict[str, Any]:
        """Returns the event as JSON takes it."""
        return trace_facts.as_dict(self)

    def _cells(self) -> tuple[str, ...]:
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
    """The Events of a scope, in order; prints as a list and shows as a table in a notebook.

    A scope, for ``with`` and ``async with``: entering it starts collecting in this thread or task, leaving it ends that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._outer: list[Any] = []
        self._ends: list[list[Callable[[], Iterable[Event]]]] = []
        self._last = 0
        self._log: tuple[logging.Logger, int] | None = None

    def __call__(self, op: str, plan: Any, nanoseconds: int) -> None:
        ended = time_ns()
        source, planned = trace_facts.seen(plan, self._last)
        self._last = ended
        event = Event(op, source, nanoseconds * 1e-9, ended, get_ident(), planned, _scope_state(None))
        self.append(event)
        if self._log is not None:
            logger, level = self._log
            logger.log(level, "%s", event)
        outer = self._outer[-1] if self._outer else None
        if outer is not None:
            outer(op, plan, nanoseconds)

    def __enter__(self) -> Trace:
        self._ends.append([end for begin in sources if (end := begin()) is not None])
        self._last = time_ns()
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

    def logged(self, logger: str | logging.Logger = "backline", level: int = logging.DEBUG) -> Trace:
        """Has every event written to a logger of the standard library as it ends.

        Parameters
        ----------
        logger
            The logger, or its name.
        level
            Level of the records. Where the logger is not enabled for it now, nothing is written.

        Returns
        -------
        Trace
            This one, so that it can stand in a ``with`` statement. Each record's argument is the `Event`.

        Raises
        ------
        BadType
            The level is no number.

        Examples
        --------
        >>> import numpy as np, backline
        >>> with backline.trace().logged(level=10) as events:
        ...     _ = backline.matmul(np.eye(3), np.eye(3))
        """
        if not isinstance(cast(Any, level), int):
            raise BadType(f"logged takes a level as a number, not {level!r}", remedy="such as logging.INFO")
        target = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._log = (target, level) if target.isEnabledFor(level) else None
        return self

    def by_library(self) -> dict[str, float]:
        """Seconds spent in each library."""
        found: dict[str, float] = {}
        for event in self:
            found[event.library or ""] = found.get(event.library or "", 0.0) + event.seconds
        return found

    def table(self) -> TextTable:
        """Returns a row for each event: time, rate, what ran it, how precise and reproducible that is, what was computed.

        Examples
        --------
        >>> import numpy as np, backline
        >>> with backline.trace() as events:
        ...     _ = backline.matmul(np.eye(3), np.eye(3))
        >>> events.table().heads[:3]
        ('time', 'GFLOP/s', 'of peak')
        """
        return trace_export.table(self)

    def summary(self) -> TextTable:
        """Returns a row for each operation and library, the most time-consuming first: calls, time, rate, precision, level.

        Examples
        --------
        >>> import numpy as np, backline
        >>> with backline.trace() as events:
        ...     for _ in range(5):
        ...         _ = backline.matmul(np.eye(3), np.eye(3))
        >>> [row[2] for row in events.summary().rows]
        ['5']
        """
        return trace_export.summary(self)

    def to_json(self, file: str = "") -> str:
        """Returns the events as JSON, with the machine and its measured peaks; writes them to a file, too, if one is named.

        Examples
        --------
        >>> import json, numpy as np, backline
        >>> with backline.trace() as events:
        ...     _ = backline.matmul(np.eye(3), np.eye(3))
        >>> json.loads(events.to_json())["events"][0]["problem"]
        'matmul f64 3x3 3x3'
        """
        return trace_export.written(trace_export.to_json(self), file)

    def to_chrome(self, file: str = "") -> str:
        """Returns the events in Chrome's trace event format, which https://ui.perfetto.dev and chrome://tracing open.

        Events that stand for several calls have no place in time and are left out; ``otherData`` says how many.

        Examples
        --------
        >>> import json, numpy as np, backline
        >>> with backline.trace() as events:
        ...     _ = backline.matmul(np.eye(3), np.eye(3))
        >>> [e["name"] for e in json.loads(events.to_chrome())["traceEvents"] if e["ph"] == "X"]
        ['matmul']
        """
        return trace_export.written(trace_export.to_chrome(self), file)

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no events"

    def __repr__(self) -> str:
        count, total = len(self), sum(event.seconds for event in self)
        return f"<Trace of {count} operation{'' if count == 1 else 's'}, {total * 1e3:.3g} ms; print() lists them>"

    def _repr_html_(self) -> str:
        from html import escape

        spent = "; ".join(f"{escape(name)} {seconds * 1e3:.3g} ms" for name, seconds in self.by_library().items())
        return f"<p>{spent or 'no events'}</p>{trace_export.table(self[:SHOWN], len(self))._repr_html_()}"


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
