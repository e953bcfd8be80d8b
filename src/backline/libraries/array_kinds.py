"""Arrays of CuPy and MLX: the properties that a Problem holds, read without importing their packages.

An array belongs to a kind by the module of its type, and that module was imported by whoever made the array.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core
from ..problems import Operand, operand
from ..problems.dtypes import bfloat16
from ..problems.memory_layout import contiguous_strides
from ..records import Record

__all__ = [
    "ArrayKind", "Described", "arrays_in", "describe", "kind_of", "learn", "measured_by", "meta_array", "register", "unregister",
]  # fmt: skip

NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


@dataclass(frozen=True, slots=True)
class Described:
    """The properties of an array that a Plan depends on: values only, so that it can be a key."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str


class ArrayKind(Record):
    """One kind of array."""

    title: str  # of its library, as messages have it
    package: str  # first part of the module of its type
    type_name: str  # name of the type
    # dtype, strides, device: each gives that of an array: a NumPy dtype, bytes, "cuda:0".
    dtype: Callable[[Any], np.dtype[Any]]
    strides: Callable[[Any], tuple[int, ...]]
    device: Callable[[Any], str]
    kind: str = ""  # the kind of device: "cuda"
    # put, get, wait: what measuring wants: a copy of a NumPy array on a device, of the same strides; the copy back; waiting until
    # the device has done what it was given. None where nothing is measured.
    put: Callable[[np.ndarray[Any, Any], str], Any] | None = None
    get: Callable[[Any], np.ndarray[Any, Any]] | None = None
    wait: Callable[[str], None] | None = None
    # The attributes that say what `Described` says, and are numbers, short texts, NumPy dtypes and tuples of them: the compiled
    # Memo reads them itself. Without them it calls for a description, which is slower.
    reads: tuple[str, ...] = ()


def _to_cupy(array: np.ndarray[Any, Any], device: str) -> Any:
    import ctypes

    cupy = sys.modules["cupy"]
    low, end = operand("", array).extent()
    there = (ctypes.c_uint8 * (end - low)).from_address(array.ctypes.data + low) if array.size else (ctypes.c_uint8 * 1)()
    with cupy.cuda.Device(int(device.partition(":")[2] or 0)):
        memory = cupy.asarray(np.frombuffer(memoryview(there), np.uint8))
        return cupy.ndarray(array.shape, array.dtype, memory.data - low, array.strides)


def _wait_for_cuda(device: str) -> None:
    sys.modules["cupy"].cuda.Device(int(device.partition(":")[2] or 0)).synchronize()


def _mlx_dtype(array: Any) -> np.dtype[Any]:
    name = str(array.dtype).rpartition(".")[2]
    if name == "bfloat16":
        return bfloat16()
    return np.dtype("bool" if name == "bool_" else name)


_KINDS: dict[str, ArrayKind] = {
    kind.package: kind
    for kind in (
        ArrayKind(
            "CuPy", "cupy", "ndarray", lambda a: np.dtype(a.dtype), lambda a: a.strides, lambda a: f"cuda:{a.device.id}",
            "cuda", _to_cupy, lambda a: a.get(), _wait_for_cuda, ("dtype", "shape", "strides", "data.device_id"),
        ),
        # MLX has no strides to show: its arrays are values, row by row for whoever looks.
        ArrayKind("MLX", "mlx", "array", _mlx_dtype, lambda a: contiguous_strides(a.shape, int(a.itemsize)), lambda a: "mps"),
    )
}


def register(kind: ArrayKind) -> None:
    """Adds a kind of array, or replaces the description of one."""
    _KINDS[kind.package] = kind
    _core.forget_array_types()


def unregister(package: str) -> None:
    """Removes a kind that was registered."""
    del _KINDS[package]
    _core.forget_array_types()


def kind_of(value: object) -> ArrayKind | None:
    """Returns the kind of an array that is not NumPy's, or None for everything else.

    >>> import numpy as np
    >>> kind_of(np.zeros(3)) is None, kind_of("text") is None
    (True, True)
    """
    if type(value) is np.ndarray:
        return None
    for made in type(value).__mro__:  # a class of the program's own may be derived from one
        kind = _KINDS.get(made.__module__.partition(".")[0])
        if kind is not None and made.__name__ == kind.type_name:
            return kind
    return None


def measured_by(device: str) -> ArrayKind | None:
    """The kind whose arrays are made to measure on a device; None where nothing can be, or its package is not imported.

    >>> measured_by("mps") is None
    True
    """
    kinds = (k for k in _KINDS.values() if k.kind == device.partition(":")[0] and k.put is not None and k.package in sys.modules)
    return next(kinds, None)


def learn(array: Any, kind: ArrayKind) -> bool:
    """Let the Memo know arrays of this one's type from now on. False if it did, and cannot make a key of this one."""
    if kind.reads:
        return bool(_core.register_array_type(type(array), tuple(tuple(path.split(".")) for path in kind.reads)))

    def told(array: Any) -> tuple[Any, ...]:
        of = describe(array, kind)
        return of.dtype, of.shape, of.strides, of.device

    return bool(_core.register_array_type(type(array), told))


def describe(array: Any, kind: ArrayKind) -> Described:
    """Returns the properties of an array that a Problem holds."""
    return Described(kind.dtype(array), tuple(int(n) for n in array.shape), kind.strides(array), kind.device(array))


def meta_array(of: Described) -> np.ndarray[Any, Any]:
    """A NumPy array laid out like another one, in memory that nobody wrote to and that takes no room.

    >>> import numpy as np
    >>> a = meta_array(Described(np.dtype(np.float32), (1000, 1000, 1000), (4, 4000, 4000000), "cuda:0"))
    >>> a.shape, a.strides, a.dtype.name
    ((1000, 1000, 1000), (4, 4000, 4000000), 'float32')
    """
    if 0 in of.shape:
        return np.empty(of.shape, of.dtype)
    low, end = Operand("", of.dtype, of.shape, of.strides).extent()
    memory = mmap.mmap(-1, end - low, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    array: np.ndarray[Any, Any] = np.ndarray(of.shape, of.dtype, memory, -low, of.strides)
    return array


def arrays_in(values: Iterator[Any]) -> Iterator[tuple[Any, ArrayKind]]:
    """Yields the arrays of a kind among values and tuples of them."""
    for value in values:
        for part in value if isinstance(value, tuple) else (value,):
            kind = kind_of(part)
            if kind is not None:
                yield part, kind
