"""Ends the instances of a launcher that was killed.

A launcher that gets SIGKILL cannot pass anything on. So a process of its own holds the reading end of a pipe. When the launcher
is gone, however it ended, the pipe says so, and the process groups that are still listed are ended. PR_SET_PDEATHSIG would reach
the instance alone and not what it has started, and would have to be set between fork and exec, where no Python may run.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import threading
from types import TracebackType

from ..libraries.probing import probe_process
from . import messages

__all__ = ["SECONDS", "Watcher"]

SECONDS = 30.0
"""A watcher that does not run by then is given up: an interpreter without site-packages starts in a fraction of a second."""


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
            # Its interpreter may need LD_LIBRARY_PATH, as this one may have.
            self._process = subprocess.Popen(
                program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
                start_new_session=True, env=probe_process.environment(),
            )  # fmt: skip
        except OSError as error:
            self._warn(str(error))
            return self
        wrong = self._wrong(self._process)
        if wrong:
            self._close()
            self._process = None
            self._warn(f"the process that watches it {wrong}")
        return self

    def _warn(self, cause: str) -> None:
        messages.line(f"warning: instances would outlive a launcher that is killed: {cause}", "33")

    def _wrong(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for the byte that it writes once it runs; else end it, and return what is wrong."""
        assert process.stdout is not None
        with process.stdout as stream, selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            if not selector.select(SECONDS):
                process.kill()
                process.wait()
                return f"does not run after {SECONDS:g} seconds"
            if stream.read(1):
                return ""
        return f"ended with status {process.wait()}"

    def _close(self) -> None:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._tell("done")
            self._close()
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
