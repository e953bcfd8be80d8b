"""The program that `watcher` starts, by its path and without site-packages: reads process groups to end from stdin."""

import os
import signal
import sys
import time
from contextlib import suppress


def _signal(groups: set[int], number: int) -> set[int]:
    """Signal process groups; returns those that are there."""
    there = set()
    for group in groups:
        try:
            os.killpg(group, number)
            there.add(group)
        except (ProcessLookupError, PermissionError):
            pass
    return there


def _watch(grace: float) -> None:
    with suppress(OSError):  # the launcher is gone already: stdin says so
        os.write(1, b"\n")
    groups: set[int] = set()
    for line in sys.stdin:
        word = line.strip()
        if word == "done":
            return
        if word.startswith("+"):
            groups.add(int(word[1:]))
        else:
            groups.discard(int(word[1:]))
    left = _signal(groups, signal.SIGTERM)
    _signal(left, signal.SIGCONT)
    end = time.monotonic() + grace
    while left and time.monotonic() < end:
        time.sleep(0.05)
        left = _signal(left, 0)
    _signal(left, signal.SIGKILL)


if __name__ == "__main__":
    _watch(float(sys.argv[1]))
