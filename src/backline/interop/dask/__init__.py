"""Dask: the settings of a program on every worker, operations on dask arrays, and tuning of a cluster.

`register` gives the settings that hold here to all workers, `workers` is the table of what they have, and `tune` measures once on
each kind of processor among them. `matmul`, `linalg`, `fft` and `nn` work block by block; Dask schedules the blocks.

Examples
--------
>>> import dask.array as da
>>> from backline.interop import dask as blocks
>>> x = da.ones((6, 4), chunks=(3, 4))
>>> float(blocks.matmul(x, x.T).compute(scheduler="synchronous").sum())
144.0
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import fft, linalg, nn
    from .cluster_tuning import ClusterTuning, tune
    from .connection import SchedulerLost, WorkerMismatch
    from .plugins import BacklineNanny, BacklineWorker
    from .products import matmul
    from .registration import register, unregister, workers
    from .worker_table import WorkerTable

__all__ = [
    "BacklineNanny", "BacklineWorker", "ClusterTuning", "SchedulerLost", "WorkerMismatch", "WorkerTable", "fft", "linalg",
    "matmul", "nn", "register", "tune", "unregister", "workers",
]  # fmt: skip

# Where each name is; a module itself where nothing is named. They are imported when first asked for, and Dask with them.
_MODULES = {
    "BacklineNanny": "plugins", "BacklineWorker": "plugins", "ClusterTuning": "cluster_tuning", "SchedulerLost": "connection",
    "WorkerMismatch": "connection", "WorkerTable": "worker_table", "fft": "", "linalg": "", "matmul": "products", "nn": "",
    "register": "registration", "tune": "cluster_tuning", "unregister": "registration", "workers": "registration",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    where = _MODULES.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{where}"), name) if where else import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("dask", "distributed"):
            raise
        from ...errors import BackendUnavailable

        raise BackendUnavailable(
            f"{__name__}.{name} needs Dask", cause=f"{error.name} is not installed", remedy="pip install 'backline[dask]'"
        ) from None


def __dir__() -> list[str]:
    return sorted(__all__)
