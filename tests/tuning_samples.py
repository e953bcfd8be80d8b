"""Tuning records for tests: a file of their own, the Problem that they are about, and records of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline.engine.tuning import record_store
from backline.engine.tuning.record import TuningRecord
from backline.native.machine import fingerprint
from backline.problems.op_registry import operations

__all__ = ["OTHER", "file", "made", "problem"]

OTHER = "another-4c-00000000"
"""The fingerprint of another machine."""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The tuning file of one test, which is not there yet; records of projects are left out."""
    where = tmp_path / "data" / "tuning.sqlite"
    monkeypatch.setenv("BACKLINE_TUNING", str(where))
    monkeypatch.setenv("BACKLINE_PROJECT_TUNING", "")
    record_store.reload()
    yield where
    monkeypatch.undo()
    record_store.reload()


def problem(n: int = 8) -> Any:
    """A product of two matrices of n x n."""
    a = np.ones((n, n), np.float32)
    return operations["matmul"].build(a, a)


def made(**changes: Any) -> TuningRecord:
    """A record of `problem`, measured on this machine on two threads."""
    base = TuningRecord(
        problem().key, 2, medians={"numpy.matmul@n": 2e-6}, minima={"numpy.matmul@n": 1e-6}, runs={"numpy.matmul@n": 100},
        errors={"numpy.matmul@n": 1e-7}, winner="numpy.matmul@n", covered=("numpy.matmul@n",), seed=7, spent=0.5,
        created="2026-11-21T03:00:00.000000Z", versions={"numpy": np.__version__}, machine=fingerprint(),
        backline=backline.__version__,
    )  # fmt: skip
    return replace(base, **changes)
