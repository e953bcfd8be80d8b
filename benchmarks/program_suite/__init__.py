"""Whole numerical programs, each written once over a small set of operations.

A module `*_operations` has that set as users of one library would write it: plain NumPy and SciPy, PyTorch, Backline. A module of
programs has `PROGRAMS`; `programs` lists them all. Arrays of a program are those of its side; what all sides do alike, such as
sums and products by element, is written with operators and with `xp`, which is `numpy` or `torch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

__all__ = ["SIDES", "Program", "differences", "operations", "programs"]

SIDES = ("numpy", "torch", "backline")
MODULES = ("pca_ridge", "gaussian_process", "kalman", "factorization", "spectrogram", "cnn", "transformer", "tensor_network")

Run = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes
    ----------
    name
        As in the table.
    inputs
        Makes the data as NumPy arrays: ``inputs(small)``; always the same, of realistic size or small.
    build
        ``build(ops, data)`` takes over the data, packs weights, and returns the function that is timed, which returns the
        results by name.
    bound
        Largest difference of a result between two sides, relative to the largest element of that result.
    """

    name: str
    inputs: Callable[[bool], dict[str, Any]]
    build: Callable[[Any, dict[str, Any]], Run]
    bound: float


def programs() -> list[Program]:
    """Returns all programs, in the order of the table."""
    return [program for name in MODULES for program in import_module(f"program_suite.{name}").PROGRAMS]


def operations(side: str) -> Any:
    """Returns the set of operations of one side; imports its library."""
    return import_module(f"program_suite.{side}_operations")


def differences(results: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, float]:
    """Returns the largest difference of each result, relative to the largest element of the reference; infinity for NaN."""
    import numpy as np

    found = {}
    for name, wanted in reference.items():
        got = np.asarray(results[name])
        if got.shape != wanted.shape or not np.isfinite(got).all():
            found[name] = float("inf")
            continue
        scale = float(np.abs(wanted).max()) or 1.0
        found[name] = float(np.abs(got - wanted).max()) / scale
    return found
