"""Tests a library in a child process before it is opened here, so that one that crashes, exits or hangs harms nobody.

The child runs `probe_program` by its absolute path, with ``-I -S`` and away from the working directory: whatever lies there, and
whatever ``PYTHONPATH`` names, is not imported.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from . import probe_program
from .probe_program import Facts

if TYPE_CHECKING:
    import subprocess

__all__ = ["SECONDS", "ask", "can_ask", "environment"]

SECONDS = 60.0
"""A child that has not answered by then is killed: some devices take half a minute to start."""
MOST = 1 << 16  # bytes that are kept of what a child writes
SEARCH_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


def can_ask() -> bool:
    """Tells whether there is an interpreter to start; in a program that embeds Python there may be none.

    >>> can_ask()
    True
    """
    name = os.path.basename(sys.executable or "").lower().lstrip(".")  # NixOS wraps it in a file that begins with a dot
    known = name.startswith(("python", "pypy", "graalpy"))
    return known and not getattr(sys, "frozen", False) and os.path.isfile(probe_program.__file__)


def ask(question: str, subject: str, *, changes: Mapping[str, str] | None = None) -> tuple[Facts, bool]:
    """Tests a library in a child process; where none can be started, in this one.

    Question and subject are as `probe_program.answer` takes them; `changes` are environment variables that the child has and this
    process does not. Returns what that answers, where "reason" tells too of a child that crashed, ended early, or hung; and
    whether a child finished its test: what is said of one that did not may be otherwise the next time.

    Examples
    --------
    >>> facts, finished = ask("cudnn", "/nowhere/libcudnn.so.9")
    >>> facts["reason"].startswith("cannot be loaded: /nowhere/libcudnn.so.9"), finished
    (True, True)
    """
    if not can_ask():
        return _here(question, subject), False
    import subprocess

    token = os.urandom(8).hex()
    command = [
        sys.executable, "-I", "-S", os.path.abspath(probe_program.__file__), token, question, subject, str(SECONDS)
    ]  # fmt: skip
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
            env={**environment(), **(changes or {})}, start_new_session=True,
        )  # fmt: skip
    except OSError:
        return _here(question, subject), False  # no processes here: a sandbox, or memory is short
    patience = 0.0
    try:
        answer, printed, hangs = _read(child)
        patience = 0.0 if hangs else 1.0  # its way out is short
    finally:
        _end(child, patience)
    facts = _parsed(answer, token)
    if facts is not None:
        passing = facts.pop("passing", False)
        return facts, not passing
    if hangs:
        return {"reason": f"hangs when it is tested (no answer in {SECONDS:g} seconds)"}, False
    if child.returncode < 0:
        return {"reason": f"crashes when it is tested ({_signal(-child.returncode)}){_last_line(printed)}"}, False
    return {"reason": f"ends the process that tests it (status {child.returncode}){_last_line(printed)}"}, False


def _signal(number: int) -> str:
    import signal

    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _here(question: str, subject: str) -> Facts:
    """Tests in this process what the caller does not test itself once it is opened."""
    return {"reason": ""} if question in ("blas", "library") else probe_program.answer(question, subject)


def environment() -> dict[str, str]:
    """The environment of a child: that of this process, without Backline's own variables, and without entries of search paths
    that depend on the working directory.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("BACKLINE_")}
    for name in SEARCH_PATHS:
        if name in own:
            own[name] = os.pathsep.join(entry for entry in re.split("[:;]", own[name]) if os.path.isabs(entry))
    return own


def _read(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes, bool]:
    """The answer, what was printed, and whether time ran out. Ends with the answer's line: others may hold the pipe open."""
    import selectors

    assert child.stdout is not None and child.stderr is not None
    kept = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    answer = kept[child.stdout.fileno()]
    end = time.monotonic() + SECONDS
    with selectors.DefaultSelector() as selector:
        for descriptor in kept:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and not answer.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0:
                return bytes(answer), bytes(kept[child.stderr.fileno()]), True
            for key, _ in selector.select(min(left, 0.5)):
                data = os.read(key.fd, MOST)
                if not data:
                    selector.unregister(key.fd)
                room = MOST - len(kept[key.fd])
                kept[key.fd] += data[:room]  # a library may print for ever
            if _has_ended(child) and not selector.select(0):
                break  # it has ended, and a process that it started holds the pipes
    return bytes(answer), bytes(kept[child.stderr.fileno()]), False


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Tells whether the child has ended; it is not reaped yet, so that its number and that of its group are still its own."""
    if not hasattr(os, "waitid"):  # macOS, before Python 3.13
        return child.poll() is not None
    try:
        return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True  # the program has its children reaped as they end


def _end(child: subprocess.Popen[bytes], patience: float) -> None:
    """Has nothing left of the child: neither itself, which may hang, nor what it started."""
    import signal

    end = time.monotonic() + patience
    while not _has_ended(child) and time.monotonic() < end:
        time.sleep(0.001)
    with suppress(ProcessLookupError, PermissionError):  # nothing left; macOS tells of zombies in the second way
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()


def _parsed(answer: bytes, token: str) -> Facts | None:
    import json

    try:
        told = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or told.pop("token", "") != token or not isinstance(told.get("reason"), str):
        return None
    return told


def _last_line(printed: bytes) -> str:
    """Returns the last line a child wrote, printable, for the reason of a refusal."""
    lines = printed.decode("utf-8", "replace").strip().splitlines()
    text = "".join(c if c.isprintable() else "?" for c in lines[-1].strip())[:300] if lines else ""
    return f": {text}" if text else ""
