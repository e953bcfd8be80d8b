"""The Problems of 2:4 sparse matrices: of four elements side by side in a row at most two are not zero."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from . import Problem

__all__ = ["DTYPES", "GROUP", "SparseProblem"]

GROUP = 4  # elements of which two stay
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8")


@dataclass(frozen=True)
class SparseProblem(Problem):
    """Pruning, compression, products and the search for the best way of a product.

    Operations: ``sparse.prune_2_4`` and ``sparse.compress`` of an ``input`` of m x k (parameter ``check`` of the latter: whether
    the pattern is looked at); ``sparse.matmul`` and ``sparse.search`` of a compressed matrix, whose arrays have the role
    ``part``, and ``b`` of k x n. Parameters ``alg_id``, ``split_k`` and ``split_k_mode`` say how cuSPARSELt does it.
    """

    m: int = 0
    k: int = 0
    n: int = 0

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return next(o.dtype for o in self.operands if o.role in ("input", "b"))

    @cached_property
    def result_dtype(self) -> np.dtype[Any]:
        """Of a product: int8 gives int32, which holds it exactly."""
        return np.dtype(np.int32) if self.dtype.name == "int8" else self.dtype

    @cached_property
    def summands(self) -> int:
        return max(self.k, 1)

    @cached_property
    def flops(self) -> float:
        return 1.0 * self.m * self.k * self.n  # half of the dense product's

    @cached_property
    def empty(self) -> bool:
        return 0 in ((self.m, self.k, self.n) if self.op in ("sparse.matmul", "sparse.search") else (self.m, self.k))
