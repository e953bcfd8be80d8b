"""Reproducible results, and the precision of float32 products: torch's functions for both, which read and write switches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from . import switches
from .errors import BadType, BadValue, TooLarge
from .switches.switch import show

__all__ = [
    "are_deterministic_algorithms_enabled",
    "empty",
    "get_deterministic_debug_mode",
    "get_float32_matmul_precision",
    "is_deterministic_algorithms_warn_only_enabled",
    "set_deterministic_debug_mode",
    "set_float32_matmul_precision",
    "use_deterministic_algorithms",
]

_MODES = {"default": (False, False), "warn": (True, True), "error": (True, False)}


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False, level: str | None = None) -> None:
    """Restricts calls to algorithms that give the same bits again, or lifts the restriction.

    Parameters
    ----------
    mode
        On or off.
    warn_only
        If nothing conforms, warn and run, instead of raising `NotDeterministic`. Stored with `mode` False too.
    level
        "run", the same bits from run to run, or "threads", for any number of threads; None keeps ``determinism_level``.

    Raises
    ------
    BadType, BadValue
        An illegal argument; nothing is stored then.

    Examples
    --------
    >>> import backline
    >>> with backline.backends.flags():
    ...     backline.use_deterministic_algorithms(True, level="threads")
    ...     backline.are_deterministic_algorithms_enabled(), backline.backends.determinism_level
    (True, 'threads')
    """
    values: dict[str, object] = {"deterministic": mode, "warn_only": warn_only}
    if level is not None:
        values["determinism_level"] = level
    switches.assign_many(values, depth=2)


def are_deterministic_algorithms_enabled() -> bool:
    """Tells whether only algorithms that give the same bits again may run here."""
    return cast(bool, switches.get("deterministic"))


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Tells whether a call that nothing conforming can run only warns."""
    return cast(bool, switches.get("warn_only"))


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """Sets determinism by a number or a word.

    Parameters
    ----------
    debug_mode
        0 or "default": off. 1 or "warn": on, with a warning where nothing conforms. 2 or "error": on.

    Raises
    ------
    BadValue, BadType
        Anything else.

    Examples
    --------
    >>> import backline
    >>> with backline.backends.flags():
    ...     backline.set_deterministic_debug_mode("warn")
    ...     backline.get_deterministic_debug_mode()
    1
    """
    legal = "0, 1, 2, 'default', 'warn', 'error'"
    if isinstance(debug_mode, (bool, np.bool_)) or not isinstance(debug_mode, (int, np.integer, str)):
        raise BadType(
            f"set_deterministic_debug_mode takes an int or a str, not {type(debug_mode).__name__}: {show(debug_mode)}",
            cause=f"debug_mode must be str or int, but got {type(debug_mode)}",
            remedy=f"legal values: {legal}",
        )
    word: object = debug_mode if isinstance(debug_mode, str) else dict(enumerate(_MODES)).get(int(debug_mode))
    if word not in _MODES:
        wanted = "one of `default`, `warn`, `error`" if isinstance(debug_mode, str) else "0, 1, or 2"
        raise BadValue(
            f"deterministic debug mode {show(debug_mode)} is not a legal value.",
            cause=f"invalid value of debug_mode, expected {wanted}",
            remedy=f"legal values: {legal}",
        )
    mode, warn_only = _MODES[str(word)]
    switches.assign_many({"deterministic": mode, "warn_only": warn_only}, depth=2)


def get_deterministic_debug_mode() -> int:
    """Returns 0 (off), 1 (on, warning only) or 2 (on)."""
    return 0 if not switches.get("deterministic") else 1 if switches.get("warn_only") else 2


def set_float32_matmul_precision(precision: str) -> None:
    """Sets how far the float32 inputs of products may be reduced, on CUDA and on the CPU.

    Parameters
    ----------
    precision
        "highest" (not at all), "high" (tf32), or "medium" (tf32 on CUDA, bf16 on the CPU); upper and lower case are one.

    Raises
    ------
    BadValue, BadType
        Anything else; nothing changes then.

    Examples
    --------
    >>> import backline
    >>> with backline.backends.flags():
    ...     backline.set_float32_matmul_precision("High")
    ...     backline.backends.cuda.matmul.fp32_precision, backline.get_float32_matmul_precision()
    ('tf32', 'high')
    """
    switches.assign("float32_matmul_precision", precision, depth=2)


def get_float32_matmul_precision() -> str:
    """Returns "medium" if products on the CPU read bf16, else "high" if they or those on CUDA read tf32, else "highest"."""
    return cast(str, switches.get("float32_matmul_precision"))


def empty(
    *shape: Any, size: Sequence[int] | None = None, dtype: object = np.float32
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Returns a new array whose elements are not set.

    While determinism is on, and ``utils.deterministic.fill_uninitialized_memory`` with it, they are NaN, the largest integer,
    or True: reading what was never written then shows, and gives the same bits each time.

    Parameters
    ----------
    *shape
        Size of each axis: ints, or one tuple or list of them. A dtype may follow, as in NumPy.
    size
        The shape by torch's name.
    dtype
        Any numeric dtype of NumPy.

    Raises
    ------
    BadType, BadValue
        Not a shape, or not a dtype of numbers; no shape, or two.

    Examples
    --------
    >>> import backline
    >>> with backline.backends.flags(deterministic=True):
    ...     backline.empty(2)
    array([nan, nan], dtype=float32)
    >>> backline.empty(2, 3).shape == backline.empty((2, 3)).shape == backline.empty(size=[2, 3]).shape
    True
    """
    if len(shape) == 2 and not isinstance(shape[1], (int, np.integer)):
        dtype = shape[1]
        shape = (shape[0],)
    if (size is None) == (not shape):
        number = "none" if size is None else "two"
        raise BadType(f"empty() takes one shape, {number} given", remedy="empty(2, 3), or empty((2, 3))")
    sizes: Any = size if size is not None else shape[0] if len(shape) == 1 else shape
    try:
        array: np.ndarray[Any, np.dtype[Any]] = np.empty(sizes, np.dtype(dtype))  # type: ignore[call-overload]  # refused below
    except TypeError as error:
        raise BadType(f"empty({show(sizes)}, {show(dtype)}) makes no array", cause=str(error)) from None
    except MemoryError as error:
        raise TooLarge(f"empty({show(sizes)}, {show(dtype)}) makes no array", cause=str(error), remedy="a smaller one") from None
    except ValueError as error:
        raise BadValue(f"empty({show(sizes)}, {show(dtype)}) makes no array", cause=str(error)) from None
    snapshot = switches.current()
    if snapshot["deterministic"] and snapshot["utils.deterministic.fill_uninitialized_memory"]:
        kind = array.dtype.kind
        if kind in "iu":
            array.fill(np.iinfo(array.dtype).max)
        elif kind == "b":
            array.fill(True)
        elif kind in "fcV" and array.dtype.names is None:
            array.fill(np.nan)
    return array
