"""Where cuFFT's plans are kept: by the engine, which puts its caches here. Alone, a library keeps none."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

__all__ = ["Plans", "plans_of"]


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
