"""NNPACK's convolutions: its one function, what it takes, and the plans made of calls of it.

It takes structures by value, which calls of the compiled core spell out as the System V calling convention of x86-64 lays them:
two words go in registers while two are left, everything else on the stack in order.

A transform mixes every element of a tile into all of its results. One that is not finite spoils them all, so that a call whose
result is not finite everywhere is computed again by NumPy there; and rounding errors are relative to the largest values near, not
to each result. Weights are transformed in each call, and a plan keeps nothing of them, unless they are packed: then the first
call does it for all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ... import switches
from ...native import thread_team
from ...native.plan_builder import Builder, Pointer
from ...native.shared_library import NativeLibrary
from ...problems import Operand
from ...problems.conv_problem import ConvProblem
from ...problems.memory_layout import batch_offsets, contiguous_strides, is_contiguous
from ..base import Algorithm, Refusal, failure
from ..pthreadpool import Pools
from ..reference import reference_conv
from ..reference.reference_conv import two

__all__ = ["check", "conv_algorithms", "prepare_conv", "status_text"]

F32 = np.dtype(np.float32)
ISA = "avx2"  # the least that it runs on
THREAD_FLOPS, SMALL_FLOPS = 1e6, 6e4  # below: no thread team, no release of the GIL
COMPUTE, PRECOMPUTE, REUSE = 1, 2, 3  # weights are transformed for the call; into the workspace, and no more; or were before
IDENTITY = 0  # nothing follows the convolution
NOT_FINITE = -1  # what the look at the result reports in the place of a status
STATUS = {
    2: "no images", 3: "no channels", 4: "no channels", 5: "no features", 10: "an image of size 0", 11: "a stride of 0",
    12: "padding that is not less than the kernel", 13: "a kernel of size 0", 16: "no such algorithm",
    17: "no such transform strategy", 20: "unsupported size of images", 21: "unsupported stride", 22: "unsupported padding",
    23: "unsupported size of kernels", 26: "unsupported by this algorithm", 27: "unsupported transform strategy",
    28: "unsupported activation", 29: "unsupported parameters of the activation", 50: "it is not initialised",
    51: "it does not support this processor", 52: "out of memory", 53: "the workspace is too small",
    54: "the workspace is misaligned",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Way:
    """One of NNPACK's algorithms."""

    number: int  # as NNPACK counts them
    largest: int  # largest kernel, along either side
    strides: bool  # whether the kernel may move by more than one element
    precision: str  # effective precision, where it is less than that of float32
    note: str  # what it does


WAYS = {
    "ft16x16": Way(2, 16, False, "", "Fourier transforms of tiles: errors relative to the largest values near"),
    "ft8x8": Way(1, 8, False, "", "Fourier transforms of tiles: errors relative to the largest values near"),
    "wt8x8": Way(3, 3, False, "winograd", "Winograd transforms of tiles: relative errors of about 1e-5"),
    "implicit_gemm": Way(4, 16, True, "", "products of parts of the images, gathered on the way"),
    "direct": Way(5, 1, False, "", "products of 1x1 kernels"),
}


def status_text(status: int) -> str:
    """A status in words."""
    return f"{STATUS.get(status, 'unknown error')} (status {status})"


def _by_items(p: ConvProblem, threads: int) -> bool:
    return threads > 1 and p.batch * p.groups >= threads and bool(switches.get("openmp.enabled")) and bool(thread_team.name())


# The call -------------------------------------------------------------------------------------------------------------------


def _arguments(
    p: ConvProblem, name: str, pointers: Sequence[Any], workspace: Sequence[Any], pool: int, strategy: int = COMPUTE
) -> list[Any]:
    """Arguments of nnp_convolution_inference for one image and group, word by word.

    In registers: algorithm, transform strategy, channels, features, and the two words of the image's size (width first). On the
    stack: padding (top, right, bottom, left), kernel, stride, and the rest.
    """
    (top, bottom), (left, right) = two(p.padding, (0, 0))
    (height, width), (kh, kw), (sh, sw) = two(p.image, 1), two(p.kernel, 1), two(p.stride, 1)
    g = p.groups
    return [
        WAYS[name].number, strategy, p.channels // g, p.features // g, width, height,
        top, right, bottom, left, kw, kh, sw, sh, *pointers, *workspace, IDENTITY, 0, pool, 0,
    ]  # fmt: skip


def _workspace(native: NativeLibrary, p: ConvProblem, name: str, strategy: int = COMPUTE) -> tuple[int, int]:
    """Status, and bytes of workspace, that it tells when asked for them: it computes nothing then."""
    size = ctypes.c_size_t(0)
    some = [1, 1, 1, 1]  # addresses that it does not look at
    words = _arguments(p, name, some, [0, ctypes.addressof(size)], 0, strategy)
    status = native.call(
        native.address("nnp_convolution_inference"), *(ctypes.c_int64(word) for word in words), restype=ctypes.c_int
    )
    return status, size.value


def check(native: NativeLibrary, pool: int) -> str:
    """Tests a convolution of whole numbers with each algorithm; returns the error found, or an empty string."""
    x = (np.arange(2 * 9 * 10) * 7 % 11 - 5).astype(np.float32).reshape(1, 2, 9, 10)
    for kernel, padding in (((3, 3), ((1, 0), (0, 2))), ((5, 4), ((1, 0), (0, 2))), ((1, 1), ((0, 0), (0, 0)))):
        w = (np.arange(3 * 2 * prod(kernel)) * 5 % 7 - 3).astype(np.float32).reshape(3, 2, *kernel)
        result = (1, 3, 9 + sum(padding[0]) - kernel[0] + 1, 10 + sum(padding[1]) - kernel[1] + 1)
        operands = tuple(Operand(role, F32, a.shape, a.strides) for role, a in (("input", x), ("weight", w)))
        p = ConvProblem(
            "conv", operands, (), "conv", stride=(1, 1), padding=padding, dilation=(1, 1), output_padding=(0, 0), batch=1,
            channels=2, features=3, image=(9, 10), kernel=kernel, result=result,
        )  # fmt: skip
        room = np.pad(x, ((0, 0), (0, 0), *padding))
        wanted = np.zeros(result, np.float32)
        for i, j in np.ndindex(kernel):
            wanted += np.einsum("nchw,oc->nohw", room[:, :, i : i + result[2], j : j + result[3]], w[:, :, i, j])
        for name in WAYS:
            if not _unfit(native, p, name):
                error = np.abs(_Steps(native, p, name, pool, 1).plan()(x, w) - wanted).max() / np.abs(wanted).max()
                if not error < (1e-4 if WAYS[name].precision else 1e-5):
                    return f"computes a wrong convolution by {name}"
    return ""


# What it has ----------------------------------------------------------------------------------------------------------------


def conv_algorithms(
    context: tuple[NativeLibrary, Pools], problem: ConvProblem, threads: int
) -> Iterator[Algorithm | Refusal]:
    """Yields NNPACK's algorithms for a convolution, the one that is usually the fastest first."""
    native, pools = context
    reason = _refusal(problem)
    if reason:
        yield Refusal("nnpack", problem.op, reason)
        return
    for name in _order(problem):
        way, reason = WAYS[name], _unfit(native, problem, name)
        if reason:
            yield Refusal("nnpack", name, reason)
            continue
        note = way.note
        if problem.packed and _packs(native, problem, name):
            note += "; weights transformed by the first call"
        # Images and groups are divided among the team that other libraries run on, where there are enough of them.
        by_items, pool = _by_items(problem, threads), pools.name
        if by_items:
            many, pool = thread_team.items_threads(threads), thread_team.name()
        else:
            many = threads if pool else 1
        if many > 1 and problem.flops >= THREAD_FLOPS:
            how = "images divided among the threads" if by_items else "all threads on one image"
            yield Algorithm(
                library="nnpack", name=name, threads=many, scaled=True, precision=way.precision, level="threads", pool=pool,
                note=f"{note}; {how}", isa=ISA,
            )  # fmt: skip
        yield Algorithm(
            library="nnpack", name=name, precision=way.precision, level="threads", basis="construction", note=note, isa=ISA
        )


def prepare_conv(context: tuple[NativeLibrary, Pools], p: ConvProblem, algorithm: Algorithm) -> Any:
    """Returns the Plan of an Algorithm that `conv_algorithms` listed."""
    native, pools = context
    by_items = algorithm.threads > 1 and algorithm.pool != pools.name
    pool = 0 if by_items else pools.get(algorithm.threads)
    return _Steps(native, p, algorithm.name, pool, algorithm.threads if by_items else 1).plan()


def _refusal(p: ConvProblem) -> str:
    if p.op != "conv":
        return f"NNPACK has no {p.op}"
    if p.dtype != F32 or any(o.dtype != F32 for o in p.operands):
        return f"no convolution of {p.dtype.name}"
    if p.empty:
        return "an empty convolution needs no library"
    if len(p.kernel) > 2:
        return "more than two dimensions"
    if any(d > 1 and k > 1 for d, k in zip(p.dilation, p.kernel, strict=True)):
        return "no dilation"
    return ""


def _order(p: ConvProblem) -> tuple[str, ...]:
    """Its algorithms, the one that is usually the fastest first."""
    if max(p.kernel) == 1:
        return "direct", "implicit_gemm", "ft8x8", "ft16x16", "wt8x8"
    if max(p.kernel) <= 4 and max(p.image) <= 32:  # tiles of 16x16 would be mostly empty
        return "wt8x8", "ft8x8", "implicit_gemm", "ft16x16", "direct"
    return "wt8x8", "ft16x16", "ft8x8", "implicit_gemm", "direct"


def _unfit(native: NativeLibrary, p: ConvProblem, name: str) -> str:
    """Returns the reason why an algorithm of NNPACK does not support a convolution, or an empty string."""
    way = WAYS[name]
    if max(p.kernel) > way.largest:
        return f"kernels up to {way.largest}x{way.largest} only"
    if any(s > 1 for s in p.stride) and not way.strides:
        return "strides of 1 only"
    if name == "direct" and any(map(any, p.padding)):
        return "no padding"
    status, _ = _workspace(native, p, name)
    return f"NNPACK refuses it: {status_text(status)}" if status else ""


def _packs(native: NativeLibrary, p: ConvProblem, name: str) -> bool:
    """Tells whether an algorithm of NNPACK can keep the transformed weights of a convolution."""
    return not any(_workspace(native, p, name, strategy)[0] for strategy in (PRECOMPUTE, REUSE))


# The plan -------------------------------------------------------------------------------------------------------------------


class _Steps:
    """Writes the plan down: operands brought into order, a call for each image and group, a look at the result."""

    def __init__(self, native: NativeLibrary, p: ConvProblem, name: str, pool: int, threads: int) -> None:
        self.native, self.p, self.name, self.pool, self.threads = native, p, name, pool, threads
        self.b = Builder(p)
        self.items = p.batch * p.groups
        self.info = self.b.info(self.items + 1)

    def plan(self) -> Any:
        p, b = self.p, self.b
        out, residual = p.get("out"), p.get("residual")
        b.copy((1, self.items + 1), b.constant(bytes(4)), (0, 0), (self.info[0], 0, 0), (0, 4), 4)  # nothing is wrong yet
        b.each()
        weight, strategy = self._weights()
        source, bias = self._dense("input"), self._bias()
        # A residual is added in the end, and out may be the residual: then the convolution has a place of its own.
        apart = out is not None and residual is not None
        given = None if apart else out
        lies = contiguous_strides(p.result, 4, reference_conv.result_order(p)) if given is None else given.strides
        final = b.result(F32, p.result, lies) if given is None else b.argument("out")
        direct = is_contiguous(p.result, lies, 4) and (given is None or given.aligned)
        target = final if direct else b.work(4 * prod(p.result), shared=True)
        self._calls(source, weight, bias, target, strategy)
        b.finite((1, prod(p.result)), (0, 4), F32, target, (self.info[0], 4 * self.items, 0), NOT_FINITE)
        b.each()
        if not direct:
            self._copy(p.result, target, contiguous_strides(p.result, 4), final, lies)
        results = [final]
        if residual is not None:
            results.append(b.argument("residual"))
        if apart:
            results.append(b.argument("out"))
        after = _after(p.parameter("activation") == "relu", residual is not None, apart)
        return b.plan(
            *results, release_gil=p.flops >= SMALL_FLOPS, same=("residual",) if apart else (), wrap=after,
            on_info=self._on_info(after),
        )  # fmt: skip

    def _calls(self, source: Pointer, weight: Pointer, bias: Pointer, target: Pointer, strategy: int) -> None:
        p, b, g = self.p, self.b, self.p.groups
        x, y = 4 * p.channels // g * prod(p.image), 4 * p.features // g * prod(p.points)
        weights, biases = self._of_group(weight, self.slot), self._of_group(bias, 4 * p.features // g)
        if self.threads > 1:
            thread_team.items_run()
        self._call([(*source[:2], x), weights, biases, (*target[:2], y)], None, strategy)
        b.each(self.items, self.threads)

    def _weights(self) -> tuple[Pointer, int]:
        """The weights, and what is to be done with them: where they are packed, the first call transforms them."""
        p, b = self.p, self.b
        size = 4 * p.features // p.groups * p.channels // p.groups * prod(p.kernel)
        self.slot = size
        if not (p.packed and _packs(self.native, p, self.name)):
            return self._dense("weight"), COMPUTE
        _, nbytes = _workspace(self.native, p, self.name, PRECOMPUTE)
        self.slot = -(-nbytes // 64) * 64
        kept = b.kept(self.slot * p.groups)
        with b.first():
            plain = self._dense("weight")
            each = (*plain[:2], size)
            self._call([each] * 4, ((*kept[:2], self.slot), nbytes), PRECOMPUTE)  # it looks at the weights only
            b.each(p.groups)
        return kept, REUSE

    def _of_group(self, pointer: Pointer, step: int) -> Pointer:
        g = self.p.groups
        return (*pointer[:2], tuple(i % g * step for i in range(self.items)) if g > 1 else 0)

    def _call(self, pointers: Sequence[Pointer], workspace: tuple[Pointer, int] | None, strategy: int) -> None:
        b = self.b
        if workspace is None:
            status, nbytes = _workspace(self.native, self.p, self.name, strategy)
            if status:
                raise RuntimeError(f"NNPACK refuses {self.p.key}: {status_text(status)}")
            workspace = b.work(max(nbytes, 64)), nbytes
        room, nbytes = workspace
        words = _arguments(
            self.p, self.name, pointers, [room, b.constant(nbytes.to_bytes(8, "little"))], self.pool, strategy
        )  # fmt: skip
        b.call(self.native.address("nnp_convolution_inference"), words, returns=3, to=(self.info[0], 0, 4))

    # where things lie

    def _dense(self, role: str) -> Pointer:
        """An operand without gaps, its axes in order: where it is, or copied."""
        o = self.p.get(role)
        assert o is not None
        pointer = self.b.argument(role)
        if o.is_contiguous():
            return pointer
        target = self.b.work(o.nbytes, shared=True)
        self._copy(o.shape, pointer, o.strides, target, contiguous_strides(o.shape, 4))
        return target

    def _bias(self) -> Pointer:
        if self.p.get("bias") is not None:
            return self._dense("bias")
        size = 4 * self.p.features
        target = self.b.work(size, shared=True)
        self.b.copy((1, self.p.features), self.b.constant(bytes(4)), (0, 0), target, (size, 4), 4)
        self.b.each()
        return target

    def _copy(self, shape: Sequence[int], source: Pointer, a: Sequence[int], target: Pointer, to: Sequence[int]) -> None:
        """Copy an array, the two longest axes at a time; strides in bytes."""
        longest = sorted(range(len(shape)), key=lambda i: shape[i])[-2:]
        rest = [i for i in range(len(shape)) if i not in longest]
        outer = tuple(shape[i] for i in rest)
        x, y = (batch_offsets(outer, outer, tuple(strides[i] for i in rest)) for strides in (a, to))
        sizes, steps = [1, 1], [(0, 0), (0, 0)]
        for place, i in zip((-1, -2), reversed(longest), strict=False):
            sizes[place], steps[place] = shape[i], (a[i], to[i])
        self.b.copy(
            (sizes[0], sizes[1]), (source[0], source[1], x), (steps[0][0], steps[1][0]), (target[0], target[1], y),
            (steps[0][1], steps[1][1]), 4,
        )  # fmt: skip
        self.b.each(prod(outer), self.threads if prod(outer) > 1 else 1)

    # what comes after the calls

    def _on_info(self, after: Callable[..., Any] | None) -> Callable[..., Any]:
        p = self.p
        operands = tuple(o for o in p.operands if o.role not in ("residual", "out"))
        order = [p.operands.index(o) for o in operands]
        exact = reference_conv.function(replace(p, operands=operands, parameters=()))

        def on_info(plan: Any, infos: list[int], arrays: tuple[Any, ...], results: tuple[Any, ...]) -> Any:
            *statuses, finite = infos
            status = next((s for s in statuses if s), 0)
            if status:
                raise failure(plan, f"NNPACK failed to run {p.key}: {status_text(status)}")
            assert finite == NOT_FINITE
            y = results[0]
            with np.errstate(all="ignore"):
                np.copyto(y, exact(*(arrays[i] for i in order)), where=~np.isfinite(y))
            return y if after is None else after(*results)

        return on_info


def _after(relu: bool, residual: bool, apart: bool) -> Callable[..., Any] | None:
    """Returns the function that adds the residual and applies ReLU after a convolution, or None if there is neither.

    Its arguments are the convolution, the residual, and the array for the result if that is another (`apart`).
    """
    if not (relu or residual):
        return None

    def after(y: Any, *more: Any) -> Any:
        with np.errstate(all="ignore"):  # as compiled libraries: what is not finite shows in the result
            if residual:
                y = np.add(y, more[0], out=more[1] if apart else y)
            return np.maximum(y, 0, out=y) if relu else y

    return after
