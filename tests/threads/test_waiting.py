"""Threads of the team that wait spin for a bounded time, then sleep."""

from __future__ import annotations

import os
import re

import pytest

from backline import _core
from backline.libraries.openblas import library as openblas
from backline.native import thread_team
from support import python

PROGRAM = """
import time
from backline import _core
from backline.native import thread_team as team

assert team.bind()
assert _core.team_check(2) == (2, 3)
_core.flush_denormal(False, 2)
threads = _core.team_threads()
assert len(threads) == 1, threads

def state(thread):
    return open(f"/proc/self/task/{thread}/stat").read().rpartition(")")[2].split()[0]

def clock(thread):
    return time.clock_gettime(~thread << 3 | 6)

# However busy the machine is, a thread that only spins for so long sleeps in the end, and uses no more time.
end = time.monotonic() + 60
while state(threads[0]) != "S":
    assert time.monotonic() < end, "it never sleeps"
    time.sleep(0.01)
before = clock(threads[0])
time.sleep(0.2)
assert clock(threads[0]) == before and state(threads[0]) == "S"
assert _core.team_check(2) == (2, 3)  # and wakes up again
"""

several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: the team is not needed")


def spin_count(env: dict[str, str], pause: float = 1e-8) -> str:
    """Returns what libgomp says that it was told, when it is loaded by Backline, where a pause takes so many seconds."""
    shown = python(
        f"from backline import _core; _core.pause_seconds = lambda: {pause}\n"
        "from backline.native import thread_team as team; assert team.bind(); import os\n"
        "print('left', os.environ.get('GOMP_SPINCOUNT'))",
        env={"OMP_DISPLAY_ENV": "verbose", **env},
    )
    assert f"left {env.get('GOMP_SPINCOUNT')}" in shown.stdout  # the variable is what it was
    found = re.search(r"GOMP_SPINCOUNT = '(\w+)'", shown.stderr)
    assert found is not None, shown.stderr
    return found[1]


@several
def test_a_thread_that_waits_sleeps_after_a_while():
    python(PROGRAM)


@pytest.mark.parametrize("pause", [1e-8, 5e-8])
def test_how_long_they_spin_is_bounded(pause):
    """Each turn of libgomp's loop takes one pause of the processor; how long that is differs by a factor of twenty."""
    assert int(spin_count({}, pause)) == round(thread_team.SPIN / pause)


def test_what_the_user_has_said_holds():
    assert spin_count({"GOMP_SPINCOUNT": "1234"}) == "1234"
    assert spin_count({"OMP_WAIT_POLICY": "passive"}) == "0"


@pytest.mark.parametrize("asked", [None, "24"])
def test_the_own_pool_of_openblas_is_told_when_it_is_loaded(asked, monkeypatch):
    name, seen = "OPENBLAS_THREAD_TIMEOUT", []

    def load(path, mode):
        seen.append(os.environ.get(name))
        raise OSError("not loaded")

    monkeypatch.delenv(name, raising=False)
    if asked is not None:
        monkeypatch.setenv(name, asked)
    monkeypatch.setattr(openblas, "NativeLibrary", load)
    with pytest.raises(OSError, match="not loaded"):
        openblas.OpenBLAS().open("libopenblas.so")
    assert seen == [asked or str(openblas.SPIN)] and os.environ.get(name) == asked


def test_a_pause_takes_some_nanoseconds():
    assert 1e-10 < _core.pause_seconds() < 1e-4
