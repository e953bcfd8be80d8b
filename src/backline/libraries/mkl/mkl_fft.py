"""Fourier transforms by MKL's DFTI: a descriptor is committed once for sizes, strides and threads, then only run.

A committed descriptor is not changed by running it, so threads may share a plan. Real transforms of several axes are undone axis
by axis: DFTI's own way supposes that the input is half of a mirror image along all of them, which not every input is.

Which transforms run in which way, `dfti_algorithms` says.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from ...native.filled_memory import filled_memory
from ...native.plan_builder import Pointer, shift
from ...native.shared_library import NativeLibrary
from ...problems.fft_problem import FftProblem
from ..base import failure
from ..blas.cblas import BlasTraits
from ..fft_steps import SMALL_FLOPS, Dim, Lay, Steps, batches, offsets, packed, pieces

__all__ = ["Descriptor", "DftiError", "DftiSteps"]

SINGLE, DOUBLE, COMPLEX, REAL = "s", "d", 32, 33
FORWARD_SCALE, BACKWARD_SCALE, NUMBER_OF_TRANSFORMS, CONJUGATE_EVEN_STORAGE, PLACEMENT = 4, 5, 7, 10, 11
INPUT_STRIDES, OUTPUT_STRIDES, INPUT_DISTANCE, OUTPUT_DISTANCE, THREAD_LIMIT = 12, 13, 14, 15, 27
COMPLEX_COMPLEX, NOT_INPLACE = 39, 44
LINES = 16  # that are copied side by side


class DftiError(RuntimeError):
    """A call of DFTI failed."""


class Descriptor:
    """A committed descriptor, freed with the last reference to it.

    `letter` is "s" or "d", for the precision, `domain` COMPLEX or REAL. Strides of input and output are in elements of each side,
    one for each axis; `batch` is how many transforms, and how far they are apart in input and output; `threads` the most it may
    use. `nbytes` is the memory that MKL took for it.
    """

    __slots__ = ("_argument", "_free", "address", "nbytes")

    def __init__(
        self, native: NativeLibrary, letter: str, domain: int, lengths: tuple[int, ...],
        strides: tuple[tuple[int, ...], tuple[int, ...]], batch: tuple[int, int, int], threads: int, scale: float,
    ) -> None:  # fmt: skip
        self._free: Any = None
        free = _address(native, "DftiFreeDescriptor")
        before = _held(native)
        handle = ctypes.c_void_p()
        if len(lengths) == 1:
            sizes: tuple[Any, ...] = (ctypes.c_long(lengths[0]),)
        else:
            sizes = (ctypes.c_long(len(lengths)), (ctypes.c_long * len(lengths))(*lengths))
        suffix = "1d" if len(lengths) == 1 else "md"
        _call(native, f"DftiCreateDescriptor_{letter}_{suffix}", ctypes.byref(handle), ctypes.c_int(domain), *sizes)
        self.address = int(handle.value or 0)
        self._argument = ctypes.byref(handle)  # made now: when the interpreter ends, the names of modules are gone
        self._free = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(free)
        number, distance, apart = batch
        integers = {PLACEMENT: NOT_INPLACE, NUMBER_OF_TRANSFORMS: number, THREAD_LIMIT: threads}
        if domain == REAL:
            integers[CONJUGATE_EVEN_STORAGE] = COMPLEX_COMPLEX
        if number > 1:
            integers |= {INPUT_DISTANCE: distance, OUTPUT_DISTANCE: apart}
        # The value is a variable argument: a long in any case, a double in a register that the callee counts.
        settings: list[tuple[int, Any]] = [(key, ctypes.c_long(value)) for key, value in integers.items()]
        for key, side in zip((INPUT_STRIDES, OUTPUT_STRIDES), strides, strict=True):
            settings.append((key, (ctypes.c_long * (len(side) + 1))(0, *side)))
        if scale != 1.0:
            settings += [(key, ctypes.c_double(scale)) for key in (FORWARD_SCALE, BACKWARD_SCALE)]
        for key, value in settings:
            _call(native, "DftiSetValue", handle, ctypes.c_int(key), value)
        with filled_memory():
            # MKL computes the lanes of vectors that a row does not fill with what its tables hold there, which it never writes:
            # the leavings of other allocations, and where those are subnormal numbers, a transform takes three times as long
            # (2026.2: 48x20 points, float32).
            _call(native, "DftiCommitDescriptor", handle)
        self.nbytes = max(_held(native) - before, 0)

    def __del__(self) -> None:
        free = getattr(self, "_free", None)
        if free is not None:
            free(self._argument)


def nearest(lay: Lay, axes: tuple[int, ...]) -> int:
    """The smallest step in elements along any of these axes."""
    return min((abs(lay.elements(a)) for a in axes if lay.shape[a] > 1), default=1)


def _address(native: NativeLibrary, name: str) -> int:
    address = native.address(name)
    if not address:
        raise DftiError(f"this MKL exports no {name}")
    return address


def _call(native: NativeLibrary, name: str, *args: Any) -> None:
    status = native.call(_address(native, name), *args, restype=ctypes.c_long)
    if status:
        raise DftiError(f"{name}: {status_text(native, status)}")


def status_text(native: NativeLibrary, status: int) -> str:
    """Returns DFTI's message for a status, with the status."""
    text = native.call(native.address("DftiErrorMessage"), ctypes.c_long(status), restype=ctypes.c_char_p)
    said = text.decode("ascii", "replace").rpartition("DFTI ERROR: ")[2] if text else "unknown"
    return f"{said} (status {status})"


def _held(native: NativeLibrary) -> int:
    address = native.address("MKL_Mem_Stat")
    return int(native.call(address, ctypes.byref(ctypes.c_int()), restype=ctypes.c_longlong)) if address else 0


class DftiSteps(Steps):
    """Writes down transforms of DFTI."""

    def __init__(
        self, traits: BlasTraits, problem: FftProblem, threads: int, *, wide: bool = False, divided: bool = False
    ) -> None:  # fmt: skip
        super().__init__(problem, threads, wide=wide, divided=divided)
        self.traits = traits
        self.statuses = 0
        self.beside: tuple[Pointer, Pointer] | None = None

    def transform(
        self, kind: str, sign: int, source: Lay, target: Lay, axes: tuple[int, ...], lengths: tuple[int, ...], scale: float,
        *, spare: bool = False,
    ) -> None:  # fmt: skip
        b = self.b
        if len(axes) > 1 and nearest(source, axes) > nearest(target, axes):
            # MKL's kernels for AVX2 and AVX-512 write beyond a buffer of their own where the input of transforms of several axes
            # has wider steps than the output (2026.2: 6x300 points, every second of them, complex128).
            near = packed(b.work(prod(source.shape) * source.dtype.itemsize, shared=True), source.shape, source.dtype, axes)
            self.copy(source, near)
            source = near
        dims = batches(source, target, axes)
        if self.divided and len(axes) == 1 and dims and min(abs(lay.elements(axes[0])) for lay in (source, target)) > 1:
            self.across(kind, sign, source, target, axes[0], lengths[0], dims, scale)
            return
        batch = (1, 0, 0)
        # One axis of the batch is DFTI's; what it cannot have (a step of 0) and the others become calls of their own.
        able = [i for i, d in enumerate(dims) if d[1] != 0]
        if able:
            n, s, t = dims.pop(max(able, key=lambda i: dims[i][0]))
            batch = (n, s, t)
        strides = tuple(source.elements(a) for a in axes), tuple(target.elements(a) for a in axes)
        parts = pieces(batch[0], prod(d[0] for d in dims), prod(lengths)) if self.divided else [(batch[0], 1, 0)]
        for size, number, first in parts:
            apart = (size, batch[1] // source.dtype.itemsize, batch[2] // target.dtype.itemsize)
            descriptor = self.descriptor(kind, lengths, strides, apart, scale)
            calls = [*dims, (number, size * batch[1], size * batch[2])] if number > 1 else dims
            here, there = shift(source.at, first * batch[1]), shift(target.at, first * batch[2])
            if calls:
                here, there = ((at[0], at[1], offsets(calls, side)) for side, at in ((1, here), (2, there)))
            b.each()
            self.compute(sign, descriptor, here, there)
            self.end(prod(d[0] for d in calls))

    def descriptor(
        self, kind: str, lengths: tuple[int, ...], strides: tuple[tuple[int, ...], tuple[int, ...]],
        batch: tuple[int, int, int], scale: float,
    ) -> Descriptor:  # fmt: skip
        """Returns a new descriptor, which the plan keeps."""
        threads, letter = 1 if self.divided else self.threads, SINGLE if self.real == np.float32 else DOUBLE
        domain = COMPLEX if kind == "c2c" else REAL
        former = self.traits.thread_guard.enter(threads)
        try:
            descriptor = Descriptor(self.traits.native, letter, domain, lengths, strides, batch, threads, scale)
        finally:
            self.traits.thread_guard.leave(former)
        self.b.keep.append(descriptor)
        return descriptor

    def compute(self, sign: int, descriptor: Descriptor, here: Pointer, there: Pointer) -> None:
        """Writes down a call, whose status goes to the place of its item."""
        b, info = self.b, self.b.info(1)
        function = self.traits.native.address("DftiComputeForward" if sign < 0 else "DftiComputeBackward")
        to = (info[0], info[1] + b.int_size * self.statuses, b.int_size)
        b.call(function, [descriptor.address, here, there], returns=3, to=to)

    def end(self, count: int) -> None:
        """Ends a group of so many calls, which threads share where each runs on one."""
        self.b.each(count, self.threads if self.divided else 1)
        self.statuses += count

    def across(
        self, kind: str, sign: int, source: Lay, target: Lay, axis: int, length: int, dims: list[Dim], scale: float
    ) -> None:  # fmt: skip
        """Transforms along an axis with wide steps: some lines at a time are copied side by side, and back."""
        b, n, out = self.b, source.shape[axis], target.shape[axis]
        here, there = source.dtype.itemsize, target.dtype.itemsize
        if self.beside is None:
            size = LINES * max(*self.problem.lengths, n, out) * self.complex.itemsize
            self.beside = b.work(size), b.work(size)
        near, done = self.beside
        number, s, t = dims.pop(min(range(len(dims)), key=lambda i: abs(dims[i][1]) or abs(dims[i][2])))
        whole, rest = divmod(number, LINES)
        for size, count, first in ((LINES, whole, 0), (rest, 1, whole * LINES)):
            if not size * count:
                continue
            descriptor = self.descriptor(kind, (length,), ((1,), (1,)), (size, n, out), scale)
            calls = [*dims, (count, size * s, size * t)]
            at = (source.at[0], source.at[1] + first * s, offsets(calls, 1))
            to = (target.at[0], target.at[1] + first * t, offsets(calls, 2))
            b.each()
            b.copy((n, size), at, (source.strides[axis], s), near, (here, n * here), here)
            self.compute(sign, descriptor, near, done)
            b.copy((out, size), done, (there, out * there), to, (target.strides[axis], t), there)
            self.end(prod(d[0] for d in calls))

    def plan(self) -> Any:
        """The finished plan."""
        b, native, key = self.b, self.traits.native, self.problem.key
        result = self.write()
        assert b.info_buffer is not None
        at = b.info_buffer[0]  # one status for each call, so that a later one that succeeds does not hide a failure
        b.buffers[at] = ("work", b.int_size * self.statuses)
        b.info_buffer = (at, b.int_size, self.statuses)

        def on_info(plan: Any, infos: list[int], arrays: tuple[Any, ...], results: tuple[Any, ...]) -> Any:
            status = next(i for i in infos if i)
            raise failure(plan, f"MKL failed to run {key}", cause=status_text(native, status))

        # A descriptor for one thread uses one whatever is allowed.
        thread_guard = self.traits.thread_guard if self.threads > 1 and not self.divided else None
        return b.plan(
            result, on_info=on_info, thread_guard=thread_guard, guard_threads=self.threads if thread_guard else 0,
            release_gil=self.problem.flops > SMALL_FLOPS,
        )  # fmt: skip
