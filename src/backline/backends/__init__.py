"""The switchboard: what a user sets, one module for each library and the general switches here.

Read a switch as an attribute and set it by assignment, for the whole process; or for a while with
``flags()``, which only this thread or task sees, and which changes only what it names::

    from backline import backends

    backends.fallback = "warn"
    with backends.mkl.flags(enabled=False), backends.flags(num_threads=1):
        ...

An assignment inside a scope ends with the scope. Every switch also has an environment variable
(``BACKLINE_FALLBACK``) and a key in the configuration files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .. import switches as _switches
from ..switches.module import ContextProp, PropModule
from ..switches.module import install as _install
from . import _uniform, blis, mkl, numpy, openblas

__all__ = [
    "ContextProp",
    "PropModule",
    "benchmark",
    "benchmark_limit",
    "blis",
    "determinism_level",
    "deterministic",
    "disable_global_flags",
    "fallback",
    "flags",
    "flags_frozen",
    "max_error",
    "mkl",
    "num_threads",
    "numpy",
    "only",
    "openblas",
    "prefer",
    "set_flags",
    "warn_only",
]

fallback: Literal["allow", "warn", "error"]
"""What happens when a preference cannot be kept: take the next library, warn, or raise."""

benchmark: bool
"""Time the candidates once per signature and keep the fastest."""

benchmark_limit: int
"""Most candidates timed per signature; 0 times all."""

deterministic: bool
"""Use only what gives the same bits again, as strongly as ``determinism_level`` says."""

warn_only: bool
"""While deterministic: warn instead of raising where nothing conforms."""

determinism_level: Literal["run", "threads"]
"""Same bits from run to run, or also for any number of threads."""

num_threads: int
"""Threads a library call may use, at least 1."""

prefer: tuple[str, ...]
"""Libraries to try first, in this order."""

only: tuple[str, ...]
"""The only libraries allowed; empty allows all."""

max_error: float
"""Largest relative error measured by tuning that an algorithm may have."""


def flags(
    *,
    fallback: Literal["allow", "warn", "error"] | None = None,
    benchmark: bool | None = None,
    benchmark_limit: int | None = None,
    deterministic: bool | None = None,
    warn_only: bool | None = None,
    determinism_level: Literal["run", "threads"] | None = None,
    num_threads: int | None = None,
    prefer: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    max_error: float | None = None,
) -> _switches.Scope:
    """Return a scope for the general switches; None keeps what holds.

    Raises
    ------
    BadValue, BadType
        One of the values is illegal; none is set then.

    Examples
    --------
    >>> from backline import backends
    >>> with backends.flags(fallback="warn", num_threads=1):
    ...     backends.fallback, backends.num_threads
    ('warn', 1)
    >>> backends.fallback
    'allow'
    """
    values = {
        "fallback": fallback,
        "benchmark": benchmark,
        "benchmark_limit": benchmark_limit,
        "deterministic": deterministic,
        "warn_only": warn_only,
        "determinism_level": determinism_level,
        "num_threads": num_threads,
        "prefer": prefer,
        "only": only,
        "max_error": max_error,
    }
    return _switches.make_scope("backends.flags", values, depth=2)


def set_flags(
    *,
    _fallback: Literal["allow", "warn", "error"] | None = None,
    _benchmark: bool | None = None,
    _benchmark_limit: int | None = None,
    _deterministic: bool | None = None,
    _warn_only: bool | None = None,
    _determinism_level: Literal["run", "threads"] | None = None,
    _num_threads: int | None = None,
    _prefer: Sequence[str] | None = None,
    _only: Sequence[str] | None = None,
    _max_error: float | None = None,
) -> tuple[str, bool, int, bool, bool, str, int, tuple[str, ...], tuple[str, ...], float]:
    """Assign the general switches, all or none, and return the old values in this order; None keeps.

    Inside a scope the assignment ends with the scope.
    """
    return _uniform.swap(
        {
            "fallback": _fallback,
            "benchmark": _benchmark,
            "benchmark_limit": _benchmark_limit,
            "deterministic": _deterministic,
            "warn_only": _warn_only,
            "determinism_level": _determinism_level,
            "num_threads": _num_threads,
            "prefer": _prefer,
            "only": _only,
            "max_error": _max_error,
        }
    )


def disable_global_flags() -> None:
    """Freeze the process-wide value of every switch, for good.

    Scopes, and assignments inside them, still work.
    """
    _switches.freeze()


def flags_frozen() -> bool:
    """Tell whether the process-wide values are frozen."""
    return _switches.frozen()


_install(__name__, "")
