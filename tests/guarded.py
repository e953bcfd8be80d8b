"""Operations on arrays that lie at the edge of memory that may be read, in every layout a view can have.

``python guarded.py FAMILY`` runs one family in a process of its own, since reading past an operand ends the process. It prints the
case before it runs, and what is wrong; the exit status is 0 where nothing is.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

import backline
import backline.nn.functional as F
from backline import fft, libraries, linalg, nn
from backline.errors import BadType, LinAlgError, NoKernel

Array = Any
LIBRARIES = (None, "mkl", "openblas", "blis", "onednn", "xnnpack", "libmvec", "fftw", "scipy", "kernels", "numpy")
PAGE = mmap.PAGESIZE
NO_ACCESS = 0


class Region:
    """Memory between two pages that may not be touched."""

    def __init__(self, nbytes: int) -> None:
        self.size = -(-nbytes // PAGE) * PAGE
        self.map = mmap.mmap(-1, self.size + 2 * PAGE)
        self.bytes = np.frombuffer(self.map, np.uint8)
        self._protect(NO_ACCESS)
        self.inside = self.bytes[PAGE : PAGE + self.size]
        self.inside[:] = 255  # NaN, or large numbers

    def _protect(self, access: int) -> None:
        start = self.bytes.ctypes.data
        for page in (start, start + PAGE + self.size):
            if ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), access):
                raise OSError("mprotect failed")

    def release(self) -> None:
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)


def placed(x: Array, strides: tuple[int, ...], *, at_end: bool, shift: int = 0) -> tuple[Array, Region]:
    """A copy with these strides whose last byte, or first, is the last, or first, before a page that may not be read."""
    extents = [(n - 1) * s for n, s in zip(x.shape, strides, strict=True) if n > 1]
    low, high = sum(e for e in extents if e < 0), sum(e for e in extents if e > 0) + x.itemsize
    region = Region(high - low + shift)
    origin = region.size - shift - high if at_end else shift - low
    neutral = tuple(s if n > 1 else x.itemsize for n, s in zip(x.shape, strides, strict=True))
    np.ndarray(x.shape, x.dtype, region.inside, origin, neutral)[...] = x
    one = np.ndarray((1,) * x.ndim, x.dtype, region.inside, origin)
    return np.lib.stride_tricks.as_strided(one, x.shape, strides), region


def contiguous(shape: tuple[int, ...], item: int, order: Any = None) -> tuple[int, ...]:
    strides = [0] * len(shape)
    for axis in reversed(list(order if order is not None else range(len(shape)))):
        strides[axis] = item
        item *= shape[axis]
    return tuple(strides)


def views(x: Array) -> Iterator[tuple[str, Array, tuple[int, ...], bool, int]]:
    """Name, values, strides, at which end, bytes out of line."""
    item, plain, axes = x.itemsize, contiguous(x.shape, x.itemsize), range(x.ndim)
    yield "at the end", x, plain, True, 0
    yield "at the start", x, plain, False, 0
    for axis in axes:
        others = tuple(0 if i == axis else s for i, s in enumerate(plain))
        if x.shape[axis] > 1:
            strides = tuple(-s if i == axis else s for i, s in enumerate(plain))
            yield f"axis {axis} reversed", x, strides, True, 0
            yield f"axis {axis} reversed, at the start", x, strides, False, 0
            yield f"axis {axis} repeated", np.repeat(x.take([0], axis), x.shape[axis], axis), others, True, 0
        else:
            for step in (10**15, 1 - 10**15, 3, 0):
                yield f"axis {axis} of one element, stride {step}", x, tuple(step if i == axis else s for i, s in enumerate(plain)), True, 0
    yield "all reversed", x, tuple(-s for s in plain), False, 0
    yield "every second", x, tuple(2 * s for s in plain), True, 0
    yield "a field of records", x, contiguous(x.shape, item + 1), True, 0
    yield "one byte out of line", x, plain, True, 1
    if x.dtype.kind == "c":
        yield "half an element apart", x, contiguous(x.shape, item * 3 // 2), True, 0
    if x.ndim > 1:
        turned = contiguous(x.shape, item, reversed(axes))
        yield "the first axis innermost", x, turned, True, 0
        yield "the first axis innermost, reversed", x, tuple(-s for s in turned), False, 0
        yield "the second axis innermost", x, contiguous(x.shape, item, (0, *axes[2:], 1)), True, 0
        swapped = contiguous(x.shape, item, (1, 0, *axes[2:]))
        yield "the first two exchanged", x, swapped, True, 0
        yield "the first two exchanged, the second reversed", x, (swapped[0], -swapped[1], *swapped[2:]), True, 0


def leaves(value: Any) -> list[Array]:
    if value is None:
        return []
    return [y for x in value for y in leaves(x)] if isinstance(value, (tuple, list)) else [np.asarray(value)]


def differs(found: Any, wanted: Any, unit: float) -> str:
    pairs = list(zip(leaves(found), leaves(wanted), strict=True))
    largest = max((float(np.abs(y).max()) for _, y in pairs if y.size), default=0.0)
    for x, y in pairs:
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{x.shape} {x.dtype}, not {y.shape} {y.dtype}"
        off = np.abs(x.astype(np.clongdouble) - y)
        if y.size and not (off <= unit * largest).all():
            return f"off by {off.max()}, where the largest element is {largest}"
    return ""


class Checks:
    def __init__(self) -> None:
        self.rng, self.wrong = np.random.default_rng(0), 0

    def draw(self, dtype: str, *shape: int) -> Array:
        x = self.rng.standard_normal(shape)
        return (x + 1j * self.rng.standard_normal(shape) if dtype[0] == "c" else x).astype(dtype)

    def check(self, name: str, call: Callable[..., Any], *arrays: Array) -> None:
        unit = 1e4 * float(np.finfo(arrays[0].dtype).eps)
        for library in LIBRARIES:
            if library is not None and not libraries.get(library).available():
                continue
            with backline.use(library, only=True) if library else nullcontext():
                try:
                    usual = call(*arrays)
                except NoKernel:
                    continue
                for number, array in enumerate(arrays):
                    for view, values, strides, at_end, shift in views(array):
                        print(f"{name} {array.dtype} by {library}: operand {number} {array.shape}, {view}", flush=True)
                        plain = [x.copy() for x in arrays]
                        plain[number] = values.copy()
                        try:
                            wanted = usual if values is array else call(*plain)
                        except LinAlgError:
                            continue  # a row that is repeated makes a matrix singular
                        made, region = placed(values, strides, at_end=at_end, shift=shift)
                        made.flags.writeable = False
                        plain[number] = made
                        try:
                            amiss = differs(call(*plain), wanted, unit)
                        except NoKernel as refused:  # a library may refuse a layout, the choice of one may not
                            amiss = "" if library else str(refused)
                        region.release()
                        if amiss:
                            self.wrong += 1
                            print(f"WRONG: {amiss}", flush=True)
        print(f"{name} {arrays[0].dtype}: operand 0 in the other byte order")
        try:
            amiss = differs(call(arrays[0].astype(arrays[0].dtype.newbyteorder()), *arrays[1:]), call(*arrays), unit)
        except BadType:
            amiss = ""
        if amiss:
            self.wrong += 1
            print(f"WRONG: {amiss}", flush=True)

    def products(self) -> None:
        for dtype, a, b in (("f4", (5, 7), (7, 6)), ("f8", (1, 7), (7, 6)), ("f4", (1, 5, 7), (3, 7, 6)), ("c16", (5, 7), (7, 1))):
            self.check("matmul", backline.matmul, self.draw(dtype, *a), self.draw(dtype, *b))
        self.check("addmm", backline.addmm, self.draw("f8", 5, 1), self.draw("f8", 5, 7), self.draw("f8", 7, 1))
        self.check("linear", F.linear, self.draw("f4", 2, 5, 7), self.draw("f4", 6, 7), self.draw("f4", 6))
        for equation, *shapes in (("ab,b->a", (4, 4), (4,)), ("abc,bd->dca", (2, 3, 1), (3, 5))):
            self.check(equation, lambda *x, e=equation: backline.einsum(e, *x), *(self.draw("f4", *s) for s in shapes))

    def attention(self) -> None:
        for batch, queries, keys in ((1, 5, 6), (2, 1, 3)):
            q, k, v = self.draw("f4", batch, queries, 8), self.draw("f4", batch, keys, 8), self.draw("f4", batch, keys, 8)
            sides = self.draw("f4", 24, 8), self.draw("f4", 24), self.draw("f4", 8, 8), self.draw("f4", 8)
            self.check("multi_head_attention", lambda q, k, v, *s: F.multi_head_attention(q, k, v, 2, *s)[0], q, k, v, *sides)

        self.check("attention", F.scaled_dot_product_attention, *(self.draw("f8", 1, 2, n, 4) for n in (5, 6, 6)))

        def forward(q: Array, k: Array, v: Array) -> Any:
            weights = (sides[0], sides[1], None, None, False, 0.0, *sides[2:])
            return F.multi_head_attention_forward(q, k, v, 8, 2, *weights, need_weights=False)[0]

        self.check("multi_head_attention_forward", forward, *(self.draw("f4", n, 1, 8) for n in (5, 6, 6)))

    def layers(self) -> None:
        for x, w, words in (
            ((2, 4, 7, 6), (6, 4, 3, 3), {"padding": 1}), ((1, 4, 5, 6), (6, 4, 1, 1), {}), ((1, 4, 6, 7), (4, 1, 3, 3), {"groups": 4}),
        ):  # fmt: skip
            operands = self.draw("f4", *x), self.draw("f4", *w), self.draw("f4", w[0])
            self.check("conv2d", lambda x, w, b, words=words: F.conv2d(x, w, b, **words), *operands)
        x = self.draw("f4", 2, 3, 4, 6)
        self.check("max_pool2d", lambda x: F.max_pool2d(x, 2), x)
        self.check("avg_pool2d", lambda x: F.avg_pool2d(x, 2), x)
        self.check("softmax", lambda x: (F.softmax(x, 1), F.log_softmax(x, 1), F.softmax(x, 3), F.log_softmax(x, 3)), x)
        self.check("layer_norm", lambda x, w, b: F.layer_norm(x, 6, w, b), x, self.draw("f4", 6), self.draw("f4", 6))
        self.check("gelu", F.gelu, self.draw("f4", 3, 1, 5))
        sides = [self.draw("f4", *s) for s in ((1, 2, 5), (20, 4), (20, 5), (20,), (20,))]
        cell = self.draw("f4", 1, 2, 5)
        self.check("lstm", lambda x, h, *s: nn.lstm(x, (h, cell), s, True, 1, 0.0, False, False, False), self.draw("f4", 3, 2, 4), *sides)

    def linear_algebra(self) -> None:
        for dtype, n in (("c8", 4), ("f8", 1)):
            a = self.draw(dtype, 1, n, n) + 3 * n * np.eye(n, dtype=dtype)
            positive = (a @ a.conj().swapaxes(-1, -2)).astype(dtype)
            b = self.draw(dtype, 1, n, 2)
            self.check("solve", linalg.solve, a, b)
            self.check("inv", linalg.inv, a)
            self.check("cholesky", linalg.cholesky, positive)
            self.check("solve_triangular", lambda a, b: linalg.solve_triangular(a, b, upper=True), a, b)
            self.check("eigvalsh", linalg.eigvalsh, positive)
            self.check("svdvals", linalg.svdvals, self.draw(dtype, 1, n + 1, n))
            self.check("vector_norm", lambda x: (linalg.vector_norm(x), linalg.vector_norm(x, 3, 0)), a)

    def transforms(self) -> None:
        for dtype in ("f4", "c16"):
            for shape in ((1, 8), (2, 3, 4)):
                x = self.draw(dtype, *shape)
                self.check("fft", lambda x: (fft.fft(x), fft.ifft(x, dim=0), fft.fftn(x), fft.irfft(x)), x)
                if dtype[0] == "f":
                    self.check("rfft", lambda x: (fft.rfft(x), fft.rfftn(x), fft.dct(x)), x)


FAMILIES = ("products", "attention", "layers", "linear_algebra", "transforms")

if __name__ == "__main__":
    faulthandler.enable()
    checks = Checks()
    getattr(checks, sys.argv[1])()
    sys.exit(bool(checks.wrong))
