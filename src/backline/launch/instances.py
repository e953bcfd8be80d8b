"""Runs the instances: starts them, shows and keeps what they print, passes signals on, and says how they ended.

Each instance has a process group of its own. A signal that ends the launcher is passed on to all of them, once: Ctrl-C on
a terminal reaches the launcher only, and each instance from it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from . import messages
from .watcher import Watcher

__all__ = ["GRACE", "Job", "ending", "exit_status", "run"]

GRACE = 10.0
"""Seconds between asking an instance to end and killing it."""

LONGEST = 1 << 16
"""Bytes of a line after which it is shown without waiting for its end."""

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)


@dataclass(frozen=True)
class Job:
    """The command of one instance.

    Attributes
    ----------
    number : int
        Which instance this is.
    command : list of str
        Program and arguments.
    environment : dict
        All its variables.
    folder : str
        Where its ``stdout.log`` and ``stderr.log`` go; "" to keep none.
    """

    number: int
    command: list[str]
    environment: dict[str, str]
    folder: str = ""


@dataclass
class _Child:
    job: Job
    process: subprocess.Popen[bytes]
    ended: threading.Event = field(default_factory=threading.Event)

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


def exit_status(code: int) -> int:
    """The status a shell would show: 128 + signal for a process that a signal ended.

    >>> exit_status(3), exit_status(-9)
    (3, 137)
    """
    return code if code >= 0 else 128 - code


def run(jobs: Sequence[Job], *, grace: float = GRACE) -> int:
    """Run all jobs at once and wait for them.

    Parameters
    ----------
    jobs : sequence of Job
        What to run.
    grace : float
        Seconds that the others have to end after one has failed.

    Returns
    -------
    int
        0 if all ended with 0, else the status of the first that did not.

    Notes
    -----
    Signals are passed on where this is called from the main thread; Python can handle them nowhere else. A single job reads
    the launcher's input unless that is a terminal, several read nothing: they could only take it away from each other.

    Examples
    --------
    >>> run([Job(0, ["sh", "-c", "exit 3"], {"PATH": "/bin:/usr/bin"})])
    3
    """
    return _Run(jobs, grace).result()


class _Run:
    def __init__(self, jobs: Sequence[Job], grace: float) -> None:
        self.jobs = jobs
        self.grace = grace
        self.children: list[_Child] = []
        self.finished: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.starting = True  # meanwhile signals wait, so that each instance hears of each
        self.waiting: list[int] = []
        self.passed = 0  # the signal passed on last, and when
        self.passed_at = -float("inf")
        # Several instances share the console line by line; one alone may write half lines, as progress bars do.
        self.consoles = [_Console(fd, whole_lines=len(jobs) > 1) for fd in (1, 2)]

    def result(self) -> int:
        with self._signals(), Watcher(self.grace) as self.watcher:
            try:
                for job in self.jobs:
                    if any(number != signal.SIGTSTP for number in self.waiting):
                        break
                    self._start(job)
                self.starting = False
                for number in self.waiting:
                    self._pass_on(number, None)
                status = self._wait()
            finally:
                for child in self.children:  # only after an error of our own are there any left
                    child.signal(signal.SIGKILL)
        for thread in self.threads:
            thread.join()
        if not status and len(self.children) < len(self.jobs):
            return 128 + self.passed
        return status

    def _start(self, job: Job) -> None:
        piped = bool(job.folder) or len(self.jobs) > 1
        with contextlib.suppress(OSError, ValueError, AttributeError):  # there may be no stdout, or nobody who reads it
            sys.stdout.flush()
        if job.folder:
            os.makedirs(job.folder, exist_ok=True)
        process = subprocess.Popen(
            job.command, env=job.environment, process_group=0, bufsize=0,
            stdin=None if len(self.jobs) == 1 and not _is_terminal(0) else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else None, stderr=subprocess.PIPE if piped else None,
        )  # fmt: skip
        child = _Child(job, process)
        self.children.append(child)
        self.watcher.started(process.pid)
        for name, pipe, console in zip(("stdout", "stderr"), (process.stdout, process.stderr), self.consoles, strict=True):
            if pipe is not None:
                log = os.path.join(job.folder, f"{name}.log") if job.folder else ""
                self._thread(_tee, pipe, log, console, child.ended)
        self._thread(self._reap, child)

    def _thread(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        self.threads.append(thread)

    def _reap(self, child: _Child) -> None:
        child.process.wait()
        self.watcher.ended(child.process.pid)
        child.ended.set()
        self.finished.put(child)

    def _wait(self) -> int:
        """Wait for all children; end the others after the first failure."""
        first, deadline = 0, None
        running = list(self.children)
        while running:
            try:
                child = self.finished.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                deadline = None
                messages.line(f"killing {_names(running)}: still running {self.grace:g} seconds later")
                for late in running:
                    late.signal(signal.SIGKILL)
                continue
            running.remove(child)
            status = exit_status(child.process.returncode)
            if not status or first:
                continue
            first = status
            messages.line(f"instance {child.job.number} ended {ending(child.process.returncode)}")
            if running:
                deadline = time.monotonic() + self.grace
                # Those who were just passed a signal know already, and may be putting things in order.
                if time.monotonic() - self.passed_at > self.grace:
                    messages.line(f"terminating {_names(running)}")
                    for other in running:
                        other.signal(signal.SIGTERM)
        return first

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        old: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for passed in PASSED_ON:
                if signal.getsignal(passed) is not signal.SIG_IGN:  # nohup means it, for the instances too
                    old[passed] = signal.signal(passed, self._pass_on)
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int, frame: object) -> None:
        if self.starting:
            self.waiting.append(number)
            return
        if number != signal.SIGTSTP:
            self.passed, self.passed_at = number, time.monotonic()
        for child in self.children:
            child.signal(number)
        if number == signal.SIGTSTP:  # Ctrl-Z stops them and us; whoever wakes us wakes them
            os.kill(os.getpid(), signal.SIGSTOP)
            for child in self.children:
                child.signal(signal.SIGCONT)


def _names(children: Sequence[_Child]) -> str:
    return f"instance{'' if len(children) == 1 else 's'} {', '.join(str(child.job.number) for child in children)}"


def ending(code: int) -> str:
    """Returns how a process ended, in words, by the code that Python gives: "with status 3", "by signal SIGKILL".

    >>> ending(3), ending(-9)
    ('with status 3', 'by signal SIGKILL')
    """
    if code >= 0:
        return f"with status {code}"
    try:
        return f"by signal {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names
        return f"by signal {-code}"


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


class _Console:
    """The launcher's own stdout or stderr, shared by the instances."""

    def __init__(self, fd: int, whole_lines: bool) -> None:
        self.fd = fd
        self.whole_lines = whole_lines
        self.open = True
        self.lock = threading.Lock()

    def write(self, data: bytes) -> None:
        with self.lock:
            while data and self.open:
                try:
                    data = data[os.write(self.fd, data) :]
                except BlockingIOError:
                    select.select([], [self.fd], [])
                except OSError:  # nobody reads any more
                    self.open = False


def _tee(source: BinaryIO, log: str, console: _Console, ended: threading.Event) -> None:
    """Copy what an instance prints to the console and its log, until it ends.

    A process that the instance left behind may hold the pipe open for ever: once the instance has ended and nothing comes
    any more, that is the end.
    """
    held = b""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    with source, _Log(log) as kept:
        while True:
            if not poll.poll(500):
                if ended.is_set():
                    break
                continue
            chunk = os.read(source.fileno(), 1 << 16)
            if not chunk:
                break
            kept.write(chunk)
            if not (kept.file or console.open):
                return  # closing the pipe tells the instance
            held += chunk
            ready = len(held)
            if console.whole_lines:
                ready = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
                ready = ready or (len(held) if len(held) > LONGEST else 0)
            console.write(held[:ready])
            held = held[ready:]
        console.write(held)


class _Log:
    """A file that keeps what an instance prints; what goes wrong with it is told once and does not stop the instance."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: BinaryIO | None = None

    def __enter__(self) -> _Log:
        if self.path:
            with self._told():
                self.file = open(self.path, "wb", buffering=0)
        return self

    def __exit__(self, *exception: object) -> None:
        if self.file:
            self.file.close()

    def write(self, data: bytes) -> None:
        with self._told():
            while data and self.file:
                data = data[self.file.write(data) :]

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            messages.line(f"warning: {self.path}: {error.strerror}; what follows is not kept", "33")
            self.__exit__()
            self.file = None
