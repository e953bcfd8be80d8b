"""The steps of an algorithm that is made of operations: the engine, which chooses who runs them, puts its functions here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import NoKernel
from ..problems import Problem

__all__ = ["chosen", "plan"]


def _nobody(problem: Problem) -> Any:
    raise NoKernel(f"nobody plans {problem.key}", cause="the engine has not been imported")


chosen: Callable[[Problem], Any] = _nobody
"""The Choice for a Problem, under the switches that hold; nothing is measured or prepared for it."""

plan: Callable[[Problem], Any] = _nobody
"""The Plan for a Problem, under the switches that hold."""
