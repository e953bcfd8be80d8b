"""Shadow runs: a sample of calls is computed again, by another library or in a wider format, and the results are compared.

The compiled core counts calls and hands over the one that is due, before it runs (`_core.CallSampler`). It is run here as it
would have run, and once more by the other library. What that takes is bounded: a call whose second run would exceed the budget
is not computed again, and another one is looked at later.
"""

from __future__ import annotations

import math
import random
import sys
import threading
import time
import warnings
from collections import Counter, deque
from typing import Any

import numpy as np

from .. import _core, libraries, switches
from ..errors import BacklineError, BadType, BadValue, ResultsDiffer
from ..libraries.base import Library
from ..native.moved_memory import moved_copies
from ..problems import Problem
from ..problems.op_registry import operations
from ..switches import Scope
from ..switches.provenance import steps_out
from ..switches.switch import show
from .library_remedy import SEVERAL
from .shadow_compare import WORSE, Finding, are_finite, arrays_of, compared, distance_of, judged, tolerance_of
from .shadow_records import ShadowRecord, precisions_of, remedy_for, table_of

__all__ = ["ALLOWANCE", "BUDGET", "WIDER", "Shadow", "again", "on_library", "shadow"]

ACTIONS = ("record", "warn", "raise")
WIDER = ("wider", "float64")
BUDGET = 0.02  # part of the time: with what the last comparison exceeds its estimate by, and counting, within 3 percent
ALLOWANCE = 0.05  # seconds that shadow runs may take in any case, so that short programs are looked at, too
# (loading the other library comes on top, once)
RECORDS = 10_000  # kept
LOOK = 0.01  # seconds after which calls are looked at again where one was deferred,
RARELY = 6400  # or so many calls: they may take longer from now on
NEIGHBOURS, SENSITIVE = 3, 64.0  # operands that are tried, and what a difference may be of the largest change
SETUP = 1e-3  # seconds expected for the first plan of a Problem
SPEED = 1e9  # operations, or bytes, in a second, as long as a Problem's own time is not known
WIDER_SPEED, WIDER_FLOPS = 2e9, 2e9  # the same for wider references, which compare samples of what takes more

clock = time.perf_counter


def on_library(library: str) -> Scope:
    """Returns a scope in which one library runs what it can, whatever the switches prefer or demand; the rest is `NoKernel`."""
    alone: dict[str, object] = {"only": (library,), "prefer": (), "fallback": "allow"}
    return switches.make_scope("shadow", {**alone, "deterministic": False, "benchmark": False, "max_error": math.inf}, depth=2)


def again(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], library: str) -> Any:
    """Runs a call on one library; nothing is traced, and `out` not written to."""
    at = _place_of_out(operation)
    args = tuple(None if i == at else a for i, a in enumerate(args))
    kwargs = {name: value for name, value in kwargs.items() if name != "out"}
    outer = switches.set_tracer(None)
    try:
        with on_library(library):
            return operation(*args, **kwargs)
    finally:
        switches.set_tracer(outer)


class Shadow:
    """A scope whose calls are sampled, computed again and compared; prints as a table of what was found.

    Made by `backline.shadow`, for ``with`` and ``async with``. It holds in this thread or task and in tasks that these start.

    Attributes
    ----------
    records
        A `ShadowRecord` for each call that was compared, the last 10,000.
    calls
        How many calls were compared.
    deferred
        How many were due and not computed again, because that would have exceeded the budget.
    already
        How many were due and not computed again, because `against` itself had run them.
    uncompared
        Keys of Problems that could not be computed again or compared, with the reason.
    """

    def __init__(self, against: str, every: int, tolerance: float | None, action: str, budget: float | None) -> None:
        self.against, self.every, self.tolerance, self.action, self.budget = against, every, tolerance, action, budget
        self.records: deque[ShadowRecord] = deque(maxlen=RECORDS)
        self.calls = self.deferred = self.already = 0
        self.uncompared: dict[str, str] = {}
        self._drifted: list[ShadowRecord] = []
        self._interval, self._scheduled, self._looked = every, every, clock()
        self._random = random.Random(0)
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        self._expected: dict[str, float] = {}  # seconds that a Problem took to compute again
        self._spent = self._before = 0.0
        self._loading = 0.0  # of what was spent, the part that is not counted against the budget
        self._open: list[tuple[float, Any]] = []
        self._told: set[tuple[str, str]] = set()

    # The scope ---------------------------------------------------------------------------------------------------------

    def sampler(self, outer: Any = None) -> _core.CallSampler:
        """Returns what the compiled core counts calls with; `outer` listens to their Events."""
        return _core.CallSampler(self._due, 0 if self._all else self._random.randint(1, self.every), outer)

    @property
    def _all(self) -> bool:
        return self.every == 1 and self.budget is None

    def __enter__(self) -> Shadow:
        outer = switches.tracer()
        self._open.append((clock(), outer))
        switches.set_tracer(self.sampler(outer))
        return self

    def __exit__(self, *exc: object) -> None:
        since, outer = self._open.pop()
        switches.set_tracer(outer)
        if not self._open:
            self._before += clock() - since

    async def __aenter__(self) -> Shadow:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        self.__exit__(*exc)

    # What was found ----------------------------------------------------------------------------------------------------

    @property
    def worst(self) -> ShadowRecord | None:
        """The record whose difference is largest as a part of its tolerance, those that drift first; None without any."""
        return max([*self.records, *self._drifted], key=lambda r: (r.drifts, r.part), default=None)

    @property
    def drifted(self) -> list[ShadowRecord]:
        """The records beyond their tolerance, in the order of the calls."""
        return list(self._drifted)

    @property
    def overhead(self) -> float:
        """Time of shadow runs, as a part of the time of the scope without them."""
        return self._spent / max(self._elapsed() - self._spent, 1e-9)

    def table(self) -> str:
        """Returns a table: a row for each Problem and algorithm, the largest part of its tolerance first."""
        rows = [("calls", "worst", "tolerance", "verdict", "runs on", "problem"), *table_of(self.records)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip() for row in rows]
        if not self.records:
            lines = [f"nothing was compared: {self._why_nothing()}"]
        lines += [f"not compared: {key}: {reason}" for key, reason in self.uncompared.items()]
        if self.deferred:
            lines.append(f"calls deferred to keep to the budget: {self.deferred}")
        if self.already:
            lines.append(f"calls that {self.against} itself ran: {self.already}")
        return "\n".join(lines)

    def _why_nothing(self) -> str:
        reasons = (
            (self.deferred, "the budget deferred what was due"),
            (self.already, f"{self.against} itself ran what was due"),
            (len(self.uncompared), "what was due could not be computed again"),
        )
        return "; ".join(reason for count, reason in reasons if count) or "no call was due"

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        if not self.calls:
            return f"<Shadow against {self.against}: nothing was compared: {self._why_nothing()}>"
        count = len(self._drifted)
        found = f"{self.calls} call{'s' * (self.calls != 1)} compared, {count} drift{'s' * (count == 1)}"
        return f"<Shadow against {self.against}: {found}; print() shows them>"

    # A call that is due ------------------------------------------------------------------------------------------------

    def _elapsed(self) -> float:
        return self._before + sum(clock() - since for since, _ in self._open[:1])

    def _due(self, sampler: Any, operation: Any, plan: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begin = clock()
        choice = plan.choice
        problem: Problem = choice.problem
        key = problem.key
        with self._lock:
            goes_on = self._goes_on(choice, key, begin)
            if not self._all:
                self._scheduled, self._looked = self._random.randint(1, 2 * self._interval - 1), begin
                sampler.after(self._scheduled)
            if not goes_on:
                self._spent += clock() - begin
        if not goes_on:
            return operation(*args, **kwargs)
        given, named = args, kwargs
        if _writes(operation, problem, args, kwargs):
            given, named = moved_copies((args, kwargs), 0)  # with the same strides, which the Problem has
        other: Any = None
        reason = ""
        if self.against not in WIDER:
            other, reason = self._other(operation, problem, given, named, self.against)
        between = clock()
        result = operation(*args, **kwargs)  # its Event goes to whoever listens beside this
        after = clock()
        if reason:
            self.uncompared[key] = reason
        else:
            finding = self._compared(operation, choice, given, named, result, other)
            if finding is None:
                self.uncompared[key] = "there is no reference in a wider format for it"
        seconds = between - begin + clock() - after
        with self._lock:
            self._spent += seconds
            usual = seconds if self._expected else min(seconds, self._guess(problem))
            if not self._expected:
                self._loading = seconds - usual
            self._expected[key] = usual
        if not reason and finding is not None:
            self._note(self._record(choice, result, finding, seconds))
        return result

    def _goes_on(self, choice: Any, key: str, now: float) -> bool:
        """Tells whether a call is computed again, and how rarely calls are looked at from now on."""
        if choice.library == self.against:
            self.already += 1
            return False
        if key in self.uncompared:
            return False
        if self.budget is None:
            return True
        expected = self._expected.get(key) or self._guess(choice.problem)
        if self._spent - self._loading + expected > max(ALLOWANCE, self.budget * (self._elapsed() - self._spent)):
            self.deferred += 1
            rate = self._scheduled / max(now - self._looked, 1e-9)
            self._interval = max(self.every, min(int(rate * LOOK), RARELY))
            return False
        self._interval = self.every
        return True

    def _guess(self, problem: Problem) -> float:
        if self.against in WIDER:
            return 2 * SETUP + min(problem.flops, WIDER_FLOPS) / WIDER_SPEED + problem.bytes / SPEED
        return SETUP + (problem.flops + problem.bytes) / SPEED

    def _other(
        self, operation: Any, problem: Problem, args: tuple[Any, ...], kwargs: dict[str, Any], library: str
    ) -> tuple[Any, str]:
        """The result of another library, or None and why there is none."""
        if problem.parameter("overwrite"):
            args, kwargs = moved_copies((args, kwargs), 0)
        try:
            return again(operation, args, kwargs, library), ""
        except (BacklineError, np.linalg.LinAlgError) as error:
            return None, f"{library} cannot run it: {str(error).splitlines()[0]}"

    def _compared(
        self, operation: Any, choice: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, other: Any
    ) -> Finding | None:
        problem, arrays = choice.problem, arrays_of(args, kwargs)
        allowed = self._allowed(choice, result)
        if self.against not in WIDER:
            found = compared(problem, arrays, result, other, allowed, self.tolerance is not None)
            return self._confirmed(found, operation, problem, args, kwargs, result, other)
        if self.against == "float64" and problem.dtype.itemsize >= (16 if problem.dtype.kind == "c" else 8):
            return None
        errors = judged(problem, arrays, result)
        if errors is None:
            return None
        error = errors[0]
        finite = error > allowed and are_finite(problem, arrays)
        if not finite or self.tolerance is not None:
            return Finding(error, finite)
        if choice.library == "numpy":
            return self._confirmed(Finding(error, math.isfinite(error)), operation, problem, args, kwargs, result, result)
        # The operands may be such that nobody does better: then NumPy does not, either.
        other, reason = self._other(operation, problem, args, kwargs, "numpy")
        theirs = None if reason else judged(problem, arrays, other)
        found = Finding(error, theirs is None or error > WORSE * theirs[0])
        return found if theirs is None else self._confirmed(found, operation, problem, args, kwargs, result, other)

    def _confirmed(
        self, found: Finding, operation: Any, problem: Problem, args: tuple[Any, ...], kwargs: dict[str, Any],
        result: Any, other: Any,
    ) -> Finding:  # fmt: skip
        """The finding, or one that does not drift where the operands' own rounding explains it, as for a norm that is near zero.

        Checks of libraries' own operations know ill-conditioned operands; those of composed ones compare values alone.
        """
        row = operations.get(problem.op)
        if not found.drifts or row is None or not callable(row.check) or self.tolerance is not None:
            return found
        rng, most = np.random.default_rng(1), 0.0
        for _ in range(NEIGHBOURS):

            def near(value: Any) -> Any:
                if isinstance(value, tuple):
                    return tuple(map(near, value))
                if not isinstance(value, np.ndarray) or value.dtype.kind not in "fc":
                    return value
                signs = rng.integers(0, 2, value.shape).astype(value.real.dtype) * 2 - 1
                return value * (1 + signs * np.finfo(value.dtype).eps)

            named = {name: near(value) for name, value in kwargs.items()}
            library = "numpy" if self.against in WIDER else self.against
            there, reason = self._other(operation, problem, tuple(map(near, args)), named, library)
            most = math.inf if reason else max(most, distance_of(problem, there, other))  # such as a matrix that is singular then
        apart = found.difference if result is other else distance_of(problem, result, other)
        return Finding(found.difference, not apart <= SENSITIVE * most)

    def _allowed(self, choice: Any, result: Any) -> float:
        return self._rounding(choice, result) if self.tolerance is None else self.tolerance

    def _rounding(self, choice: Any, result: Any) -> float:
        return max(tolerance_of(choice.problem, precision, result) for precision in precisions_of(choice))

    def _record(self, choice: Any, result: Any, finding: Finding, seconds: float) -> ShadowRecord:
        problem = choice.problem
        with self._lock:
            self._numbers[problem.key] += 1
            number = self._numbers[problem.key]
        return ShadowRecord(
            problem.op, problem.key, choice.library or SEVERAL, choice.algorithm or "", self.against, number, finding.difference,
            self._allowed(choice, result), self._rounding(choice, result), finding.drifts, seconds,
        )  # fmt: skip

    def _note(self, record: ShadowRecord) -> None:
        with self._lock:
            self.calls += 1
            self.records.append(record)
            if not record.drifts:
                return
            if len(self._drifted) < RECORDS:
                self._drifted.append(record)
            known = (record.key, record.runs_on()) in self._told
            self._told.add((record.key, record.runs_on()))
        if self.action == "raise":
            raise ResultsDiffer(
                f"{record.key}: {record.runs_on()} and {record.against} differ by {record.difference:.1e}",
                cause=("" if self.tolerance is None else f"tolerance={self.tolerance:g}; ")
                + f"rounding explains {record.rounding:.1e}",
                remedy=remedy_for(record),
            )
        if self.action == "warn" and not known:
            warnings.warn(f"{record}; {remedy_for(record)}", RuntimeWarning, stacklevel=steps_out())


def _writes(operation: Any, problem: Problem, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tells whether a call writes to one of its arrays."""
    at = _place_of_out(operation)
    return bool(kwargs.get("out") is not None or args[at : at + 1] not in ((), (None,)) or problem.parameter("overwrite"))


def _place_of_out(operation: Any) -> int:
    """Returns the place of `out` among the arguments by position; one behind all where it has none."""
    signature = getattr(operation, "__signature__", None)
    if signature is None:
        names = list(operation.parameters)
    else:
        names = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    return names.index("out") if "out" in names else sys.maxsize - 1


def shadow(
    against: str = "numpy", *, every: int = 100, tolerance: float | None = None, action: str = "record",
    budget: float | None = BUDGET,
) -> Shadow:  # fmt: skip
    """Returns a scope in which a sample of calls is computed again, by another library or in a wider format, and compared.

    Parameters
    ----------
    against
        The library that computes them again; or "wider": results are compared with a reference of at least 11 bits more,
        "float64" the same for results coarser than float64 only.
    every
        One call in so many is computed again, on average: which one is random, so that no period of a program hides others.
    tolerance
        The largest relative difference that is allowed. By default what rounding explains, for the number of terms, the dtype and
        the precision of the algorithm.
    action
        What is done about a larger one: "record" keeps it, "warn" says so, once for each Problem and algorithm, "raise" raises
        `ResultsDiffer`.
    budget
        The part of the time that this may take, from 0 to 1. A call is not computed again where that would exceed it, and the
        next one is looked at later. None for no bound.

    Returns
    -------
    Shadow
        A scope for ``with`` and ``async with``: ``records``, ``worst``, ``drifted`` and ``table()`` tell what was found.

    Raises
    ------
    BadValue, BadType
        Another library, number or word than these.
    ResultsDiffer
        Inside of the scope, after a call whose result drifts, where `action` is "raise".

    Notes
    -----
    Results that differ by more than the tolerance may both be right, as signs of singular vectors are, or the best that can be
    had of ill-conditioned operands. They are judged by a wider reference or by what they must satisfy, and count as drifting only
    if the judgement is above the tolerance and four times that of the other library. Where operands hold NaN or infinity, nothing
    counts as drifting. Calls that draw a seed are not computed again, nor those that `against` itself runs.

    Shadow runs may take 0.05 s in any case, and may exceed the bound by one call, after which as much time passes without one.
    What the first one takes longer than expected, to load the other library, is not counted. While nothing is shadowed, calls
    cost nothing more. A scope in which nothing was compared has no drifts either: look at ``records`` as well.

    Examples
    --------
    >>> import numpy as np, backline
    >>> x = np.arange(12.0).reshape(3, 4)
    >>> with backline.shadow("wider", every=1, action="raise", budget=None) as s:
    ...     _ = backline.matmul(x, x.T)
    >>> s.calls, s.worst.key, s.drifted
    (1, 'matmul f64 3x4 4x3:F', [])
    """
    if not isinstance(against, str):
        raise BadType(f"shadow(against={show(against)}) is no name", remedy='a library, such as "numpy", or "wider"')
    if against not in WIDER:
        library: Library = libraries.get(against)  # or an error that lists the names
        if not library.available():
            raise BadValue(f"shadow({against!r}): it is not available", cause=library.reason(), remedy='"numpy" is always there')
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise BadValue(f"shadow(every={show(every)}) is no number of calls", remedy="1 or more: every=100")
    for name, value in (("tolerance", tolerance), ("budget", budget)):
        if value is not None and not (isinstance(value, (int, float)) and value >= 0):
            raise BadValue(f"shadow({name}={show(value)}) is not a number from 0 on", remedy=f"such as {name}=0.01, or None")
    if budget is not None and budget > 1:
        raise BadValue(f"shadow(budget={show(budget)}) is more than all of the time", remedy="such as budget=0.03, or None")
    if action not in ACTIONS:
        raise BadValue(f"shadow(action={show(action)}) is not a legal value", remedy='"record", "warn" or "raise"')
    return Shadow(against, every, tolerance, action, budget)
