"""Parts of a fixed size: what gives the same bits on any number of threads where the work is shared among them.

A product, a factorization or a batch is divided into parts whose sizes follow from the Problem alone. One thread computes each
part, by the vendor's own routine, and sums over parts are added up in one order. So the number of threads says how many parts are
under way at once, and nothing else. Parts cost time, and only `determinism_level` = "threads" asks for them: nothing lists them
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from .. import switches
from ..native.plan_builder import Pointer
from .base import Algorithm

__all__ = ["ANY_THREADS", "FAMILIES", "SUFFIX", "alone", "asked", "level", "listed", "places"]

SUFFIX = "_parts"  # ends the names of algorithms
ANY_THREADS = 8  # on which candidates are compared, whatever number a call may use
# Families that keep to "threads" where "run" is asked for: a forked child, which has one thread, then computes its parent's bits.
FAMILIES: Collection[str] = ("fft",)


def level(family: str, device: str, snapshot: Any) -> str:
    """Returns the determinism level that the switches ask of the operations of a family: "off", "run" or "threads"."""
    if not snapshot["deterministic"]:
        return "off"
    return "threads" if family in FAMILIES and device == "cpu" else str(snapshot["determinism_level"])


def asked(family: str = "") -> bool:
    """Tells whether the switches that hold here ask for the same bits on any number of threads."""
    return level(family, "cpu", switches.current()) == "threads"


def listed(name: str, threads: int, make: Callable[..., Algorithm], note: str, pool: str) -> Iterator[Algorithm]:
    """Yields an algorithm in parts, on all threads and on one: `make` takes what the two differ in."""
    same = {"name": name + SUFFIX, "level": "threads", "basis": "construction", "note": note}
    if threads > 1 and pool:
        yield make(**same, threads=threads, scaled=True, pool=pool)
    yield make(**same)


def alone(pointer: Pointer) -> Pointer:
    """Returns a pointer to the one item that there is, which all items of a group share."""
    buffer, start, step = pointer
    return buffer, start + (step[0] if isinstance(step, tuple) else 0), 0


def places(pointer: Pointer, items: int, offsets: Collection[int]) -> Pointer:
    """Returns a pointer to the parts of each item of a batch: those at these offsets from where the item begins."""
    buffer, start, step = pointer
    firsts = step if isinstance(step, tuple) else tuple(i * step for i in range(items))
    return buffer, start, tuple(first + offset for first in firsts[:items] for offset in offsets)
