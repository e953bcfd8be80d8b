"""Axes that callers name: checked, and counted from 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import BadAxis, BadValue
from .linalg_checks import whole

__all__ = ["axes_of", "axis_of", "whole_axes"]

# The words of torch that programs look for in the error of an axis named twice.
_UNIQUE = {
    **dict.fromkeys(("norm", "matrix_norm"), "dims must be different"),
    **dict.fromkeys(
        (f"{inverse}{kind}fft{n}" for inverse in ("", "i") for kind in ("", "r", "h") for n in ("2", "n")),
        "FFT dims must be unique",
    ),
}


def axis_of(where: str, name: str, value: Any, shape: tuple[int, ...], array: str = "input") -> int:
    """Returns an axis of an array of this shape, counted from 0; `where`, `name` and `array` are words for an error.

    >>> axis_of("softmax", "dim", -1, (2, 3))
    1
    """
    rank, axis = len(shape), whole(where, name, value)
    if not -rank <= axis < rank:
        raise BadAxis(
            f"{where}: {name}={value}, and {array} of shape {shape} has {rank} dimension{'' if rank == 1 else 's'}",
            cause=f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {value})"
            if rank
            else f"Dimension specified as {value} but tensor has no dimensions",
            remedy=f"a number from {-rank} to {rank - 1}" if rank else "an array of one dimension or more",
        )
    return axis % rank


def axes_of(where: str, name: str, values: Any, shape: tuple[int, ...], array: str = "input") -> tuple[int, ...]:
    """Returns one axis or several different ones, each counted from 0, as `axis_of` does.

    >>> axes_of("fftn", "dim", (0, -1), (2, 3))
    (0, 1)
    """
    given: Iterable[Any] = values if isinstance(values, (tuple, list)) else (values,)
    axes = tuple(axis_of(where, name, value, shape, array) for value in given)
    if len(set(axes)) < len(axes):
        twice = next(axis for axis in axes if axes.count(axis) > 1)
        words = _UNIQUE.get(where, f"dim {twice} appears multiple times in the list of dims")
        raise BadValue(
            f"{where}: {name}={values!r} names an axis twice",
            cause=f"{array} has shape {shape}, and {words}",
            remedy="each once",
        )
    return axes


def whole_axes(rank: int, values: Any) -> tuple[int, ...] | None:
    """Returns the different axes that a tuple of ints names of so many, counted from 0; None where it is anything else.

    >>> whole_axes(2, (0, -1)), whole_axes(2, (1, -1))
    ((0, 1), None)
    """
    if type(values) is not tuple or not all(type(value) is int and -rank <= value < rank for value in values):
        return None
    axes = tuple(value % rank for value in values)
    return axes if len(set(axes)) == len(axes) else None
