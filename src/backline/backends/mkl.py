"""Intel's MKL: matrix products, also compiled for one small shape, and linear algebra.

Install it with the extra ``backline[mkl]``.
"""

from __future__ import annotations

from typing import Any, Final

from ..switches.switch_module import FftPlanCache, PlanCache
from . import _module_factory

__all__ = [
    "VERBOSE_OFF", "VERBOSE_ON", "enabled", "fft_plan_cache", "flags", "is_available", "is_enabled", "plan_cache", "set_flags",
    "verbose", "version",
]  # fmt: skip

enabled: bool
plan_cache: PlanCache
fft_plan_cache: FftPlanCache
VERBOSE_OFF: Final = 0
VERBOSE_ON: Final = 1

is_available: _module_factory.IsTrue
is_enabled: _module_factory.IsTrue
version: _module_factory.Version
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags


def verbose(enable: int | bool) -> Any:
    """Returns a scope in which MKL prints a line for each of its calls, and which collects them.

    Parameters
    ----------
    enable
        `VERBOSE_ON` or `VERBOSE_OFF`, 2, or a bool.

    Returns
    -------
    scope
        Entering it returns a list of events; its ``table()`` is text. The lines of MKL itself go to the program's output.

    Raises
    ------
    BadValue, BadType
        Another level.
    BackendUnavailable
        When it is entered with a level above 0 and MKL is absent.

    Examples
    --------
    >>> from backline.backends import mkl
    >>> with mkl.verbose(mkl.VERBOSE_OFF) as log:
    ...     len(log)
    0
    """
    from ..engine.verbose_scopes import verbose as scope

    return scope("mkl", enable, depth=2)


_module_factory.install(__name__, plans="mkl", transforms="mkl")
