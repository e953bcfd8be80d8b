"""Algorithms on one thread wake no other, for small Problems, whose thread count is not always set."""

from __future__ import annotations

import pytest

from ..support import need, python

PROGRAM = """
import os, threading, time
from pathlib import Path

import numpy as np
from backline import libraries
from backline.libraries.base import Refusal
from backline.problems.op_registry import import_operations, operations

import_operations()
library = libraries.get(LIBRARY)
calls = []
for shapes in (
    ((3, 2), (2, 4)), ((20, 30), (30, 40)), ((1, 30), (30, 40)), ((7, 10, 10), (7, 10, 10)), ((174, 14, 2), (174, 2, 2)),
):
    arrays = [np.ones(s, DTYPE) for s in shapes]
    problem = operations["matmul"].build(*arrays)
    for algorithm in library.algorithms(problem, 2):
        if not isinstance(algorithm, Refusal):
            assert algorithm.threads == 1, algorithm
            calls.append((algorithm.key, problem, arrays, library.prepare(problem, algorithm)))
assert calls


def ran():
    "Returns the nanoseconds that every other thread has run: the system adds those of one that goes on running at its ticks only."
    time.sleep(0.02)
    others = [task for task in os.listdir("/proc/self/task") if int(task) != threading.get_native_id()]
    return {task: Path(f"/proc/self/task/{task}/schedstat").read_text().split()[0] for task in others}


time.sleep(0.3)  # until all that were started sleep
for key, problem, arrays, plan in calls:
    before = ran()
    for _ in range(20):
        assert (plan(*arrays) == arrays[0].shape[-1]).all(), (key, problem)
    assert ran() == before, (key, problem)

# Others would be seen: a large product on two threads wakes one.
a = np.ones((900, 900), DTYPE)
problem = operations["matmul"].build(a, a)
plan = next(library.prepare(problem, x) for x in library.algorithms(problem, 2) if not isinstance(x, Refusal) and x.threads == 2)
before = ran()
plan(a, a)
assert ran() != before
"""

PAIRS = [(library, dtype) for library in ("openblas", "mkl", "blis") for dtype in ("float32", "float64", "complex64")]


@pytest.mark.parametrize("library, dtype", [*PAIRS, ("onednn", "float32")])
def test_one_thread_starts_no_other(library: str, dtype: str) -> None:
    need(library)
    python(f"LIBRARY, DTYPE = {library!r}, {dtype!r}\n{PROGRAM}")
