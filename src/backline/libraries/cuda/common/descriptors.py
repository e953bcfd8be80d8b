"""Descriptors, layouts and plans that a binding makes for a Plan, and that the Plan has to give back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Descriptors"]


class Descriptors:
    """Objects of a library, freed with this, the last one first; not at the end of the interpreter, nor in a forked child."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._held: list[tuple[Callable[[int], Any], int]] = []

    def add(self, address: int, free: Callable[[int], Any]) -> int:
        """Keeps an object, and what frees it; returns its address."""
        self._held.append((free, address))
        return address

    # When the interpreter ends, the names of modules are gone.
    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing, process: Callable[[], int] = os.getpid) -> None:
        if finalizing() or self._process != process():
            return
        while self._held:
            free, address = self._held.pop()
            free(address)
