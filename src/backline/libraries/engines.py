"""Engines for operations on int8: which of them are there."""

from __future__ import annotations

import platform

from .presence import presence

__all__ = ["IDS", "reason", "supported"]

IDS = {"none": 0, "fbgemm": 1, "qnnpack": 2, "onednn": 3, "x86": 4}
"""Numbers of the engines in the model."""

_ORDER = ("x86", "onednn", "fbgemm", "qnnpack", "reference")
_BEHIND = {"onednn": "mkldnn", "fbgemm": "fbgemm", "qnnpack": "qnnpack"}


def supported() -> list[str]:
    """Return the engines that are there, the best first; the exact one in NumPy always is.

    Examples
    --------
    >>> supported()[-1]
    'reference'
    """
    order = list(_ORDER)
    if platform.machine().lower() in ("aarch64", "arm64"):
        order.insert(0, order.pop(order.index("qnnpack")))
    return [name for name in order if not reason(name)]


def reason(name: str) -> str:
    """Why an engine is not there, or an empty string."""
    if name == "reference":
        return ""
    if name == "x86":
        if platform.machine().lower() not in ("x86_64", "amd64"):
            return f"it runs on x86-64; this is {platform.machine()}"
        if reason("onednn") and reason("fbgemm"):
            return "it runs on oneDNN or FBGEMM, and neither is there"
        return ""
    if name in _BEHIND:
        found = presence(_BEHIND[name])
        return "" if found.available() else f"{name}: {found.reason()}"
    return f"there is no engine {name!r}"
