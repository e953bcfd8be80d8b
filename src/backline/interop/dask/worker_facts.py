"""Facts about the process that a worker runs in: versions, processor, threads, libraries; a function that workers call."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ... import libraries, switches
from ..._version import __version__
from ...engine import ranking_files
from ...engine.tuning import record_store
from ...libraries.base import Library
from ...native.machine import cpu_info, fingerprint
from ...processors import usable_cores
from ..exchange import exchange_state
from .worker_settings import switch_values

__all__ = ["arithmetic", "facts", "library_versions"]


def arithmetic() -> str:
    """Returns a text that two processors share if libraries take the same kernels on them, whatever the number of their cores.

    Examples
    --------
    >>> arithmetic() == arithmetic()
    True
    """
    # The end of the fingerprint is made of the model and its instructions; switches and variables may cap these.
    here = ranking_files.here()
    return f"{here.maker} {here.instructions} {fingerprint().rpartition('-')[2]}"


def library_versions() -> dict[str, str]:
    """Returns the version of every library that is there, which loads them.

    One that was asked, when it was loaded, for the same bits on any number of threads says ``strict``: its last bits are others.

    Examples
    --------
    >>> "numpy" in library_versions()
    True
    """
    return {library.name: _version(library) for library in libraries.all_libraries() if library.available()}


def _version(library: Library) -> str:
    words = library.version() or "", "strict" if library.strict else ""
    return " ".join(filter(None, words))


def facts(all_libraries: bool = True, environment: Sequence[str] = (), dask_worker: Any = None) -> dict[str, Any]:
    """Returns what is told of this process, as plain values, under the settings that tasks have.

    Parameters
    ----------
    all_libraries
        Load the libraries to tell their versions.
    environment
        Environment variables to tell of.
    dask_worker
        The worker; Dask fills it in.
    """
    plugin = dask_worker and dask_worker.plugins.get("backline")
    with getattr(plugin, "scope", None) or nullcontext():
        return _facts(all_libraries, environment)


def _facts(all_libraries: bool, environment: Sequence[str]) -> dict[str, Any]:
    layer = exchange_state.layer()
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "backline": __version__,
        "model": cpu_info().model or platform.machine(),
        "processors": str(ranking_files.here()),
        "machine": fingerprint(),
        "arithmetic": arithmetic(),
        "cores": usable_cores(),
        "num_threads": switches.get("num_threads"),
        "libraries": library_versions() if all_libraries else {},
        "switches": switch_values(),
        "exchange": str(layer.choice) if layer else "",
        "records": len(record_store.every()),
        "environment": {name: os.environ.get(name, "") for name in environment},
    }
