"""Engines for operations on int8, and the libraries that have them.

An engine is a definition of results, to the last bit, and the libraries that compute by it; the rows of the libraries name
their engines. The libraries FBGEMM and QNNPACK are not supported: the engines of their names have their ranges and
their rounding, and the sums, which are the same in every library, are oneDNN's, our loop's or NumPy's. Two methods of a library
are optional:

* ``engine_reason(name)``: why it cannot run that engine on this processor, though it is there, or "";
* ``packing(problem)``: how it wants the weight of a `QuantizedProblem`, if not as NumPy has it: an object that is equal to
  another where one packed weight serves both, with ``nbytes`` and ``pack(weight)``, which returns a vector of so many bytes
  (uint8). Plans get that vector with each call, as operand ``form``.
"""

from __future__ import annotations

import platform
from typing import Any

from .. import switches
from ..problems.quantized_problem import QuantizedProblem
from .base import Library

__all__ = ["IDS", "default", "packing", "reason", "supported"]

IDS = {"none": 0, "fbgemm": 1, "qnnpack": 2, "onednn": 3, "x86": 4}
"""Numbers of the engines in the model."""

_ORDER = ("x86", "onednn", "fbgemm", "qnnpack", "reference")
# Those that pack unless one is set. On x86-64 the definitions of fbgemm and qnnpack are for programs that name them.
_DEFAULTS = {False: ("x86", "onednn", "reference"), True: ("qnnpack", "onednn", "reference")}


def _on_arm() -> bool:
    return platform.machine().lower() in ("aarch64", "arm64")


def supported() -> list[str]:
    """Returns the engines that are there, the best first; the exact one in NumPy always is.

    Examples
    --------
    >>> supported()[-1]
    'reference'
    """
    order = list(_ORDER)
    if _on_arm():
        order.insert(0, order.pop(order.index("qnnpack")))
    return [name for name in order if not reason(name)]


def default() -> str:
    """Returns the engine that packs unless one is set: the best of the usual ones that is there and that switches allow."""
    there = [name for name in _DEFAULTS[_on_arm()] if not reason(name)]
    return next((name for name in there if any(_allowed(x) and not _why(x, name) for x in _having(name))), there[0])


def _having(name: str) -> list[Library]:
    from . import get, info, names

    return [get(library) for library in names() if name in info(library).engines]


def _allowed(library: Library) -> bool:
    only: Any = switches.get("only")
    return bool(switches.get(library.switch)) and (not only or library.name in only)


def reason(name: str) -> str:
    """Returns the reason why an engine is not there, or an empty string.

    Examples
    --------
    >>> reason("reference"), reason("fbgem")
    ('', "there is no engine 'fbgem'")
    """
    if name not in _ORDER:
        return f"there is no engine {name!r}"
    if name == "x86" and platform.machine().lower() not in ("x86_64", "amd64"):
        return f"it runs on x86-64; this is {platform.machine()}"
    reasons = []
    for library in _having(name):
        why = _why(library, name)
        if not why:
            return ""
        reasons.append(f"{library.title}: {why}")
    return "; ".join(reasons) or "no library that is registered has it"


def _why(library: Library, name: str) -> str:
    """Returns the reason why a library does not run an engine that it has, or an empty string."""
    return library.reason() or getattr(library, "engine_reason", lambda name: "")(name)


def packing(problem: QuantizedProblem) -> Any:
    """Returns the packing of a weight for the library that runs its engine; None for NumPy's layout, and without a library."""
    for library in _having(problem.engine):
        found = library.packing(problem) if hasattr(library, "packing") and library.available() else None
        if found is not None:
            return found
    return None
