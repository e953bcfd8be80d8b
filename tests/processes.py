"""Child processes of tests, which end with their test and with the process that runs the tests, and the check that none is left.

Test modules import it by path, as they import ``support``. Run as a program it is the first thing that such a child does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE = 20.0
"""Seconds that a process which is about to end is given on a loaded machine."""

DEFAULTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)
"""Signals whose standard effect a child gets back. A shell ignores SIGINT for what it starts in the background, and a
child inherits that: a test that sends Ctrl-C would wait for a program that never hears of it."""


@contextlib.contextmanager
def started(command: Sequence[str | Path], **how: Any) -> Iterator[subprocess.Popen[Any]]:
    """A running child with a process group of its own, which is killed when the block is left; else as `subprocess.Popen`.

    It also dies with the process that runs the tests, and starts with the standard effects of signals.
    """
    if not how.get("start_new_session"):
        how.setdefault("process_group", 0)
    process = subprocess.Popen(wrapped(command), **how)
    try:
        yield process
    finally:
        # Before its end is noted: until then its number, and that of its group, cannot go to another process.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was written to stdin and not read
                    pipe.close()


def wrapped(command: Sequence[str | Path]) -> list[str]:
    """The command, begun by this file: without `preexec_fn`, which may not be used beside threads."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *map(str, command)]


def become(parent: int, command: list[str]) -> None:
    """In the child: end with the parent, take the standard effects of signals, and run the command in this process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before it could be told of
        os._exit(1)
    for number in DEFAULTS:
        signal.signal(number, signal.SIG_DFL)
    os.execvp(command[0], command)


def forked(work: Callable[[], object], seconds: int = 200) -> int:
    """The exit status of a fork of this process that does the work: 0 if it returns true, 1 if not or if it raises, -14 if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of Python warn of forks beside threads, which is what is tested
        child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(seconds)
            status = 0 if work() else 1
        except BaseException as error:
            os.write(2, f"in the forked child: {error!r}\n".encode())
        finally:
            os._exit(status)  # whatever happens, it must not go on with the tests
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# What is left behind --------------------------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """Make this process the parent of processes whose parent ends: what the child of a test leaves behind is found as well."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Processes whose parent this one is."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found.update(map(int, thread.read_text().split()))
    return found


def running(pid: int) -> bool:
    """Tells whether a process runs. One that ended is waited for here, so that its number is free again."""
    with contextlib.suppress(OSError):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def left_behind(known: set[int]) -> list[str]:
    """Command lines of the children that are not among the known ones and do not end by themselves. They are killed."""
    deadline = time.monotonic() + GRACE
    told = []
    while left := {pid for pid in children() - known - _helpers() if running(pid)}:
        if time.monotonic() < deadline:
            time.sleep(0.02)
            continue
        for pid in left:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                told.append(f"process {pid}: {words.strip()[:300]}")
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        # Their own children come here now, and get no time.
    return told


def _helpers() -> set[int]:
    """Returns what `multiprocessing` starts once for the whole life of a process."""
    found = set()
    for name, attribute in (("resource_tracker", "_resource_tracker"), ("forkserver", "_forkserver")):
        module = sys.modules.get(f"multiprocessing.{name}")
        helper = getattr(module, attribute, None)
        for number in ("_pid", "_forkserver_pid"):
            if pid := getattr(helper, number, None):
                found.add(pid)
    return found


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
