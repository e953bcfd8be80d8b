"""The GPUs: how many there are, which one is current, and what they can do.

Nothing here starts CUDA in this process. The driver is asked in a child, and the array package only if the program has
imported it.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

from . import presence
from .probing.probe_process import ask

__all__ = ["amd_architecture", "capability", "count", "current", "usual_blas"]


def count() -> int:
    """Number of CUDA devices that the driver reports; 0 without one.

    Examples
    --------
    >>> count() >= 0
    True
    """
    return presence.cuda_devices()


def current() -> int:
    """Index of the current device: CuPy's, or the first one while CuPy is not in use.

    Examples
    --------
    >>> current()
    0
    """
    runtime = _runtime()
    if runtime is None or not count():
        return 0
    return int(runtime.getDevice())


def capability(index: int) -> tuple[int, int] | None:
    """Compute capability of a device, such as ``(9, 0)``; None if there is no such device, or the driver does not tell.

    Examples
    --------
    >>> capability(10_000) is None
    True
    """
    library = presence.presence("cuda")
    path = library.path
    if path is None or not 0 <= index < count():
        return None
    known = _capabilities(path)
    return known[index] if index < len(known) else None


@lru_cache(maxsize=8)
def _capabilities(path: str) -> tuple[tuple[int, int] | None, ...]:
    told = ask("cuda.capabilities", path)[0].get("capabilities", ())
    return tuple(None if each is None else (int(each[0]), int(each[1])) for each in told)


def amd_architecture(index: int) -> str:
    """Architecture of one of AMD's devices, such as "gfx942"; empty for others, and while CuPy is not in use.

    Examples
    --------
    >>> amd_architecture(0)
    ''
    """
    runtime = _runtime()
    if runtime is None or not getattr(runtime, "is_hip", False):
        return ""
    name = runtime.getDeviceProperties(index).get("gcnArchName", b"")
    text = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)
    return text.partition(":")[0]


def _runtime() -> Any:
    """CuPy's view of the CUDA runtime, if the program has imported CuPy."""
    cupy = sys.modules.get("cupy")
    return getattr(getattr(cupy, "cuda", None), "runtime", None)


# Architectures of AMD on which hipBLASLt is the default.
_LT_FIRST = ("gfx90a", "gfx942", "gfx950", "gfx1200", "gfx1201")


def usual_blas(index: int) -> str:
    """Return the library that is tried first for products on a device where none is preferred.

    Examples
    --------
    >>> usual_blas(0)
    'cublas'
    """
    return "cublaslt" if amd_architecture(index) in _LT_FIRST else "cublas"
