"""Loops of `_kernels` that are called with arrays, without a plan: the instructions and the threads that they may use."""

from __future__ import annotations

from typing import Any

from ... import switches
from ...native import thread_team
from .vector_level import vector_level

__all__ = ["level_and_threads"]

MANY = 1 << 16  # elements that may be worth more than one thread


def level_and_threads(size: int) -> tuple[int, int]:
    """Returns the last arguments of such a function: the level of vector instructions, and threads for so many elements."""
    if size < MANY:
        return vector_level(), 1
    thread_team.bind()
    threads: Any = switches.get("num_threads")
    return vector_level(), int(threads)
