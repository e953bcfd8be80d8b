"""The shipped rankings: files of measured times, one for each class of processors, and which of them hold here."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from ..native.processor_class import ProcessorClass, nearest_first
from ..problems import Place
from .times_table import TimesTable
from .tuning.machine_class import here
from .tuning.record import RENAMED, current_key

__all__ = ["HALVES", "Measured", "Ranking", "file_name", "here", "measured", "nearest_classes", "provenance", "shipped", "table"]

_ROW = '{"op": "'  # how an entry begins
HALVES = ("f16", "bf16")
FOLDER = os.path.join(os.path.dirname(__file__), "rankings")


class Ranking(NamedTuple):
    """Measured times on one machine.

    A file has one entry a row. They are thousands, of which a program needs those of a few operations: only these are decoded.

    Attributes
    ----------
    processors : ProcessorClass
        The class of its processor.
    provenance : dict
        Processor, cores, date, command and versions of the libraries.
    rows : tuple of str
        The entries as JSON, each beginning with its operation.
    """

    processors: ProcessorClass
    provenance: dict[str, Any]
    rows: tuple[str, ...]

    @classmethod
    def of(cls, processors: ProcessorClass, provenance: dict[str, Any], entries: Iterable[dict[str, Any]]) -> Ranking:
        """Returns the ranking that has these entries."""
        import json

        return cls(processors, provenance, tuple(map(json.dumps, entries)))

    def entries(self, op: str = "", dtype: str = "") -> list[dict[str, Any]]:
        """Returns the entries of an operation, or all; or those of a dtype.

        Each is a dict of operation, dtype, shape class, size (log2 of the floating-point operations), example, keys of
        algorithms, the fastest first, and their times in microseconds.
        """
        import json

        start = _ROW + (f'{op}", ' if op else "")
        named = f'"dtype": "{dtype}"' if dtype else ""
        text = ",".join(row for row in self.rows if row.startswith(start) and named in row)
        found: list[dict[str, Any]] = json.loads(f"[{text}]")
        if any(f'"{old}@' in text for old in RENAMED):  # seldom one that has changed
            for entry in found:
                _rename(entry)
        return found

    def text(self) -> str:
        """Returns the content of a file that `parse` reads."""
        import json

        rows = ",".join(f"\n  {row}" for row in self.rows)
        return f'{{"provenance": {json.dumps(self.provenance)},\n "entries": [{rows}\n ]}}\n'

    @classmethod
    def parse(cls, processors: ProcessorClass, text: str) -> Ranking:
        """Returns the ranking that `text` wrote.

        Examples
        --------
        >>> here = ProcessorClass("intel", "amx", 2)
        >>> made = Ranking.of(here, {"cpu": "some"}, [{"op": "matmul", "order": []}, {"op": "linear", "order": []}])
        >>> Ranking.parse(here, made.text()) == made, made.entries("linear")
        (True, [{'op': 'linear', 'order': []}])
        """
        import json

        first, *lines = text.splitlines()
        rows = tuple(line.strip(" ,") for line in lines if line.startswith(f"  {_ROW}"))
        return cls(processors, json.loads(f"{first.rstrip(',')}}}")["provenance"], rows)


def file_name(processors: ProcessorClass) -> str:
    """Returns the path of the ranking of a class, whether it exists or not."""
    return os.path.join(FOLDER, f"{processors}.json")


@lru_cache(maxsize=1)
def _classes() -> tuple[ProcessorClass, ...]:
    names = (name.removesuffix(".json") for name in sorted(os.listdir(FOLDER)) if name.endswith(".json"))
    return tuple(found for name in names if (found := ProcessorClass.parse(name)))


@lru_cache(maxsize=4)
def _read(processors: ProcessorClass) -> Ranking:
    with open(file_name(processors), encoding="utf-8") as stream:
        return Ranking.parse(processors, stream.read())


def _rename(entry: dict[str, Any]) -> None:
    """Gives algorithms of earlier versions their names of now; where several old names are one now, the fastest stays."""
    times: dict[str, float] = {}
    for key, microseconds in zip(entry["order"], entry["microseconds"], strict=True):
        times.setdefault(current_key(key), microseconds)
    entry["order"], entry["microseconds"] = list(times), list(times.values())


@lru_cache(maxsize=4)
def _nearest(processors: ProcessorClass, halves: bool = False) -> tuple[ProcessorClass, ...]:
    return tuple(nearest_first(processors, _classes(), halves))


def shipped() -> Ranking:
    """Returns the ranking that holds here: that of the nearest class of processors."""
    return _read(_nearest(here())[0])


class Measured(NamedTuple):
    """The times of one Problem.

    Attributes
    ----------
    key : str
        The Problem's.
    place : Place
        Where it stands among others.
    times : dict
        Key of an algorithm -> its time, in a unit that all share.
    """

    key: str
    place: Place
    times: dict[str, float]


def nearest_classes(here: ProcessorClass, dtype: str = "") -> tuple[ProcessorClass, ...]:
    """Returns the classes that there are rankings of, the nearest for a dtype first."""
    return _nearest(here, dtype in HALVES)


@lru_cache(maxsize=512)
def measured(processors: ProcessorClass, op: str, dtype: str = "") -> tuple[Measured, ...]:
    """Returns what a class's ranking has of an operation and a dtype, or all of them."""
    return tuple(
        Measured(
            e["example"],
            Place(op, e["dtype"], e["class"], e["size"]).sized_as(e["example"]),
            dict(zip(e["order"], e["microseconds"], strict=True)),
        )
        for e in _read(processors).entries(op, dtype)
        if e["order"]
    )


@lru_cache(maxsize=512)
def table(processors: ProcessorClass, op: str) -> TimesTable:
    """Returns log2 of the times that a class's ranking has of an operation, of all dtypes."""
    found = _read(processors).entries(op)
    times = [dict(zip(e["order"], e["microseconds"], strict=True)) for e in found]
    return TimesTable.of([e["example"] for e in found], times)


def provenance(processors: ProcessorClass) -> dict[str, Any]:
    """Returns where the times of a class come from."""
    return _read(processors).provenance
