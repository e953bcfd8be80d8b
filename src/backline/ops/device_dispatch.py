"""Builds Problems for CuPy and MLX arrays from their metadata, by calling the NumPy argument checks on data-free stand-ins.

The compiled Memo tells such arrays apart by their type, shape, strides, dtype and device, so a call that is like an earlier one
comes by here no more; its Plan is given the arrays themselves, in the order of the call.

Work goes to the stream that the arrays' own library has as its current one, for this thread and device. As there, a result is
ready for later work on that stream; who uses it on another one, or frees it while another one reads it, has the streams wait for
each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..libraries.array_kinds import arrays_in, describe, kind_of, meta_array
from ..problems import Problem
from .array_arguments import ONE_KIND

__all__ = ["among", "device", "problem_of"]

_described = threading.local()  # where the arrays are that meta arrays stand for, while a Problem is made of them


def among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns true if an argument is an array of a kind that is not NumPy's."""
    return next(arrays_in(iter((*args, *kwargs.values()))), None) is not None


def problem_of(name: str, problem: Callable[..., Problem], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problem:
    """Returns the Problem of a call with such arrays."""
    device = _described.device = _device(name, args, kwargs)
    try:
        made = problem(*(_like(v) for v in args), **{k: _like(v) for k, v in kwargs.items()})
    finally:
        _described.device = "cpu"
    return replace(made, device=device)


def device() -> str:
    """Returns the device of the arrays that a Problem is being built of; some arguments are legal on some devices only."""
    return getattr(_described, "device", "cpu")


def _device(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Returns the device that all arrays of a call are on; refuses arrays of several kinds or devices."""
    found = [(kind, kind.device(array)) for array, kind in arrays_in(iter((*args, *kwargs.values())))]
    values = [part for v in (*args, *kwargs.values()) for part in (v if isinstance(v, tuple) else (v,))]
    kinds = dict.fromkeys(kind.title for kind, _ in found)
    if any(isinstance(v, np.ndarray) for v in values):
        kinds["NumPy"] = None
    if len(kinds) > 1:
        raise BadType(f"{name}: operands are arrays of {' and '.join(sorted(kinds))}", **ONE_KIND)
    devices = list(dict.fromkeys(device for _, device in found))
    if len(devices) > 1:
        raise BadValue(f"{name}: operands are on {' and '.join(devices)}", remedy="copy them to one device first")
    return devices[0]


def _like(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_like(v) for v in value)
    kind = kind_of(value)
    if kind is None:
        return value
    described = describe(value, kind)
    item = described.dtype.itemsize
    if kind.kind == "cuda" and any(s % item for n, s in zip(described.shape, described.strides, strict=True) if n > 1):
        raise BadValue(
            f"an operand of {described.dtype} has strides of {described.strides} bytes",
            cause="a GPU reads elements at multiples of their size, and nothing else", remedy="an array whose elements lie so",
        )  # fmt: skip
    if not described.dtype.isnative:
        what = f"an operand has dtype {described.dtype.str}, whose bytes are in the other order"
        raise BadType(what, remedy="convert it first: x.astype(x.dtype.newbyteorder('='))")
    return meta_array(described)
