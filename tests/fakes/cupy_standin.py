"""A CuPy without a device: its arrays lie in NumPy's memory, so Plans run, and fakes of bindings can compute on the addresses.

As CuPy's own, the arrays do not turn into NumPy's by themselves: `asnumpy` or ``.get()`` says so. What is not written here is
NumPy's function of that name, with arrays wrapped: elementwise work, reductions, shapes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fakes.device_memory import placed

H100 = {
    "name": b"NVIDIA H100 80GB HBM3", "major": 9, "minor": 0, "multiProcessorCount": 132, "l2CacheSize": 52428800,
    "totalGlobalMem": 85028765696,
}  # fmt: skip
A100 = H100 | {"name": b"NVIDIA A100-SXM4-40GB", "major": 8, "multiProcessorCount": 108, "l2CacheSize": 41943040}
T4 = H100 | {"name": b"Tesla T4", "major": 7, "minor": 5, "multiProcessorCount": 40, "l2CacheSize": 4194304}


def wrap(value: Any, device: int = 0) -> Any:
    """A NumPy array as one of a device; tuples of them too, everything else as it is."""
    if isinstance(value, np.ndarray | np.generic):
        return ndarray(np.asarray(value), device)
    if isinstance(value, tuple) and type(value) is not tuple:
        return type(value)(*(wrap(v, device) for v in value))
    return type(value)(wrap(v, device) for v in value) if isinstance(value, tuple | list) else value


def unwrap(value: Any) -> Any:
    """The NumPy array under one of a device."""
    if isinstance(value, ndarray):
        return value.host
    if isinstance(value, tuple | list):
        return type(value)(unwrap(v) for v in value)
    return value


def _device_of(values: Any) -> int | None:
    for value in values:
        if isinstance(value, ndarray):
            return value.device.id
        if isinstance(value, tuple | list) and (found := _device_of(value)) is not None:
            return found
    return None


class _Pointer:
    """Memory of a device: `ptr` is its address."""

    def __init__(self, ptr: int, owner: Any) -> None:
        self.ptr, self.mem = ptr, owner

    def __add__(self, offset: int) -> _Pointer:
        return _Pointer(self.ptr + offset, self.mem)


class _DeviceOf:
    def __init__(self, index: int) -> None:
        self.id = index


class ndarray:
    """An array of a device that is not there; `host` is the NumPy array it stands for."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]  # how Python says that equal ones have no hash

    def __init__(self, host: np.ndarray[Any, Any], device: int = 0) -> None:
        self.host, self.device = host, _DeviceOf(device)

    @property
    def data(self) -> _Pointer:
        # An array without elements has no memory.
        return _Pointer(self.host.ctypes.data if self.host.size else 0, self.host)

    @property
    def flags(self) -> Any:
        return self.host.flags

    def get(self) -> np.ndarray[Any, Any]:
        return self.host.copy()

    def copy(self) -> ndarray:
        return ndarray(placed(self.host.copy()), self.device.id)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly.")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "host":
            raise AttributeError(name)
        found = getattr(self.host, name)
        return _wrapped(found, self.device.id) if callable(found) else wrap(found, self.device.id)

    def __getitem__(self, key: Any) -> Any:
        found = self.host[unwrap(key)]
        # An element is an array of no dimensions, in the same memory where NumPy has a view of it.
        return ndarray(found if isinstance(found, np.ndarray) else np.asarray(found), self.device.id)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.host[unwrap(key)] = unwrap(value)

    def __len__(self) -> int:
        return len(self.host)

    def __bool__(self) -> bool:
        return bool(self.host)

    def __repr__(self) -> str:
        return f"cupy stand-in on {self.device.id}: {self.host!r}"


ndarray.__module__ = "cupy"


def _wrapped(function: Callable[..., Any], device: int | None = None, current: Callable[[], int] = lambda: 0) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        where = device if device is not None else _device_of([*args, *kwargs.values()])
        with np.errstate(all="ignore"):  # a device warns of nothing
            made = function(*unwrap(args), **{k: unwrap(v) for k, v in kwargs.items()})
        out = kwargs.get("out")
        return out if isinstance(out, ndarray) else wrap(made, current() if where is None else where)

    return call


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: ndarray, *others: Any) -> Any:
        with np.errstate(all="ignore"):
            made = getattr(self.host, name)(*(unwrap(o) for o in others))
        return self if made is self.host else wrap(made, self.device.id)

    return operate


for _each in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"):
    for _prefix in ("", "r", "i"):
        setattr(ndarray, f"__{_prefix}{_each}__", _operator(f"__{_prefix}{_each}__"))
for _each in ("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge", "int", "float", "complex"):
    setattr(ndarray, f"__{_each}__", _operator(f"__{_each}__"))


class CuPy:
    """The module that `import cupy` gives, anew for each test.

    Parameters
    ----------
    properties
        Of each device, as the runtime tells them.
    log
        Where allocations of raw memory are written ("alloc", bytes and address), beside the calls of recording fakes.

    Examples
    --------
    >>> cupy = CuPy()
    >>> x = cupy.asarray([[1.0, 2.0]])
    >>> (x @ x.T).get(), x.device.id, x.data.ptr > 0
    (array([[5.]]), 0, True)
    """

    def __init__(self, *properties: dict[str, Any], log: list[tuple[str, dict[str, Any]]] | None = None) -> None:
        self.written = [] if log is None else log
        self.ndarray = ndarray
        self.pool = MemoryPool()
        self.cuda = _Cuda(self, list(properties or (H100,)))

    def _here(self) -> int:
        return self.cuda.runtime.getDevice()

    def asarray(self, value: Any, dtype: Any = None) -> ndarray:
        if isinstance(value, ndarray) and (dtype is None or value.host.dtype == dtype):
            return value
        told = getattr(value, "__cuda_array_interface__", None)
        if told is not None:
            assert told.get("stream") is None, "CuPy has the host wait for it"
            return ndarray(np.asarray(_Interface(value, told)), self._here())
        return ndarray(np.array(unwrap(value), dtype), self._here())

    def from_dlpack(self, value: Any) -> ndarray:
        device, index = value.__dlpack_device__()
        assert device == 2
        current = self.cuda.get_current_stream().ptr
        return ndarray(np.asarray(value.__dlpack__(stream=current or 1)), index)

    def array(self, value: Any, dtype: Any = None) -> ndarray:
        if isinstance(value, ndarray):
            return ndarray(np.array(value.host, dtype), value.device.id)
        return self.asarray(value, dtype)

    def ElementwiseKernel(self, *args: Any, **kwargs: Any) -> Any:
        from fakes.elementwise import ElementwiseKernel

        return ElementwiseKernel(self, *args, **kwargs)

    def asnumpy(self, value: Any) -> Any:
        return value.get() if isinstance(value, ndarray) else np.asarray(value)

    def empty(self, shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
        made = placed(np.empty(shape, dtype, order))
        # What nobody wrote shows, where the dtype has a NaN.
        if made.dtype.kind in "fcV":
            made.fill(np.nan)
        return ndarray(made, self._here())

    def zeros(self, shape: Any, dtype: Any = float) -> ndarray:
        return ndarray(placed(np.zeros(shape, dtype)), self._here())

    def get_default_memory_pool(self) -> MemoryPool:
        return self.pool

    def get_array_module(self, *args: Any) -> Any:
        return self if _device_of(args) is not None else np

    @property
    def lib(self) -> Any:
        return _Namespace(stride_tricks=_Namespace(as_strided=_wrapped(np.lib.stride_tricks.as_strided)))

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if isinstance(found, type) or not callable(found):
            return found  # dtypes and constants
        return _wrapped(found, None, self._here)


class _Interface:
    """NumPy's view of memory that is said to be a device's."""

    def __init__(self, owner: Any, told: dict[str, Any]) -> None:
        self.owner, self.__array_interface__ = owner, {"version": 3, **{key: told[key] for key in ("shape", "typestr", "data", "strides")}}


class _Namespace:
    def __init__(self, **names: Any) -> None:
        self.__dict__.update(names)


class MemoryPool:
    """A pool that keeps nothing, and counts how often it was asked to give it back."""

    freed = 0

    def free_all_blocks(self, stream: Any = None) -> None:
        self.freed += 1

    def free_bytes(self) -> int:
        return 0

    def used_bytes(self) -> int:
        return 0


class Stream:
    """A stream: work given to it is done at once. `ptr` tells it from others."""

    done = True

    def __init__(self, ptr: int, cuda: Any = None) -> None:
        self.ptr, self._cuda = ptr, cuda
        self.synchronized, self.capturing = 0, False
        self.waited: list[Any] = []  # streams whose events it was told to wait for

    def is_capturing(self) -> bool:
        return self.capturing

    def begin_capture(self) -> None:
        self.capturing = True

    def end_capture(self) -> _Graph:
        self.capturing = False
        return _Graph()

    def synchronize(self) -> None:
        self.synchronized += 1

    def wait_event(self, event: Any) -> None:
        self.waited.append(getattr(event, "stream", None))

    def record(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._cuda._entered().append(self._cuda.get_current_stream())
        self._cuda._state.stream = self
        return self

    def __exit__(self, *_: Any) -> None:
        self._cuda._state.stream = self._cuda._entered().pop()


class _Graph:
    """A graph: what was recorded was done at once, so a launch does nothing."""

    def launch(self, stream: Stream | None = None) -> None:
        pass


class ExternalStream(Stream):
    """A stream of another package."""

    cuda: Any = None

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        super().__init__(ptr, type(self).cuda)


class Event:
    """A moment, by the host's clock: work given to a stream is done at once."""

    ptr = 1
    done = True

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        self.at, self.stream = time.perf_counter(), stream

    def synchronize(self) -> None:
        pass


class _Streams:
    """``cupy.cuda.Stream``: makes streams, and knows those that are always there."""

    def __init__(self, cuda: _Cuda) -> None:
        self._cuda, self._count = cuda, 0
        self.null, self.ptds = Stream(0, cuda), Stream(2, cuda)

    def __call__(self, *args: Any, **kwargs: Any) -> Stream:
        if kwargs.get("null"):
            return self.null
        self._count += 1
        return Stream(0x1000 * self._count, self._cuda)


class _Cuda:
    """``cupy.cuda``."""

    Event = Event

    def __init__(self, cupy: CuPy, properties: list[dict[str, Any]]) -> None:
        self._cupy, self._state = cupy, threading.local()
        self.Stream = _Streams(self)
        self.ExternalStream = type("ExternalStream", (ExternalStream,), {"cuda": self})
        self.null_stream = self.Stream.null
        self.runtime = _Namespace(
            getDevice=lambda: getattr(self._state, "device", 0), setDevice=self._use, getDeviceCount=lambda: len(properties),
            getDeviceProperties=lambda index: properties[index], deviceSynchronize=lambda: None, memGetInfo=lambda: (1 << 34, properties[0]["totalGlobalMem"]),
            driverGetVersion=lambda: 13000, runtimeGetVersion=lambda: 13000, CUDARuntimeError=type("CUDARuntimeError", (RuntimeError,), {}),
        )  # fmt: skip

    def _use(self, index: int) -> None:
        self._state.device = index

    @contextmanager
    def _on(self, index: int) -> Iterator[Any]:
        before = self.runtime.getDevice()
        self._use(index)
        try:
            yield
        finally:
            self._use(before)

    def Device(self, index: int | None = None) -> Any:
        at = self.runtime.getDevice() if index is None else index
        found = self._on(at)
        found.id = at  # type: ignore[attr-defined]  # CuPy's has a number
        return found

    def is_available(self) -> bool:
        return True

    def get_current_stream(self, device_id: int | None = None) -> Stream:
        return getattr(self._state, "stream", self.null_stream)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[Stream]:
        """Make a stream the current one of this thread: CuPy writes ``with stream:``."""
        before = self.get_current_stream()
        self._state.stream = stream
        try:
            yield stream
        finally:
            self._state.stream = before

    def _entered(self) -> list[Stream]:
        """Streams that were current where this thread entered others."""
        if not hasattr(self._state, "entered"):
            self._state.entered = []
        found: list[Stream] = self._state.entered
        return found

    def get_elapsed_time(self, start: Event, end: Event) -> float:
        return 1000.0 * (end.at - start.at)

    def alloc(self, size: int) -> _Pointer:
        """Raw memory, aligned as that of CuPy's pool."""
        block = np.empty(size + 512, np.uint8)
        made = _Pointer(-(-block.ctypes.data // 512) * 512 if size else 0, block)
        self._cupy.written.append(("alloc", {"size": size, "ptr": made.ptr}))
        return made
