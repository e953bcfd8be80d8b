"""Giving the settings of a program to the workers of a Dask cluster, and looking at what they have."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ... import switches
from ...errors import BacklineError
from . import worker_facts
from .connection import answered, call, check_versions, client_of, results, slots
from .plugins import BacklineNanny, BacklineWorker, thread_variables
from .worker_settings import collect, records_of
from .worker_table import Comparison, WorkerTable

__all__ = ["register", "unregister", "workers"]

MUST_AGREE = ("arithmetic", "libraries")  # for the same bits on all workers


def register(
    client: Any = None, *, environment: Mapping[str, str] | None = None, records: bool = True, strict: bool | None = None
) -> WorkerTable:
    """Gives the settings that hold here to every worker of a cluster, also to those that join it later.

    Switches are set as they are seen here, scopes included; thread counts only where something has set them. An exchange of
    NumPy's BLAS is made on the workers, too, and tuning records are sent for the processors that the workers have.

    Parameters
    ----------
    client
        A client of the cluster; by default the current one.
    environment
        Environment variables for the processes of the workers, which are started again with them by their nannies: for what must
        be there before libraries are loaded. Where `num_threads` has been set, the variables for threads go along. None starts
        nothing again.
    records
        Send tuning records.
    strict
        Refuse workers whose processor or libraries would give other last bits than here. None: where ``deterministic`` is on.

    Returns
    -------
    WorkerTable
        The workers, with what differs among them; a warning says so, too.

    Raises
    ------
    WorkerMismatch
        A worker has another version of Backline or none, or, with `strict`, another processor or other libraries. Nothing is in
        force on any worker then.
    BackendUnavailable
        There are no workers, or one of them cannot make the exchange.
    SchedulerLost
        The scheduler does not answer any more.

    Examples
    --------
    >>> import backline
    >>> from dask.distributed import Client
    >>> from backline.interop import dask as blocks
    >>> with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as client:
    ...     with backline.num_threads(1):
    ...         table = blocks.register(client)
    ...     client.submit(backline.get_num_threads).result()
    1
    """
    client = client_of(client)
    check_versions(client)
    strict = bool(switches.get("deterministic")) if strict is None else strict
    expected = None
    if strict:
        here = worker_facts.facts()
        expected = {key: here[key] for key in MUST_AGREE}
    variables: dict[str, str] = {}
    with answered("settings were registered"):
        if environment is not None:
            if switches.origin("num_threads").kind != "default":
                variables = thread_variables(int(str(switches.get("num_threads"))))
            variables |= environment
            client.register_plugin(BacklineNanny(variables))
        found = results(call(client, worker_facts.facts, False), "looking at the processor")
        sent = records_of(f["machine"] for f in found.values()) if records else []
        try:
            client.register_plugin(BacklineWorker(collect(sent, expected)))
        except BacklineError:
            unregister(client)
            raise
    table = _table(client, strict, variables)
    different = [f"{row.address}: {text}" for row in table.rows for text in row.differs]
    if different:
        warnings.warn(
            f"workers differ: {'; '.join(different[:5])}{', ...' if len(different) > 5 else ''}", RuntimeWarning, stacklevel=2
        )
    return table


def unregister(client: Any = None) -> None:
    """Takes the settings of `register` back from all workers; environment variables at their next start.

    Parameters
    ----------
    client
        A client of the cluster; by default the current one.

    Examples
    --------
    >>> from dask.distributed import Client
    >>> from backline.interop import dask as blocks
    >>> with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as client:
    ...     table = blocks.register(client)
    ...     blocks.unregister(client)
    """
    client = client_of(client)
    with answered("settings were taken back"):
        for plugin in (BacklineWorker, BacklineNanny):
            try:
                client.unregister_worker_plugin(plugin.name, nanny=plugin is BacklineNanny)
            except ValueError:
                continue  # it is not registered


def workers(
    client: Any = None, *, all_libraries: bool = True, environment: Mapping[str, str] | Sequence[str] = ()
) -> WorkerTable:
    """Returns the table of a cluster's workers: processors, threads, versions, and what differs among them.

    Parameters
    ----------
    client
        A client of the cluster; by default the current one.
    all_libraries
        Load the libraries on the workers to tell their versions.
    environment
        Environment variables to look at; of a mapping, also whether they have these values.

    Returns
    -------
    WorkerTable
        A table when printed, by ``print`` or `rich.print`.

    Raises
    ------
    WorkerMismatch
        A worker has another version of Backline, or none.
    BackendUnavailable
        There are no workers.
    SchedulerLost
        The scheduler does not answer any more.

    Examples
    --------
    >>> from dask.distributed import Client
    >>> from backline.interop import dask as blocks
    >>> with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as client:
    ...     blocks.workers(client, all_libraries=False).mismatches
    ()
    """
    client = client_of(client)
    check_versions(client)
    return _table(client, all_libraries, environment)


def _table(client: Any, all_libraries: bool, environment: Mapping[str, str] | Sequence[str]) -> WorkerTable:
    found = results(call(client, worker_facts.facts, all_libraries, tuple(environment)), "telling of itself")
    wanted = environment if isinstance(environment, Mapping) else {}
    return Comparison(found, slots(client), wanted).table(client.scheduler.address)
