"""Calls of functions on the workers of a Dask cluster, and the errors of a cluster that is not as it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import distributed

from ..._version import __version__
from ...errors import BackendUnavailable, BacklineError, BadType

__all__ = [
    "SchedulerLost",
    "WorkerMismatch",
    "answered",
    "call",
    "check_versions",
    "client_of",
    "connected",
    "lost",
    "results",
    "slots",
]

CONNECTING = 10.0  # seconds until a scheduler has answered


class SchedulerLost(BacklineError, RuntimeError):
    """The scheduler of a cluster, or a worker, does not answer any more; the text says what was kept."""


class WorkerMismatch(BacklineError, RuntimeError):
    """Workers are not as the client is, where that matters; the text has the reason for each."""


def client_of(client: Any) -> Any:
    """Returns a client that is connected, the current one where none is given."""
    if client is None:
        try:
            client = distributed.get_client()
        except ValueError:
            raise BadType("there is no client of Dask here", remedy="client = dask.distributed.Client(ADDRESS)") from None
    if not isinstance(client, distributed.Client):
        raise BadType(f"{type(client).__name__} is not a client of Dask", remedy="dask.distributed.Client(ADDRESS)")
    if client.asynchronous:
        raise BadType("the client is asynchronous", remedy="Client(ADDRESS) without asynchronous=True, in a thread of its own")
    return client


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of the scheduler at an address.

    Raises
    ------
    BackendUnavailable
        No scheduler answers there.
    """
    try:
        client = distributed.Client(address, timeout=CONNECTING, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise BackendUnavailable(
            f"no scheduler answers at {address!r}",
            cause=" ".join(str(error).split()) or type(error).__name__,
            remedy="the address that `dask scheduler` prints, such as tcp://10.0.0.1:8786",
        ) from None
    try:
        yield client
    finally:
        client.close(timeout=2)


@contextmanager
def answered(doing: str, kept: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turns errors of a lost connection into `SchedulerLost`."""
    try:
        yield
    except (OSError, TimeoutError, CancelledError) as error:
        raise lost(doing, error, kept()) from None


def lost(doing: str, error: BaseException | str, kept: str = "") -> SchedulerLost:
    """Returns the error for a scheduler, or a worker, that does not answer any more."""
    cause = error if isinstance(error, str) else " ".join(str(error).split()) or type(error).__name__
    return SchedulerLost(
        f"the connection was lost while {doing}{kept and '; ' + kept}", cause=cause, remedy="start it, and call again"
    )


def slots(client: Any) -> dict[str, int]:
    """Returns how many tasks each worker runs at a time, by the workers' addresses."""
    with answered("its workers were listed"):
        if client.status != "running":
            raise OSError(f"the client is {client.status}")
        return dict(sorted(client.nthreads().items()))


def call(client: Any, function: Callable[..., Any], *args: Any, workers: Sequence[str] | None = None) -> dict[str, Any]:
    """Calls a function in each worker's process; returns results, or exceptions, by the workers' addresses."""
    where = list(slots(client)) if workers is None else list(workers)
    if not where:
        raise BackendUnavailable("the cluster has no workers", remedy="dask worker ADDRESS, or cluster.scale(2)")
    with answered(f"{getattr(function, '__name__', 'a function')} was called on workers"):
        found: dict[str, Any] = client.run(function, *args, workers=where, on_error="return")
    return found


def results(found: dict[str, Any], what: str) -> dict[str, Any]:
    """Returns the results of a call, or raises `WorkerMismatch` if some workers raised instead."""
    failed = {address: error for address, error in found.items() if isinstance(error, BaseException)}
    if failed:
        lines = [f"{address}: {_said(error)}" for address, error in sorted(failed.items())]
        raise WorkerMismatch(f"{what} failed on {len(failed)} of {len(found)} workers", cause="\n          ".join(lines))
    return found


def _said(error: BaseException) -> str:
    return " ".join(f"{getattr(error, 'message', error)} {getattr(error, 'cause', '')}".split()) or type(error).__name__


def check_versions(client: Any) -> list[str]:
    """Returns the workers' addresses if all have this version of Backline; asks them without its help.

    Raises
    ------
    WorkerMismatch
        Some have another one, or none.
    """
    found = call(client, version, "backline")
    wrong = {
        address: f"has none ({_said(there)})" if isinstance(there, BaseException) else f"has {there}"
        for address, there in sorted(found.items())
        if there != version("backline")
    }
    if wrong:
        raise WorkerMismatch(
            f"{len(wrong)} of {len(found)} workers have not the version of Backline that is here, {__version__}",
            cause="\n          ".join(f"{address} {what}" for address, what in wrong.items()),
            remedy=f"pip install 'backline=={__version__}' where they run, and start them again",
        )
    return sorted(found)
