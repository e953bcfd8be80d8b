"""Convolutions, transposed ones, products and linear layers by XNNPACK.

Creating an operator packs its weights, so a call creates one, runs it and deletes it: it reads the weights that it is given.
Where a Problem's weights are packed, the operator of the first call serves all others, one at a time. The operator's own clamp
would make minus infinity of NaN, and where it stands for relu, 0. So it is left open; a result that is not finite everywhere is
computed again by NumPy there, and what follows a product follows in NumPy.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import refuse_overlap
from ...problems import Operand
from ...problems.conv_problem import ConvProblem
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MatmulProblem
from ...switches import cpu_capability
from ..base import Algorithm, PythonPlan, Refusal
from ..reference import reference_conv
from ..reference.reference_conv import two
from ..reference.reference_neural import activate
from .interface import CONV, PRODUCT, TRANSPOSED, Kind, Operator, Xnnpack, has_slack, padded

__all__ = ["conv_algorithms", "prepare_conv", "prepare_product", "product_algorithms"]

F32 = np.dtype(np.float32)
THREAD_FLOPS = 1e6  # below so many operations a thread team costs more than it brings
TRANSPOSED_WEIGHTS = 1  # flag: weights (in, out)
MOST = 2**32 - 1  # sizes of kernels and steps are 32-bit
Product = MatmulProblem | LinearProblem


def _both(name: str, p: ConvProblem | Product, pool: str, threads: int) -> Iterator[Algorithm]:
    """An algorithm on all threads and on one. Each element of the result is one thread's work, from beginning to end."""
    detected = cpu_capability.detected()  # it takes the best there is, and cannot be told otherwise
    isa = detected if detected in ("avx2", "avx512") else ""
    note = f"weights packed by {'the first' if p.packed else 'each'} call"
    if threads > 1 and p.flops >= THREAD_FLOPS:
        yield Algorithm(
            library="xnnpack", name=name, threads=threads, scaled=True, level="threads", pool=pool, note=note, isa=isa
        )
    yield Algorithm(library="xnnpack", name=name, level="threads", basis="construction", note=note, isa=isa)


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _finite(y: Any) -> bool:
    """Tells whether every element of a dense array is finite.

    The sum is tested first: it is finite only if all elements are, but it may overflow where they are.
    """
    return math.isfinite(y.sum()) or bool(np.isfinite(y).all())


class _Plan(PythonPlan):
    """Plan that reports the memory of packed weights, estimated from their unpacked size: XNNPACK does not report it."""

    __slots__ = ("kept_bytes",)

    def __init__(self, function: _Call) -> None:
        super().__init__(function)
        p = function.p
        self.kept_bytes = sum(o.nbytes for o in p.operands if o.role in ("weight", "b")) if p.packed else 0


class _Call:
    """Base class of the plans' functions, with access to arrays by role and the check that outputs do not overlap them."""

    def __init__(self, xnn: Xnnpack, p: ConvProblem | Product, threads: int) -> None:
        self.xnn, self.p, self.threads = xnn, p, threads
        self.index = {o.role: i for i, o in enumerate(p.operands)}
        self.same = "residual" if "residual" in self.index else "c"
        self._kept: Operator | None = None
        self._turn = threading.Lock()

    def create(self, weight: Any, bias: Any) -> Operator:
        """The operator, its weights packed."""
        raise NotImplementedError

    def pack(self, kind: Kind, numbers: tuple[int, ...], weight: Any, bias: Any, flags: int = 0) -> Operator:
        """An operator of a kind with a weight, which lies as it wants it, and a bias or None."""
        bias = None if bias is None else np.require(bias, F32, ["C", "A"])
        return Operator(self.xnn, kind, numbers, _address(weight), 0 if bias is None else _address(bias), flags)

    def finish(self, y: Any, exact: Callable[[], Any], residual: Any) -> None:
        """Takes what is not finite from NumPy's result; then applies the residual, if any, and the activation."""
        activation = self.p.parameter("activation")
        with np.errstate(all="ignore"):  # as compiled libraries: what is not finite shows in the result
            if not _finite(y):
                np.copyto(y, exact(), where=~np.isfinite(y))
            if residual is not None:
                y += residual
            if activation:
                activate(activation, y, y)

    def run(self, weight: Any, bias: Any, shape: tuple[int, ...], x: Any, y: Any, points: tuple[int, ...] = ()) -> None:
        """Compute y from x, with an operator for this call, or with the one that keeps the packed weights."""
        if not self.p.packed:
            op = self.create(weight, bias)
            try:
                op.run(shape, _address(x), _address(y), self.threads, points)
            finally:
                op.delete()
            return
        with self._turn:  # it has the addresses of one call at a time
            if self._kept is None:
                self._kept = self.create(weight, bias)
                weakref.finalize(self, self._kept.delete)
            self._kept.run(shape, _address(x), _address(y), self.threads, points)

    def overlaps(self, arrays: tuple[Any, ...]) -> None:
        at = self.index.get("out")
        if at is None:
            return
        out = arrays[at]
        for role, i in self.index.items():
            if i == at or (role == self.same and _same(arrays[i], out)):
                continue
            if np.may_share_memory(arrays[i], out):
                refuse_overlap(out, arrays[i])

    def given(self, role: str, arrays: tuple[Any, ...]) -> Any:
        """An operand as the Problem describes it, or None."""
        i = self.index.get(role)
        if i is None:
            return None
        o, array = self.p.operands[i], arrays[i]
        if array.shape == o.shape and array.strides == o.strides:
            return array
        return np.lib.stride_tricks.as_strided(array, o.shape, o.strides)

    def readable(self, x: Any, whole: bool) -> Any:
        """An array as XNNPACK may read it: where it is if it lies as wanted (`whole`), else a copy with room behind it."""
        if whole and has_slack(_address(x), x.nbytes):
            return x
        copy = padded(x.shape)
        copy[...] = x
        return copy


def _same(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.strides == b.strides and _address(a) == _address(b)


# Convolutions ---------------------------------------------------------------------------------------------------------------


def conv_algorithms(xnn: Xnnpack, p: ConvProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """XNNPACK's ways for a convolution."""
    reason = _no_conv(p)
    if reason:
        yield Refusal("xnnpack", p.op, reason)
    else:
        yield from _both("nhwc", p, xnn.pools.name, threads)


def _no_conv(p: ConvProblem) -> str:
    if p.op not in ("conv", "conv_transpose"):
        return "it has no gradients"
    if p.dtype != F32 or any(o.dtype != F32 for o in p.operands):
        return f"no convolution of {p.dtype.name}"
    if len(p.kernel) > 2:
        return "more than two dimensions"
    if p.empty:
        return "an empty convolution needs no library"
    numbers = (*p.kernel, *p.stride, *p.dilation, p.groups, *(n for pair in p.padding for n in pair))
    if max(numbers) > MOST:
        return f"a number above {MOST}"
    if p.transposed and any(e >= s for (_, e), s in zip(_ends(p), p.stride, strict=True)):
        return f"output_padding={p.output_padding} is more than it can express here"
    return ""


def _ends(p: ConvProblem) -> list[tuple[int, int]]:
    """Returns the end padding and the remaining output padding of a transposed convolution for each axis; one of them is 0."""
    return [(a - min(a, e), e - min(a, e)) for (_, a), e in zip(p.padding, p.output_padding, strict=True)]


def prepare_conv(xnn: Xnnpack, p: ConvProblem, algorithm: Algorithm) -> PythonPlan:
    """The plan of an Algorithm that `conv_algorithms` listed."""
    return _Plan(_Conv(xnn, p, algorithm.threads))


class _Conv(_Call):
    """A convolution as a function of the arrays of the call."""

    p: ConvProblem

    def __init__(self, xnn: Xnnpack, p: ConvProblem, threads: int) -> None:
        super().__init__(xnn, p, threads)
        g = p.groups
        before, after = [a for a, _ in p.padding], [a for _, a in p.padding]
        self.kind, extra = CONV, tuple[int, ...]()
        if p.transposed:
            self.kind = TRANSPOSED
            after, extra = [a for a, _ in _ends(p)], tuple(e for _, e in _ends(p))
        (top, left), (bottom, right) = two(before, 0), two(after, 0)
        self.numbers = (
            top, right, bottom, left, *two(p.kernel, 1), *two(p.stride, 1), *two(p.dilation, 1), g, p.channels // g,
            p.features // g, p.channels, p.features,
        )  # fmt: skip
        self.points = two(p.result[2:], 1)
        self.shape = (p.batch, *two(p.image, 1), *(two(extra, 0) if p.transposed else ()))
        x, out = p.get("input"), p.get("out")
        assert x is not None
        self.whole = _last(x)
        self.direct = p.last if out is None else _last(out) and "residual" not in self.index
        operands = tuple(o for o in p.operands if o.role not in ("residual", "out"))
        plain = replace(p, operands=operands, parameters=())  # neither activation nor packing
        self.roles = [o.role for o in operands]
        self.again = reference_conv.function(plain)

    def create(self, weight: Any, bias: Any) -> Operator:
        g = self.p.groups
        if self.p.transposed:
            weight = np.moveaxis(weight.reshape(g, -1, *weight.shape[1:]), 1, -1)
        else:
            weight = np.moveaxis(weight, 1, -1)
        return self.pack(self.kind, self.numbers, np.require(weight, F32, ["C", "A"]), bias)

    def __call__(self, *arrays: Any) -> Any:
        self.overlaps(arrays)
        x = self.readable(np.moveaxis(self.given("input", arrays), 1, -1), self.whole)
        out = arrays[self.index["out"]] if "out" in self.index else reference_conv.new_result(self.p)
        y = np.moveaxis(out, 1, -1)
        if not self.direct:
            y = np.empty(y.shape, F32)
        self.run(self.given("weight", arrays), self.given("bias", arrays), self.shape, x, y, self.points)
        residual = self.given("residual", arrays)
        self.finish(
            y, lambda: np.moveaxis(self.again(*(self.given(role, arrays) for role in self.roles)), 1, -1),
            None if residual is None else np.moveaxis(residual, 1, -1),
        )  # fmt: skip
        if not self.direct:
            out[...] = np.moveaxis(y, -1, 1)
        return out


def _last(o: Operand) -> bool:
    """Tells whether images are aligned and dense with channels last; those of one channel or one point may be channels-first."""
    step = o.dtype.itemsize
    for axis in (1, *range(len(o.shape) - 1, 1, -1), 0):
        if o.shape[axis] != 1 and o.strides[axis] != step:
            return False
        step *= o.shape[axis]
    return o.aligned


# Products -------------------------------------------------------------------------------------------------------------------


def product_algorithms(xnn: Xnnpack, p: Product, threads: int) -> Iterator[Algorithm | Refusal]:
    """XNNPACK's ways for a product with one matrix on the right, and for a linear layer."""
    reason = _no_product(p)
    if reason:
        yield Refusal("xnnpack", p.op, reason)
    else:
        yield from _both("linear", p, xnn.pools.name, threads)


def _no_product(p: Product) -> str:
    if p.dtype != F32 or any(o.dtype != F32 for o in p.operands):
        return f"no product of {p.dtype.name}"
    if p.empty:
        return "an empty product needs no library"
    b = p.get("b")
    assert b is not None
    if any(n > 1 and s != 0 for n, s in zip(b.shape[:-2], b.strides[:-2], strict=True)):
        return "the right operand is more than one matrix"
    if isinstance(p, MatmulProblem):
        if p.alpha != 1 or p.beta not in (0, 1):
            return "it has no factors"
        if p.beta == 1 and _row(p.get("c"), p.n) is None:
            return "what is added is not one row"
        return ""
    bias = p.get("bias")
    return "" if bias is None or _row(bias, p.n) is not None else "the bias is not one row"


def _row(o: Operand | None, n: int) -> Operand | None:
    """An operand as the one row of `n` elements that it repeats; None if it is more."""
    if o is None or any(size > 1 and step != 0 for size, step in zip(o.shape[:-1], o.strides[:-1], strict=True)):
        return None
    return replace(o, shape=(n,), strides=o.strides[-1:] if o.shape[-1:] == (n,) else (0,))


def prepare_product(xnn: Xnnpack, p: Product, algorithm: Algorithm) -> PythonPlan:
    """The plan of an Algorithm that `product_algorithms` listed."""
    return _Plan(_Product(xnn, p, algorithm.threads))


class _Product(_Call):
    """A product, and what follows it, as a function of the arrays of the call."""

    p: Product

    def __init__(self, xnn: Xnnpack, p: Product, threads: int) -> None:
        super().__init__(xnn, p, threads)
        a, b, out = p.get("a"), p.get("b"), p.get("out")
        assert a is not None and b is not None
        self.rows = p.items * p.m
        added = p.get("c") if isinstance(p, MatmulProblem) and p.beta == 1 else p.get("bias")
        self.added = None if added is None else (added.role, _row(added, p.n))
        self.whole = self._dense(a, (self.rows, p.k))
        self.right = replace(b, shape=b.shape[-2:], strides=b.strides[-2:])
        self.turned = self._lies(self.right, (1, p.k))
        self.plain = self.turned or self._lies(self.right, (p.n, 1))
        self.direct = out is None or (self._dense(out, (self.rows, p.n)) and "residual" not in self.index)
        self.full = (*p.batch, p.m, p.n)

    @staticmethod
    def _lies(o: Operand, strides: tuple[int, int]) -> bool:
        lies = all(n == 1 or s == 4 * t for n, s, t in zip(o.shape, o.strides, strides, strict=True))
        return lies and o.aligned

    @staticmethod
    def _dense(o: Operand, shape: tuple[int, int]) -> bool:
        """Tells whether an operand is one contiguous matrix of a shape."""
        return o.is_contiguous() and o.nbytes == shape[0] * shape[1] * o.dtype.itemsize

    def create(self, weight: Any, bias: Any) -> Operator:
        if not self.plain:
            weight = np.require(weight, F32, ["C", "A"])
        p, flags = self.p, 0 if self.turned else TRANSPOSED_WEIGHTS
        return self.pack(PRODUCT, (p.k, p.n, p.k, p.n), weight, bias, flags)

    def __call__(self, *arrays: Any) -> Any:
        p = self.p
        self.overlaps(arrays)
        left = self.given("a", arrays)
        x = self.readable(left if self.whole else np.broadcast_to(left, (*p.batch, p.m, p.k)), self.whole)
        weight = np.lib.stride_tricks.as_strided(arrays[self.index["b"]], self.right.shape, self.right.strides)
        bias = None
        if self.added is not None:
            role, row = self.added
            assert row is not None
            bias = np.lib.stride_tricks.as_strided(arrays[self.index[role]], row.shape, row.strides)
        out = arrays[self.index["out"]] if "out" in self.index else np.empty(p.result, F32)
        y = out if self.direct else np.empty(p.result, F32)
        self.run(weight, bias, (self.rows,), x, y)

        def exact() -> Any:
            product = np.matmul(left, weight)
            if bias is not None:
                product += bias
            return np.broadcast_to(product, self.full).reshape(y.shape)

        residual = self.given("residual", arrays)
        self.finish(y, exact, None if residual is None else residual.reshape(y.shape))
        if not self.direct:
            # The caller's array may have its axes in another order than the product has them.
            o = p.get("out")
            assert o is not None
            np.lib.stride_tricks.as_strided(out, o.shape, o.strides)[...] = y.reshape(o.shape)
        return out


