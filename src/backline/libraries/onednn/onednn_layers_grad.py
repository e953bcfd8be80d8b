"""Gradients of activations, softmax and normalisation by oneDNN, and batch normalisation in training.

Statistics that a gradient needs are taken anew. In float32 only: sums of many elements that are not rounded to less on the way.
Where a result is not finite, or an operand may lead its kernels astray, a plan leaves the call to NumPy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from ...native.plan_builder import Pointer
from ...problems.memory_layout import dense_strides, image_strides
from ...problems.neural_problem import NeuralProblem
from ..base import Algorithm, Refusal
from . import abi
from .onednn_layers import ELTWISE, NAME, SMALL_ELEMENTS, THREAD_ELEMENTS, by_numpy, images_last, laid
from .onednn_products import F32, is_reference
from .plan_writer import Place, Writer
from .primitives import Desc, Engine, PrimitiveDesc, why

__all__ = ["GRADIENTS", "gradient_algorithms", "prepare_gradient"]

POINTWISE = tuple(f"{op}_grad" for op in ("gelu", "silu", "tanh", "sigmoid"))
SOFTMAX = {"softmax_grad": abi.Alg.SOFTMAX, "log_softmax_grad": abi.Alg.LOG_SOFTMAX}
MEETING = ("layer_norm_grad", "batch_norm_train", "batch_norm_train_grad")  # sums over elements of several threads
GRADIENTS = (*POINTWISE, *SOFTMAX, *MEETING)
Arg = abi.Arg
INPUTS = 5  # of a gradient of normalisation: input, gradient, mean, variance, scale


def gradient_algorithms(engine: Engine, p: NeuralProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """oneDNN's way for one of GRADIENTS."""
    reason = _refusal(p)
    if reason:
        yield Refusal("onednn", p.op, reason)
        return
    many = threads if prod(p.result) >= THREAD_ELEMENTS else 1
    try:
        kernels = [k.implementation for k in engine.describe(_Gradient, p, many).kernels]
    except RuntimeError as error:
        yield Refusal("onednn", p.op, why(error, f"this {p.op}"))
        return
    slow = next(filter(is_reference, kernels), "")
    if slow:
        yield Refusal("onednn", p.op, f"oneDNN has only its reference code for this ({slow})")
        return
    if many > 1:
        level, basis = ("run", "measured") if p.op in MEETING else ("threads", "measured")
        yield Algorithm(
            library="onednn", name=NAME, threads=many, scaled=True, level=level, basis=basis, pool=engine.pool, note=kernels[-1]
        )
    yield Algorithm(library="onednn", name=NAME, level="threads", basis="construction", note=kernels[-1])


def prepare_gradient(engine: Engine, p: NeuralProblem, algorithm: Algorithm) -> Any:
    """The plan of an Algorithm that `gradient_algorithms` listed."""
    with engine.threads(algorithm.threads):
        return engine.described(_Gradient, p, algorithm.threads).plan()


def _refusal(p: NeuralProblem) -> str:
    if any(o.dtype != F32 for o in p.operands):
        return f"no {p.op} of {p.dtype.name}: it is asked for float32 alone"
    return "an empty array needs no library" if p.empty else ""


class _Gradient:
    """Layouts of one gradient and its primitives in their order, from which `plan` builds the plan."""

    def __init__(self, engine: Engine, p: NeuralProblem, threads: int) -> None:
        self.engine, self.p = engine, p
        self.w = Writer(engine, p, threads)
        self.input = laid(self.w, p, "result" if p.op in SOFTMAX else "input")
        # In the order of the input: the gradient is asked for in that order, too.
        self.grad = laid(self.w, p, "grad", self.input.order) if p.get("grad") else None
        self.kernels: list[PrimitiveDesc] = []
        if p.op in POINTWISE:
            self._pointwise()
        elif p.op in SOFTMAX:
            self._softmax()
        else:
            self._norm()

    def _primitive(self, name: str, *args: Any) -> PrimitiveDesc:
        made = self.engine.primitive_desc(name, *args, attr=self.engine.attributes())
        self.kernels.append(made)
        return made

    def _desc(self, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Desc:
        return self.engine.desc(shape, F32, strides or dense_strides(shape))

    # primitives: each sets `desc`, which describes input, gradient and result in its terms

    def _pointwise(self) -> None:
        alg, alpha = ELTWISE[self.p.op.removesuffix("_grad"), self.p.parameter("approximate", "")]
        d = self.desc = self._desc((prod(self.input.shape),))
        attributes = self.engine.attributes()
        hint = self.engine.primitive_desc(
            "eltwise_forward", abi.Prop.FORWARD_TRAINING, alg, d, d, alpha, 0.0, attr=attributes
        )
        self._primitive("eltwise_backward", alg, d, d, d, alpha, 0.0, hint)

    def _softmax(self) -> None:
        shape, order = self.input.shape, self.input.order
        at = order.index(self.p.parameter("axis"))
        rows, n, after = prod(shape[i] for i in order[:at]), shape[order[at]], prod(shape[i] for i in order[at + 1 :])
        if after > 1:
            raise RuntimeError("its gradient of softmax wants the axis innermost in memory")
        alg, d = SOFTMAX[self.p.op], self._desc((rows, n))
        self.desc = d
        hint = self.engine.primitive_desc(
            "softmax_forward", abi.Prop.FORWARD_TRAINING, alg, d, d, 1, attr=self.engine.attributes()
        )
        self._primitive("softmax_backward", alg, d, d, d, 1, hint)

    def _norm(self) -> None:
        """Forward in training, for the statistics, and where it is asked for the gradients from them."""
        p, eps = self.p, float(self.p.parameter("eps"))
        shape, order = self.input.shape, self.input.order
        flags, more = int(abi.Norm.SCALE | abi.Norm.SHIFT), tuple[Desc, ...]()
        if p.op == "layer_norm_grad":
            count = p.parameter("axes")
            last = tuple(i for i in range(len(shape) - count, len(shape)) if shape[i] > 1)
            inner = tuple(i for i in order if shape[i] > 1)
            if inner[len(inner) - len(last) :] != last:
                raise RuntimeError("the axes that are normalised are not the innermost in memory, in order")
            self.width = prod(shape[len(shape) - count :])
            self.vector_shape = shape[len(shape) - count :]
            rows = prod(shape) // self.width
            d, self.statistics = self._desc((rows, self.width)), self._desc((rows,))
            name, more = "layer_normalization", (self.statistics,)
        else:
            images = (shape[0], shape[1], 1, prod(shape[2:]))
            d = self._desc(images, image_strides(images, images_last(self.input, shape)))
            self.width, self.vector_shape = shape[1], (shape[1],)
            self.statistics = self._desc((self.width,))
            name, more = "batch_normalization", ()
        self.desc, self.name = d, name
        # Forward without scale and shift where only the statistics count.
        training = p.op == "batch_norm_train"
        forward = (abi.Prop.FORWARD_TRAINING, d, d, *more, eps)
        self._primitive(f"{name}_forward", *forward, flags if training else 0)
        if not training:
            hint = self.engine.primitive_desc(f"{name}_forward", *forward, flags, attr=self.engine.attributes())
            self._primitive(f"{name}_backward", abi.Prop.BACKWARD, d, d, d, *more, eps, flags, hint)

    # what is done

    def plan(self) -> Any:
        p, w = self.p, self.w
        result = w.result(p.result, F32, dense_strides(p.result, self.input.order))
        source, target = Place(self.desc, self.input.pointer), Place(self.desc, result)
        results = [result]
        if p.op in MEETING:
            results += self._run_norm(source, target)
        else:
            assert self.grad is not None
            role = Arg.DST if p.op in SOFTMAX else Arg.SRC
            w.run(self.kernels[-1], {role: source, Arg.DIFF_DST: Place(self.desc, self.grad.pointer), Arg.DIFF_SRC: target})
        w.look(result, prod(p.result))
        return w.plan(*results, release_gil=prod(p.result) >= SMALL_ELEMENTS, exact=by_numpy(p))

    def _run_norm(self, source: Place, target: Place) -> list[Pointer]:
        w = self.w
        vector = self._desc((self.width,))
        scale = self._vector("weight", 1.0)
        if self.p.op == "batch_norm_train":
            mean, variance = (w.result((self.width,), F32, (1,)) for _ in range(2))
            w.run(self.kernels[0], {
                Arg.SRC: source, Arg.DST: target, Arg.MEAN: Place(vector, mean), Arg.VARIANCE: Place(vector, variance),
                Arg.SCALE: scale, Arg.SHIFT: self._vector("bias", 0.0),
            })  # fmt: skip
            w.look(variance, self.width)
            return [mean, variance]
        assert self.grad is not None
        places: dict[int, Place] = {Arg.MEAN: w.work(self.statistics), Arg.VARIANCE: w.work(self.statistics)}
        # What forward normalises is not needed: it goes where the gradient comes afterwards.
        w.run(self.kernels[0], {Arg.SRC: source, Arg.DST: target, **places})
        w.look(places[Arg.VARIANCE].pointer, self.statistics.nbytes // 4)  # if it is infinite, what follows would look sound
        by_weight, by_bias = (w.result(self.vector_shape, F32, dense_strides(self.vector_shape)) for _ in range(2))
        if self._inputs(self.kernels[1]) > INPUTS:  # some kernels want to be told what they have no use for
            places[Arg.SHIFT] = self._vector("bias", 0.0)
        w.run(self.kernels[1], {
            Arg.SRC: source, Arg.DIFF_DST: Place(self.desc, self.grad.pointer), Arg.DIFF_SRC: target, **places, Arg.SCALE: scale,
            Arg.DIFF_SCALE: Place(vector, by_weight), Arg.DIFF_SHIFT: Place(vector, by_bias),
        })  # fmt: skip
        return [by_weight, by_bias]

    def _inputs(self, kernel: PrimitiveDesc) -> int:
        """Returns the number of arguments that a kernel reads."""
        count = ctypes.c_int(0)
        self.engine.call(
            "dnnl_primitive_desc_query", ctypes.c_void_p(kernel.address), ctypes.c_int(abi.Query.INPUTS), ctypes.c_int(0),
            ctypes.byref(count),
        )  # fmt: skip
        return count.value

    def _vector(self, role: str, absent: float) -> Place:
        """A parameter without gaps, or the numbers that stand for one that is not there."""
        desc = self._desc((self.width,))
        o = self.p.get(role)
        if o is None:
            return Place(desc, self.w.b.constant(np.full(self.width, absent, np.float32).tobytes()))
        return Place(desc, laid(self.w, self.p, role, tuple(range(len(o.shape)))).pointer)
