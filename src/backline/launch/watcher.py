"""Ends the instances of a launcher that was killed.

A launcher that gets SIGKILL cannot pass anything on. So a process of its own holds the reading end of a pipe. When the launcher
is gone, however it ended, the pipe says so, and the process groups that are still listed are ended. PR_SET_PDEATHSIG would reach
the instance alone and not what it has started, and would have to be set between fork and exec, where no Python may run.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from types import TracebackType

from . import show

__all__ = ["Watcher"]


class Watcher:
    """The process that watches, for the length of a ``with`` block.

    Parameters
    ----------
    grace : float
        Seconds between asking the instances to end and killing them.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Watcher:
        program = [sys.executable, "-I", "-S", os.path.join(os.path.dirname(__file__), "_watch.py"), str(self._grace)]
        try:
            # Away from the terminal, whose Ctrl-C is for the launcher, and from its output, which somebody may read to the end.
            self._process = subprocess.Popen(
                program, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, bufsize=0,
                start_new_session=True, env={"PATH": os.defpath},
            )  # fmt: skip
        except OSError as error:
            show.line(f"warning: instances would outlive a launcher that is killed: {error}", "33")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._tell("done")
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()

    def started(self, group: int) -> None:
        """Add a process group."""
        self._tell(f"+{group}")

    def ended(self, group: int) -> None:
        """Forget a process group: its number may soon be another's."""
        self._tell(f"-{group}")

    def _tell(self, word: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with self._lock, contextlib.suppress(OSError, ValueError):  # it may have been killed
                self._process.stdin.write(f"{word}\n".encode())
