"""Arrays for the rows, and how far results are from what float64 gives: on the host, by NumPy, which shares nothing with the device."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["described", "dtype_of", "error", "moved", "normal", "numbers", "wide"]


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def wide(x: Any) -> Any:
    """An array of either side as NumPy's, in double precision."""
    host = x.get() if hasattr(x, "get") else np.asarray(x)
    return host.astype(np.complex128 if host.dtype.kind == "c" else np.float64)


def normal(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Any:
    """Standard normal numbers of a dtype, on the host."""
    rng = np.random.default_rng([seed, *shape])
    made = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        made = made + 1j * rng.standard_normal(shape)
    return made.astype(dtype_of(dtype))


def numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    """`normal`, with the sizes one by one."""
    return normal(shape, dtype, seed)


def moved(xp: Any, host: Any, by: int) -> Any:
    """The same numbers on the device, so many bytes after where CuPy's memory begins."""
    memory = xp.zeros(host.nbytes + 16, np.uint8)
    memory[by : by + host.nbytes] = xp.asarray(np.ascontiguousarray(host).reshape(-1).view(np.uint8))
    return memory[by : by + host.nbytes].view(host.dtype).reshape(host.shape)


def error(found: Any, expected: Any) -> float:
    """Distance, in the Euclidean norm of all elements, relative to what is expected."""
    expected = wide(expected)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    size = float(np.linalg.norm(expected.ravel()))
    return float(np.linalg.norm((wide(found) - expected).ravel())) / (size or 1.0)


def described(serialized: Any) -> dict[str, Any]:
    """A device as cuDNN describes it: JSON as text or as bytes, with the NUL that C ends a string with or without.

    >>> described(b'{"deviceVer": 900}\\x00'), described([123, 125]), described("{}")
    ({'deviceVer': 900}, {}, {})
    """
    text = serialized if isinstance(serialized, str) else bytes(serialized).decode()
    found: dict[str, Any] = json.loads(text.rstrip("\0"))
    return found
