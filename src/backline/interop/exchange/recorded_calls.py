"""Records the calls that NumPy and SciPy make of BLAS and LAPACK: routine, sizes, flags, leading dimensions, how often, how long.

A recorder stands before every function that is called through a slot, whichever library it belongs to. It costs about 80 ns a
call, and memory that does not grow. Of routines that `signatures` does not have, and of calls whose sizes do not fit any more,
only number and time are known. What is recorded may be kept in a file, in which a process that is killed leaves it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from ... import _exchange
from ...errors import LibraryFailed
from ...native import loading
from . import exchange_state, signatures
from .choices import ORIGINAL, Choice, Decision
from .loaded_objects import Slot
from .routines import Symbol
from .signatures import Call

__all__ = ["Recorded", "Recording", "calls", "merged", "paused", "read_file", "record_in_file", "recording"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Calls of one routine with the same sizes and flags.

    Attributes
    ----------
    package : str
        "numpy" or "scipy".
    symbol : Symbol
        What was called.
    library : str
        The library that was chosen for it; with a threshold, small calls stayed with the package's own.
    call : Call or None
        Sizes and flags; None where they are not known.
    count : int
        Number of calls.
    seconds, least : float
        Seconds in all, and of the shortest; 0 where that is not known.
    rounded : bool
        Whether the sizes are rounded up, because there were too many different ones.
    """

    package: str
    symbol: Symbol
    library: str
    call: Call | None
    count: int
    seconds: float
    least: float = 0.0
    rounded: bool = False

    @property
    def key(self) -> str:
        """The call as the key of a tuning record: with sizes and flags by name."""
        name = f"exchanged {self.package}.{self.symbol.routine} {self.symbol.interface}{8 * self.symbol.width}"
        return f"{name} {self.call}" if self.call else name


_About = tuple[str, Symbol, str]  # package, routine and library of a recorder
_made: dict[tuple[int, _About], int] = {}  # addresses of recorders, by the function that they stand before
_users = 0


def _name_of(about: _About) -> str:
    """The name of a recorder: what is written with its calls."""
    package, symbol, library = about
    return f"{package} {symbol.routine} {symbol.interface} {symbol.width} {symbol.bundled:d} {library}"


@cache
def _about(name: str) -> _About | None:
    """Returns what a recorder's name says; None for one of a damaged file."""
    words = name.split(" ")
    if len(words) != 6 or words[2] not in ("fortran", "cblas") or words[3] not in ("4", "8"):
        return None
    package, routine, interface, width, bundled, library = words
    return package, Symbol(routine, interface, int(width), bundled == "1"), library


def _recorder(package: str, slot: Slot, library: str, function: int) -> int:
    """Returns the address of the recorder before a function."""
    symbol = slot.symbol
    about = package, symbol, library
    key = function, about
    if key not in _made:
        signature = signatures.find(symbol.routine, symbol.interface)
        mode = (2 if symbol.interface == "cblas" else 0) + (symbol.width == 8)
        flags, integers, query, words = b"", b"", -1, -1
        if signature is not None:
            flags, integers = (bytes(map(signature.position, names)) for names in (signature.flags, signature.integers))
            query = signature.position("lwork") if "lwork" in signature.arguments else -1
            words = signature.words()
        address = _exchange.recorder(function, mode, flags, integers, query, words, _name_of(about))
        if not address:
            raise LibraryFailed(
                "calls of NumPy and SciPy are not recorded", cause=f"all {len(_made)} recorders of this process are in use",
                remedy="record in a process of its own, or exchange for fewer libraries and thresholds in one process",
            )  # fmt: skip
        _made[key] = address
    return _made[key]


def _recorded(decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """Returns decisions by which every call passes a recorder; one of a shim's stands before the shim."""
    return tuple(
        replace(d, address=_recorder(d.module.package, d.slot, d.library, d.address or d.slot.function), shim=False)
        if d.address or d.slot.function
        else d
        for d in decisions
    )


class Recording:
    """A scope in which calls are recorded, in all threads: what `recording` returns.

    Examples
    --------
    >>> import numpy as np
    >>> with recording() as record:
    ...     _ = np.ones((30, 20)) @ np.ones((20, 10))
    >>> [(r.symbol.routine, r.call.integers["m"], r.count) for r in record.calls() if r.symbol.routine == "dgemm"]
    [('dgemm', 30, 1)]
    """

    def __init__(self) -> None:
        self._layer: exchange_state.Layer | None = None
        self._before: dict[tuple[str, str], Recorded] = {}

    def __enter__(self) -> Recording:
        global _users
        with loading.lock():
            if exchange_state.layer() is None:
                self._layer = exchange_state.Layer(Choice((("*", ORIGINAL),), title="recording"), keep_pools=True)
                exchange_state.push(self._layer)
            if _users == 0:
                exchange_state.record_by(_recorded)
            _users += 1
        self._before = _by_key(calls())
        return self

    def __exit__(self, *error: object) -> None:
        global _users
        with loading.lock():
            _users -= 1
            if _users == 0:
                exchange_state.record_by(None)
            if self._layer is not None:
                exchange_state.pop(self._layer)

    def calls(self) -> list[Recorded]:
        """Returns what was called since the scope began, the most time-consuming first."""
        found = []
        for key, row in _by_key(calls()).items():
            before = self._before.get(key)
            if before is not None:
                row = replace(row, count=row.count - before.count, seconds=max(row.seconds - before.seconds, 0.0))
            if row.count:
                found.append(row)
        return sorted(found, key=lambda row: -row.seconds)


def recording() -> Recording:
    """Returns a scope that records the calls of NumPy and SciPy made inside it."""
    return Recording()


def record_in_file(path: str) -> None:
    """Keeps what this process records, and the children that it forks, in a new file; to be called before the first recording.

    Raises
    ------
    OSError
        There is such a file, or no room for one of two megabytes.
    ValueError
        A recording has been made here already.
    """
    _exchange.record_in_file(path)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_exchange.recorded_fork)


def read_file(path: str) -> tuple[int, list[Recorded]]:
    """Returns how many processes recorded their calls in a file, and what they called.

    Raises
    ------
    OSError, ValueError
        There is no such file; it is one of something else, or of another version.
    """
    return _read(path)


def calls() -> list[Recorded]:
    """Returns all that was recorded in this process."""
    return _read(None)[1]


def _read(path: str | None) -> tuple[int, list[Recorded]]:
    processes, sized, rest = _exchange.recorded(path)
    found = []
    for name, flags, integers, rounded, count, spent, least in sized:
        if about := _about(name):
            signature = signatures.find(about[1].routine, about[1].interface)
            call = None
            if signature is not None:
                call = signatures.call_of(signature, flags[: len(signature.flags)], integers[: len(signature.integers)])
            found.append(Recorded(*about, call, count, spent * 1e-9, least * 1e-9, rounded))
    found += [Recorded(*about, None, count, spent * 1e-9) for name, count, spent in rest if (about := _about(name))]
    return processes, found


def merged(rows: Iterable[Recorded]) -> list[Recorded]:
    """Returns rows in which calls of the same sizes are counted together, the most time-consuming first."""
    return sorted(_by_key(rows).values(), key=lambda row: -row.seconds)


def _by_key(rows: Iterable[Recorded]) -> dict[tuple[str, str], Recorded]:
    """Rows by key and library, those of one key that were counted apart together."""
    found: dict[tuple[str, str], Recorded] = {}
    for row in rows:
        key = row.key, row.library
        same = found.get(key)
        if same is not None:
            row = replace(
                same, count=same.count + row.count, seconds=same.seconds + row.seconds, least=min(same.least, row.least),
                rounded=same.rounded or row.rounded,
            )  # fmt: skip
        found[key] = row
    return found


def paused(pause: bool) -> bool:
    """Lets calls of this thread go unrecorded, or no longer; returns what held before."""
    return _exchange.recorded_pause(pause)
