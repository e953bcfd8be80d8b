"""The Problem of elementary functions, and of the layers between products: activations, softmax, normalisation, pooling."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from . import Problem

__all__ = ["ELEMENTARY", "NeuralProblem"]

ELEMENTARY = ("exp", "expm1", "log", "log1p", "sin", "cos")


@dataclass(frozen=True)
class NeuralProblem(Problem):
    """One array in (role ``input``), one out, of the same layout; everything else is a parameter.

    Operations and their parameters: those of `ELEMENTARY` (with role out, the array that the caller gives);
    ``relu``, ``silu``, ``tanh``, ``sigmoid``; ``gelu`` (approximate: "none" or "tanh");
    ``softmax`` and ``log_softmax`` (axis, not negative); ``layer_norm`` (axes: how many of the last, eps; roles weight, bias);
    ``rms_norm`` (likewise, without bias);
    ``batch_norm`` (eps; roles mean, variance, weight, bias); ``max_pool`` and ``avg_pool`` (kernel, stride, padding as pairs,
    dilation, count_include_pad); their gradients as ``<operation>_grad``, with role ``grad``.

    Also, each under a name of its own so that a library takes none for what it is not:

    - ``batch_norm_train`` (eps; roles weight, bias) returns result, mean and biased variance of the batch, the two of the input's
      dtype (float32 for halves).
    - ``avg_pool_divided`` is ``avg_pool`` with ``divisor`` (an int, or None) and ``overhang``: for each dimension, how much of
      the padding behind is there for ceil_mode only, and is not counted.
    - ``max_pool_indices`` is ``max_pool`` with a second result, of int64: where in its image, counted flat, each element lies.
    - ``adaptive_avg_pool`` (output: sizes) where windows differ in size.

    Images may lack the axis of the batch: their rank is then that of the kernel and one more. Gradients: those of activations
    and ``max_pool`` have roles input, grad; those of softmax have ``result`` in the place of input; those of average
    pooling have grad alone. ``layer_norm_grad`` and ``batch_norm_train_grad`` (roles input, grad, weight) return the
    gradients of input, weight and bias, the last two of the input's dtype.

    Parameters
    ----------
    result
        Shape of the result; of the first one where there are several.
    """

    result: tuple[int, ...] = ()

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        # Parameters may be float32 beside a half, and keywords may put them first.
        return next(o.dtype for o in self.operands if o.role in ("input", "result", "grad"))

    @cached_property
    def summands(self) -> int:
        shape = next((o.shape for o in self.operands if o.role in ("input", "result")), self.result)
        if self.op.startswith("batch_norm") or self.op == "layer_norm_grad":
            return max(prod(shape), 1)
        if self.parameter("axes"):
            return max(prod(shape[-self.parameter("axes") :]), 1)
        axis: int | None = self.parameter("axis")
        return max(prod(self.parameter("kernel", (1,))) if axis is None else shape[axis], 1)

    @cached_property
    def flops(self) -> float:
        count: float = 1.0 * prod(self.result) * prod(self.parameter("kernel", (8,)))
        return count

    @cached_property
    def empty(self) -> bool:
        return 0 in self.result
