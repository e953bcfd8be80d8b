"""Settings in workers: functions and initializers that carry all switches to threads and processes."""

from __future__ import annotations

import os
import uuid
from typing import Any

from .. import switches

__all__ = ["Carried", "WorkerInitializer", "carry", "this_process", "worker_initializer"]

_IMPORTED = uuid.uuid4().hex


def this_process() -> str:
    """Returns a name of this process that no other has: a process of another machine may have the same number.

    Examples
    --------
    >>> this_process() == this_process()
    True
    """
    return f"{_IMPORTED} {os.getpid()}"


class Carried:
    """A function that runs under the settings that held where it was made; it may be pickled where the function may.

    Made by `carry`.
    """

    def __init__(self, function: Any, snapshot: switches.Snapshot) -> None:
        self.function, self.snapshot = function, snapshot
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            if hasattr(function, name):
                setattr(self, name, getattr(function, name))

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        with self.snapshot.apply():
            return self.function(*args, **keywords)

    def __reduce__(self) -> tuple[Any, ...]:
        return Carried, (self.function, self.snapshot)


def carry(function: Any) -> Carried:
    """Returns a function that runs under the settings that hold here, wherever it is called.

    Parameters
    ----------
    function : callable
        What threads, processes or another machine are to run. For processes it must be picklable.

    Returns
    -------
    Carried
        The function, with all switches as they are here. Scopes that the caller has open at that time do not count.

    Examples
    --------
    >>> import backline
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with backline.num_threads(1), ThreadPoolExecutor() as pool:
    ...     pool.submit(backline.carry(backline.get_num_threads)).result()
    1
    """
    return Carried(function, switches.current())


class WorkerInitializer:
    """Gives a worker the settings that held where this was made. Made by `worker_initializer`."""

    __name__ = "worker_initializer"  # some frameworks name what they call

    def __init__(self, snapshot: switches.Snapshot, process: str) -> None:
        self.snapshot, self.process = snapshot, process

    def __call__(self) -> None:
        if this_process() == self.process:  # a thread: what it sets must not hold for the others
            self.snapshot.apply().__enter__()
            return
        here = switches.current()
        changed = {name: value for name, value in self.snapshot.items() if name not in here or here[name] != value}
        switches.assign_many(changed, depth=2, restore=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerInitializer, (self.snapshot, self.process)


def worker_initializer() -> WorkerInitializer:
    """Returns an initializer for a pool of workers: each gets the settings that hold here.

    Returns
    -------
    WorkerInitializer
        A callable without arguments, which may be pickled: the `initializer` of concurrent.futures, multiprocessing.Pool and
        joblib. In another process it sets the process; in a thread of this one, that thread.

    Examples
    --------
    >>> import backline
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with backline.num_threads(1), ThreadPoolExecutor(initializer=backline.worker_initializer()) as pool:
    ...     pool.submit(backline.get_num_threads).result()
    1
    """
    return WorkerInitializer(switches.current(), this_process())
