"""XNNPACK's operators through its C interface, of every generation.

Over the years the same function names have had other arguments: caches were added to those that create an operator, and one of
them taken away again; sizes moved from setup to a function of their own, which also came to say how much workspace is wanted. No
symbol tells them apart. `trials` lists them in an order in which a wrong one writes to the address 0 at worst: which one a file
has is found by trying, in a process that may crash, with results that are known.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import LibraryFailed, OutOfMemory
from ...native.shared_library import NativeLibrary
from ..pthreadpool import Pools

__all__ = ["CONV", "EXTRA", "PRODUCT", "TRANSPOSED", "Interface", "Operator", "Xnnpack", "has_slack", "padded", "trials", "wrong"]

EXTRA = 16
"""Bytes that XNNPACK may read past the end of an input."""
PAGE = 4096  # no system has smaller ones
ALIGNMENT = 128  # of workspace: as much as any generation asks for

U32, SIZE, POINTER, FLOAT = ctypes.c_uint32, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_float
OUT_OF_MEMORY = 6
STATUS = {
    1: "it is not initialised", 2: "invalid parameter", 3: "invalid state", 4: "unsupported parameter",
    5: "it does not support this processor", 6: "out of memory", 7: "reallocation required", 8: "deprecated",
}  # fmt: skip


class Kind(NamedTuple):
    """An operator: its name in functions, what it is created from and what it is shaped by beside arrays."""

    name: str
    create: tuple[Any, ...]
    shape: tuple[Any, ...]
    images: bool
    workspace: bool


_IMAGES = (*[U32] * 11, *[SIZE] * 4)
CONV = Kind("convolution2d_nhwc_f32", _IMAGES, (SIZE, SIZE, SIZE), True, True)
TRANSPOSED = Kind("deconvolution2d_nhwc_f32", _IMAGES, (SIZE, SIZE, SIZE, U32, U32), True, False)
PRODUCT = Kind("fully_connected_nc_f32", (SIZE, SIZE, SIZE, SIZE), (SIZE,), False, False)


@dataclass(frozen=True, slots=True)
class Interface:
    """One generation of the interface.

    Examples
    --------
    >>> Interface.read(str(Interface(2, "aligned workspace")))
    Interface(caches=2, sizes='aligned workspace')
    """

    caches: int  # caches, all of which may be NULL, between flags and result of the functions that create
    # Where an operator is told the sizes of its arrays: at "setup", or before it by "reshape", which of convolutions may also
    # want "workspace", or "aligned workspace".
    sizes: str

    def __str__(self) -> str:
        return f"interface with {self.caches} caches, sizes by {self.sizes}"

    @classmethod
    def read(cls, text: str) -> Interface | None:
        """The interface that a text names, or None."""
        return next((each for each in (*EARLY, *LATE) if str(each) == text), None)


# The more caches the earlier: with one too many the result is written to NULL, with one too few it is taken for a cache.
EARLY = tuple(Interface(caches, "setup") for caches in (2, 1, 0))
LATE = tuple(Interface(caches, sizes) for caches in (2, 1) for sizes in ("aligned workspace", "workspace", "reshape"))


def trials(native: NativeLibrary) -> tuple[Interface, ...]:
    """The interfaces that a file may have, in the order in which to try them."""
    return LATE if native.address(f"xnn_reshape_{CONV.name}") else EARLY


def has_slack(address: int, nbytes: int) -> bool:
    """Tells whether XNNPACK can safely read past the end of an array: those bytes are on the same page as the end.

    >>> has_slack(4096, 100), has_slack(4096, 4090)
    (True, False)
    """
    last = address + nbytes - 1
    return last // PAGE == (last + EXTRA) // PAGE


def padded(shape: tuple[int, ...]) -> Any:
    """A new array of float32, with room behind it for XNNPACK to read."""
    size = 1
    for n in shape:
        size *= n
    return np.empty(size + EXTRA // 4, np.float32)[:size].reshape(shape)


class Xnnpack:
    """A loaded XNNPACK, and how it is called: by the interface it has, for another one may crash."""

    def __init__(self, native: NativeLibrary, interface: Interface) -> None:
        self.native, self.interface = native, interface
        self.pools = Pools(native)
        self._functions: dict[str, Any] = {}
        status = self.function("xnn_initialize", (POINTER,))(None)
        if status:
            raise RuntimeError(f"XNNPACK does not initialise: {_text(status)}")

    def function(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """A function that returns a status."""
        made = self._functions.get(name)
        if made is None:
            address = self.native.address(name)
            if not address:
                raise RuntimeError(f"this XNNPACK exports no {name}")
            made = self._functions[name] = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(address)
        return made

    def call(self, name: str, arguments: tuple[Any, ...], *values: Any) -> None:
        """Call a function; raises `LibraryFailed` where its status is not success."""
        status = self.function(name, arguments)(*values)
        if status:
            error = OutOfMemory if status == OUT_OF_MEMORY else LibraryFailed
            raise error(f"XNNPACK: {name} failed: {_text(status)}")


def _text(status: int) -> str:
    return f"{STATUS.get(status, 'unknown error')} (status {status})"


class Operator:
    """An operator of XNNPACK, with its weights packed; `delete` frees it.

    It keeps the addresses of the arrays it runs on: one thread at a time may run it. It is created from `numbers`, in the order
    of the C function, and the addresses of the weights, and of the bias or 0, which are read now, and not again.
    """

    __slots__ = ("handle", "kind", "xnn")

    def __init__(self, xnn: Xnnpack, kind: Kind, numbers: tuple[int, ...], kernel: int, bias: int, flags: int = 0) -> None:
        self.xnn, self.kind = xnn, kind
        self.handle = ctypes.c_void_p()
        caches = xnn.interface.caches
        arguments = (*kind.create, POINTER, POINTER, FLOAT, FLOAT, U32, *[POINTER] * caches, POINTER)
        xnn.call(
            f"xnn_create_{kind.name}", arguments, *numbers, kernel, bias or None, -np.inf, np.inf, flags, *[None] * caches,
            ctypes.addressof(self.handle),
        )  # fmt: skip

    def run(self, shape: tuple[int, ...], source: int, target: int, threads: int, points: tuple[int, ...] = ()) -> None:
        """Compute from one address to the other; what is behind the source may be read.

        `shape` has the sizes of the arrays, in the order of the C function, `points` height and width of the images that come
        out.
        """
        xnn, kind, op = self.xnn, self.kind, self.handle
        pool = xnn.pools.get(threads) or None
        setup = f"xnn_setup_{kind.name}"
        where: tuple[int | None, ...] = (source, target)
        hold = None  # until it has run
        if xnn.interface.sizes == "setup":
            xnn.call(setup, (POINTER, *kind.shape, POINTER, POINTER, POINTER), op, *shape, *where, pool)
        elif not kind.images:
            xnn.call(f"xnn_reshape_{kind.name}", (POINTER, *kind.shape, POINTER), op, *shape, pool)
            xnn.call(setup, (POINTER, POINTER, POINTER), op, *where)
        else:
            hold = self._reshape(shape, points, pool)
            if hold is not None:
                where = (hold.ctypes.data if hold.size else None, *where)
            xnn.call(setup, (POINTER, *[POINTER] * len(where)), op, *where)
        xnn.call("xnn_run_operator", (POINTER, POINTER), op, pool)

    def _reshape(self, shape: tuple[int, ...], points: tuple[int, ...], pool: int | None) -> Any:
        """Tell it the sizes; returns its workspace, None where this generation or operator has none."""
        sizes = self.xnn.interface.sizes if self.kind.workspace else "reshape"
        asked = {"reshape": 0, "workspace": 1, "aligned workspace": 2}[sizes]
        told = (ctypes.c_size_t * (asked + 2))(*[0] * (asked + 2))
        outs = [ctypes.addressof(told) + i * ctypes.sizeof(SIZE) for i in range(asked + 2)]
        arguments = (POINTER, *self.kind.shape, *[POINTER] * len(outs), POINTER)
        self.xnn.call(f"xnn_reshape_{self.kind.name}", arguments, self.handle, *shape, *outs, pool)
        if tuple(told[asked:]) != points:
            raise LibraryFailed(f"XNNPACK makes images of {tuple(told[asked:])} where they should be of {points}")
        if not asked:
            return None
        if not told[0]:
            return np.empty(0, np.uint8)
        room = np.empty(told[0] + ALIGNMENT, np.uint8)
        return room[-room.ctypes.data % ALIGNMENT :]

    def delete(self) -> None:
        """Free it."""
        if self.handle:
            self.xnn.call("xnn_delete_operator", (POINTER,), self.handle)
            self.handle = ctypes.c_void_p()


def wrong(xnn: Xnnpack, threads: int) -> str:
    """Tests each operator of XNNPACK on whole numbers; returns the error found, or an empty string."""
    x, w = _whole((1, 5, 6, 3)), _whole((4, 3, 2, 3))
    bias = _whole((4,))
    kernel_on = (3, 2, 1, 1, 1, 1, 1, 3, 4, 3, 4)  # its size, strides, dilation, groups; channels and features, twice
    wanted = np.zeros((1, 4, 6, 4), np.float32) + bias
    for i in range(3):
        for j in range(2):
            at = np.pad(x, ((0, 0), (1, 0), (0, 1), (0, 0)))[:, i : i + 4, j : j + 6]
            wanted += np.einsum("nhwc,oc->nhwo", at, w[:, i, j])
    many = 96
    a, b = _whole((many, 64)), _whole((many, 64))
    y = _whole((1, 2, 3, 3))
    spread = np.zeros((1, 4, 4, 4), np.float32) + bias
    for i in range(3):
        for j in range(2):
            spread[:, i : i + 2, j : j + 3] += np.einsum("nhwc,oc->nhwo", y, w[:, i, j])
    cases = (
        ("a linear layer", PRODUCT, (64, many, 64, many), b, None, (many,), a, (), np.einsum("mk,nk->mn", a, b)),
        ("a convolution", CONV, (1, 1, 0, 0, *kernel_on), w, bias, (1, 5, 6), x, (4, 6), wanted),
        ("a transposed convolution", TRANSPOSED, (0, 0, 0, 0, *kernel_on), w, bias, (1, 2, 3, 0, 0), y, (4, 4), spread),
    )  # fmt: skip
    for what, kind, numbers, kernel, added, shape, source, points, expected in cases:
        given = padded(source.shape)
        given[...] = source
        result = np.full(expected.shape, np.nan, np.float32)
        op = Operator(xnn, kind, numbers, kernel.ctypes.data, 0 if added is None else added.ctypes.data)
        op.run(shape, given.ctypes.data, result.ctypes.data, threads, points)
        op.delete()
        if not np.array_equal(result, expected):
            return f"computes {what} wrongly on {threads} thread{'s' if threads > 1 else ''}"
    return ""


def _whole(shape: tuple[int, ...]) -> Any:
    """Small whole numbers, so that sums are exact in any order."""
    return (np.arange(np.prod(shape)) * 7 % 11 - 5).astype(np.float32).reshape(shape)
