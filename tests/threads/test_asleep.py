"""While the team sleeps, short jobs run in the caller, as long as waking the team would take longer."""

from __future__ import annotations

import os

import pytest

from support import python

PROGRAM = """
import ctypes, math, time
from backline import _core
from backline.native import thread_team as team

assert team.bind()
libc = ctypes.CDLL(None)
address = {name: ctypes.cast(getattr(libc, name), ctypes.c_void_p).value for name in ("gettid", "usleep")}
told = ("call", address["gettid"], [], 3, (0, 0, 4))
end = time.monotonic() + 60

def jobs(*steps):
    # Two jobs on two threads, each of which says on which one it ran.
    return _core.PreparedCall(
        0, [("work", 8)], [(2, 2, [*steps, told])], [], [], info=(0, 4, 2), on_info=lambda plan, infos, arrays, results: infos
    )

def threads(plan):
    assert time.monotonic() < end
    return len(set(plan()))
"""
SHORT = """
plan = jobs()
_core.team_stays_awake(math.inf)
assert all(threads(plan) == 2 for _ in range(20))
_core.team_stays_awake(0.0)
while threads(plan) != 1:  # a job that something held up once seems to be long
    pass
"""
OFTEN = """
plan = jobs()
threads(plan)
_core.team_stays_awake(0.05)
while threads(plan) != 1:
    time.sleep(0.1)
while threads(plan) != 2:  # what is lost adds up
    pass
"""
LONG = """
plan = jobs(("call", address["usleep"], [200], 0, None))
_core.team_stays_awake(0.0)
assert all(threads(plan) == 2 for _ in range(20))
"""
several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: the team is not needed")


@several
@pytest.mark.parametrize("program", [SHORT, OFTEN, LONG], ids=["short", "often", "long"])
def test_where_jobs_run(program: str) -> None:
    python(PROGRAM + program)
