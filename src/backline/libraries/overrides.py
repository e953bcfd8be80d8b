"""Kernels written in a Python kernel language, each in the place of one operation on one kind of device.

An override is used if and only if neither its language, nor its operation, nor its dispatch key is disabled, and its own
condition holds for the call. The switches of `backends.python_native` say what is disabled; they are read at each call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from .. import _core, switches
from ..errors import BadType, BadValue
from ..switches.switch import nearest, show

__all__ = [
    "KEYS", "LANGUAGES", "OWN", "Override", "Verdict", "active", "considered", "operations", "register", "registered",
    "unregister",
]  # fmt: skip

LANGUAGES: Final = ("cutedsl", "triton")
KEYS: Final = {"cpu": "CPU", "cuda": "CUDA", "mps": "MPS"}
"""Kind of device -> dispatch key."""
OWN: Final = {
    ("triton", "CUDA"): ("nn.functional.scaled_dot_product_attention", "nn.grad.scaled_dot_product_attention_backward"),
}
"""Language and dispatch key -> operations that Backline's own libraries have kernels for. The switches say the same of these."""


@dataclass(frozen=True, slots=True, eq=False)
class Override:
    """One kernel."""

    language: str  # one of `LANGUAGES`
    op: str  # the operation's name, such as "nn.functional.scaled_dot_product_attention"
    key: str  # one of the values of `KEYS`
    function: Callable[..., Any]  # what runs in the operation's place
    # Called with the arguments that `active` is given; whether the kernel can run that call. None: always.
    condition: Callable[..., bool] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of considering an override: a reason not to use it and the switch behind that, or two empty strings."""

    override: Override
    reason: str = ""
    switch: str = ""


lock = threading.RLock()
_overrides: dict[tuple[str, str], tuple[Override, ...]] = {}  # the tuples are replaced, never changed


def _new_lock() -> None:
    global lock
    lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # a thread that does not exist in the child may have held it
    os.register_at_fork(after_in_child=_new_lock)


def register(
    language: str, op: str, key: str, function: Callable[..., Any], condition: Callable[..., bool] | None = None
) -> Override:
    """Adds an override. Those registered first are considered first.

    Raises
    ------
    BadValue
        The language or the key is none that is known.
    BadType
        `op` is no text, or `function` or `condition` cannot be called.

    Examples
    --------
    >>> mine = register("triton", "example.double", "CPU", lambda x: 2 * x, lambda x: x > 0)
    >>> active("example.double", "CPU", 3) is mine, active("example.double", "CPU", -3)
    (True, None)
    >>> unregister(mine)
    """
    for what, value, known in (("language", language, LANGUAGES), ("dispatch key", key, tuple(KEYS.values()))):
        if value not in known:
            near = ", ".join(map(repr, nearest(str(value), known)))
            raise BadValue(f"overrides.register: {show(value)} is no {what}.", remedy=f"one of: {near}")
    if not isinstance(op, str):
        raise BadType(f"overrides.register takes the name of an operation, not {type(op).__name__}: {show(op)}")
    if not callable(function) or not (condition is None or callable(condition)):
        wanted = "a function of the call's arguments, and one that tells a bool"
        raise BadType(f"overrides.register takes functions, not {show(function)} and {show(condition)}", remedy=wanted)
    made = Override(language, op, key, function, condition)
    with lock:
        _overrides[op, key] = (*_overrides.get((op, key), ()), made)
    _core.memo_clear()
    return made


def unregister(override: Override) -> None:
    """Removes an override; one that is not there is no error."""
    with lock:
        left = tuple(each for each in _overrides.get((override.op, override.key), ()) if each is not override)
        if left:
            _overrides[override.op, override.key] = left
        else:
            _overrides.pop((override.op, override.key), None)
    _core.memo_clear()


def registered(op: str, key: str) -> bool:
    """Tells whether there is an override of an operation on a kind of device."""
    return (op, key) in _overrides


def considered(op: str, key: str, *args: Any, **kwargs: Any) -> list[Verdict]:
    """Returns every override of an operation on a kind of device with its verdict, in the order in which they are tried."""
    there = _overrides.get((op, key), ())
    if not there:
        return []
    values: Any = switches.current()
    verdicts = []
    for each in there:
        language = f"python_native.{each.language}.enabled"
        if not values[language]:
            verdict = Verdict(each, f"{each.language} is disabled by {language}", language)
        elif op in values["python_native.disabled_operations"]:
            verdict = _named(each, f"operation {op}", "python_native.disabled_operations")
        elif key in values["python_native.disabled_dispatch_keys"]:
            verdict = _named(each, f"dispatch key {key}", "python_native.disabled_dispatch_keys")
        elif each.condition is not None and not each.condition(*args, **kwargs):
            verdict = Verdict(each, "its condition does not hold for this call")
        else:
            verdict = Verdict(each)
        verdicts.append(verdict)
    return verdicts


def _named(override: Override, what: str, switch: str) -> Verdict:
    return Verdict(override, f"{what} is disabled by {switch}", switch)


def active(op: str, key: str, *args: Any, **kwargs: Any) -> Override | None:
    """Returns the override that runs a call, or None: the first that nothing disables and whose condition holds.

    The dispatch key is "CPU", "CUDA" or "MPS"; the other arguments are handed to the conditions.
    """
    return next((verdict.override for verdict in considered(op, key, *args, **kwargs) if not verdict.reason), None)


def operations(language: str) -> list[str]:
    """Returns the sorted names of the operations that have a kernel in a language; none for a language that is not known."""
    own = {op for (name, _), those in OWN.items() for op in those if name == language}
    with lock:
        return sorted(own.union(each.op for those in _overrides.values() for each in those if each.language == language))
