"""The parts of a layer's or transform's result that are compared with a reference, and how exact they have to be.

Layers treat images, rows and heads alike and apart, so some of them stand for all where there is much: the first, the last, and
others at random, as many as a second or so allows. Where elements of a batch meet, as in a gradient of weights, all is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..problems import Problem, operand
from ..problems.attention_problem import AttentionProblem
from ..problems.conv_problem import ConvProblem
from ..problems.fft_problem import FftProblem
from ..problems.linear_problem import LinearProblem
from ..problems.neural_problem import NeuralProblem
from .accuracy_wide import ProblemReference, affordable, float64_results, wide_results
from .double_double import paired, relative

__all__ = ["Compared", "LayerReference", "Part", "parts"]

Array = Any
Index = tuple[slice, ...]

FLOPS = 2e9  # what a reference in float64 may take; one that is wider takes longer for each
BYTES = 16 << 20  # of operands that are compared, or of a layer that is compared as a whole
COARSE = 2.0**-40  # error that a comparison in float64 does not count
ROWS = 64  # of a linear layer in one part
MOST_PARTS = 1 << 10  # of a layer without a convolution: along the only axis of an array, each element would be one
WITH_BATCH = ("input", "result", "grad", "residual")  # roles whose first axis is the batch


@dataclass(frozen=True)
class Part:
    """A Problem of its own: that of some images, rows or heads, and where its result is in the whole one.

    Attributes
    ----------
    problem, arrays
        The smaller Problem and views of the operands.
    index
        Index of its result in the whole one, after `shape`.
    shape
        Shape to which the whole result is brought first, or None.
    least
        Size below which no value is taken for the largest.
    coarse
        Whether it is compared in float64, only to see what is wrong.
    """

    problem: Problem
    arrays: list[Array]
    index: Index = ()
    shape: tuple[int, ...] | None = None
    least: float = 1.0
    coarse: bool = False


class Compared:
    """A part with its reference, computed once.

    Parameters
    ----------
    part
        The part.
    """

    def __init__(self, part: Part) -> None:
        self.part = part
        compute = float64_results if part.coarse else wide_results
        self.wanted, self.unknown = compute(part.problem, part.arrays)

    def error(self, results: tuple[Array | None, ...]) -> float:
        """Relative error of this part of the results."""
        p = self.part
        if len(self.wanted) != len(results):
            return math.inf
        worst = self.unknown
        for result, reference in zip(results, self.wanted, strict=True):
            if result is None or reference is None:
                continue
            whole = result if p.shape is None or result.size != math.prod(p.shape) else result.reshape(p.shape)
            there = whole[p.index] if p.index else whole
            if there.size != reference.high.size:
                return math.inf
            shown = paired(there)
            # Of a lambda with a default the checker infers no type.
            worst = max(worst, relative(shown, reference.each(lambda x, shape=there.shape: x.reshape(shape)), p.least))  # type: ignore[misc]
        return 0.0 if p.coarse and worst < COARSE else worst


class LayerReference(ProblemReference):
    """The reference of a layer or a transform: those of its parts."""

    def __init__(self, problem: Problem, arrays: list[Array]) -> None:
        super().__init__(problem, arrays)
        self.compared = [Compared(part) for part in parts(problem, arrays)]

    def error(self, parts: tuple[Array, ...]) -> float:
        return max((part.error(parts) for part in self.compared), default=0.0)


def parts(p: Problem, arrays: list[Array]) -> Iterator[Part]:
    """The parts of a Problem to compare; none where there is nothing to, or nothing that two libraries must agree on."""
    if getattr(p, "empty", False) or 0 in getattr(p, "result", (1,)):
        return
    if isinstance(p, AttentionProblem) and p.dropout:
        return  # each draws its own random numbers
    size, cut = _cuts(p, arrays)
    usual = _usual(p, arrays, size, cut)
    if affordable(p) or size <= 1 or not affordable(cut(0).problem):
        yield from usual
        return
    # All of it would take too long in a wider format: some in that, and the rest in float64, to see what is wrong.
    yield from (cut(i) for i in sorted({0, size // 2, size - 1}))
    yield from (replace(part, coarse=True) for part in usual)


def _usual(p: Problem, arrays: list[Array], size: int, cut: Callable[[int], Part]) -> Iterator[Part]:
    """Parts that a reference in float64 is fast enough for."""
    if size <= 1 or isinstance(p, FftProblem) or (p.bytes <= BYTES and p.flops <= FLOPS):
        yield Part(p, arrays, least=_least(p))
        return
    number = int(min(FLOPS / max(p.flops, 1.0), BYTES / p.bytes, 1.0) * size)
    number = max(number, min(size, 3))
    others = np.random.default_rng(1).permutation(np.arange(1, size - 1))[: number - 2]
    for i in sorted({0, size - 1, *map(int, others)}):
        yield cut(i)


def _least(p: Problem) -> float:
    """Sizes of elements, where operands have variance 1; softmax may have any, and its elements are its own measure."""
    if isinstance(p, (ConvProblem, LinearProblem)):
        return math.sqrt(p.summands)
    if isinstance(p, FftProblem):
        return 0.0  # transforms may be scaled by their length
    return 0.0 if p.op.startswith("softmax") else 0.1 if isinstance(p, AttentionProblem) else 1.0


def _cuts(p: Problem, arrays: list[Array]) -> tuple[int, Callable[[int], Part]]:
    """Into how many parts a Problem falls, and how to get one."""
    whole = 1, lambda i: Part(p, arrays, least=_least(p))
    if isinstance(p, LinearProblem):
        return (-(-p.m // ROWS), partial(_rows, p, arrays)) if not p.batch else whole
    if isinstance(p, AttentionProblem):
        same = len({o.shape[:-2] for o in p.operands[:3]}) == 1 and p.mask is None and len(p.shapes[0]) > 2
        return (math.prod(p.shapes[0][:-2]), partial(_head, p, arrays)) if same else whole
    if isinstance(p, FftProblem):
        free = [axis for axis in range(len(p.result)) if axis not in p.axes]
        axis = max(free, key=lambda i: p.result[i], default=0)
        return (p.result[axis], partial(_transform, p, arrays, axis)) if free else whole
    meets = (
        (isinstance(p, ConvProblem) and p.op == "conv_grad_weight")
        or p.op in ("batch_norm_train", "batch_norm_train_grad", "layer_norm_grad")
        or (p.op.startswith(("softmax", "log_softmax")) and p.parameter("axis") == 0)
        or (p.op in ("layer_norm", "rms_norm") and p.parameter("axes") == len(getattr(p, "result", ())))
    )
    if meets or not isinstance(p, (ConvProblem, NeuralProblem)) or not p.result:
        return whole
    step = 1 if isinstance(p, ConvProblem) else max(-(-p.result[0] // MOST_PARTS), 1)
    return -(-p.result[0] // step), partial(_images, p, arrays, step)


def _images(p: Any, arrays: list[Array], step: int, i: int) -> Part:
    here = slice(i * step, min((i + 1) * step, p.result[0]))
    some = [a[here] if o.role in (*WITH_BATCH, "out") else a for o, a in zip(p.operands, arrays, strict=True)]
    changes: dict[str, Any] = {"operands": _described(p, some), "result": (here.stop - here.start, *p.result[1:])}
    if isinstance(p, ConvProblem):
        changes["batch"] = 1
    return Part(replace(p, **changes), some, (here,), least=_least(p))


def _transform(p: FftProblem, arrays: list[Array], axis: int, i: int) -> Part:
    here = (*[slice(None)] * axis, slice(i, i + 1))
    some = [a[here] for a in arrays]
    result = (*p.result[:axis], 1, *p.result[axis + 1 :])
    return Part(replace(p, operands=_described(p, some), result=result), some, here, least=_least(p))


def _rows(p: LinearProblem, arrays: list[Array], i: int) -> Part:
    step = min(p.m, ROWS)
    start = min(i * ROWS, p.m - step)
    here = slice(start, start + step)
    some = [a if o.role == "b" else a[here] for o, a in zip(p.operands, arrays, strict=True)]
    made = replace(p, operands=_described(p, some), m=step, result=(step, p.n))
    return Part(made, some, (here,), (p.m, p.n), _least(p))


def _head(p: AttentionProblem, arrays: list[Array], i: int) -> Part:
    at = np.unravel_index(i, p.shapes[0][:-2])
    index = tuple(slice(int(n), int(n) + 1) for n in at)
    some = [a[index] for a in arrays]
    return Part(replace(p, operands=_described(p, some)), some, index, least=_least(p))


def _described(p: Problem, arrays: list[Array]) -> tuple[Any, ...]:
    return tuple(operand(o.role, a) for o, a in zip(p.operands, arrays, strict=True))
