"""The lock under which libraries are loaded, and the order in which locks are taken around a fork.

One library is loaded at a time in the whole process. Loading sets state that belongs to the process (environment variables, a
threading layer, the OpenMP runtime of the thread team), and a file that two threads open at once would be set up a second time
while it computes for the first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["around_fork", "lock", "variable"]

FORK_SECONDS = 10.0
"""A fork waits so long for a library that another thread loads: a program that forks must not hang behind one that does."""

testing_seconds = 0.0
"""Time that went into testing files in child processes, which is due once for each file and no part of loading it again."""

Handler = Callable[[], object]

_lock = threading.RLock()  # re-entrant: a library may ask another one while it is loaded
_handlers: list[tuple[Handler, Handler, Handler]] = []


def lock() -> threading.RLock:
    """Returns the lock; to be asked for each time, because a forked child has another one."""
    return _lock


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Sets an environment variable for a library that reads it as it is loaded, inside of the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def around_fork(before: Handler, after_in_parent: Handler, after_in_child: Handler) -> None:
    """Registers functions to be called around a fork, inside the lock.

    The order is fixed here because `os.register_at_fork` reverses it: a thread that loads a library waits for the locks that the
    functions take, so a fork that took those first and then waited for the thread would wait for ever.
    """
    _handlers.append((before, after_in_parent, after_in_child))


def _before_fork() -> None:
    _lock.acquire(timeout=FORK_SECONDS)
    for before, _, _ in _handlers:
        before()


def _after_fork_in_parent() -> None:
    for _, after, _ in reversed(_handlers):
        after()
    with suppress(RuntimeError):  # not ours where waiting for it was given up
        _lock.release()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    for _, _, after in reversed(_handlers):
        after()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
