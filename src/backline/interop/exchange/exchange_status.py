"""Status of the exchange: which library runs each routine, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ... import _exchange
from . import exchange_state, fourier_functions, layouts, loaded_objects, origin_pools, routines, targets
from .choices import ORIGINAL, Decision

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["RoutineStatus", "Status", "gather"]

HEADS = ("package", "family", "routines", "runs on", "remark")


@dataclass(frozen=True, slots=True)
class RoutineStatus:
    """One routine of one package.

    Attributes
    ----------
    package, routine, interface, family : str
        What is called, and by which package: ("numpy", "dgemm", "cblas", "blas").
    library : str
        The library that runs it; "numpy" is the one that the package brought along.
    reason : str
        Why it stayed, where another library was chosen.
    slots : int
        Addresses through which the package calls it.
    small, large : int or None
        Calls that a threshold left with the former library, and calls that went to the new one; None where there is no threshold.
    """

    package: str
    routine: str
    interface: str
    family: str
    library: str
    reason: str = ""
    slots: int = 1
    small: int | None = None
    large: int | None = None


@dataclass(frozen=True)
class Status:
    """The state of the exchange in this process; as text, and for `rich.print`, a table.

    Attributes
    ----------
    choice : str
        What was chosen, "" where nothing is exchanged.
    routines : tuple of RoutineStatus
        Every routine that NumPy and SciPy call.
    slots : int
        Addresses that lead to another library than they did.
    threads : int
        Threads that exchanged routines may use.
    limited : tuple of str
        Files of old copies that have one thread meanwhile.
    notes : tuple of str
        What is otherwise than one would think.
    """

    choice: str
    routines: tuple[RoutineStatus, ...] = ()
    slots: int = 0
    threads: int = 0
    limited: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    _rows: tuple[tuple[str, ...], ...] = field(default=(), repr=False)

    def library(self, routine: str, package: str = "numpy") -> str:
        """Returns the library that runs a package's routine, "" for one that it does not call.

        Examples
        --------
        >>> gather().library("dgesdd")
        'numpy'
        """
        return next((r.library for r in self.routines if (r.routine, r.package) == (routine, package)), "")

    def _title(self) -> str:
        if not self.choice:
            return "nothing is exchanged: NumPy and SciPy run on what they brought along"
        return f"exchanged for {self.choice}: {self.slots} addresses; {self.threads} threads"

    def _remarks(self) -> Iterator[str]:
        for file in self.limited:
            yield f"one thread meanwhile: {file}"
        yield from self.notes

    def __str__(self) -> str:
        rows = [HEADS, *self._rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS) - 1)]
        lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]).rstrip() for row in rows]
        return "\n".join([self._title(), *(lines if self._rows else ()), *self._remarks()])

    def __rich__(self) -> Table:
        from rich.markup import escape
        from rich.table import Table

        table = Table(*HEADS, title=self._title(), caption=escape("\n".join(self._remarks())) or None)
        for row in self._rows:
            table.add_row(*map(escape, row))
        return table


def gather() -> Status:
    """Returns the state of the exchange now.

    Examples
    --------
    >>> gather().choice
    ''
    """
    layer = exchange_state.layer()
    if layouts.unsupported() or not _exchange.supported:
        return Status("", notes=(layouts.unsupported() or "backline._exchange was built without it",))
    decisions = exchange_state.decisions()
    if layer is None:
        decisions = tuple(Decision(module, slot, ORIGINAL) for module in loaded_objects.modules() for slot in module.slots)
    found = (*_merged(decisions), *_transforms(layer.choice.transforms() if layer else ORIGINAL))
    return Status(
        str(layer.choice) if layer else "",
        found,
        sum(1 for d in decisions if d.address and d.library != ORIGINAL),
        targets.threads(),
        origin_pools.limited(),
        tuple(_notes()),
        tuple(_rows(found)),
    )


def _merged(decisions: tuple[Decision, ...]) -> Iterator[RoutineStatus]:
    """One row for each routine, package and interface."""
    groups: dict[tuple[str, str, str], list[Decision]] = {}
    for d in decisions:
        groups.setdefault((d.module.package, d.slot.symbol.interface, d.slot.symbol.routine), []).append(d)
    for (package, interface, routine), members in groups.items():
        first = members[0]
        calls = [_exchange.shim_calls(address) for address in {d.address for d in members if d.shim}]
        counted = [pair for pair in calls if pair is not None]
        small, large = (sum(pair[i] for pair in counted) if counted else None for i in (0, 1))
        family = routines.family(first.slot.symbol)
        library = first.library
        moved = [d for d in members if d.address and _exchange.read(d.slot.address) != d.address]
        reason = "another program has changed its address since" if moved else first.reason
        yield RoutineStatus(package, routine, interface, family, library, reason, len(members), small, large)


def _transforms(chosen: str) -> Iterator[RoutineStatus]:
    """One row for the transforms of each package."""
    for package, reason in fourier_functions.packages():
        kept = "" if chosen == ORIGINAL else fourier_functions.missing(chosen) or reason
        yield RoutineStatus(package, "fft", "python", "fft", ORIGINAL if kept else chosen, kept, 0)


def _rows(found: tuple[RoutineStatus, ...]) -> Iterator[tuple[str, ...]]:
    groups: dict[tuple[str, str, str, str], list[RoutineStatus]] = {}
    for r in found:
        groups.setdefault((r.package, r.family, r.library, _kind_of(r)), []).append(r)
    for (package, family, library, _), members in sorted(groups.items()):
        counted = [r for r in members if r.small is not None]
        remark = members[0].reason if len(members) == 1 else _shared_reason(members)
        if family == "fft" and library != ORIGINAL:
            remark = f"from {fourier_functions.SMALL:,} points on"
        if counted:
            small, large = sum(r.small or 0 for r in counted), sum(r.large or 0 for r in counted)
            remark = "; ".join(filter(None, [remark, f"by size: {small} small calls stayed, {large} went over"]))
        yield package, family, str(len(members)), library, remark


def _kind_of(r: RoutineStatus) -> str:
    """The reason without the routine's own name."""
    return r.reason.replace(r.routine, "\0")


def _shared_reason(members: list[RoutineStatus]) -> str:
    reasons = {r.reason for r in members}
    if len(reasons) == 1:
        return reasons.pop()
    names = [r.routine for r in members]
    listed = ", ".join(names[:6]) + (f" and {len(names) - 6} others" if len(names) > 6 else "")
    return members[0].reason.replace(members[0].routine, listed)


def _notes() -> Iterator[str]:
    copies = loaded_objects.numpy_copies()
    if len(copies) > 1:
        import numpy

        used = next(iter(numpy.__path__))
        others = [folder for folder in copies if not folder.startswith(used)]
        yield f"another NumPy is loaded, and is left alone: {', '.join(others)}"
    yield from exchange_state.notes
