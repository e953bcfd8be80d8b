"""Hashes of what the operations of a run were given and returned, to tell whether two runs computed the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .. import switches
from ..libraries.array_kinds import kind_of
from ..problems import Problem
from .tuning.trace_script import pack, unpack

__all__ = ["HashedEvent", "HashedRun", "RunHashes", "events_of", "hash_of"]

BYTES = 16  # of a hash


@dataclass(frozen=True, slots=True)
class HashedEvent:
    """One execution of an operation, with hashes of its arrays.

    Attributes
    ----------
    op
        Name of the operation.
    key
        The Problem's.
    library, algorithm, threads
        What ran it: the algorithm as tuning records name it, and the threads that it used.
    level, basis
        The determinism level that the algorithm reaches, and what that rests on.
    asked
        The determinism level that the switches asked for.
    inputs, result
        Hashes of the arguments, without those that were returned, and of the result.
    problem
        The Problem; None where it came from another process and cannot be made again.
    """

    op: str
    key: str
    library: str
    algorithm: str
    threads: int
    level: str
    basis: str
    asked: str
    inputs: str
    result: str
    problem: Problem | None = None

    def runs_on(self) -> str:
        """Returns library, algorithm and threads in words."""
        name = self.algorithm.partition("@")[0].removeprefix(f"{self.library}.")
        return f"{self.library} {name}, {self.threads} thread{'' if self.threads == 1 else 's'}"

    def as_dict(self) -> dict[str, Any]:
        """Returns the event for JSON, without its Problem."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "problem"}


@dataclass(frozen=True, slots=True)
class HashedRun:
    """The results of one run.

    Attributes
    ----------
    threads, number
        Threads that calls were allowed, and the number of the run among those with as many, from 1 on.
    events
        In the order in which operations returned.
    returned
        Hash of what the function returned; empty for a script.
    """

    threads: int
    number: int
    events: tuple[HashedEvent, ...]
    returned: str = ""

    def __str__(self) -> str:
        return f"run {self.number} on {self.threads} thread{'' if self.threads == 1 else 's'}"


class RunHashes:
    """Hashes what runs. Its instances are called with every Event of the process."""

    sees_arrays = True  # is given the arguments and the result, too

    def __init__(self) -> None:
        self.events: list[HashedEvent] = []

    def __call__(self, op: str, plan: Any, nanoseconds: int, arguments: tuple[Any, ...], result: Any) -> None:
        problem, chosen = plan.choice.problem, plan.choice.chosen
        asked = str(switches.get("determinism_level")) if switches.get("deterministic") else "off"
        returned = result if isinstance(result, (tuple, list)) else (result,)
        inputs = [value for value in arguments if not any(value is part for part in returned)]
        self.events.append(
            HashedEvent(
                op, problem.key, chosen.library, chosen.key, chosen.threads, chosen.level, chosen.basis, asked,
                hash_of(inputs), hash_of(result), problem,
            )
        )  # fmt: skip

    def entries(self) -> list[dict[str, Any]]:
        """Returns the events as JSON takes them; a Problem comes with the first event that has its key."""
        found, known = [], set()
        for event in self.events:
            packed = pack(event.problem) if event.problem is not None and event.key not in known else None
            known.add(event.key)
            found.append({**event.as_dict(), "problem": packed})
        return found


def events_of(entries: Iterable[dict[str, Any]]) -> tuple[HashedEvent, ...]:
    """Returns the events that `RunHashes.entries` took apart."""
    entries = list(entries)
    problems = {entry["key"]: unpack(entry["problem"]) for entry in entries if entry["problem"] is not None}
    return tuple(HashedEvent(**{**entry, "problem": problems.get(entry["key"])}) for entry in entries)


def hash_of(value: Any) -> str:
    """Returns a hash of the values of arrays, in tuples, lists and dicts of them, of numbers and of text.

    Shape and dtype count, strides do not. Of any other object only its type counts.

    Examples
    --------
    >>> x = np.arange(6.0).reshape(2, 3)
    >>> hash_of(x) == hash_of(np.asfortranarray(x)), hash_of(x) == hash_of(x.T), hash_of([0.0]) == hash_of([-0.0])
    (True, False, False)
    """
    digest = hashlib.blake2b(digest_size=BYTES)
    _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, (tuple, list)):
        digest.update(f"{len(value)} values ".encode())
        for part in value:
            _add(digest, part)
    elif isinstance(value, dict):
        _add(digest, list(value.items()))
    elif isinstance(value, (np.ndarray, np.generic)):
        _add_array(digest, np.asarray(value))
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        digest.update(f"{type(value).__name__} {value!r} ".encode())
    elif (kind := kind_of(value)) is not None:
        _add_array(digest, np.asarray(kind.get(value) if kind.get is not None else value))
    elif hasattr(value, "__array__"):
        _add_array(digest, np.asarray(value))
    else:
        digest.update(f"{type(value).__qualname__} ".encode())


def _add_array(digest: Any, array: np.ndarray[Any, Any]) -> None:
    digest.update(f"{array.dtype.name} {array.shape} ".encode())
    if not array.dtype.hasobject:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
