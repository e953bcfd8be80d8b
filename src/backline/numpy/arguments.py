"""Arguments of calls that Backline runs: ordinary arrays of floats. Everything else is NumPy's own function's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ..errors import BadType

__all__ = ["HALVES", "WIDE", "alike", "also_named", "arrays", "matrices", "numbers", "scalar", "theirs"]

Function = TypeVar("Function", bound=Callable[..., Any])
WIDE = frozenset(map(np.dtype, "fdFD"))
HALVES = frozenset(map(np.dtype, "e"))
theirs: Any = np.linalg  # untyped: what it is given is checked there


def alike(*operands: Any) -> bool:
    """Tells if the operands are ordinary arrays of one dtype that libraries compute with; the quickest question, asked first.

    Examples
    --------
    >>> import numpy as np
    >>> alike(np.ones(2), np.ones(3)), alike(np.ones(2), np.ones(2, np.float32)), alike(np.ones(2), [1.0, 1.0])
    (True, False, False)
    """
    dtype = getattr(operands[0], "dtype", None)
    if dtype not in WIDE and dtype not in HALVES:
        return False
    return all(type(x) is np.ndarray and x.dtype == dtype for x in operands)


def arrays(*operands: Any) -> list[np.ndarray] | None:
    """Returns the operands as ordinary arrays of the floating dtype that NumPy promotes them to, or None: let NumPy decide.

    Examples
    --------
    >>> import numpy as np
    >>> [x.dtype.name for x in arrays(np.ones(2, np.float32), np.ones(2))]
    ['float64', 'float64']
    >>> arrays(np.arange(3), np.arange(3)) is None  # integers
    True
    """
    made = _ordinary(operands)
    if made is None:
        return None
    try:
        dtype = np.result_type(*made)
    except TypeError:  # no common dtype: NumPy's own error says it
        return None
    if dtype not in WIDE and dtype not in HALVES:
        return None
    return [x if x.dtype == dtype else x.astype(dtype) for x in made]


def numbers(*operands: Any) -> list[np.ndarray] | None:
    """Returns the operands as numpy.linalg and numpy.fft take them: integers as float64, no 16-bit floats; or None.

    Examples
    --------
    >>> import numpy as np
    >>> [x.dtype.name for x in numbers(np.arange(3), np.ones(3, np.float32))]
    ['float64', 'float64']
    >>> numbers(np.ones(3, np.float16)) is None
    True
    """
    made = _ordinary(operands)
    if made is None:
        return None
    made = [x.astype(np.float64) if x.dtype.kind in "biu" else x for x in made]
    if not all(x.dtype in WIDE for x in made):
        return None
    dtype = np.result_type(*made)
    return [x if x.dtype == dtype else x.astype(dtype) for x in made]


def matrices(a: Any, square: bool = False, finite: bool = False) -> np.ndarray | None:
    """The matrix, or batch of them, as libraries take it; None where NumPy is to decide."""
    given = numbers(a)
    if given is None or given[0].ndim < 2 or not given[0].size:
        return None
    made = given[0]
    if (square and made.shape[-1] != made.shape[-2]) or (finite and not np.isfinite(made).all()):
        return None
    return made


def _ordinary(operands: tuple[Any, ...]) -> list[np.ndarray] | None:
    """Arrays as they are and of lists; subclasses, masks and what has functions of its own are not ordinary."""
    made: list[np.ndarray] = []
    for x in operands:
        if isinstance(x, (list, tuple, int, float, complex)):
            x = np.asarray(x)
        if type(x) is not np.ndarray and not isinstance(x, np.generic):
            return None
        made.append(np.asarray(x))
    return made


def scalar(result: Any) -> Any:
    """Returns a result of no axes as NumPy does: a scalar."""
    return result[()] if isinstance(result, np.ndarray) and not result.ndim else result


def also_named(**names: str) -> Callable[[Function], Function]:
    """Makes a function take keywords by torch's names too: ``also_named(dim="axis")``.

    Examples
    --------
    >>> @also_named(dim="axis")
    ... def last(x, axis=-1):
    ...     return axis
    >>> last([1.0], dim=0), last([1.0], axis=0), last([1.0])
    (0, 0, -1)
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def renamed(*args: Any, **keywords: Any) -> Any:
            if keywords:
                for given, own in names.items():
                    if given in keywords:
                        if own in keywords:
                            raise BadType(
                                f"{function.__name__}: both {own} and {given} are given", cause="they mean the same", remedy=own
                            )
                        keywords[own] = keywords.pop(given)
            return function(*args, **keywords)

        # The same parameters under further names: for the checker it is the function itself.
        return renamed  # type: ignore[return-value]

    return decorate
