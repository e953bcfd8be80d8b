"""The Problem of a product of 8-bit matrices, whose result has a wider dtype."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .dtypes import bfloat16
from .matmul_problem import ProductProblem

__all__ = ["FLOAT8", "ROW_WISE", "TENSOR_WISE", "ScaledProblem"]

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
TENSOR_WISE, ROW_WISE = "TensorWise", "RowWise"


@dataclass(frozen=True)
class ScaledProblem(ProductProblem):
    """``(A * scale_a) @ (B * scale_b) + bias`` of float8, or ``A @ B`` of int8 with sums of int32.

    Operations: ``nn.functional.scaled_mm`` and ``quantized.int_mm``.
    Roles: ``a`` (m, k) and ``b`` (k, n); ``scale_a`` with one element or m of them, ``scale_b`` with one or n, both float32;
    ``bias`` (n), of the result's dtype; ``out``. Scales are operands, so that a Plan serves every one.
    Parameters: ``recipe_a`` and ``recipe_b``, "TensorWise" or "RowWise"; ``output_dtype``, a name; ``fast``: sums may be kept in
    the precision of the tensor cores.

    Parameters
    ----------
    m, n, k, batch, result
        As in `MatmulProblem`; there is no batch.
    """

    result: tuple[int, ...] = ()

    @cached_property
    def result_dtype(self) -> np.dtype[Any]:
        """The dtype of the result."""
        name = self.parameter("output_dtype", "int32")
        if name == "bfloat16":
            return bfloat16()
        found: np.dtype[Any] = np.dtype(name)
        return found

    @cached_property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @cached_property
    def empty(self) -> bool:
        return 0 in (self.m, self.n, self.k)

    @property
    def integer(self) -> bool:
        """True for a product of int8."""
        return self.dtype.kind == "i"
