"""Threads and preferred libraries, for the process or for a scope."""

from __future__ import annotations

from typing import Any, cast

from . import switches
from .errors import BadType

__all__ = ["get_num_threads", "num_threads", "set_num_threads", "use"]


def get_num_threads() -> int:
    """Threads that a library call may use here.

    Examples
    --------
    >>> with num_threads(1):
    ...     get_num_threads()
    1
    """
    return cast(int, switches.get("num_threads"))


def set_num_threads(n: int) -> None:
    """Set the threads that library calls may use: in the process, or until the end of an open scope.

    Parameters
    ----------
    n
        1 or more.

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


def num_threads(n: int) -> Any:
    """Return a scope in which library calls use that many threads; also a decorator.

    Parameters
    ----------
    n
        1 or more.

    Examples
    --------
    >>> import numpy as np, backline
    >>> with backline.num_threads(1):
    ...     backline.explain(backline.matmul, np.ones((512, 512)), np.ones((512, 512))).chosen.threads
    1
    """
    return switches.make_scope("num_threads", {"num_threads": n}, depth=2)


def use(*libraries: str, only: bool = False, fallback: str | None = None) -> Any:
    """Return a scope that prefers libraries, or allows no others; also a decorator.

    Parameters
    ----------
    *libraries
        Names, the best first.
    only
        Allow no others: what they cannot run raises `NoKernel`.
    fallback
        What to do where none of the preferred ones can run a call: "allow", "warn" or "error".

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
