"""The Problem of a linear layer that does more than a product and a bias: those alone are a `MatmulProblem`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from . import Operand
from .dtypes import HALVES
from .matmul_problem import MOST_ROWS, MatmulProblem, ProductProblem

__all__ = ["LinearProblem"]


@dataclass(frozen=True)
class LinearProblem(ProductProblem):
    """``activation(A @ B + bias + residual)``; A is the input, B the transposed weights.

    Roles: ``a``, ``b``, ``bias``, ``residual``, ``out``, each as matrices or a batch of them, as in `MatmulProblem`; bias is
    repeated by strides of 0. Parameters: ``activation`` ("relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"), or none.

    Parameters
    ----------
    m, n, k, batch, result
        As in `MatmulProblem`.
    """

    result: tuple[int, ...] = ()

    @cached_property
    def product(self) -> MatmulProblem:
        """The product inside: to the residual if there is one, else to the bias. 16-bit floats are float32 there, in copies."""
        added = "bias" if self.get("residual") is None else "residual"
        roles = {"a": "a", "b": "b", added: "c"} | ({} if self.halves else {"out": "out"})
        operands = [replace(o, role=roles[o.role]) for o in self.operands if o.role in roles]
        if self.halves:
            operands = [Operand.contiguous(o.role, np.dtype(np.float32), o.shape) for o in operands]
        has = any(o.role == "c" for o in operands)
        parameters = (("alpha", 1), ("beta", 1)) if has else ()
        kept: Any = [(k, v) for k, v in self.parameters if k == "precision"]
        return MatmulProblem(
            "matmul", tuple(operands), (*parameters, *kept), "matmul", m=self.m, n=self.n, k=self.k, batch=self.batch,
            result=self.result, device=self.device,
        )  # fmt: skip

    @cached_property
    def given_product(self) -> MatmulProblem:
        """The product inside, added to the residual where there is one, with all operands of the layer as they are."""
        operands = tuple(replace(o, role="c") if o.role == "residual" else o for o in self.operands)
        parameters: tuple[tuple[str, Any], ...] = (("alpha", 1), ("beta", 1)) if self.get("residual") else ()
        return MatmulProblem(
            "matmul", operands, parameters, "matmul", m=self.m, n=self.n, k=self.k, batch=self.batch, result=self.result,
            device=self.device,
        )  # fmt: skip

    @cached_property
    def bias_row(self) -> Operand | None:
        """The bias as the vector that it repeats, or None."""
        o = self.get("bias")
        return None if o is None else replace(o, shape=o.shape[-1:], strides=o.strides[-1:])

    @property
    def added(self) -> str:
        """Role of the operand that the product starts from; empty where there is none."""
        return "residual" if self.get("residual") else "bias" if self.get("bias") else ""

    @cached_property
    def suits_loops(self) -> bool:
        """True where there are so few rows that there may be a compiled loop for the layer: it adds the bias to rows."""
        return self.m <= min(MOST_ROWS, self.n)

    def shape_class(self) -> str:
        # Where functions of other libraries follow, rather than a maximum, they may take longer than the product.
        return super().shape_class() + " smooth" * (self.parameter("activation") not in (None, "relu"))

    @property
    def halves(self) -> bool:
        return self.dtype.name in HALVES

    @cached_property
    def flops(self) -> float:
        return self.product.flops

    @property
    def empty(self) -> bool:
        return self.product.empty
