"""The table of a cluster's workers, and what differs among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...printable import printable

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["HEADS", "Comparison", "WorkerRow", "WorkerTable"]

HEADS = ("worker", "host", "processor", "cores", "threads", "python", "numpy", "backline", "libraries")
# What workers are compared by: name in the table, and where it is among the facts.
COMPARED = {"Python": "python", "NumPy": "numpy", "Backline": "backline", "processor": "arithmetic", "exchange": "exchange"}
NAMED = 3  # switches of one worker that are named
NONE = object()


@dataclass(frozen=True)
class WorkerRow:
    """One worker.

    Attributes
    ----------
    address : str
        As the scheduler knows it.
    slots : int
        Tasks that it runs at a time.
    facts : dict
        What it told: see `backline info --scheduler ADDRESS --json`.
    differs : tuple of str
        What is otherwise than on most workers, or than it should be.
    """

    address: str
    slots: int
    facts: Mapping[str, Any]
    differs: tuple[str, ...] = ()

    def cells(self) -> tuple[str, ...]:
        """Returns the row of the table."""
        f = self.facts
        threads = f"{self.slots} x {f['num_threads']}"
        versions = ", ".join(f"{name} {version}".strip() for name, version in sorted(f["libraries"].items()))
        return (
            self.address, f["host"], f["processors"], str(f["cores"]), threads, f["python"], f["numpy"], f["backline"], versions
        )  # fmt: skip


@dataclass(frozen=True)
class WorkerTable:
    """The workers of a cluster; as text, and for `rich.print`, a table.

    Attributes
    ----------
    scheduler : str
        Its address.
    rows : tuple of WorkerRow
        The workers, by address.
    notes : tuple of str
        What concerns several of them.
    """

    scheduler: str
    rows: tuple[WorkerRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def mismatches(self) -> tuple[str, ...]:
        """Returns the differences among the workers, one line each; empty where all are alike."""
        lines = [f"{row.address}: {text}" for row in self.rows for text in row.differs]
        return (*lines, *self.notes)

    def cells(self) -> list[tuple[str, ...]]:
        """Returns the table: a row for each worker. The threads are the tasks at a time, times the threads of a call."""
        return [tuple(map(printable, row.cells())) for row in self.rows]

    def as_dict(self) -> dict[str, Any]:
        """Returns everything that is known, for JSON."""
        return {
            "scheduler": self.scheduler,
            "workers": {row.address: {"slots": row.slots, "differs": row.differs, **row.facts} for row in self.rows},
            "mismatches": self.mismatches,
        }

    def __str__(self) -> str:
        rows = [HEADS, *self.cells()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS) - 1)]
        lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]).rstrip() for row in rows]
        return "\n".join([f"workers of {self.scheduler}", *lines, *self.mismatches])

    def __rich__(self) -> Table:
        from rich.markup import escape
        from rich.table import Table

        table = Table(*HEADS, title=f"workers of {escape(self.scheduler)}", caption=escape("\n".join(self.mismatches)) or None)
        for row in self.cells():
            table.add_row(*map(escape, row))
        return table


@dataclass
class Comparison:
    """Compares the facts of workers with what most of them have.

    Attributes
    ----------
    found : dict
        Facts by address.
    slots : dict
        Tasks at a time, by address.
    wanted : dict
        Environment variables that all should have.
    """

    found: Mapping[str, Mapping[str, Any]]
    slots: Mapping[str, int]
    wanted: Mapping[str, str] = field(default_factory=dict)

    def table(self, scheduler: str) -> WorkerTable:
        """Returns the table."""
        usual = {key: self._most(lambda f, key=key: f[key]) for key in COMPARED.values()}
        libraries = {name: self._most(lambda f, name=name: f["libraries"].get(name, "")) for name in self._names("libraries")}
        switches = {name: self._most(lambda f, name=name: f["switches"].get(name, NONE)) for name in self._names("switches")}
        rows = []
        for address, f in sorted(self.found.items()):
            differs = [
                f"{title} {_said(f, key)}, most have {usual[key] or 'none'}"
                for title, key in COMPARED.items()
                if f[key] != usual[key]
            ]
            differs += self._libraries(f, libraries)
            differs += self._switches(f, switches)
            for name, value in self.wanted.items():
                if f["environment"].get(name, "") != value:
                    differs.append(f"{name} is {f['environment'].get(name, '')!r} and not {value!r}: only a nanny can set it")
            rows.append(WorkerRow(address, self.slots.get(address, 1), f, tuple(differs)))
        return WorkerTable(scheduler, tuple(rows), tuple(self._crowded()))

    def _names(self, part: str) -> list[str]:
        return sorted({name for f in self.found.values() for name in f[part]})

    def _most(self, value: Callable[..., Any]) -> Any:
        """Returns what most workers have; of several as frequent, that of the first."""
        return Counter(value(f) for _, f in sorted(self.found.items())).most_common(1)[0][0]

    def _libraries(self, f: Mapping[str, Any], usual: Mapping[str, str]) -> Iterator[str]:
        if not f["libraries"]:
            return
        for name, version in usual.items():
            here = f["libraries"].get(name, "")
            if here != version:
                yield f"{name} {here or 'is missing'}, most have {version or 'none'}"

    def _switches(self, f: Mapping[str, Any], usual: Mapping[str, Any]) -> Iterator[str]:
        other = [name for name, value in usual.items() if f["switches"].get(name, NONE) != value]
        # Thread counts are a machine's own unless they were set; whether there are too many is another question.
        other = [name for name in other if name != "num_threads" or NONE not in (usual[name], f["switches"].get(name, NONE))]
        for name in other[:NAMED]:
            yield f"{name} = {f['switches'].get(name)!r}, most have {None if usual[name] is NONE else usual[name]!r}"
        if len(other) > NAMED:
            yield f"and {len(other) - NAMED} other switches"

    def _crowded(self) -> Iterator[str]:
        hosts: dict[str, list[str]] = {}
        for address, f in sorted(self.found.items()):
            hosts.setdefault(f["host"], []).append(address)
        for host, members in hosts.items():
            threads = sum(self.slots.get(address, 1) * self.found[address]["num_threads"] for address in members)
            cores = max(self.found[address]["cores"] for address in members)
            if threads > cores:
                yield (
                    f"{host}: {threads} threads at a time on {cores} cores (tasks at a time, times the threads of a call): "
                    "fewer tasks, or num_threads in the settings that are registered"
                )


def _said(f: Mapping[str, Any], key: str) -> str:
    if key == "arithmetic":
        return f"{f['model']} ({f[key]})"
    return str(f[key] or "none")
