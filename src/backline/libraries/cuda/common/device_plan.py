"""The Plan of a library for CUDA arrays: it runs on the device it was made for, and a failure drops it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....errors import refuse_overlap
from ....problems import Operand, Problem
from ...base import RefusedForNow
from . import alignment, bindings, faults
from .device_facts import index_of

__all__ = [
    "DevicePlan", "at", "new_images", "prepared", "refuse_capture", "refuse_overlaps", "refuse_overlaps_of_out", "strided",
]  # fmt: skip


LEGACY = 1  # the streams 0 and 1 are CUDA's legacy default stream, which no graph is recorded from


class DevicePlan:
    """A Plan that is a Python function of CuPy's arrays, in the order of the Problem's operands, and of its run-time scalars.

    The function enqueues the work on CuPy's current stream and returns the result; it keeps nothing of a call: threads share a
    Plan. The device is current while it runs. `what` fails, for the error's text: "cuBLAS, gemm_ex". `errors` are the binding's
    own exceptions: they become `LibraryFailed`, as CUDA's RuntimeErrors do, and the Plan is not used again then.
    Arrays that begin at no multiple of their element's size are copied before, and after where they are written to.

    A stream that records a CUDA graph is refused, by a `BadValue`: `capture_refused` says why.
    """

    __slots__ = ("choice", "current", "device", "errors", "failed", "function", "scalars", "stream", "what")

    def __init__(
        self, function: Callable[..., Any], device: int, what: str, errors: tuple[type[Exception], ...],
        scalars: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.function, self.device, self.what, self.scalars = function, device, what, scalars
        self.errors: tuple[type[Exception], ...] = (*errors, RuntimeError)
        cuda = bindings.cupy().cuda
        self.current, self.stream = cuda.runtime.getDevice, cuda.get_current_stream
        self.choice: Any = None
        self.failed = False

    def __call__(self, *arrays: Any, **scalars: Any) -> Any:
        stream = self.stream(self.device)
        if stream.ptr > LEGACY and stream.is_capturing():
            raise capture_refused(self.what)
        try:
            if self.current() == self.device:
                return alignment.called(self.function, arrays, scalars)
            with bindings.cupy().cuda.Device(self.device):
                return self.run(arrays, scalars)
        except Exception as error:
            return faults.answer(self, error, arrays, scalars)

    def run(self, arrays: tuple[Any, ...], scalars: dict[str, Any]) -> Any:
        """Call the function on the current device, which is that of the Plan."""
        return alignment.called(self.function, arrays, scalars)


def capture_refused(what: str) -> RefusedForNow:
    """Returns the error of a call on a stream that records a CUDA graph.

    A graph runs later, as often as its owner likes, with the addresses that were recorded. Workspaces and intermediate results go
    back to CuPy's pool after a call, a handle's workspace is used by later calls as well, and pointer tables and seeds are copied
    from host memory that is gone by then: the graph would read and write what others have.
    """
    return RefusedForNow(
        f"{what} cannot be recorded in a CUDA graph.",
        cause="its workspace returns to CuPy's memory pool after the call, and the graph would write to it later",
        remedy="call it before or after the capture; CuPy's own functions can be captured",
    )


def refuse_capture(device: int, what: str) -> None:
    """Refuses what a graph cannot have in it, if the current stream of a device records one."""
    stream = bindings.cupy().cuda.get_current_stream(device)
    if stream.ptr > LEGACY and stream.is_capturing():
        raise capture_refused(what)


def prepared(
    problem: Problem, make: Callable[[], Callable[..., Any]], what: str, errors: tuple[type[Exception], ...] = ()
) -> DevicePlan:
    """Returns the Plan of the function that `make` returns while the Problem's device is the current one.

    `make` may load kernels, upload constants and wait for them, which ends the recording of a graph: a stream that records one is
    refused before.
    """
    device = index_of(problem)
    refuse_capture(device, what)
    with bindings.cupy().cuda.Device(device):
        function = make()
    return DevicePlan(function, device, what, errors, problem.scalars)


def at(array: Any, item: int = 0) -> int:
    """Returns the device address at which an array, or one item of a stack, begins; 0 for None."""
    return 0 if array is None else int(array.data.ptr) + (item * int(array.strides[0]) if item else 0)


def strided(array: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """An array's memory with another shape and other strides in bytes: a vector as a matrix, a matrix as a batch."""
    if array.shape == shape and array.strides == strides:
        return array
    return bindings.cupy().lib.stride_tricks.as_strided(array, shape, strides)


def new_images(shape: tuple[int, ...], dtype: Any, last: bool) -> Any:
    """New memory for images, or for weights, with their channels first or last."""
    cupy = bindings.cupy()
    if not last:
        return cupy.empty(shape, dtype)
    made = cupy.empty((shape[0], *shape[2:], shape[1]), dtype)
    return made.transpose((0, made.ndim - 1, *range(1, made.ndim - 1)))


class _Where:
    """Lets NumPy tell overlaps of arrays whose memory it must not read."""

    def __init__(self, array: Any, operand: Operand) -> None:
        self.__array_interface__ = {
            "version": 3, "typestr": f"|V{operand.dtype.itemsize}", "shape": operand.shape, "strides": operand.strides,
            "data": (at(array) or 1, True),
        }  # fmt: skip


def refuse_overlaps(out: Any, as_out: Operand, others: list[tuple[Any, Operand]]) -> None:
    """Refuse an output that has an element in common with an operand, as calls on NumPy's arrays do, by `BadValue`."""
    import numpy as np

    low, high = (at(out) + end for end in as_out.extent())
    for array, operand in others:
        begin, end = (at(array) + end for end in operand.extent())
        if low < end and begin < high:
            refuse_overlap(np.asarray(_Where(out, as_out)), np.asarray(_Where(array, operand)))


def refuse_overlaps_of_out(
    problem: Problem, arrays: tuple[Any, ...], unread: tuple[str, ...] = (), same: tuple[str, ...] = ("residual",)
) -> None:
    """Refuse an ``out`` of a call that overlaps another array; it may be one of `same` itself, and overlap operands not read."""
    index = problem.index("out")
    if index is None:
        return
    out, as_out = arrays[index], problem.operands[index]
    others = []
    for array, o in zip(arrays, problem.operands, strict=True):
        itself = o.role in same and o.strides == as_out.strides and at(array) == at(out)
        if o.role not in ("out", *unread) and not itself:
            others.append((array, o))
    refuse_overlaps(out, as_out, others)
