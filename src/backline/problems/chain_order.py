"""The order in which a chain of matrices is multiplied."""

from __future__ import annotations

from typing import Any

__all__ = ["cheapest_order"]


def cheapest_order(sizes: list[int]) -> Any:
    """Returns the order that takes the fewest operations: nested pairs of the numbers of matrices.

    Found by dynamic programming (Cormen et al., Introduction to Algorithms, section 15.2).

    Parameters
    ----------
    sizes
        Rows of the first matrix, then the columns of each.

    Examples
    --------
    >>> cheapest_order([2, 50, 3, 4])
    ((0, 1), 2)
    """
    n = len(sizes) - 1
    cost: dict[tuple[int, int], int] = {(i, i): 0 for i in range(n)}
    order: dict[tuple[int, int], Any] = {(i, i): i for i in range(n)}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            costs = {s: cost[i, s] + cost[s + 1, j] + sizes[i] * sizes[s + 1] * sizes[j + 1] for s in range(i, j)}
            split = min(costs, key=lambda s: costs[s])
            cost[i, j], order[i, j] = costs[split], (order[i, split], order[split + 1, j])
    return order[0, n - 1]
