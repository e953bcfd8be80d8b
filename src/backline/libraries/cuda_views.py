"""Arrays of other packages on CUDA devices: CuPy's views of them without a copy, and results as arrays of the kind that came in.

A view reads and writes the memory of the array, which it keeps alive. Work on it is ordered with other work as the protocols say:

- ``__cuda_array_interface__`` names the stream that the array was last written on, if any; CuPy's current stream waits for
  it, the host does not. Read-only arrays are read only.
- ``__dlpack__`` is given the consumer's stream, and makes that one wait.
- PyTorch has a current stream of its own for each thread and device. A call with its tensors runs there, so that it comes after
  what PyTorch did before, and before what PyTorch does next.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from .array_kinds import kind_of
from .cuda.common import bindings

__all__ = [
    "by_cuda_array_interface", "by_dlpack", "jax_result", "numba_result", "on_cuda", "reason", "torch_result",
    "torch_stream", "torch_view",
]  # fmt: skip

LEGACY, PER_THREAD = 1, 2  # streams of the interface that are no addresses
# dtypes that the interface has no name for: read as unsigned integers of their size, and seen as what they are after.
UNNAMED = {"bfloat16": "<u2", "float8_e4m3fn": "|u1", "float8_e5m2": "|u1"}


def reason() -> str:
    """Returns why such arrays cannot be computed with; empty if they can."""
    return bindings.reason("cupy")


def on_cuda(value: Any) -> bool:
    """Tells whether a value is an array of CuPy's."""
    kind = kind_of(value)
    return kind is not None and kind.kind == "cuda"


class _Memory:
    """Memory of an array, described for CuPy, which keeps this and so the array."""

    def __init__(self, owner: Any, address: int, shape: tuple[int, ...], typestr: str, strides: tuple[int, ...] | None) -> None:
        self.owner = owner
        # No stream: who makes this orders the work, for CuPy would have the host wait.
        self.__cuda_array_interface__ = {
            "version": 3, "shape": shape, "typestr": typestr, "strides": strides, "data": (address, False),
        }  # fmt: skip


def _viewed(owner: Any, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None) -> Any:
    cupy = bindings.cupy()
    if 0 in shape:  # it has no memory
        return cupy.empty(shape, dtype)
    unnamed = UNNAMED.get(dtype.name)
    array = cupy.asarray(_Memory(owner, address, shape, unnamed or dtype.str, strides))
    return array.view(dtype) if unnamed else array


# The interface -----------------------------------------------------------------------------------------------------------


def by_cuda_array_interface(array: Any, where: str) -> Any:
    """Returns CuPy's view of an array that has ``__cuda_array_interface__``, of version 2 or 3."""
    told = array.__cuda_array_interface__
    if told["data"][1] and where.endswith((": out", "out[0]", "out[1]")):
        raise BadValue(f"{where} is read-only", remedy="a writeable array")
    if told.get("mask") is not None:
        raise BadType(f"{where} has a mask", cause="no element is left out", remedy="an array without a mask")
    try:
        dtype = np.dtype(told["typestr"])
    except TypeError:
        raise BadType(f"{where} has elements of the type {told['typestr']!r}", remedy="an array of numbers") from None
    address, strides = int(told["data"][0]), told.get("strides")
    made = _viewed(array, address, tuple(told["shape"]), dtype, None if strides is None else tuple(strides))
    with bindings.cupy().cuda.Device(int(made.device.id)):
        _wait_for(told.get("stream"), where)
    return made


def _wait_for(stream: Any, where: str) -> None:
    """Has CuPy's current stream wait for what a stream was given; None, as in version 2, is no stream."""
    if stream is None:
        return
    if isinstance(stream, bool) or not isinstance(stream, int) or stream == 0:
        raise BadValue(f"{where} names the stream {stream!r}", cause="1 and 2 are the default streams, other numbers addresses")
    cuda = bindings.cupy().cuda
    current = cuda.get_current_stream()
    same = (LEGACY, 0) if stream == LEGACY else (stream,)
    if current.ptr in same:
        return
    event = cuda.Event(disable_timing=True)
    event.record(cuda.ExternalStream(stream))
    current.wait_event(event)


def by_dlpack(array: Any, where: str) -> Any:
    """Returns CuPy's view of an array that has the DLPack protocol; its library has CuPy's current stream wait for it."""
    try:
        return bindings.cupy().from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise BadType(f"{where} has no CuPy view: {error}", remedy="an array of its own with plain strides") from None


# PyTorch ----------------------------------------------------------------------------------------------------------------


def torch_view(tensor: Any, dtype: np.dtype[Any]) -> Any:
    """Returns CuPy's view of a dense tensor on a CUDA device, which nothing records a gradient of."""
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():  # a view that is conjugated when it is read
        plain = plain.resolve_conj().resolve_neg()
    strides = tuple(int(step) * dtype.itemsize for step in plain.stride())
    shape = tuple(int(n) for n in plain.shape)
    with bindings.cupy().cuda.Device(int(tensor.device.index or 0)):
        return _viewed(plain, int(plain.data_ptr()), shape, dtype, strides)


@contextmanager
def torch_stream(tensor: Any) -> Iterator[None]:
    """A context in which CuPy's work goes to the device of a tensor, and to PyTorch's current stream there."""
    cuda = bindings.cupy().cuda
    address = int(sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream)
    with cuda.Device(int(tensor.device.index or 0)):
        if cuda.get_current_stream().ptr == address:
            yield
            return
        with cuda.ExternalStream(address) if address else cuda.Stream(null=True):
            yield


def torch_result(array: Any) -> Any:
    """Returns a tensor with the memory of an array of CuPy's."""
    torch = sys.modules["torch"]
    unnamed = UNNAMED.get(array.dtype.name)
    if unnamed is None:
        return torch.from_dlpack(array)
    words = torch.from_dlpack(array.view(np.int16 if unnamed == "<u2" else np.uint8))
    return words.view(getattr(torch, array.dtype.name))


# JAX and Numba ----------------------------------------------------------------------------------------------------------


def jax_result(array: Any) -> Any:
    """Returns a JAX array with the memory of an array of CuPy's."""
    contiguous = array if array.flags.c_contiguous else bindings.cupy().ascontiguousarray(array)
    return sys.modules["jax"].dlpack.from_dlpack(contiguous)


def numba_result(array: Any) -> Any:
    """Returns a device array of Numba's with the memory of an array of CuPy's."""
    return sys.modules["numba"].cuda.as_cuda_array(array)
