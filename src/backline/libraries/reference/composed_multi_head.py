"""Multi-head attention made of other operations, as the row of the operation has it."""

from __future__ import annotations

from collections.abc import Iterator

from ...problems import Problem
from ...problems.multi_head_problem import MultiHeadProblem
from ...problems.op_registry import operations
from ..base import Algorithm, PythonPlan, Refusal

__all__ = ["composed_algorithms", "prepare_composed"]


def composed_algorithms(p: MultiHeadProblem) -> Iterator[Algorithm | Refusal]:
    """Lists the one way: operations one after the other; which library runs each is decided for it alone."""
    note = "linear, matmul and softmax one by one, each by the library that is chosen for it"
    yield Algorithm(library="numpy", name="composed", level="threads", basis="construction", note=note)


def prepare_composed(p: Problem) -> PythonPlan:
    """Returns the Plan of an operation whose row says how it is made of others."""
    roles, compose = [o.role for o in p.operands], operations[p.op].compose
    assert compose is not None
    return PythonPlan(lambda *arrays: compose(p, dict(zip(roles, arrays, strict=True))))
