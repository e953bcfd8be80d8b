"""Plug-ins of Dask's workers and nannies that carry a program's settings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import distributed

from ... import switches
from ...errors import BadType
from .connection import WorkerMismatch
from .worker_facts import facts
from .worker_settings import Applied, collect, is_here

__all__ = ["NAME", "BacklineNanny", "BacklineWorker", "thread_variables"]

NAME = "backline"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS")


def thread_variables(count: int) -> dict[str, str]:
    """Returns the environment variables that tell libraries their number of threads before they are loaded.

    Examples
    --------
    >>> thread_variables(2)["OPENBLAS_NUM_THREADS"]
    '2'
    """
    return dict.fromkeys(THREADS, str(count))


class BacklineWorker(distributed.WorkerPlugin):  # type: ignore[misc]  # Dask is not followed: its classes have no type here
    """Plug-in of workers: the settings that hold where it is made are in force in every worker, also in those that come later.

    They are the switches, the exchange of NumPy's BLAS, and tuning records. A worker of another version of Backline refuses them
    and does not start. Where the worker is in the process of the client, as with ``LocalCluster(processes=False)``, they hold in
    its tasks.

    Parameters
    ----------
    content
        Settings as `register` makes them; by default those that hold here, without records.

    Attributes
    ----------
    content : dict
        The settings.
    scope : Scope or None
        Scope that tasks run in, where the process is not the worker's alone.

    Examples
    --------
    >>> import backline
    >>> from backline.interop.dask import BacklineWorker
    >>> with backline.use("numpy"):
    ...     plugin = BacklineWorker()
    >>> plugin.content["switches"]["prefer"]
    ('numpy',)

    ``client.register_plugin(plugin)`` sends it to a cluster; `register` does that, too, and compares the workers.
    """

    name = NAME
    idempotent = False  # a new one takes the place of the former

    def __init__(self, content: Mapping[str, Any] | None = None) -> None:
        self.content = dict(collect() if content is None else content)
        self._applied: Applied | None = None
        self.scope: Any = None

    def setup(self, worker: Any) -> None:
        """Puts the settings in force. Dask calls this."""
        try:
            self._applied = Applied(self.content)
            if is_here(self.content):
                self._scope_of_tasks(worker)
            self._compare(worker)
        except BaseException:
            self.teardown(worker)
            if _joins(worker):  # Dask would go on without the plug-in
                worker.loop.add_callback(worker.close, nanny=True, reason="the settings of Backline cannot be in force here")
            raise

    def _compare(self, worker: Any) -> None:
        expected = self.content["expected"]
        if expected is None:
            return
        here = facts(bool(expected.get("libraries")))
        other = {key: here[key] for key, value in expected.items() if here[key] != value}
        if other:
            raise WorkerMismatch(
                f"worker {worker.address} is not as the client is",
                cause="; ".join(_difference(key, expected[key], value) for key, value in other.items()),
                remedy="workers of one kind; where only the word strict differs, start the process anew whose version lacks it: "
                "it loaded the library before determinism was asked for. Or register(client, strict=False) where bits may differ",
            )

    def _scope_of_tasks(self, worker: Any) -> None:
        """Runs tasks under the settings, where the process is not the worker's alone."""
        scope = self.scope = switches.make_scope("dask.register", self.content["switches"], restore=True)
        execute = worker.execute  # a task of asyncio, whose context the thread gets that runs the function

        async def under_settings(*args: Any, **keywords: Any) -> Any:
            with scope:
                return await execute(*args, **keywords)

        worker.execute = under_settings

    def teardown(self, worker: Any) -> None:
        """Takes the settings back. Dask calls this when the worker ends, or when the plug-in is removed or replaced."""
        applied, self._applied = self._applied, None
        if applied is not None:
            applied.withdraw()
        if self.scope is not None:
            self.scope = None
            del worker.execute

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.content,)


def _joins(worker: Any) -> bool:
    """Tells whether a worker is about to join its cluster: then no client hears of an error."""
    heartbeat = worker.periodic_callbacks.get("heartbeat")
    return heartbeat is not None and not heartbeat.is_running()


def _difference(key: str, wanted: Any, here: Any) -> str:
    if isinstance(wanted, dict):
        names = sorted(name for name in {*wanted, *here} if wanted.get(name) != here.get(name))
        return "; ".join(f"{name} {here.get(name) or 'is missing'}, {wanted.get(name) or 'none'} there" for name in names)
    return f"{key} {here}, {wanted} there"


class BacklineNanny(distributed.NannyPlugin):  # type: ignore[misc]  # as above
    """Plug-in of nannies: environment variables of the workers' processes, which are started again with them.

    It is for what must be there before a library is loaded: the threads of the BLAS in NumPy's wheel, paths of libraries
    (``BACKLINE_MKL_LIBRARY``), processor binding. Everything else is a switch, which `BacklineWorker` carries.

    Parameters
    ----------
    environment
        Names and values.

    Examples
    --------
    >>> from backline.interop.dask import BacklineNanny
    >>> BacklineNanny({"OPENBLAS_NUM_THREADS": "2"}).environment
    {'OPENBLAS_NUM_THREADS': '2'}
    """

    name = f"{NAME}-environment"
    restart = True
    idempotent = False

    def __init__(self, environment: Mapping[str, str]) -> None:
        for name, value in environment.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise BadType(f"{name!r}: {value!r} is no environment variable", remedy="texts, such as {'OMP_NUM_THREADS': '2'}")
        self.environment = dict(environment)
        self._before: dict[str, dict[str, Any]] = {}

    def setup(self, nanny: Any) -> None:
        """Sets the variables for the next process of the worker. Dask calls this, and starts the worker again."""
        # Before the process starts for what reads them at its start; after that for what Dask itself sets then.
        for part in ("env", "pre_spawn_env"):
            there = getattr(nanny, part, None)
            if there is None:
                warnings.warn(f"this version of Dask has no Nanny.{part}", RuntimeWarning, stacklevel=2)
                continue
            self._before[part] = {name: there.get(name) for name in self.environment}
            there.update(self.environment)

    def teardown(self, nanny: Any) -> None:
        """Takes the variables back, for the next start of the worker. Dask calls this when the plug-in is removed or replaced."""
        for part, before in self._before.items():
            there = getattr(nanny, part)
            for name, value in before.items():
                if value is None:
                    there.pop(name, None)
                else:
                    there[name] = value
        self._before = {}
