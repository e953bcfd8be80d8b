"""The one thread team of this process, and what forking does to it.

Every library that lets itself be told runs on libgomp's team: MKL through its GNU layer, BLIS as built, OpenBLAS through its
thread callback. Two pools that alternate would each wait spinning while the other wants the cores.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from .. import _core
from . import loading

__all__ = [
    "SPIN", "address", "bind", "forget_counts", "forked", "items_run", "items_threads", "limit_items", "name", "path",
    "thread_guard", "watch_forks",
]  # fmt: skip

LOCAL, PROCESS, PROCESS64 = 0, 1, 2
SPIN = 1e-3  # seconds for which a thread of the team that waits keeps its processor, before it sleeps
PAUSES = 300_000  # turns of libgomp's loop with a pause in it for which its threads spin where nothing is said
SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}

#: Files of libraries whose threads are the team's, though they have a pool of their own too.
driven: set[str] = set()

_runtime: Any = None
_searched = False
_guards: dict[tuple[int, int], tuple[Any, int]] = {}  # by kind and the address of the function that sets the count
_forked = False


def bind() -> bool:
    """Find libgomp (the copy that is mapped already, else the system's) and run jobs on it. False where there is none."""
    global _searched
    if not _searched:
        with loading.lock():
            if not _searched:
                _bind()
                _searched = True  # last: another thread that sees it finds the team bound
    return _runtime is not None


def _bind() -> None:
    global _runtime
    file = _libgomp()
    if file:
        pause, mapped = _core.pause_seconds(), _is_mapped(file)
        try:
            with _waiting_briefly(pause):
                _runtime = ctypes.CDLL(file, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError:
            return
        _core.team_bind(*(_address(symbol) for symbol in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")))
        _core.team_stays_awake(awake_seconds(os.environ, pause, ours=not mapped))
        # Threads that the user has bound, or asked not to bind, stay where they are.
        _core.team_keep_apart(not any(os.environ.get(name) for name in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")))
        watch_forks()


def _is_mapped(file: str) -> bool:
    """Tells whether a library is in the process."""
    try:
        ctypes.CDLL(file, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def awake_seconds(env: Mapping[str, str], pause: float, *, ours: bool) -> float:
    """Returns for how many seconds a thread of libgomp's that waits spins before it sleeps.

    Parameters
    ----------
    env
        The environment: `GOMP_SPINCOUNT` says it, else `OMP_WAIT_POLICY`.
    pause
        Seconds that a pause of the processor takes.
    ours
        Backline has loaded it, and said how long where the environment does not.

    Examples
    --------
    >>> awake_seconds({"GOMP_SPINCOUNT": "20k"}, 1e-8, ours=True), awake_seconds({}, 1e-8, ours=False)
    (0.0002, 0.003)
    """
    found = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)\s*", env.get("GOMP_SPINCOUNT", ""), re.IGNORECASE)
    if found is not None:
        return int(found[1]) * SUFFIXES[found[2].lower()] * pause
    policy = env.get("OMP_WAIT_POLICY", "").strip().lower()
    if env.get("GOMP_SPINCOUNT", "").strip().lower() in ("infinite", "infinity") or policy == "active":
        return math.inf
    if policy == "passive":
        return 0.0
    return SPIN if ours else PAUSES * pause


def _waiting_briefly(pause: float) -> AbstractContextManager[None]:
    """Has a libgomp that is loaded inside of the block let its threads spin for `SPIN` seconds, unless the user has said.

    It counts the turns of a loop with a pause of the processor in it, 300,000 unless it is told otherwise. It reads the number as
    it is loaded, from a variable, and knows no other way; a copy that is in the process already keeps to what it has read.
    """
    if any(os.environ.get(name) for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")):
        return nullcontext()
    return loading.variable("GOMP_SPINCOUNT", str(round(SPIN / pause)))


def _libgomp() -> str:
    """The file: the copy that is in the process, whoever brought it, else the system's.

    Never by its bare name: the loader would look for that in every entry of LD_LIBRARY_PATH, and an empty or a relative one
    means the working directory.
    """
    from .library_search import LibrarySpec, search

    files = ("libgomp.so.1",)
    wanted = LibrarySpec("libgomp", prefix_globs=files, system_names=files, needs=("GOMP_parallel", "omp_get_thread_num"))
    return search(wanted).path or ""


def path() -> str:
    """The file of the runtime that the team runs on; "" where there is none."""
    return str(_runtime._name) if bind() else ""


def address(symbol: str) -> int:
    """Address of a function of the runtime that the team runs on; 0 where there is none."""
    return _address(symbol) if bind() else 0


def _address(symbol: str) -> int:
    return ctypes.cast(getattr(_runtime, symbol), ctypes.c_void_p).value or 0


def name() -> str:
    """Name of the pool that the team is: "gomp", or "" where there is no OpenMP runtime."""
    return "gomp" if bind() else ""


_items_limit = 0  # 0: as many as a call may use
_items_ran = False


def items_threads(threads: int) -> int:
    """Threads among which the items of a batch are divided, where a call may use `threads`."""
    return min(threads, _items_limit) if _items_limit else threads


def items_run() -> None:
    """Note that a batch is about to be divided: from now on the limit stays."""
    global _items_ran
    _items_ran = True


def limit_items(limit: int) -> bool:
    """Set the limit of `items_threads`; False if it was set before or a batch was divided already."""
    global _items_limit
    if _items_limit or _items_ran:
        return False
    _items_limit = limit
    _core.memo_clear()
    return True


def thread_guard(address: int, kind: int, *, whole: int = 0, get: int = 0) -> Any:
    """Returns the ThreadCountGuard of a library's function that sets its number of threads: one for each function.

    A file is mapped once however often it is opened, so its function has one address. With a second guard on it, calls under one
    of them would change the count under the calls of the other.

    `whole` is the address of a function that sets them for the process, where `address` sets those of one thread only; `get`
    that of a function that tells the count of one thread, where `address` does not return the former one.
    """
    watch_forks()
    with loading.lock():
        made = _guards.get((kind, address))
        if made is None:
            made = _guards[kind, address] = (_core.ThreadCountGuard(address, kind, get), whole)
            if _forked:
                _keep_on_one_thread(*made)
    return made[0]


def forget_counts() -> None:
    """Makes every library's next call set its number of threads anew, because another program may have set it."""
    for each, _ in list(_guards.values()):
        each.forget()


def forked() -> bool:
    """Tells if this is a forked child of a process that had the team; then everything runs on one thread."""
    return _forked


_watching = False


def watch_forks() -> None:
    """Makes a fork wait for guarded calls, and the child run on one thread. Called before the first thread starts."""
    global _watching
    with loading.lock():
        if not _watching:
            _watching = True
            loading.around_fork(_before_fork, _after_fork_in_parent, _after_fork)


def _before_fork() -> None:
    # A lock inside a library that another thread holds now would stay locked in the child. Threads that Python has let go of may
    # hold one while they end; a second is far more than that takes.
    _core.wait_for_ended_threads(sys._current_frames(), 1.0)
    for each, _ in _guards.values():
        each.hold()


def _after_fork_in_parent() -> None:
    for each, _ in _guards.values():
        each.release()


def _after_fork() -> None:
    # libgomp has no handler for fork: in the child its team is a list of threads that do not exist, and the first
    # parallel region would wait for them for ever. One thread needs no team.
    global _forked
    _forked = True
    _core.set_team_limit(1)
    for guard, whole in _guards.values():
        _keep_on_one_thread(guard, whole)
    _core.memo_clear()


def _keep_on_one_thread(guard: Any, whole: int) -> None:
    """Sets the thread count of a library in a forked child, for calls that are not guarded as well."""
    guard.forked()
    if whole:
        ctypes.CFUNCTYPE(None, ctypes.c_int)(whole)(1)
    guard.leave(guard.enter(1))
