"""The team's threads sleep off the caller's processor, so that waking them does not wait for a clock tick."""

from __future__ import annotations

import os

import pytest

from support import python

PROGRAM = """
import os, threading
from backline import _core
from backline.native import thread_team as team

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


@several
def test_a_caller_that_stands_in_for_a_missing_thread_keeps_its_processor():
    """The stack of another thread finds no memory, so its job runs in the caller, which is no thread of the team."""
    python(
        """
import os, resource, sys

# The C library keeps no stacks of this size for the next thread.
stack = 64 << 20
if resource.getrlimit(resource.RLIMIT_STACK)[0] != stack:
    resource.setrlimit(resource.RLIMIT_STACK, (stack, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    os.execv(sys.executable, sys.orig_argv)

from backline import _core
from backline.native import thread_team as team

assert team.bind()
assert _core.team_check(2) == (2, 3)
allowed = os.sched_getaffinity(0)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), before[1]))
for _ in range(4):
    _core.flush_denormal(False, 2)
resource.setrlimit(resource.RLIMIT_AS, before)
assert os.sched_getaffinity(0) == allowed, (os.sched_getaffinity(0), allowed)
assert _core.team_check(2) == (2, 3)
""",
        env={"OMP_THREAD_LIMIT": "1"},
    )
