"""FFTW's planner: one at a time in the whole process, bounded in time, and without what earlier measurements left behind.

The planner keeps state of its own (threads to plan for, wisdom, a time limit), and none of it is safe from other threads. Plans,
once made, may be run by any number of them.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...native import loading
from ...native.shared_library import NativeLibrary

__all__ = ["KINDS", "PLANNING", "Planner", "Request", "Transform", "planner_of"]

PLANNING = {"estimate": 1 << 6, "measure": 0, "patient": 1 << 5}
DESTROY_INPUT, UNALIGNED, PRESERVE_INPUT, WISDOM_ONLY = 1 << 0, 1 << 1, 1 << 4, 1 << 21
NO_LIMIT = -1.0
# Of the transforms of real numbers into real ones, in the order of fftw3.h.
KINDS = {"dct1": 3, "dct3": 4, "dct2": 5, "dct4": 6, "dst1": 7, "dst3": 8, "dst2": 9, "dst4": 10}
# Planning by estimate looks at addresses, not at what is there: two that no array has, well apart and aligned.
NOWHERE = (1 << 40, 1 << 44)
MOST_SCRATCH = 8 << 30  # bytes of arrays that a measurement may write to

_lock = threading.RLock()



def _before_fork() -> None:
    # A planner that another thread is in the middle of using would be copied into the child as it is. Measuring may take minutes.
    _lock.acquire(timeout=loading.FORK_SECONDS)


def _after_fork_in_parent() -> None:
    with suppress(RuntimeError):  # not ours where waiting for it was given up
        _lock.release()


def _after_fork_in_child() -> None:
    global _lock
    try:
        _lock.release()
        torn = False
    except RuntimeError:
        torn = True
    _lock = threading.RLock()
    for planner in _planners.values():
        planner._lock, planner.torn = _lock, planner.torn or torn


loading.around_fork(_before_fork, _after_fork_in_parent, _after_fork_in_child)


class _Dim(ctypes.Structure):
    _fields_ = (("n", ctypes.c_ssize_t), ("here", ctypes.c_ssize_t), ("there", ctypes.c_ssize_t))


@dataclass(frozen=True, slots=True)
class Request:
    """One transform: what it is, and how its arrays lie. Strides are in elements of each side."""

    kind: str  # "c2c", "r2c", "c2r", or a key of KINDS
    sign: int
    # dims, batch: (points, stride of the input, stride of the output) of the axes transformed, and of those that are not.
    dims: tuple[tuple[int, int, int], ...]
    batch: tuple[tuple[int, int, int], ...]
    extents: tuple[tuple[int, int], tuple[int, int]]  # bytes that input and output span below and above their first element
    threads: int = 1
    spare: bool = False


class Transform:
    """A plan of FFTW, destroyed with the last reference to it.

    `nbytes` is about what it takes: tables of roots of unity and the plan's own structures. FFTW does not tell.
    """

    __slots__ = ("_planner", "address", "nbytes")

    def __init__(self, planner: Planner, address: int, nbytes: int) -> None:
        self._planner, self.address, self.nbytes = planner, address, nbytes

    def __del__(self) -> None:
        self._planner.retire(self.address)


class Planner:
    """The planner of one precision: `letter` is "f" for float32, "" for float64.

    It has the library, and its part for threads; None if that is not there.
    """

    def __init__(self, letter: str, base: NativeLibrary, threaded: NativeLibrary | None) -> None:
        self.letter, self.base = letter, base
        self.item = 4 if letter else 8
        self.threaded: NativeLibrary | None = None
        # Made now: when the interpreter ends, the names of modules are gone.
        self._destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address("destroy_plan"))
        self._retired: list[int] = []
        self._lock = _lock
        self.torn = False  # whether another thread was at work in it when this process was forked
        self.alive = 0  # plans made and not destroyed
        self.wise = False  # whether anything was measured, or learned from a text
        name = f"fftw{letter}_version"
        text = ctypes.cast(base.address(name), ctypes.c_char_p).value if base.address(name) else None
        self.identity = (text or b"").decode("ascii", "replace").removeprefix("fftw-")
        if threaded is not None and base_call(threaded, f"fftw{letter}_init_threads", restype=ctypes.c_int):
            self.threaded = threaded

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._lock:
            if self.torn:
                raise RuntimeError("this process was forked while another thread was planning with FFTW; its planner is unusable")
            yield

    def address(self, name: str) -> int:
        """Address of one of its functions, by the name without prefix."""
        found = self.base.address(f"fftw{self.letter}_{name}")
        if not found:
            raise RuntimeError(f"{self.base.path} exports no fftw{self.letter}_{name}")
        return found

    def execute(self, kind: str) -> int:
        """Address of the function that runs a plan on new arrays."""
        return self.address({"c2c": "execute_dft", "r2c": "execute_dft_r2c", "c2r": "execute_dft_c2r"}.get(kind, "execute_r2r"))

    @property
    def aligned(self) -> bool:
        """Tells whether FFTW treats all addresses that are multiples of 16 as equally aligned."""
        if not self.base.address(f"fftw{self.letter}_alignment_of"):
            return False
        ask = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self.address("alignment_of"))
        return all(int(ask(ctypes.c_void_p(at))) == 0 for at in (1 << 20, (1 << 20) + 16))

    @property
    def version(self) -> str:
        """Its version, without the instruction sets it was built for."""
        return self.identity.partition("-")[0]

    # plans --------------------------------------------------------------------------------------------------------------

    def plan(self, request: Request, planning: str, *, aligned: bool, seconds: float = NO_LIMIT) -> Transform:
        """A new plan, by "estimate", "measure" or "patient" planning.

        `aligned`: whether it is for addresses that are multiples of 16 only. `seconds`: longest that measuring may take, about;
        FFTW ends it at the best plan found so far. Raises `RuntimeError` where FFTW has no plan for this, and `MemoryError` where
        measuring needs arrays that cannot be had.
        """
        flags = PLANNING[planning] | (0 if aligned else UNALIGNED)
        # Without a word about it FFTW keeps the input of all but real transforms of several axes backwards.
        flags |= DESTROY_INPUT if request.spare else PRESERVE_INPUT
        with self._at_work():
            self._drain()
            if planning == "estimate":
                address = self._estimate(request, flags)
            else:
                address = self._measured(request, flags, seconds)
            if not address:
                raise RuntimeError(f"FFTW {self.identity} makes no plan for this transform ({planning})")
            self.alive += 1
        points = sum(d[0] for d in request.dims)
        return Transform(self, address, 2048 + 4 * self.item * points)

    def knows(self, request: Request, planning: str) -> bool:
        """Tells whether wisdom has a plan for a request, so that planning would measure nothing."""
        if not self.wise or self.torn:
            return False
        flags = PLANNING[planning] | WISDOM_ONLY | (DESTROY_INPUT if request.spare else PRESERVE_INPUT)
        with self._at_work():
            address = self._make(request, flags, NOWHERE)
            if address:
                self._destroy(ctypes.c_void_p(address))
        return bool(address)

    def _estimate(self, request: Request, flags: int) -> int:
        if not self.wise:
            return self._make(request, flags, NOWHERE)
        # An estimate is to be the same in every process, whatever was measured before in this one.
        known = self.export()
        self._forget()
        try:
            return self._make(request, flags, NOWHERE)
        finally:
            self._forget()
            self._learn(known)

    def _measured(self, request: Request, flags: int, seconds: float) -> int:
        low = [-extent[0] for extent in request.extents]
        sizes = [extent[1] + below for extent, below in zip(request.extents, low, strict=True)]
        if sum(sizes) > MOST_SCRATCH:
            raise MemoryError(f"measuring this transform takes arrays of {sum(sizes)} bytes, more than {MOST_SCRATCH}")
        scratch = [np.zeros(size + 128, np.uint8) for size in sizes]
        places = []
        for array, below in zip(scratch, low, strict=True):
            at = array.ctypes.data + below
            places.append(at + (-at) % 64)
        limit = ctypes.CFUNCTYPE(None, ctypes.c_double)(self.address("set_timelimit"))
        limit(NO_LIMIT if seconds == float("inf") else seconds)
        try:
            self.wise = True
            return self._make(request, flags, (places[0], places[1]))
        finally:
            limit(NO_LIMIT)

    def _make(self, request: Request, flags: int, places: tuple[int, int]) -> int:
        kind = request.kind
        head = (*_dims(request.dims), *_dims(request.batch), *(ctypes.c_void_p(at) for at in places))
        tail: list[Any] = [ctypes.c_uint(flags)]
        name = f"plan_guru64_dft_{kind}"
        if kind == "c2c":
            name, tail = "plan_guru64_dft", [ctypes.c_int(request.sign), *tail]
        elif kind in KINDS:
            kinds = (ctypes.c_int * len(request.dims))(*[KINDS[kind]] * len(request.dims))
            name, tail = "plan_guru64_r2r", [kinds, *tail]
        with_threads = self.threaded is not None and request.threads > 1
        if with_threads:
            self._plan_with(request.threads)
        try:
            return int(self.base.call(self.address(name), *head, *tail, restype=ctypes.c_void_p) or 0)
        finally:
            if with_threads:
                self._plan_with(1)

    def _plan_with(self, threads: int) -> None:
        assert self.threaded is not None
        base_call(self.threaded, f"fftw{self.letter}_plan_with_nthreads", ctypes.c_int(threads))

    def retire(self, address: int) -> None:
        """Destroy a plan: now, or before the next is made if the planner is at work in another thread."""
        if self.torn:
            return  # FFTW's tables may be half-changed: better a plan that stays
        if not self._lock.acquire(False):
            self._retired.append(address)
            return
        try:
            self._destroy(address)
            self.alive -= 1
        finally:
            self._lock.release()

    def _drain(self) -> None:
        while self._retired:
            with suppress(IndexError):  # another one was faster
                self.retire(self._retired.pop())

    # wisdom -------------------------------------------------------------------------------------------------------------

    def export(self) -> str:
        """Returns the planner's wisdom as text."""
        with self._at_work():
            made = self.base.call(self.address("export_wisdom_to_string"), restype=ctypes.c_void_p)
            if not made:
                raise MemoryError("FFTW has no memory for its wisdom as text")
            try:
                return ctypes.string_at(made).decode("ascii")
            finally:
                self.base.call(self.address("free"), ctypes.c_void_p(made))

    def learn(self, text: str) -> bool:
        """Adds the wisdom in a text; returns False and adds nothing if FFTW rejects it."""
        with self._at_work():
            before = self.export()
            if self._learn(text):
                self.wise = True
                return True
            self._forget()
            self._learn(before)
            return False

    def forget(self) -> None:
        """Forget everything."""
        with self._at_work():
            self._forget()
            self.wise = False

    def _learn(self, text: str) -> bool:
        data = ctypes.c_char_p(text.encode("ascii"))
        return bool(self.base.call(self.address("import_wisdom_from_string"), data, restype=ctypes.c_int))

    def _forget(self) -> None:
        self.base.call(self.address("forget_wisdom"))


_planners: dict[tuple[str, str], Planner] = {}


def planner_of(letter: str, base: NativeLibrary, threaded: NativeLibrary | None) -> Planner:
    """The planner of a loaded library: one, since what was learned is the library's and not ours."""
    with _lock:
        key = os.path.realpath(base.path), letter
        known = _planners.get(key)
        if known is None:
            known = _planners[key] = Planner(letter, base, threaded)
        return known


def base_call(native: NativeLibrary, name: str, *args: Any, restype: Any = None) -> Any:
    address = native.address(name)
    if not address:
        raise RuntimeError(f"{native.path} exports no {name}")
    return native.call(address, *args, restype=restype)


def _dims(dims: Sequence[tuple[int, int, int]]) -> tuple[Any, Any]:
    return ctypes.c_int(len(dims)), (_Dim * max(len(dims), 1))(*(_Dim(*d) for d in dims))
