"""Convolutions, transposed ones, and gradients by oneDNN.

Its kernels want channels last, or in blocks of its own, and weights in an order that depends on the kernel. A plan brings
operands there and the result back, each where it does not lie so already. Weights are brought there in every call, and a plan
keeps no copy of them, unless they are packed: then the first call does it for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ...native.plan_builder import Pointer, same_place
from ...problems.conv_problem import ConvProblem, channels_last
from ...problems.dtypes import bfloat16, is_bfloat16
from ...problems.memory_layout import dense_strides, image_strides
from ..base import Algorithm, Refusal
from . import abi
from .onednn_products import F16, F32, PACKED, SMALL_FLOPS, THREAD_FLOPS, is_reference, without
from .plan_writer import Place, Writer, fits
from .primitives import Desc, DnnlError, Engine, PrimitiveDesc, defective, why

__all__ = ["conv_algorithms", "prepare_conv"]

LAST, BLOCKED, REDUCED = "nhwc", "blocked", "nhwc_bf16"
FORWARD = ("conv", "conv_transpose")


def conv_algorithms(engine: Engine, p: ConvProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """oneDNN's ways for a convolution or a gradient of one."""
    reason = _refusal(engine, p)
    if reason:
        yield Refusal("onednn", p.op, reason)
        return
    many = threads if p.flops >= THREAD_FLOPS else 1
    for name in (LAST, BLOCKED, REDUCED) if p.dtype == F32 else (LAST, BLOCKED):
        if name == REDUCED and not engine.bf16:
            yield Refusal("onednn", name, "the processor has, or may use, no instructions for bfloat16")
            continue
        try:
            made = engine.describe(_make, p, many, name)
        except RuntimeError as error:
            yield Refusal("onednn", name, why(error, f"this {p.op}"))
            continue
        kernel = made.kernel.implementation
        if is_reference(kernel):
            yield Refusal("onednn", name, f"oneDNN has only its reference code for this ({kernel})")
            continue
        if made.added and "sse41" in kernel:
            yield Refusal("onednn", name, f"{kernel} crashes where the result it adds to is not aligned to 16 bytes")
            continue
        if name == BLOCKED and made.is_last:
            yield Refusal("onednn", name, f"left to itself oneDNN takes channels last: that is {LAST}")
            continue
        precision = "bf16" if name == REDUCED else "f32 accumulation" if p.dtype != F32 else ""
        isa = "avx512" if precision else ""
        note = kernel + (PACKED if p.packed else "")
        if many > 1:
            yield Algorithm(
                library="onednn", name=name, threads=many, scaled=True, precision=precision, pool=engine.pool, note=note, isa=isa
            )
        yield Algorithm(
            library="onednn", name=name, precision=precision, level="threads", basis="construction", note=note, isa=isa
        )


def prepare_conv(engine: Engine, p: ConvProblem, algorithm: Algorithm) -> Any:
    """The plan of an Algorithm that `conv_algorithms` listed."""
    with engine.threads(algorithm.threads):
        return engine.described(_make, p, algorithm.threads, algorithm.name).plan()


def _refusal(engine: Engine, p: ConvProblem) -> str:
    if p.dtype not in (F32, F16) and not is_bfloat16(p.dtype):
        return f"no convolution of {p.dtype.name}"
    if any(o.dtype != p.dtype for o in p.operands):
        return "operands of several dtypes"
    if p.empty:
        return "an empty convolution needs no library"
    if len(p.kernel) > 3:
        return "more than three dimensions"
    if p.transposed and any(a + s <= 0 for a, s in zip(_cut(p), p.stride, strict=True)):
        return f"output_padding={p.output_padding} is more than oneDNN can express here"
    if is_bfloat16(p.dtype) and not engine.bf16:
        return "the processor has, or may use, no instructions for bfloat16: oneDNN would be slow"
    if p.dtype == F16 and not engine.f16:
        return "the processor has, or may use, no instructions for float16"
    return ""


def _make(engine: Engine, p: ConvProblem, threads: int, name: str) -> _Convolution:
    kind = {"conv_grad_input": _InputGradient, "conv_grad_weight": _WeightGradient}.get(p.op, _Forward)
    return kind(engine, p, threads, name)


class _Convolution:
    """Layouts and primitive of one convolution, from which `plan` builds the plan; each subclass implements an operation."""

    kernel: PrimitiveDesc

    def __init__(self, engine: Engine, p: ConvProblem, threads: int, name: str) -> None:
        self.engine, self.p, self.name = engine, p, name
        self.w = Writer(engine, p, threads)
        self.inner = bfloat16() if name == REDUCED else p.dtype
        self.input_shape = (p.batch, p.channels, *p.image)
        self.output_shape = (p.batch, p.features, *p.points)
        self.steps = (p.stride, tuple(d - 1 for d in p.dilation))
        self.fused = False
        self.added: list[tuple[str, float]] = []
        self.describe()

    def describe(self) -> None:
        """Make the primitive descriptor."""
        raise NotImplementedError

    def plan(self) -> Any:
        raise NotImplementedError

    @property
    def is_last(self) -> bool:
        """Tells whether the kernel's images are channels-last."""
        asked = (abi.Query.SRC, abi.Query.DIFF_SRC), (abi.Query.DST, abi.Query.DIFF_DST)
        for queries, shape in zip(asked, (self.input_shape, self.output_shape), strict=True):
            last = self.engine.desc(shape, self.inner, image_strides(shape, True))
            found = [self.kernel.desc(what) for what in queries]
            if any(desc is not None and desc.nbytes and desc != last for desc in found):
                return False
        return True

    # layouts

    def wanted(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Desc:
        """Returns the descriptor to request for images: channels-last, or any layout for the blocked algorithm."""
        return self.engine.desc(shape, dtype, None if self.name == BLOCKED else image_strides(shape, True))

    def images(self, role: str) -> Place:
        """Images as the caller has them."""
        o = self.p.get(role)
        assert o is not None
        last = channels_last(o)
        if last is not None:
            return Place(self.engine.desc(o.shape, o.dtype, image_strides(o.shape, last)), self.w.argument(role))
        spread = self.w.spread(role)
        return Place(self.engine.desc(o.shape, o.dtype, spread.strides), spread.pointer)

    def grouped(self, strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes and strides of weights with groups as an axis of their own, features before channels."""
        p, g = self.p, self.p.groups
        first, second, *rest = strides
        features, channels, group = first, second, p.features // g * first
        if p.transposed:
            features, channels, group = second, first, p.channels // g * first
        shape, steps = (p.features // g, p.channels // g, *p.kernel), (features, channels, *rest)
        return ((g, *shape), (group, *steps)) if g > 1 else (shape, steps)

    def weights(self) -> Place:
        """Weights as the caller has them. What a kernel wants them to be is asked of its descriptor (WEIGHTS)."""
        spread = self.w.spread("weight")
        shape, strides = self.grouped(spread.strides)
        return Place(self.engine.desc(shape, self.p.dtype, strides), spread.pointer)

    def any_weights(self) -> Desc:
        shape, _ = self.grouped((1,) * (len(self.p.kernel) + 2))
        return self.engine.desc(shape, self.inner)

    def final(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Place, Pointer, bool]:
        """Returns the dense place of the result, the pointer to return, and whether the result must be scattered from there."""
        o = self.p.get("out")
        if o is None:
            pointer = self.w.result(shape, self.p.dtype, strides)
            return Place(self.engine.desc(shape, self.p.dtype, strides), pointer), pointer, False
        last = channels_last(o) if fits(o) else None
        pointer = self.w.argument("out")
        if last is not None:
            return Place(self.engine.desc(shape, o.dtype, image_strides(shape, last)), pointer), pointer, False
        return self.w.work(self.engine.desc(shape, o.dtype, dense_strides(shape))), pointer, True

    def asked(self, what: abi.Query) -> Desc:
        """Returns the descriptor that the kernel uses for an argument."""
        desc = self.kernel.desc(what)
        assert desc is not None
        return desc

    def hint(self) -> PrimitiveDesc:
        """The forward convolution that a gradient belongs to."""
        source, target = self.wanted(self.input_shape, self.inner), self.wanted(self.output_shape, self.inner)
        return self.engine.primitive_desc(
            "convolution_forward", abi.Prop.FORWARD_TRAINING, abi.Alg.CONVOLUTION_DIRECT, source, self.any_weights(), None,
            target, *self.steps, *_sides(self.p.padding), attr=self.engine.attributes(),
        )  # fmt: skip


class _Forward(_Convolution):
    """A convolution or a transposed one, with what follows it."""

    def describe(self) -> None:
        p = self.p
        self.relu = p.parameter("activation") == "relu"
        residual, out = p.get("residual"), p.get("out")
        # Where the residual is overwritten, relu must not be in the kernel: its way out would need the residual again.
        lost = residual is not None and out is not None and same_place(residual, out)
        if residual is not None:
            self.added = [("sum", 1.0)]
        self.bias = self._bias()
        self.fused = self.relu and not lost
        if self.fused:
            try:
                self.kernel = self._kernel([*self.added, ("prelu",)])
            except DnnlError as error:
                if not error.unimplemented:
                    raise
                self.fused = False
            else:
                self.fused = not is_reference(self.kernel.implementation)
        if not self.fused:
            self.kernel = self._kernel(self.added)

    def _kernel(self, post: list[tuple[Any, ...]]) -> PrimitiveDesc:
        p = self.p
        operation, alg = "convolution_forward", abi.Alg.CONVOLUTION_DIRECT
        before, after = _sides(p.padding)
        if p.transposed:
            operation, alg = "deconvolution_forward", abi.Alg.DECONVOLUTION_DIRECT
            after = _cut(p)
        return self.engine.primitive_desc(
            operation, abi.Prop.FORWARD_INFERENCE, alg, self.wanted(self.input_shape, self.inner), self.any_weights(),
            self.bias.desc if self.bias else None, self.wanted(self.output_shape, p.dtype), *self.steps, before, after,
            attr=self.engine.attributes(post), avoided=defective(p, self.name),
        )  # fmt: skip

    def _bias(self) -> Place | None:
        o = self.p.get("bias")
        if o is None:
            return None
        if o.dtype == F16:
            return self.w.widened("bias", o)
        spread = self.w.spread("bias", copied=o.strides[0] != o.dtype.itemsize)
        return Place(self.engine.desc(o.shape, o.dtype, (1,)), spread.pointer)

    def plan(self) -> Any:
        p, w = self.p, self.w
        source, weights = self.images("input"), w.pack(self.weights, self.asked(abi.Query.WEIGHTS))
        residual = self.images("residual") if p.get("residual") else None
        final, result, scattered = self.final(self.output_shape, image_strides(self.output_shape, p.last))
        wanted = self.asked(abi.Query.DST)
        target = final if wanted == final.desc else w.work(wanted)
        source = w.reorder(source, self.asked(abi.Query.SRC))
        if residual:
            w.move(residual, target)
        places: dict[int, Place] = {abi.Arg.SRC: source, abi.Arg.WEIGHTS: weights, abi.Arg.DST: target}
        if self.bias:
            places[abi.Arg.BIAS] = self.bias
        if self.fused:
            places[abi.post_op_arg(len(self.added), abi.Arg.WEIGHTS)] = w.scalar(0.0, len(self.output_shape))
        w.run(self.kernel, places)
        if target is not final:
            w.move(target, final)
        exact = None
        if self.relu:
            exact = w.guard_relu(final, prod(self.output_shape), _plain_again(self) if self.fused else None, p.dtype)
        if scattered:
            w.scattered("out", final.pointer, dense_strides(self.output_shape))
        same = ("residual",) if residual else ()
        return w.plan(result, release_gil=p.flops >= SMALL_FLOPS, same=same, exact=exact)


def _plain_again(made: _Forward) -> Callable[[], Any]:
    """Makes the plan of the same convolution without relu."""
    engine, threads, name = made.engine, made.w.threads, made.name
    plain = replace(made.p, parameters=without(made.p, "activation", "packed"))

    def make() -> Any:
        with engine.threads(threads):
            return _make(engine, plain, threads, name).plan()

    return make


class _InputGradient(_Convolution):
    """The gradient by the input."""

    def describe(self) -> None:
        self.kernel = self.engine.primitive_desc(
            "convolution_backward_data", abi.Alg.CONVOLUTION_DIRECT, self.wanted(self.input_shape, self.p.dtype),
            self.any_weights(), self.wanted(self.output_shape, self.inner), *self.steps, *_sides(self.p.padding), self.hint(),
            attr=self.engine.attributes(),
        )  # fmt: skip

    def plan(self) -> Any:
        p, w = self.p, self.w
        grad, weights = self.images("grad"), self.weights()
        final, result, scattered = self.final(self.input_shape, image_strides(self.input_shape, p.last))
        wanted = self.asked(abi.Query.DIFF_SRC)
        target = final if wanted == final.desc else w.work(wanted)
        grad, weights = w.reorder(grad, self.asked(abi.Query.DIFF_DST)), w.reorder(weights, self.asked(abi.Query.WEIGHTS))
        w.run(self.kernel, {abi.Arg.DIFF_DST: grad, abi.Arg.WEIGHTS: weights, abi.Arg.DIFF_SRC: target})
        if target is not final:
            w.move(target, final)
        if scattered:
            w.scattered("out", final.pointer, dense_strides(self.input_shape))
        return w.plan(result, release_gil=p.flops >= SMALL_FLOPS)


class _WeightGradient(_Convolution):
    """The gradient by the weights. Threads add up parts of it: its bits depend on how many there are."""

    def describe(self) -> None:
        shape, _ = self.grouped((1,) * (len(self.p.kernel) + 2))
        self.kernel = self.engine.primitive_desc(
            "convolution_backward_weights", abi.Alg.CONVOLUTION_DIRECT, self.wanted(self.input_shape, self.inner),
            self.engine.desc(shape, self.p.dtype), None, self.wanted(self.output_shape, self.inner), *self.steps,
            *_sides(self.p.padding), self.hint(), attr=self.engine.attributes(),
        )  # fmt: skip

    def plan(self) -> Any:
        p, w = self.p, self.w
        plain = (p.features, p.channels // p.groups, *p.kernel)
        source, grad = self.images("input"), self.images("grad")
        shape, strides = self.grouped(dense_strides(plain))
        desc = self.engine.desc(shape, p.dtype, strides)
        result = w.result(plain, p.dtype, dense_strides(plain))
        wanted = self.asked(abi.Query.DIFF_WEIGHTS)
        target = Place(desc, result) if wanted == desc else w.work(wanted)
        source, grad = w.reorder(source, self.asked(abi.Query.SRC)), w.reorder(grad, self.asked(abi.Query.DIFF_DST))
        w.run(self.kernel, {abi.Arg.SRC: source, abi.Arg.DIFF_DST: grad, abi.Arg.DIFF_WEIGHTS: target})
        if target.pointer != result:
            w.move(target, Place(desc, result))
        return w.plan(result, release_gil=p.flops >= SMALL_FLOPS)


def _cut(p: ConvProblem) -> tuple[int, ...]:
    """Returns the end padding of a transposed convolution for each axis, as oneDNN expects it.

    Whole strides of `output_padding` reduce the padding; the remainder are points at the end that the last step does not reach.
    """
    return tuple(a - (e - e % s) for (_, a), e, s in zip(p.padding, p.output_padding, p.stride, strict=True))


def _sides(padding: tuple[tuple[int, int], ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    before, after = zip(*padding, strict=True)
    return before, after
