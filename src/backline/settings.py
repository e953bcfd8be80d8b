"""Threads and preferred libraries, for the process or for a scope."""

from __future__ import annotations

from typing import cast

from . import _core, switches
from .errors import BadType
from .switches import Scope, Switch
from .switches.legal import Between
from .switches.starting_values import MOST_THREADS
from .switches.switch import show

__all__ = [
    "get_num_interop_threads",
    "get_num_threads",
    "num_threads",
    "set_flush_denormal",
    "set_num_interop_threads",
    "set_num_threads",
    "use",
]


def get_num_threads() -> int:
    """Returns the threads that a library call may use here.

    Examples
    --------
    >>> with num_threads(1):
    ...     get_num_threads()
    1
    """
    return cast(int, switches.get("num_threads"))


def set_num_threads(n: int) -> None:
    """Sets the threads that library calls may use: in the process, or until the end of an open scope.

    Parameters
    ----------
    n
        1 to 1024.

    Raises
    ------
    BadValue, BadType
        Anything else.

    Examples
    --------
    >>> before = get_num_threads()
    >>> set_num_threads(1); get_num_threads()
    1
    >>> set_num_threads(before)
    """
    switches.assign("num_threads", n, depth=2)


def num_threads(n: int) -> Scope:
    """Returns a scope in which library calls use that many threads; also a decorator.

    Parameters
    ----------
    n
        1 to 1024.

    Examples
    --------
    >>> import numpy as np, backline
    >>> with backline.num_threads(1):
    ...     backline.explain(backline.matmul, np.ones((512, 512)), np.ones((512, 512))).chosen.threads
    1
    """
    return switches.make_scope("num_threads", {"num_threads": n}, depth=2)


# Not a switch: it can be set once, so it has no scope.
_INTEROP = Switch(
    "num_interop_threads", int, 1, Between(1, MOST_THREADS), "Threads among which the items of a batch are divided."
)


def get_num_interop_threads() -> int:
    """Returns the threads among which independent items of a batch are divided: those a call may use, unless fewer were set.

    Examples
    --------
    >>> get_num_interop_threads() <= get_num_threads()
    True
    """
    from .native import thread_team  # not at import: this module is there from the start

    return thread_team.items_threads(get_num_threads())


def set_num_interop_threads(n: int) -> None:
    """Sets the most threads among which independent items of a batch are divided: once, before that first happens.

    Parameters
    ----------
    n
        1 to 1024.

    Raises
    ------
    BadValue, BadType
        Anything else.
    RuntimeError
        It was set before, or a batch has been divided already.
    """
    from .native import thread_team

    if not thread_team.limit_items(cast(int, _INTEROP.check(n))):
        raise RuntimeError(
            f"set_num_interop_threads({show(n)}) was refused: it can be set once, before a batch is first divided; "
            f"use num_threads({n}) in a scope instead"
        )


def set_flush_denormal(mode: bool) -> bool:
    """Flushes denormals to zero, in this thread and the team that libraries run on.

    Parameters
    ----------
    mode
        On or off.

    Returns
    -------
    bool
        False if this processor has no such mode; nothing changed then.

    Raises
    ------
    BadType
        Not a bool.

    Notes
    -----
    A mode of the processor's threads, not of a scope. OpenBLAS factorises on threads of its own, which it does not reach once
    they run; MKL's elementary functions keep subnormal numbers.

    Examples
    --------
    >>> import numpy as np
    >>> set_flush_denormal(False) in (True, False)
    True
    """
    checked = Switch("set_flush_denormal", bool, False, doc="Flush denormals to zero.").check(mode)
    return _core.flush_denormal(bool(checked), get_num_threads())


def use(*libraries: str, only: bool = False, fallback: str | None = None) -> Scope:
    """Returns a scope that prefers libraries, or allows no others; also a decorator.

    Parameters
    ----------
    *libraries
        Names, the best first.
    only
        Allow no others: what they cannot run raises `NoKernel`.
    fallback
        Action if none of the preferred ones can run a call: "allow", "warn" or "error".

    Examples
    --------
    >>> import numpy as np, backline
    >>> with backline.use("numpy"):
    ...     backline.explain(backline.matmul, np.eye(3), np.eye(3)).library
    'numpy'
    """
    if not libraries:
        raise BadType("use() takes the name of a library", remedy="use('mkl'), use('mkl', 'openblas', only=True)")
    values: dict[str, object] = {"only" if only else "prefer": tuple(libraries), "fallback": fallback}
    return switches.make_scope("use", values, depth=2)
