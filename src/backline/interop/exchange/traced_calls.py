"""Exchanged calls as Events of a trace: a trace that begins while an exchange holds shows them as well.

There is one Event for each routine, library, and set of sizes and flags, with the number of calls as a parameter of its Problem
and the time of all of them. They come at the end of the trace, and they are those of all threads, for an exchange belongs to
the process.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...engine.choice import Candidate, Choice
from ...engine.events import Event
from ...libraries.base import Algorithm
from ...problems import Operand, Problem
from . import exchange_state, recorded_calls, routines, targets
from .choices import ORIGINAL
from .recorded_calls import Recorded
from .routines import Symbol
from .signatures import Call

__all__ = ["begin", "problem_of"]

_DTYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128, "": np.float64}


def begin() -> Callable[[], list[Event]] | None:
    """Starts recording if an exchange holds; returns a function that ends it and returns the Events."""
    if exchange_state.layer() is None:
        return None
    recording = recorded_calls.recording().__enter__()

    def end() -> list[Event]:
        rows = recording.calls()
        recording.__exit__()
        return [_event(row) for row in rows]

    return end


def _event(row: Recorded) -> Event:
    layer = exchange_state.layer()
    library = row.package if row.library == ORIGINAL else row.library
    threads = targets.threads()
    algorithm = Algorithm(
        library=library, name=row.symbol.routine, threads=threads, scaled=True, level="off", basis="construction"
    )
    why = f"exchanged for {layer.choice}" if layer else "an exchange that has ended"
    candidate = Candidate(library, algorithm.name, "chosen", why, detail=algorithm)
    problem = problem_of(row.symbol, row.call, (*_parameters(row.call), ("calls", row.count)))
    choice = Choice(problem, algorithm, [candidate], f"the exchange: {layer.choice}" if layer else "an exchange", threads)
    return Event(f"exchanged.{row.symbol.routine}", choice, row.seconds)


def _parameters(call: Call | None) -> tuple[tuple[str, object], ...]:
    return () if call is None else (*call.flags.items(), *call.integers.items())


def problem_of(symbol: Symbol, call: Call | None, parameters: tuple[tuple[str, object], ...]) -> Problem:
    """Returns a Problem that describes calls of a routine; where sizes are not known, its operand is empty."""
    dtype = np.dtype(_DTYPES[routines.letter(symbol.routine)])
    operands = []
    if call is not None:
        for name in call.signature.extents:
            shape = call.extent(name)
            strides = (dtype.itemsize, dtype.itemsize * call.integers.get(f"ld{name}", 1))[: len(shape)]
            if call.flags.get("order") == "101":
                strides = strides[::-1]
            operands.append(Operand(name, dtype, shape, strides, True))
    if not operands:
        operands.append(Operand("a", dtype, (0,), (dtype.itemsize,), True))
    return Problem(f"exchanged.{symbol.routine}", tuple(operands), parameters, "linalg")
