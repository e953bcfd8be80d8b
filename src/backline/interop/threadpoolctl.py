"""Backline's number of threads for threadpoolctl: `threadpool_limits` limits Backline as it limits the libraries in the process.

Importing threadpoolctl is enough: when both are imported, in either order, the controller is registered. Backline appears among
the BLAS libraries, so that a limit of the "blas" API holds for it. As with OpenBLAS, a limit is one of the process, unless a
scope of Backline's is open: then it is one of that scope.
"""

from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import Any

from .. import settings, switches
from .._version import __version__
from ..errors import Frozen

__all__ = ["register"]

_SWITCH = "num_threads"
_LIBRARY = "threadpoolctl"


def register(library: ModuleType | None = None) -> bool:
    """Register the controller with threadpoolctl, once.

    Parameters
    ----------
    library
        The imported module threadpoolctl; by default the one in ``sys.modules``.

    Returns
    -------
    bool
        Whether it is registered. False where threadpoolctl is not imported, or is older than 3.5.

    Examples
    --------
    >>> import threadpoolctl, backline
    >>> with threadpoolctl.threadpool_limits(1):
    ...     backline.get_num_threads()
    1
    """
    library = library or sys.modules.get(_LIBRARY)
    base, add = getattr(library, "LibController", None), getattr(library, "register", None)
    if library is None or base is None or add is None:
        return False
    if not hasattr(library, "_backline_is_registered"):
        add(_controller(base))
        add(_exchange_controller(base))
        library._backline_is_registered = True  # type: ignore[attr-defined]  # goes with the module when that is reloaded
    return True


def _controller(base: Any) -> Any:
    class BacklineController(base):  # type: ignore[misc]  # threadpoolctl may not be installed: its class is known when it is there
        """The number of threads that Backline's calls may use."""

        user_api = "blas"
        internal_api = "backline"
        filename_prefixes = ("_core",)
        check_symbols = ("backline_core",)  # many packages have a file called _core

        def get_num_threads(self) -> int:
            return settings.get_num_threads()

        def set_num_threads(self, num_threads: int) -> None:
            # threadpoolctl sets the counts of the libraries themselves as well, ours among them.
            if team := sys.modules.get("backline.native.thread_team"):
                team.forget_counts()
            _set(int(num_threads))

        def get_version(self) -> str:
            return __version__

    return BacklineController


def _exchange_controller(base: Any) -> Any:
    class ExchangeController(base):  # type: ignore[misc]  # as above
        """The threads of the library that NumPy's and SciPy's calls were exchanged for.

        MKL and BLIS are found by threadpoolctl as well. The copy of OpenBLAS is not: it has no file.
        """

        user_api = "blas"
        internal_api = "backline-exchange"
        filename_prefixes = ("_exchange",)
        check_symbols = ("backline_exchange",)

        def get_num_threads(self) -> int:
            return _in_place_of_numpys().threads() or settings.get_num_threads()

        def set_num_threads(self, num_threads: int) -> None:
            _in_place_of_numpys().set_threads(int(num_threads))

        def get_version(self) -> str:
            return __version__

    return ExchangeController


def _in_place_of_numpys() -> Any:
    from .exchange import thread_counts

    return thread_counts


_set_here = False  # whether the value that is assigned for the process is a limit of ours


def _set(count: int) -> None:
    """Set the number of threads; a limit that ends leaves the switch as if there had been none."""
    global _set_here
    said = switches.history(_SWITCH)
    if said[0].value == count:
        return
    outside = said[1:] if _set_here else said
    if _set_here and outside[0].value == count and not switches.scope_is_open():
        _set_here = False
        switches.withdraw(_SWITCH)
        return
    try:
        switches.assign(_SWITCH, count, depth=_depth())
    except Frozen as error:
        warnings.warn(f"threadpoolctl cannot limit Backline: {error}", RuntimeWarning, stacklevel=_depth())
    else:
        if not switches.scope_is_open():
            _set_here = _set_here or said[0].origin.kind != "assignment"


def _depth() -> int:
    """Returns the stack level, seen from the caller, of the first line outside threadpoolctl and this file."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__") in (_LIBRARY, "contextlib", __name__):
        frame, depth = frame.f_back, depth + 1
    return depth
