"""The shipped rankings: files of measured times, one for each class of processors, and which of them hold here."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, NamedTuple

from ..native.processor_class import ProcessorClass, nearest_first
from ..problems import Place
from .tuning.machine_class import here
from .tuning.record import RENAMED, current_key

__all__ = ["Measured", "Ranking", "file_name", "here", "measured", "nearest_classes", "provenance", "shipped"]

FOLDER = os.path.join(os.path.dirname(__file__), "rankings")


class Ranking(NamedTuple):
    """Measured times on one machine.

    Attributes
    ----------
    processors : ProcessorClass
        The class of its processor.
    provenance : dict
        Processor, cores, date, command and versions of the libraries.
    entries : list of dict
        Operation, dtype, shape class, size (log2 of the floating-point operations), example; keys of algorithms, the fastest
        first, and their times in microseconds.
    """

    processors: ProcessorClass
    provenance: dict[str, Any]
    entries: list[dict[str, Any]]


def file_name(processors: ProcessorClass) -> str:
    """Returns the path of the ranking of a class, whether it exists or not."""
    return os.path.join(FOLDER, f"{processors}.json")


@lru_cache(maxsize=1)
def _classes() -> tuple[ProcessorClass, ...]:
    names = (name.removesuffix(".json") for name in sorted(os.listdir(FOLDER)) if name.endswith(".json"))
    return tuple(found for name in names if (found := ProcessorClass.parse(name)))


@lru_cache(maxsize=4)
def _read(processors: ProcessorClass) -> Ranking:
    import json

    with open(file_name(processors), encoding="utf-8") as stream:
        text = stream.read()
    content = json.loads(text)
    if any(f'"{old}@' in text for old in RENAMED):  # thousands of keys, and seldom one that has changed
        for entry in content["entries"]:
            _rename(entry)
    return Ranking(processors, content["provenance"], content["entries"])


def _rename(entry: dict[str, Any]) -> None:
    """Gives algorithms of earlier versions their names of now; where several old names are one now, the fastest stays."""
    times: dict[str, float] = {}
    for key, microseconds in zip(entry["order"], entry["microseconds"], strict=True):
        times.setdefault(current_key(key), microseconds)
    entry["order"], entry["microseconds"] = list(times), list(times.values())


@lru_cache(maxsize=4)
def _nearest(processors: ProcessorClass) -> tuple[ProcessorClass, ...]:
    return tuple(nearest_first(processors, _classes()))


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


def nearest_classes(here: ProcessorClass) -> tuple[ProcessorClass, ...]:
    """Returns the classes that there are rankings of, the nearest first."""
    return _nearest(here)


@lru_cache(maxsize=512)
def measured(processors: ProcessorClass, op: str, dtype: str = "") -> tuple[Measured, ...]:
    """Returns what a class's ranking has of an operation and a dtype, or all of them."""
    return tuple(
        Measured(
            e["example"],
            Place(op, e["dtype"], e["class"], e["size"]).sized_as(e["example"]),
            dict(zip(e["order"], e["microseconds"], strict=True)),
        )
        for e in _read(processors).entries
        if e["op"] == op and dtype in ("", e["dtype"]) and e["order"]
    )


def provenance(processors: ProcessorClass) -> dict[str, Any]:
    """Returns where the times of a class come from."""
    return _read(processors).provenance
