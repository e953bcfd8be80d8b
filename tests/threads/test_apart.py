"""The team's threads sleep off the caller's processor, so that waking them does not wait for a clock tick."""

from __future__ import annotations

import os

import pytest

from support import python

PROGRAM = """
import os, threading
from backline import _core
from backline.libraries import team

assert team.bind()
for _ in range(20):
    at_once, seen = _core.team_check(2)
    assert (at_once, seen) == (2, 3)
allowed = os.sched_getaffinity(0)
bound = [m for t in os.listdir("/proc/self/task") if (m := os.sched_getaffinity(int(t))) != allowed]
print(len(allowed), _core.team_moves(), sorted(len(m) for m in bound))
"""

several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: nothing to keep apart")


@several
def test_the_other_thread_is_given_the_other_processors():
    allowed, moves, bound = python(PROGRAM).stdout.split(maxsplit=2)
    assert int(moves) >= 1
    assert bound.strip() == f"[{int(allowed) - 1}]"


@several
@pytest.mark.parametrize("variable", ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"])
def test_who_binds_threads_is_left_alone(variable):
    value = {"OMP_PROC_BIND": "false", "OMP_PLACES": "threads", "GOMP_CPU_AFFINITY": "0-1"}[variable]
    result = python(PROGRAM.replace("print(", "assert _core.team_moves() == 0; print("), env={variable: value})
    assert result.stdout.split()[1] == "0"
