"""Where cuFFT's plans are kept, and what became of timing cuDNN's: by the engine, which puts its caches and records here.

Alone, a library keeps none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

__all__ = ["Plans", "keep_tuned", "plans_of", "tuned"]


class Plans(Protocol):
    """What keeps plans."""

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The plan for a key, made if it is not there."""


class _EachCall:
    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        return make()


def _each_call(device: int) -> Plans:
    return _EachCall()


plans_of: Callable[[int], Plans] = _each_call
"""What keeps the plans of a device."""


def _nothing(library: str, key: str) -> tuple[str, int]:
    return "", 0


def _forget(library: str, key: str, plan: str, seconds: float, searched: int) -> None:
    pass


tuned: Callable[[str, str], tuple[str, int]] = _nothing
"""The plan of a library's own that was the fastest for a key, as the library wrote it, and of how many at most (0: of all).

The plan is empty if none was timed.
"""

keep_tuned: Callable[[str, str, str, float, int], None] = _forget
"""Keeps that: library, key, the plan in words, its seconds, how many were timed at most (0: all)."""
