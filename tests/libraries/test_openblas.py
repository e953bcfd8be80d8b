"""OpenBLAS: what it is asked for, by what it does well."""

from __future__ import annotations

import pytest

from backline import libraries
from backline.libraries.base import Algorithm
from backline.problems import Problem


def listed(problem: Problem) -> set[str]:
    """Returns the keys of what OpenBLAS lists for a problem on two threads."""
    return {a.key for a in libraries.get("openblas").algorithms(problem, 2) if isinstance(a, Algorithm)}


@pytest.mark.parametrize(("size", "shared"), [(8, False), (10, True)])
def test_products_of_a_batch_are_not_shared_where_threads_would_wait(size: int, shared: bool) -> None:
    """Complex products take a buffer under a lock on every core: 4096 and 8000 operations each."""
    problem = Problem.parse(f"matmul c64 500x{size}x{size} 500x{size}x{size}")
    assert ("openblas.gemm_items@n" in listed(problem)) == shared
    assert "openblas.gemm@1" in listed(problem)


def test_a_batch_is_not_divided_by_openblas() -> None:
    """Calls of its products by our threads took less in 83 of 86 measured batches of items of 30,000 operations or more."""
    problem = Problem.parse("matmul f32 500x32x32 500x32x32")
    assert {"openblas.gemm_batch@1", "openblas.gemm_items@n"} <= listed(problem)
    assert "openblas.gemm_batch@n" not in listed(problem)
