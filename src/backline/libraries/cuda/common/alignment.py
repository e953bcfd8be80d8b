"""Arrays that begin at no multiple of what reads them: copied, byte by byte, to memory that does.

A kernel that reads whole elements at another address fails, and nothing can be computed on the device after it. A view of bytes
(``x[1:].view("float32")``) is such an array. The Memo's key has no addresses, so every call looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....problems import Operand
from . import bindings

__all__ = ["ELEMENT", "WORKSPACE", "called", "called_aligned", "copied", "misaligned", "put", "workspace"]

ELEMENT = 16  # bytes: an address that is a multiple of it suits elements of every dtype
NO_SCALARS: dict[str, Any] = {}
WORKSPACE = 256  # bytes: what cuBLAS wants of a workspace, and more than the others do


def misaligned(array: Any) -> bool:
    """Tells whether an array begins at no multiple of its element's size."""
    return bool(array.size and array.data.ptr % array.dtype.itemsize)


def called(function: Callable[..., Any], arrays: tuple[Any, ...], scalars: dict[str, Any] = NO_SCALARS) -> Any:
    """Calls a function on arrays, and scalars by keyword; where arrays are misaligned, on copies of these."""
    bits = 0
    for array in arrays:
        bits |= array.data.ptr
    if bits % ELEMENT and any(map(misaligned, arrays)):
        return called_aligned(function, arrays, scalars)
    return function(*arrays, **scalars)


def called_aligned(function: Callable[..., Any], arrays: tuple[Any, ...], scalars: dict[str, Any]) -> Any:
    """Calls a function on arrays of which some are misaligned: on copies of these; results are put where the caller's arrays are.

    An array that the function returns is one that it was given to write to.
    """
    given = [copied(array) if misaligned(array) else array for array in arrays]
    result = function(*given, **scalars)
    moved = {id(copy): array for copy, array in zip(given, arrays, strict=True) if copy is not array}

    def back(part: Any) -> Any:
        array = moved.get(id(part))
        if array is None:
            return part
        put(part, array)
        return array

    if not isinstance(result, tuple):
        return back(result)
    parts = [back(part) for part in result]
    return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)


def copied(array: Any, multiple: int = ELEMENT) -> Any:
    """Returns a copy with the strides of an array, which Plans are made for; its element 0 is at a multiple of so many bytes."""
    low, end = Operand("", array.dtype, array.shape, array.strides).extent()
    cupy = bindings.cupy()
    memory = cupy.empty(end - low + multiple, "uint8")
    first = (low - memory.data.ptr) % multiple
    whole = memory[first : first + end - low].view(array.dtype)
    copy = cupy.lib.stride_tricks.as_strided(whole[-low // array.dtype.itemsize :], array.shape, array.strides)
    put(array, copy)
    return copy


def put(source: Any, target: Any) -> None:
    """Copies the elements of an array to another of its shape and dtype, as bytes: so they may lie anywhere."""
    if source.size:
        _bytes(target)[...] = _bytes(source)


def _bytes(array: Any) -> Any:
    """The bytes of the elements, along a further axis."""
    return array[..., None].view("uint8")


def workspace(nbytes: int) -> Any:
    """Memory of CuPy's pool for a library to work in; aligned, whatever allocator a program gave to CuPy."""
    alloc = bindings.cupy().cuda.alloc
    memory = alloc(nbytes)
    if memory.ptr % WORKSPACE == 0:
        return memory
    memory = alloc(nbytes + WORKSPACE)
    return memory + -memory.ptr % WORKSPACE
