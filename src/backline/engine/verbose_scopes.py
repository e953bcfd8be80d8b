"""Verbose scopes: what ``mkl.verbose`` and ``mkldnn.verbose`` open. The library prints its lines, and they are kept as events.

The level is a switch, so a scope is seen by its own thread or task only, though libraries keep one level for the whole process.
A plan that runs at a level of its own is a `VerbosePlan`, which sets the level around the call. The others are not touched: what
no scope asks for costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from .. import _core
from ..errors import BackendUnavailable
from ..libraries.base import Algorithm, Library, Planner, PythonPlan, planner_for
from ..libraries.verbosity_control import VerbosityControl, library_of, read_mkl, read_onednn, voice_of
from ..native import capture_stdout
from ..problems import Problem
from ..switches import Scope, Switch
from ..switches.provenance import place
from ..switches.scope_state import states
from ..switches.snapshot import overlay

__all__ = ["VerboseEvent", "VerboseLog", "VerbosePlan", "VerboseScope", "around", "prepare", "speaks", "verbose"]

_READERS: dict[str, Callable[[str], dict[str, Any]]] = {"mkl": read_mkl, "mkldnn": read_onednn}
_COLUMNS = ("library", "op", "implementation", "shapes", "dtype", "threads", "ms", "phase")
_RIGHT = ("threads", "ms")


@dataclass(frozen=True, slots=True)
class VerboseEvent:
    """One call of a library that was made to tell of it.

    Attributes
    ----------
    library, op, implementation
        Who, what was asked, and by which algorithm it was done.
    shapes
        Shapes of the operands.
    dtype
        Name of their dtype.
    threads
        Threads that the algorithm uses.
    milliseconds
        Wall time of the call, printing included.
    phase
        "execution", or "creation" where a plan was prepared.
    lines
        What the library printed during the call, line by line.
    backend
        The module of the switchboard it belongs to.
    """

    library: str
    op: str
    implementation: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    threads: int
    milliseconds: float
    phase: str = "execution"
    lines: tuple[str, ...] = ()
    backend: str = ""

    @property
    def details(self) -> list[dict[str, Any]]:
        """The lines taken apart, as far as their form is known; the rest of a line is under "text"."""
        read = _READERS.get(self.backend)
        return [read(line) if read else {"text": line} for line in self.lines]

    def row(self) -> tuple[str, ...]:
        """The cells of its row in a table."""
        shapes = " ".join("x".join(map(str, shape)) or "scalar" for shape in self.shapes)
        spent = f"{self.milliseconds:.3f}"
        return self.library, self.op, self.implementation, shapes, self.dtype, str(self.threads), spent, self.phase

    def __str__(self) -> str:
        return "  ".join(self.row())


class VerboseLog(list[VerboseEvent]):
    """The events of a verbose scope, in order; prints as a table and shows as one in a notebook.

    Examples
    --------
    >>> print(VerboseLog())
    no calls
    >>> print(VerboseLog([VerboseEvent("mkl", "matmul", "gemm", ((2, 3), (3, 4)), "float32", 1, 0.25)]))
    library  op      implementation  shapes   dtype    threads     ms  phase
    mkl      matmul  gemm            2x3 3x4  float32        1  0.250  execution
    """

    def table(self) -> str:
        """The events as text in columns."""
        if not self:
            return "no calls"
        rows = [_COLUMNS, *(event.row() for event in self)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        lines = []
        for row in rows:
            cells = zip(_COLUMNS, row, widths, strict=True)
            lines.append("  ".join(cell.rjust(w) if name in _RIGHT else cell.ljust(w) for name, cell, w in cells).rstrip())
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        from html import escape

        titles = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in event.row()) + "</tr>" for event in self)
        return f"<table><tr>{titles}</tr>{body}</table>"


class VerboseScope(Scope):
    """A scope at a verbose level. Entering it returns its log, which every event of this context is added to."""

    __slots__ = ("log",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.log = VerboseLog()

    @property
    def backend(self) -> str:
        """The module of the switchboard that opened it."""
        return self.name.removesuffix(".verbose")

    @property
    def level(self) -> int:
        """The level that it sets."""
        (level,) = self.values.values()
        return cast(int, level)

    @property
    def enable(self) -> int:
        """The same, by the name that ``mkl.verbose`` has for it."""
        return self.level

    def __enter__(self) -> VerboseLog:  # type: ignore[override]  # a scope of others returns itself
        if self.level:
            _need(self.backend, self.name)
        super().__enter__()
        return self.log


def verbose(backend: str, level: object, depth: int = 1) -> VerboseScope:
    """Return a scope in which the library of a module of the switchboard prints its calls, and which collects them.

    Parameters
    ----------
    backend
        "mkl" or "mkldnn".
    level
        0: nothing; 1: each execution; 2: also each plan that oneDNN prepares. For "mkl" also a bool.
    depth
        How many frames up the user's own line is; 1 is the caller of this function.

    Raises
    ------
    BadValue, BadType
        For another level.
    """
    name = f"{backend}.verbose"
    if backend == "mkl" and isinstance(level, (bool, np.bool_)):
        level = int(level)
    checked = Switch(name, int, 0, (0, 1, 2), doc="0 is silence, 1 tells of each call, 2 of more.").check(level)
    return VerboseScope(name, overlay(((f"{name}_level", checked),)), place(depth + 1))


def _need(backend: str, name: str) -> None:
    library = library_of(backend)
    reason = "no calls can run on it here" if library is None else library.reason()
    if reason:
        raise BackendUnavailable(
            f"{name} was asked for lines of {library.title if library else backend}, which is not available.",
            cause=reason,
            remedy=" or ".join(filter(None, [library.how_to_get if library else "", "level 0, which always works"])),
        )


# Plans ------------------------------------------------------------------------------------------------------------------------


class VerbosePlan(PythonPlan):
    """A Plan that runs another one at a verbose level of the library, and tells the scopes that are open."""

    __slots__ = ("kept_bytes",)

    def __init__(self, plan: Any, control: VerbosityControl, level: int) -> None:
        choice = plan.choice
        self.kept_bytes: int = getattr(plan, "kept_bytes", 0)

        def run(*arrays: Any, **scalars: Any) -> Any:
            return _speak(control, level, "execution", choice.problem, choice.chosen, lambda: plan(*arrays, **scalars))

        super().__init__(run, choice.problem.scalars)
        self.choice = choice


def around(plan: Any, library: Library, snapshot: Any) -> Any:
    """The plan, or one around it where the level that a Snapshot asks for is not silence, or the library's own is not."""
    control = voice_of(library)
    if control is None:
        return plan
    if isinstance(plan, _core.PreparedCall):
        plan.rwlock = control.rwlock
    level = control.level(snapshot)
    return VerbosePlan(plan, control, level) if level or control.initial_level else plan


def speaks(library: Library, snapshot: Any) -> bool:
    """Tells whether a library is to be at a verbose level of its own while it prepares a plan, as `prepare` has it."""
    control = voice_of(library)
    if control is None:
        return False
    level = control.level(snapshot)
    return level < control.initial_level or (level == 2 and control.creates)


def prepare(library: Library, problem: Problem, algorithm: Algorithm, snapshot: Any, planner: Planner) -> Any:
    """Returns the plan that a library that `speaks` prepares at the verbose level that a Snapshot asks for."""
    control = voice_of(library)
    assert control is not None

    def make() -> Any:
        return library.prepare(problem, algorithm, *planner_for(library, planner))

    return _speak(control, control.level(snapshot), "creation", problem, algorithm, make)


def _speak(
    control: VerbosityControl, level: int, phase: str, problem: Problem, algorithm: Algorithm, run: Callable[[], Any]
) -> Any:
    """Run something at a level. One thread at a time: the level and descriptor 1 belong to the whole process."""
    if not level:
        with capture_stdout.turn(), control.at(0):
            return run()
    caught = capture_stdout.Capture(control.prefixes)
    spent = 0
    try:
        with caught, control.at(level):
            start = time.perf_counter_ns()
            try:
                return run()
            finally:
                spent = time.perf_counter_ns() - start
    finally:  # a call that fails has printed, too
        scopes = _listeners(control.backend)
        if scopes:
            shapes = tuple(o.shape for o in problem.operands if not o.role.startswith("out"))
            event = VerboseEvent(
                algorithm.library, problem.op, algorithm.name, shapes, problem.dtype.name, algorithm.threads, spent * 1e-6,
                phase, tuple(caught.lines), control.backend,
            )  # fmt: skip
            for scope in scopes:
                scope.log.append(event)


def _listeners(backend: str) -> list[VerboseScope]:
    """The verbose scopes of a backend that are open in this context, each once."""
    frame = states.get(None)
    open_scopes = dict.fromkeys(layer[0] for layer in frame.layers) if frame is not None else {}
    return [scope for scope in open_scopes if isinstance(scope, VerboseScope) and scope.backend == backend]
