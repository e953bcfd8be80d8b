"""Activations, softmax, normalisation by given or own statistics, and pooling by oneDNN.

What is not finite is not always safe in its kernels: relu and the maximum of a window lose NaN, softmax leaves 0 beside it, sums
of an average overflow, gelu of infinity is NaN and that of half the largest float infinity. There a plan looks at the values and
leaves such a call to NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...native.plan_builder import Pointer
from ...problems import Operand
from ...problems.dtypes import is_bfloat16
from ...problems.memory_layout import dense_strides, image_strides
from ...problems.neural_problem import NeuralProblem
from ..base import Algorithm, Refusal
from ..reference import reference_neural
from . import abi
from .onednn_products import F16, F32, is_reference
from .plan_writer import Place, Writer
from .primitives import Desc, Engine, PrimitiveDesc, why

__all__ = ["neural_algorithms", "prepare_neural"]

# Below so many elements a thread team costs more than it brings, and so does releasing the GIL.
THREAD_ELEMENTS, SMALL_ELEMENTS = 1 << 14, 1 << 13
NAME = "primitive"

ELTWISE: dict[tuple[str, str], tuple[abi.Alg, float]] = {
    ("relu", ""): (abi.Alg.RELU, 0.0), ("gelu", "none"): (abi.Alg.GELU_ERF, 0.0), ("gelu", "tanh"): (abi.Alg.GELU_TANH, 0.0),
    ("silu", ""): (abi.Alg.SWISH, 1.0), ("tanh", ""): (abi.Alg.TANH, 0.0), ("sigmoid", ""): (abi.Alg.LOGISTIC, 0.0),
}  # fmt: skip
LOOKED_BEFORE = ("relu", "max_pool")
LOOKED_AFTER = ("softmax", "avg_pool", "gelu")
BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
UNSAFE = {"bfloat16": ("relu", "softmax", "avg_pool"), "float16": ("relu", "max_pool", "softmax", "avg_pool")}  # in 16 bits
OPERATIONS = (*LOOKED_BEFORE, *LOOKED_AFTER, "silu", "tanh", "sigmoid", "layer_norm", "batch_norm")


class Unfit(RuntimeError):
    """The operand lies in a way that there is no primitive for; the text says how."""


def neural_algorithms(engine: Engine, p: NeuralProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Lists oneDNN's algorithms for one of the layers between products and convolutions."""
    reason = _refusal(engine, p)
    if reason:
        yield Refusal("onednn", p.op, reason)
        return
    many = threads if max(prod(p.result), prod(p.operands[0].shape)) >= THREAD_ELEMENTS else 1
    try:
        kernel = engine.describe(_Layer, p, many).kernel.implementation
    except RuntimeError as error:
        yield Refusal("onednn", p.op, why(error, f"this {p.op}"))
        return
    if is_reference(kernel):
        yield Refusal("onednn", p.op, f"oneDNN has only its reference code for this ({kernel})")
        return
    precision = "f32 accumulation" if p.dtype == F16 or is_bfloat16(p.dtype) else ""
    # Every element of the result is one thread's work from beginning to end.
    if many > 1:
        yield Algorithm(
            library="onednn", name=NAME, threads=many, scaled=True, precision=precision, level="threads", pool=engine.pool,
            note=kernel,
        )  # fmt: skip
    yield Algorithm(library="onednn", name=NAME, precision=precision, level="threads", basis="construction", note=kernel)


def prepare_neural(engine: Engine, p: NeuralProblem, algorithm: Algorithm) -> Any:
    """Returns the Plan of an Algorithm that `neural_algorithms` listed."""
    with engine.threads(algorithm.threads):
        return engine.described(_Layer, p, algorithm.threads).plan()


def _refusal(engine: Engine, p: NeuralProblem) -> str:
    if p.op == "log_softmax":
        return "its logarithms of probabilities may be above 0, by up to 1.3e-6"
    if p.op not in OPERATIONS:
        return f"oneDNN is not asked for {p.op}"
    if p.dtype not in (F32, F16) and not is_bfloat16(p.dtype) and not (p.op == "max_pool" and p.dtype in BYTES):
        return f"no {p.op} of {p.dtype.name}"
    if p.op in UNSAFE.get(p.dtype.name, ()):
        return f"its {p.op} of {p.dtype.name} is not safe where values are not finite, or overflow"
    if p.dtype == F16 and not engine.f16:
        return "the processor has, or may use, no instructions for float16"
    if any(o.dtype not in (F32, p.dtype) for o in p.operands):
        return "parameters that are neither float32 nor of the input's dtype"
    if p.op == "softmax" and not p.result:
        return "an array without axes needs no library"
    return "an empty array needs no library" if p.empty or 0 in p.operands[0].shape else ""


class Input(NamedTuple):
    """The input: where it is, without gaps, and its axes from the outermost in memory to the innermost."""

    pointer: Pointer
    shape: tuple[int, ...]
    order: tuple[int, ...]


def laid(w: Writer, p: NeuralProblem, role: str, order: tuple[int, ...] | None = None) -> Input:
    """An operand without gaps: as it lies where it has none, else copied; in the order of its own axes, or one that is given."""
    o = p.get(role)
    assert o is not None
    if any(s == 0 for s, n in zip(o.strides, o.shape, strict=True) if n > 1):
        raise Unfit(f"{role} repeats elements by strides of 0")
    if order is None:
        order = tuple(sorted(range(len(o.shape)), key=lambda i: -abs(o.strides[i]) if o.shape[i] > 1 else -o.nbytes - 1))
    dense = [s * o.dtype.itemsize for s in dense_strides(o.shape, order)]
    copied = not o.aligned or any(n > 1 and s != d for n, s, d in zip(o.shape, o.strides, dense, strict=True))
    return Input(w.spread(role, copied=copied, order=order).pointer, o.shape, order)


def images_last(input: Input, shape: tuple[int, ...]) -> bool:
    """Tells whether images, of the shape of an input or with a batch axis of 1 before it, are channels-last in memory."""
    moved = len(shape) - len(input.shape)
    order = (*range(moved), *(i + moved for i in input.order))
    lies = dense_strides(shape, order)
    for last in (False, True):
        if all(a == b or n == 1 for a, b, n in zip(lies, image_strides(shape, last), shape, strict=True)):
            return last
    raise Unfit("channels are neither first nor last in memory")


class _Layer:
    """Layouts and primitive of one layer, from which `plan` builds the plan."""

    def __init__(self, engine: Engine, p: NeuralProblem, threads: int) -> None:
        self.engine, self.p = engine, p
        self.w = Writer(engine, p, threads)
        self.input = laid(self.w, p, "input")
        self.places: dict[int, Place] = {}
        self.result_strides = dense_strides(p.result, self.input.order)
        describe: dict[str, Callable[[], PrimitiveDesc]] = {
            "softmax": self._softmax, "layer_norm": self._layer_norm,
            "batch_norm": self._batch_norm, "max_pool": self._pool, "avg_pool": self._pool,
        }  # fmt: skip
        self.kernel = describe.get(p.op, self._eltwise)()

    # where things lie

    def _desc(self, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Desc:
        return self.engine.desc(shape, self.p.dtype, strides or dense_strides(shape))

    def _vector(self, role: str, arg: abi.Arg) -> bool:
        """A parameter as a vector of float32; False where there is none."""
        o: Operand | None = self.p.get(role)
        if o is None:
            return False
        size = prod(o.shape)
        dense = tuple(s * o.dtype.itemsize for s in dense_strides(o.shape))
        copied = any(n > 1 and s != d for n, s, d in zip(o.shape, o.strides, dense, strict=True))
        spread = self.w.spread(role, copied=copied)
        place = Place(self.engine.desc((size,), o.dtype, (1,)), spread.pointer)
        self.places[arg] = self.w.reorder(place, self.engine.desc((size,), F32, (1,)))
        return True

    # primitives: each sets `source` and `target`, which describe input and result in its terms

    def _forward(self, operation: str, *args: Any) -> PrimitiveDesc:
        attributes = self.engine.attributes()
        return self.engine.primitive_desc(f"{operation}_forward", abi.Prop.FORWARD_INFERENCE, *args, attr=attributes)

    def _eltwise(self) -> PrimitiveDesc:
        alg, alpha = ELTWISE[self.p.op, self.p.parameter("approximate", "")]
        self.source = self.target = self._desc((prod(self.input.shape),))
        return self._forward("eltwise", alg, self.source, self.target, alpha, 0.0)

    def _softmax(self) -> PrimitiveDesc:
        shape, order = self.input.shape, self.input.order
        at = order.index(self.p.parameter("axis"))
        before, n, after = prod(shape[i] for i in order[:at]), shape[order[at]], prod(shape[i] for i in order[at + 1 :])
        self.source = self.target = self._desc((before, n) if after == 1 else (before, n, after))
        # Its kernels want the axis innermost.
        inside = self.source if after == 1 else self._desc((before, n, after), (n * after, 1, n))
        return self._forward("softmax", abi.Alg.SOFTMAX, inside, inside, 1)

    def _layer_norm(self) -> PrimitiveDesc:
        shape, order, count = self.input.shape, self.input.order, self.p.parameter("axes")
        last = tuple(i for i in range(len(shape) - count, len(shape)) if shape[i] > 1)
        if tuple(i for i in order if shape[i] > 1)[len([i for i in order if shape[i] > 1]) - len(last) :] != last:
            raise Unfit("the axes that are normalised are not the innermost in memory, in order")
        size = prod(shape[len(shape) - count :])
        self.source = self.target = self._desc((prod(shape) // size, size))
        flags = abi.Norm.SCALE * self._vector("weight", abi.Arg.SCALE) | abi.Norm.SHIFT * self._vector("bias", abi.Arg.SHIFT)
        return self._forward("layer_normalization", self.source, self.target, None, float(self.p.parameter("eps")), flags)

    def _batch_norm(self) -> PrimitiveDesc:
        shape = self.input.shape
        images = (shape[0], shape[1], 1, prod(shape[2:]))
        self.source = self.target = self._desc(images, image_strides(images, images_last(self.input, shape)))
        self._vector("mean", abi.Arg.MEAN)
        self._vector("variance", abi.Arg.VARIANCE)
        flags = abi.Norm.GLOBAL_STATS | abi.Norm.SCALE * self._vector("weight", abi.Arg.SCALE)
        flags |= abi.Norm.SHIFT * self._vector("bias", abi.Arg.SHIFT)
        return self._forward("batch_normalization", self.source, self.target, float(self.p.parameter("eps")), flags)

    def _pool(self) -> PrimitiveDesc:
        p = self.p
        kernel = p.parameter("kernel")
        single = (1,) * (len(kernel) + 2 - len(self.input.shape))  # images without a batch
        shape, result = single + self.input.shape, single + p.result
        last = images_last(self.input, shape)
        self.source, self.target = (self._desc(s, image_strides(s, last)) for s in (shape, result))
        # Not those of the input: where that has one point along an axis, the axis has no place in its order.
        self.result_strides = image_strides(result, last)[len(single) :]
        alg = abi.Alg.POOLING_MAX
        if p.op == "avg_pool":
            padded = p.parameter("count_include_pad", True)
            alg = abi.Alg.POOLING_AVG_INCLUDE_PADDING if padded else abi.Alg.POOLING_AVG_EXCLUDE_PADDING
        before, after = zip(*p.parameter("padding"), strict=True)
        dilation = tuple(d - 1 for d in p.parameter("dilation", (1,) * len(kernel)))
        return self._forward("pooling", alg, self.source, self.target, p.parameter("stride"), kernel, dilation, before, after)

    # what is done

    def plan(self) -> Any:
        p, w = self.p, self.w
        source = Place(self.source, self.input.pointer)
        result = w.result(p.result, p.dtype, self.result_strides)
        target = Place(self.target, result)
        looked = p.op in LOOKED_BEFORE + LOOKED_AFTER and p.dtype not in BYTES
        if looked and p.op in LOOKED_BEFORE:
            w.look(source.pointer, prod(self.input.shape), p.dtype)
        inside = self.kernel.desc(abi.Query.DST)
        assert inside is not None
        moved = inside != self.target
        if moved:
            source = w.reorder(source, inside)
        # In place where the kernel works on a copy of its own.
        self.places |= {abi.Arg.SRC: source, abi.Arg.DST: source if moved else target}
        w.run(self.kernel, self.places)
        if moved:
            w.move(source, target)
        if looked and p.op in LOOKED_AFTER:
            w.look(result, prod(p.result), p.dtype)
        return w.plan(result, release_gil=prod(p.result) >= SMALL_ELEMENTS, exact=by_numpy(p) if looked else None)


def by_numpy(p: NeuralProblem) -> Callable[..., Any]:
    compute = reference_neural.plan(p)

    def exact(arrays: tuple[np.ndarray[Any, Any], ...], result: Any) -> Any:
        return compute(*arrays)

    return exact
