"""The Problem of multi-head attention: projections of query, key and value, attention of each head, projection of the result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from . import Operand, Problem
from .attention_problem import AttentionProblem

__all__ = ["MultiHeadProblem"]


@dataclass(frozen=True)
class MultiHeadProblem(Problem):
    """All that lies between the inputs of multi-head attention and its output.

    Roles: ``query`` (N, L, E); ``key`` (N, S, ...), absent where it is the query; ``value`` (N, S, ...), absent where it is the
    key. ``weight`` (3E, E), or ``q_weight``, ``k_weight``, ``v_weight``, and ``bias`` (3E,), project them; ``final_weight`` and
    ``final_bias`` the result. ``mask`` as that of attention, with all axes: bool where a key takes part, or a float to be added.
    ``bias_k`` and ``bias_v`` are appended to keys and values; ``static_k`` and ``static_v`` (N, heads, S, E / heads) stand in the
    place of them, projected.

    Parameters: ``num_heads``, ``is_causal``, ``add_zero_attn``, ``need_weights``, ``average``, ``dropout_p``. The seed of
    dropout is a run-time scalar.
    """

    @cached_property
    def query(self) -> Operand:
        found = self.get("query")
        assert found is not None
        return found

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return self.query.dtype

    @cached_property
    def sources(self) -> tuple[Operand, Operand, Operand]:
        """Arrays that query, key and value are made of."""
        key = self.get("key") or self.query
        return self.query, key, self.get("value") or key

    @property
    def heads(self) -> int:
        return int(self.parameter("num_heads"))

    @property
    def embedding(self) -> int:
        return self.query.shape[-1]

    @property
    def scalars(self) -> tuple[str, ...]:
        return ("seed",) if self.parameter("dropout_p") else ()

    @cached_property
    def inner(self) -> AttentionProblem:
        """The attention of all heads, of operands without gaps."""
        batch, dim = self.query.shape[0], self.embedding // self.heads
        operands = []
        for role, source in zip(("query", "key", "value"), self.sources, strict=True):
            shape, item = (batch, self.heads, source.shape[1], dim), self.dtype.itemsize
            row = self.embedding * item
            operands.append(Operand(role, self.dtype, shape, (source.shape[1] * row, dim * item, row, item)))
        mask = self.get("mask")
        parameters = (
            ("dropout_p", self.parameter("dropout_p", 0.0)), ("enable_gqa", False),
            ("is_causal", self.parameter("is_causal", False)), ("needs_grad", False), ("scale", None),
        )  # fmt: skip
        name = "nn.functional.scaled_dot_product_attention"
        return AttentionProblem(name, (*operands, *([mask] if mask else [])), parameters, "attention")

    @cached_property
    def summands(self) -> int:
        return max(self.embedding + self.inner.lengths[1], 1)

    @cached_property
    def flops(self) -> float:
        products = sum(2.0 * s.shape[0] * s.shape[1] * s.shape[2] * self.embedding for s in self.sources)
        out = 2.0 * self.query.shape[0] * self.query.shape[1] * self.embedding**2
        return products + self.inner.flops + out
