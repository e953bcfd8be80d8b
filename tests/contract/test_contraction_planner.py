"""The planner of contractions: chains of matrices in the best order, with and without opt_einsum."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import numpy as np
import pytest

from backline.problems.contraction_planner import Path, chain_path

WITHOUT = """
import sys
sys.modules["opt_einsum"] = None
import numpy as np, backline
arrays = [np.ones(shape) for shape in ((4, 30), (30, 2), (2, 50), (50, 3))]
assert (backline.linalg.multi_dot(arrays) == 30 * 2 * 50).all()
"""


def cost(sizes: tuple[int, ...], path: Path) -> int:
    """Multiplications of the products in a path, which must be of neighbours in the chain."""
    parts = [(i, i + 1) for i in range(len(sizes) - 1)]
    total = 0
    for i, j in path:
        (first, middle), (also, last) = parts[i], parts[j]
        assert middle == also
        total += sizes[first] * sizes[middle] * sizes[last]
        parts = [part for at, part in enumerate(parts) if at not in (i, j)] + [(first, last)]
    assert parts == [(0, len(sizes) - 1)]
    return total


@pytest.mark.parametrize("count", range(2, 9))
def test_chains_take_the_fewest_operations(count: int) -> None:
    rng = np.random.default_rng(count)
    for _ in range(20):
        sizes = tuple(map(int, rng.integers(1, 60, count + 1)))

        @cache
        def least(first: int, last: int, sizes: tuple[int, ...] = sizes) -> int:
            return min(
                (least(first, k) + least(k, last) + sizes[first] * sizes[k] * sizes[last] for k in range(first + 1, last)), default=0
            )

        assert cost(sizes, chain_path(sizes)) == least(0, count), sizes


def test_chains_need_no_opt_einsum() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True, timeout=120)
