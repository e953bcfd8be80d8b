"""Backline in other people's programs: what SciPy, and others, call when they are told to."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .on_import import when_imported

if TYPE_CHECKING:
    from types import ModuleType

    from . import dask, frameworks, jax, numpy, scipy_fft, threadpoolctl, torch, workers

__all__ = ["dask", "frameworks", "jax", "numpy", "scipy_fft", "threadpoolctl", "torch", "workers"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _register(library: ModuleType) -> None:
    import_module(f"{__name__}.threadpoolctl").register(library)


when_imported("threadpoolctl", _register)
