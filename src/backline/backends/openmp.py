"""OpenMP: the runtimes under the libraries that thread by it.

Off, those libraries run on one thread. `backends.num_threads` says how many they use otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _module_factory

if TYPE_CHECKING:
    from ..libraries import openmp_runtimes

__all__ = ["enabled", "flags", "is_available", "is_enabled", "num_threads", "runtimes", "set_flags", "version"]

enabled: bool
is_available: _module_factory.IsTrue
is_enabled: _module_factory.IsTrue
version: _module_factory.Version
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags


def runtimes() -> list[openmp_runtimes.Runtime]:
    """Returns the OpenMP runtimes in this process: kind, path, version, owner, threads."""
    from ..libraries import openmp_runtimes

    return openmp_runtimes.runtimes()


def num_threads(n: int) -> Any:
    """Returns a scope in which library calls use that many threads; also a decorator."""
    from .. import switches

    return switches.make_scope("openmp.num_threads", {"num_threads": n}, depth=2)


_module_factory.install(__name__)
