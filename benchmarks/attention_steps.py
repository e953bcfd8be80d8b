"""Attention with dropout over steps of changing seeds, and its gradients with and without the log-sum-exp: times and plan misses.

    python benchmarks/attention_steps.py

Minimum of some repeats, both sides in turn. On the CPU: nothing here needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from backline import _core
from backline.nn.functional import scaled_dot_product_attention as attend
from backline.nn.grad import scaled_dot_product_attention_backward as gradients

REPEATS = 7


def fastest(**calls: Callable[[], Any]) -> dict[str, float]:
    """The least seconds that each call took, all in turn."""
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(REPEATS):
        for name, call in calls.items():
            begin = perf_counter()
            call()
            found[name] = min(found[name], perf_counter() - begin)
    return found


def steps() -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 16, 16), np.float32)
    attend(x, x, x, None, 0.1, seed=1000)
    before = _core.memo_info()["misses"]

    def run(seeds: Any) -> None:
        for seed in seeds:
            attend(x, x, x, None, 0.1, seed=seed)

    seconds = fastest(one=lambda: run([7] * 100), changing=lambda: run(range(100)))
    misses = _core.memo_info()["misses"] - before
    one, changing = (seconds[name] * 1e4 for name in ("one", "changing"))
    print(f"100 steps of one seed {one:.1f} us each, of changing seeds {changing:.1f} us; {misses} plan misses")


def backward(length: int) -> None:
    q, k, v, g = (np.random.default_rng(i).standard_normal((1, 8, length, 64), np.float32) for i in range(4))
    output, lse = attend(q, k, v, return_lse=True)
    seconds = fastest(
        without=lambda: gradients(q, k, v, g), given=lambda: gradients(q, k, v, g, output=output, lse=lse)
    )  # fmt: skip
    told = ", ".join(f"{name} {each * 1e3:.2f} ms" for name, each in seconds.items())
    print(f"gradients of 8 heads, {length} x 64: {told}")


if __name__ == "__main__":
    steps()
    for rows in (128, 512, 1024):
        backward(rows)
