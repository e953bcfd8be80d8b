"""Engines for operations on int8: which of them are there.

An engine is there if a library that is driven here has its arithmetic, and is found; it says so by an attribute ``engines``, a
tuple of names. That a library lies on this machine is not enough: nothing would run.
"""

from __future__ import annotations

import platform

from .presence import presence

__all__ = ["IDS", "reason", "supported"]

IDS = {"none": 0, "fbgemm": 1, "qnnpack": 2, "onednn": 3, "x86": 4}
"""Numbers of the engines in the model."""

_ORDER = ("x86", "onednn", "fbgemm", "qnnpack", "reference")
# Engine -> the libraries whose kernels it is made of, by the name their presence is asked for, and as their makers write it.
_BEHIND = {
    "x86": {"mkldnn": "oneDNN", "fbgemm": "FBGEMM"},
    "onednn": {"mkldnn": "oneDNN"},
    "fbgemm": {"fbgemm": "FBGEMM"},
    "qnnpack": {"qnnpack": "QNNPACK"},
}


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
    """Why an engine is not there, or an empty string.

    Examples
    --------
    >>> reason("reference"), reason("fbgem")
    ('', "there is no engine 'fbgem'")
    """
    if name not in _ORDER:
        return f"there is no engine {name!r}"
    if name == "x86" and platform.machine().lower() not in ("x86_64", "amd64"):
        return f"it runs on x86-64; this is {platform.machine()}"
    from . import all_libraries

    having = [library for library in all_libraries() if name in getattr(library, "engines", ())]
    if any(library.available() for library in having):
        return ""
    if having:
        return "; ".join(f"{library.title}: {library.reason()}" for library in having)
    return "; ".join(_not_driven(backend, title) for backend, title in _BEHIND[name].items())


def _not_driven(backend: str, title: str) -> str:
    found = presence(backend)
    if found.available():
        return f"{title} is found, but its operations on int8 are not driven by this version"
    return f"the operations of {title} on int8 are not driven by this version, and it is not found: {found.reason()}"
