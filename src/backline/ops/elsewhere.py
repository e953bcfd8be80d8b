"""Operations on arrays that are not NumPy's: the same operation on their likenesses says what the Problem is.

A call is remembered by what its arrays are like, as the compiled Memo does for NumPy's; its Plan is given the arrays themselves.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from .. import _core, switches
from ..errors import BadType, BadValue
from ..libraries.array_kinds import Described, arrays_in, describe, kind_of, likeness
from ..problems import Problem

__all__ = ["among", "call", "device", "problem_of"]

MOST = 4096

_plans: OrderedDict[Hashable, Any] = OrderedDict()
_lock = threading.Lock()
_generation = 0  # of the Memo, when they were made
_described = threading.local()  # where the arrays are that likenesses stand for, while a Problem is made of them


def among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is an array of a kind that is not NumPy's."""
    return next(arrays_in(iter((*args, *kwargs.values()))), None) is not None


def problem_of(name: str, problem: Callable[..., Problem], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problem:
    """The Problem of a call with such arrays."""
    device = _described.device = _device(name, args, kwargs)
    try:
        made = problem(*(_like(v) for v in args), **{k: _like(v) for k, v in kwargs.items()})
    finally:
        _described.device = "cpu"
    return replace(made, device=device)


def device() -> str:
    """Where the arrays are of which a Problem is being made: for what is legal on some devices only."""
    return getattr(_described, "device", "cpu")


def call(op: Any, problem: Callable[..., Problem], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on such arrays."""
    from ..engine.choose import plan_for

    named = tuple((k, _key(v)) for k, v in kwargs.items())
    key = (op.__module__, op.__qualname__, switches.current(), tuple(map(_key, args)), named)
    try:
        hash(key)
    except TypeError:
        problem(*args, **kwargs)  # says what is wrong with an argument
        raise
    now = _core.memo_generation()
    with _lock:
        _forget(now)
        plan = _plans.get(key)
        if plan is not None:
            _plans.move_to_end(key)
    if plan is None or getattr(plan, "failed", False):
        plan = plan_for(problem(*args, **kwargs))
        with _lock:
            if now == _core.memo_generation():  # else it was made of what holds no more
                _plans[key] = plan
            while len(_plans) > MOST:
                _plans.popitem(last=False)
    return _core.run(op.__name__, plan, *(array for array, _ in arrays_in(iter((*args, *kwargs.values())))))


def _forget(now: int) -> None:
    """Let go of plans that the Memo would have let go of."""
    global _generation
    if now != _generation:
        _plans.clear()
        _generation = now


def _device(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The device that all arrays of a call are on.

    Raises
    ------
    BadType
        NumPy arrays, or another kind, are among them.
    BadValue
        They are on several devices.
    """
    found = [(kind, kind.device(array)) for array, kind in arrays_in(iter((*args, *kwargs.values())))]
    values = [part for v in (*args, *kwargs.values()) for part in (v if isinstance(v, tuple) else (v,))]
    kinds = dict.fromkeys(kind.title for kind, _ in found)
    if any(isinstance(v, np.ndarray) for v in values):
        kinds["NumPy"] = None
    if len(kinds) > 1:
        raise BadType(
            f"{name}: operands are arrays of {' and '.join(sorted(kinds))}", cause="one call takes arrays of one kind",
            remedy="convert them first: nothing is copied to or from a device behind your back",
        )  # fmt: skip
    devices = list(dict.fromkeys(device for _, device in found))
    if len(devices) > 1:
        raise BadValue(f"{name}: operands are on {' and '.join(devices)}", remedy="copy them to one device first")
    return devices[0]


def _like(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_like(v) for v in value)
    kind = kind_of(value)
    return value if kind is None else likeness(describe(value, kind))


def _key(value: Any) -> Hashable:
    if isinstance(value, tuple):
        return tuple(_key(v) for v in value)
    kind = kind_of(value)
    if kind is None:
        # 1, 1.0 and True are equal, and not the same argument.
        return type(value), value
    made: Described = describe(value, kind)
    return made
